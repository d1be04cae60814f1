package gateway

import (
	"testing"
	"testing/synctest"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/dispatch"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/relay"
	"sluice.dev/sluice/internal/wire"
)

// The engine is asked before a request counts as load: a batcher's, and a standalone gateway's.
var (
	_ poisonKeeper = (*dispatch.Engine)(nil)
	_ poisonKeeper = (*relay.Client)(nil)
)

// poisonEngine is a fake engine that knows one poison.
type poisonEngine struct{ *fakeEngine }

func (poisonEngine) Poisoned(input string, _ wire.Parameters) *batching.Error {
	if input != "hello" {
		return nil
	}
	return &batching.Error{Cause: batching.InputFailed, Detail: "this input failed the function: ValueError"}
}

// A known poison is answered before it counts as load, so that a flood of it neither sheds nor scales.
func TestAKnownPoisonIsNoLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := poolspec.Default()
		p.Model, p.Gateway.DefaultTier = "llm", "free"
		e := &fakeEngine{snap: batching.Snapshot{Live: 1, Mu: 900, MuShare: 900, Poisoned: 3, PoisonRefused: 4, LatestPoison: "ValueError"}}
		g, err := New(Options{Pool: p, Engine: poisonEngine{e}})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{Gateway: g, ctx: t.Context()}
		for range 5 {
			r.post(t, "/v1/inference", hello).want(422, "input_failed")
		}
		if e.last.Input != "" {
			t.Error("the batcher was asked")
		}
		s := g.Stats()
		for _, tier := range s.Tiers {
			if tier.Offered != 0 || tier.RefusedCapacity != 0 {
				t.Errorf("tier %s: %d offered, %d refused for capacity, want none", tier.Name, tier.Offered, tier.RefusedCapacity)
			}
		}
		if s.Poisoned != 3 || s.PoisonRefused != 4 || s.LatestPoison != "ValueError" {
			t.Errorf("the statistics say %d, %d, %q", s.Poisoned, s.PoisonRefused, s.LatestPoison)
		}
	})
}
