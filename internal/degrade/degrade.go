// Package degrade is what a tier does for a request before the pool sheds it: the ladders of
// spec.tiers[].degrade. It is pure. The gateway climbs a ladder for real requests, the simulator for simulated
// ones.
package degrade

import (
	"slices"
	"strconv"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

// Steps of a ladder, as metrics and answers name them. Those that make a request cheaper come before those
// that answer it elsewhere.
const (
	StepMaxTokens = "max_tokens"
	StepParameter = "parameter"
	StepReroute   = "reroute"
	StepAnswer    = "answer"
)

// Ladder is what a tier does in one zone. The zero value does nothing.
type Ladder struct {
	maxTokens int
	parameter *wire.Switch
	instead   []poolspec.Step // reroute and answer, in order
}

// Ladders are a tier's: for Yellow and for Red.
type Ladders struct{ yellow, red Ladder }

// Of returns the ladders of each tier of a pool, nil for a tier without.
func Of(p poolspec.Pool) []*Ladders {
	out := make([]*Ladders, len(p.Tiers))
	for i, t := range p.Tiers {
		if t.Degrade == nil {
			continue
		}
		red := t.Degrade.Red
		if len(red) == 0 {
			red = t.Degrade.Yellow
		}
		out[i] = &Ladders{yellow: newLadder(t.Degrade.Yellow), red: newLadder(red)}
	}
	return out
}

func newLadder(steps []poolspec.Step) (l Ladder) {
	for _, s := range steps {
		switch {
		case s.MaxTokens > 0:
			l.maxTokens = s.MaxTokens
		case s.Parameter != "":
			l.parameter = &wire.Switch{Name: s.Parameter, Value: s.Value}
		default:
			l.instead = append(l.instead, s)
		}
	}
	return l
}

// In is the ladder that holds in a zone. That of Green serves the requests alone that could not be answered in
// time: nothing is made cheaper there.
func (l *Ladders) In(z zone.Name) Ladder {
	switch z {
	case zone.Red:
		return l.red
	case zone.Yellow:
		return l.yellow
	}
	return Ladder{instead: l.yellow.instead}
}

// Cheaper caps and switches off in p what the ladder says, and returns what it did. A backend that takes no
// parameters (batching.ParamsNone) cannot be made cheaper.
func (l Ladder) Cheaper(p *wire.Parameters, paramsMode string) (taken []Taken) {
	if paramsMode == batching.ParamsNone {
		return nil
	}
	if l.maxTokens > 0 && (p.MaxTokens == nil || *p.MaxTokens > l.maxTokens) {
		p.MaxTokens = &l.maxTokens
		taken = append(taken, Taken{StepMaxTokens, strconv.Itoa(l.maxTokens)})
	}
	if l.parameter != nil {
		p.Switch = l.parameter
		taken = append(taken, Taken{StepParameter, l.parameter.Name})
	}
	return taken
}

// Helps says whether a request that the zone or the batcher refused or failed for a cause may be answered in another
// way: where capacity was wanting, and not where the request or the batcher itself is at fault.
func Helps(cause string) bool {
	switch cause {
	case zone.CauseShed, string(batching.Infeasible), string(batching.QueueFull), string(batching.NoCapacity):
		return true
	}
	return false
}

// Instead goes through the steps that answer a request in the pool's stead, in order, until one does, and
// returns it. reroute hands the request to another pool and says whether that answered; a static answer always
// does. False: none helped, and the refusal stands.
func (l Ladder) Instead(reroute func(poolspec.Step) bool) (poolspec.Step, bool) {
	for _, s := range l.instead {
		if s.Answer != "" || reroute(s) {
			return s, true
		}
	}
	return poolspec.Step{}, false
}

// Taken is a step that was taken, and which.
type Taken struct{ Step, What string }

// String is the form of answers and logs: "max_tokens=64", "reroute=llm-small", "answer".
func (t Taken) String() string {
	if t.What == "" {
		return t.Step
	}
	return t.Step + "=" + t.What
}

// After adds the step that answered in the pool's stead to those that were taken before. A static answer makes
// them void, for nothing of the request ran; a parameter of this pool's backend does not go to another pool.
func After(taken []Taken, by poolspec.Step) []Taken {
	if by.Answer != "" {
		return []Taken{{Step: StepAnswer}}
	}
	taken = slices.DeleteFunc(taken, func(t Taken) bool { return t.Step == StepParameter })
	return append(taken, Taken{StepReroute, by.Pool})
}
