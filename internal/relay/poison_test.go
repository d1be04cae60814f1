package relay

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/wire"
)

// poisonInput fails the batch that it is in.
const poisonInput = "poison"

// An input that a batcher refuses from memory is refused by the gateway itself for a while, before it counts as load;
// the batcher is asked again now and then, and its word alone is taken.
func TestAPoisonThatABatcherKnowsIsRefusedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		b := f.add(1)[0]
		n := 0
		ask := func(input string) *batching.Error {
			n++
			now := time.Now()
			_, err := f.client.Submit(t.Context(), batching.Request{ID: fmt.Sprint("r", n), Flow: "f", Input: input, Arrival: now, Deadline: now.Add(2 * time.Second)})
			var e *batching.Error
			if err != nil && !errors.As(err, &e) {
				t.Fatal(err)
			}
			return e
		}
		if err := ask("innocent"); err != nil { // the function works
			t.Fatal(err)
		}
		var last *batching.Error
		for range 10 {
			if last = ask(poisonInput); last.RetryAfter > 0 {
				break // from memory
			}
			if f.client.Poisoned(poisonInput, wire.Parameters{}) != nil {
				t.Fatal("refused here after an attempt that failed, without the batcher's verdict")
			}
		}
		if last.Cause != batching.InputFailed || last.RetryAfter <= 0 {
			t.Fatalf("the batcher never refused it from memory: %v", last)
		}
		asked, arrivals := len(b.ran()), f.client.arrivals.Load()
		for range 1000 {
			if e := f.client.Poisoned(poisonInput, wire.Parameters{}); e == nil || e.Cause != batching.InputFailed || e.Detail != last.Detail {
				t.Fatalf("%v", e)
			}
		}
		if len(b.ran()) != asked || f.client.arrivals.Load() != arrivals || f.client.Snapshot().PoisonRefused != 1000 {
			t.Errorf("asked the batcher, or counted as load: %+v", f.client.Snapshot())
		}
		tokens := 5
		for _, other := range []wire.Parameters{{MaxTokens: &tokens}} {
			if f.client.Poisoned(poisonInput, other) != nil || f.client.Poisoned("innocent", wire.Parameters{}) != nil {
				t.Error("something else was refused")
			}
		}
		time.Sleep(poisonTrust)
		if f.client.Poisoned(poisonInput, wire.Parameters{}) != nil || f.client.poisons.some.Load() {
			t.Error("the batcher's word is taken for ever")
		}
		if e := ask(poisonInput); e.RetryAfter <= 0 || len(b.ran()) != asked {
			t.Errorf("the batcher had it run again: %v", e)
		}
		if f.client.Poisoned(poisonInput, wire.Parameters{}) == nil {
			t.Error("not remembered again")
		}
	})
}

// What a gateway remembers is bounded, whatever batchers say.
func TestKnownPoisonsAreBounded(t *testing.T) {
	p := newPoisons()
	now := time.Now()
	said := &batching.Error{Cause: batching.InputFailed, RetryAfter: time.Hour}
	for i := range 3 * poisonsKept {
		p.add(now, &batching.Request{Input: fmt.Sprint(i)}, said)
	}
	p.add(now, &batching.Request{Input: "full"}, &batching.Error{Cause: batching.QueueFull, RetryAfter: time.Hour})
	if len(p.entries) != poisonsKept {
		t.Errorf("%d kept", len(p.entries))
	}
	p.add(now.Add(poisonTrust), &batching.Request{Input: "later"}, said)
	if len(p.entries) != 1 {
		t.Errorf("%d kept after all of them were over", len(p.entries))
	}
}
