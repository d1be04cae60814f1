package degrade

import (
	"fmt"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

var (
	capTo64 = poolspec.Step{MaxTokens: 64}
	noRank  = poolspec.Step{Parameter: "rerank", Value: "false"}
	small   = poolspec.Step{Pool: "llm-small", Model: "s"}
	sorry   = poolspec.Step{Answer: "later"}
)

// of is the ladders of a tier with these steps.
func of(yellow, red []poolspec.Step) *Ladders {
	p := poolspec.Default()
	p.Tiers[1].Degrade = &poolspec.Degrade{Yellow: yellow, Red: red}
	all := Of(p)
	if all[0] != nil || all[2] != nil {
		panic("a tier without a ladder has one")
	}
	return all[1]
}

func TestWhatEachZoneMakesCheaper(t *testing.T) {
	long, short := 500, 8
	whole := of([]poolspec.Step{capTo64, noRank, sorry}, []poolspec.Step{{MaxTokens: 16}})
	tests := []struct {
		l    *Ladders
		z    zone.Name
		n    *int
		mode string
		want string
		left int // max_tokens then, 0: none
	}{
		{whole, zone.Green, &long, batching.ParamsItem, "[]", 500},
		{whole, zone.Yellow, &long, batching.ParamsItem, "[max_tokens=64 parameter=rerank]", 64},
		{whole, zone.Yellow, nil, batching.ParamsBatch, "[max_tokens=64 parameter=rerank]", 64},
		{whole, zone.Yellow, &short, batching.ParamsItem, "[parameter=rerank]", 8},
		{whole, zone.Red, &long, batching.ParamsItem, "[max_tokens=16]", 16},
		{whole, zone.Yellow, &long, batching.ParamsNone, "[]", 500},
		{of([]poolspec.Step{capTo64}, nil), zone.Red, &long, batching.ParamsItem, "[max_tokens=64]", 64}, // Yellow's holds
		{of(nil, []poolspec.Step{capTo64}), zone.Yellow, &long, batching.ParamsItem, "[]", 500},
	}
	for i, tt := range tests {
		p := wire.Parameters{MaxTokens: tt.n}
		got := tt.l.In(tt.z).Cheaper(&p, tt.mode)
		left := 0
		if p.MaxTokens != nil {
			left = *p.MaxTokens
		}
		if fmt.Sprint(got) != tt.want || left != tt.left || (p.Switch != nil) != slices.Contains(got, Taken{StepParameter, "rerank"}) {
			t.Errorf("%d, %s: %v, max_tokens %d, switch %v; want %s, %d", i, tt.z, got, left, p.Switch, tt.want, tt.left)
		}
	}
	if long != 500 || short != 8 {
		t.Error("the client's own parameters were written to")
	}
}

func TestWhoAnswersInstead(t *testing.T) {
	before := []Taken{{StepMaxTokens, "64"}, {StepParameter, "rerank"}}
	tests := []struct {
		steps []poolspec.Step
		z     zone.Name
		other bool // the other pool answers
		want  string
		asked int
	}{
		{[]poolspec.Step{capTo64, noRank, small, sorry}, zone.Yellow, true, "[max_tokens=64 reroute=llm-small]", 1},
		{[]poolspec.Step{capTo64, noRank, small, sorry}, zone.Yellow, false, "[answer]", 1},
		{[]poolspec.Step{small}, zone.Red, false, "none", 1},
		{[]poolspec.Step{sorry}, zone.Green, true, "[answer]", 0},
		{[]poolspec.Step{capTo64}, zone.Yellow, true, "none", 0},
	}
	for i, tt := range tests {
		asked, got := 0, "none"
		by, ok := of(tt.steps, nil).In(tt.z).Instead(func(poolspec.Step) bool { asked++; return tt.other })
		if ok {
			got = fmt.Sprint(After(slices.Clone(before), by))
		}
		if got != tt.want || asked != tt.asked {
			t.Errorf("%d: %s, the other pool asked %d times; want %s, %d", i, got, asked, tt.want, tt.asked)
		}
	}
}

func TestWhatALadderHelps(t *testing.T) {
	for c, want := range map[batching.Cause]bool{
		batching.Infeasible: true, batching.QueueFull: true, batching.NoCapacity: true,
		batching.InputFailed: false, batching.SecondFailure: false, batching.Draining: false, batching.Expired: false, batching.Cancelled: false,
	} {
		if Helps(string(c)) != want {
			t.Errorf("%s: %v", c, !want)
		}
	}
	if !Helps(zone.CauseShed) || Helps(zone.CausePaused) {
		t.Error("shed load may be answered in another way, paused background work waits")
	}
}
