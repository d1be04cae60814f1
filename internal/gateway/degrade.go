package gateway

import (
	"fmt"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

// headerDegraded says on an answer how the request was degraded.
const headerDegraded = "Sluice-Degraded"

// Steps of a ladder, as metrics and answers name them. Those that make a request cheaper come before those
// that answer it elsewhere.
const (
	stepMaxTokens = "max_tokens"
	stepParameter = "parameter"
	stepReroute   = "reroute"
	stepAnswer    = "answer"
)

// ladder is what a tier does in one zone before it sheds. The zero value does nothing.
type ladder struct {
	maxTokens int
	parameter *wire.Switch
	instead   []poolspec.Step // reroute and answer, in order
}

// ladders are a tier's: for Yellow and for Red.
type ladders struct{ yellow, red ladder }

// newLadders returns the ladders of each tier, nil for a tier without.
func newLadders(p poolspec.Pool) []*ladders {
	out := make([]*ladders, len(p.Tiers))
	for i, t := range p.Tiers {
		if t.Degrade == nil {
			continue
		}
		red := t.Degrade.Red
		if len(red) == 0 {
			red = t.Degrade.Yellow
		}
		out[i] = &ladders{yellow: newLadder(t.Degrade.Yellow), red: newLadder(red)}
	}
	return out
}

func newLadder(steps []poolspec.Step) (l ladder) {
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

// of is the ladder that holds in a zone. That of Green serves the requests alone that could not be answered in
// time: nothing is made cheaper there.
func (l *ladders) of(z zone.Name) ladder {
	switch z {
	case zone.Red:
		return l.red
	case zone.Yellow:
		return l.yellow
	}
	return ladder{instead: l.yellow.instead}
}

// degrade makes a request cheaper in Yellow and Red, as its tier's ladder says, and answers one that the zone
// refused in another way if the ladder has one.
func (g *Gateway) degrade(x *exchange) *refusal {
	l := g.ladders[x.caller.tier]
	if l == nil {
		return x.pending // nil: hardly any pool has ladders
	}
	d := l.of(x.zone)
	if g.pool.Gateway.BackendParameterMode != batching.ParamsNone {
		if n := x.call.params.MaxTokens; d.maxTokens > 0 && (n == nil || *n > d.maxTokens) {
			x.call.params.MaxTokens = &d.maxTokens
			x.degrade(stepMaxTokens, strconv.Itoa(d.maxTokens))
		}
		if d.parameter != nil {
			x.call.params.Switch = d.parameter
			x.degrade(stepParameter, d.parameter.Name)
		}
	}
	if x.pending == nil {
		return nil
	}
	return g.answerInstead(x, x.pending)
}

// answerInstead tries what the tier's ladder has for a request that is refused for want of capacity; ref is
// the answer if nothing helps.
func (g *Gateway) answerInstead(x *exchange, ref *refusal) *refusal {
	l := g.ladders[x.caller.tier]
	if l == nil || ref.reason == Reason(batching.Draining) || !ref.answer().capacity {
		return ref
	}
	for _, s := range l.of(x.zone).instead {
		if s.Answer != "" {
			x.degraded = nil // what was made cheaper did not run
			x.degrade(stepAnswer, "")
			x.result, x.instead = batching.Result{Output: s.Answer}, stepAnswer
			return nil
		}
		if g.reroute(x, s) {
			x.instead = stepReroute
			return nil
		}
		if x.r.Context().Err() != nil {
			return refuse(Reason(batching.Cancelled), "the client went away")
		}
	}
	return ref
}

// degradation is a step that was taken, and which.
type degradation struct{ step, what string }

// String is the form of answers and logs: "max_tokens=64", "reroute=llm-small", "answer".
func (d degradation) String() string {
	if d.what == "" {
		return d.step
	}
	return d.step + "=" + d.what
}

func (x *exchange) degrade(step, what string) {
	x.degraded = append(x.degraded, degradation{step, what})
}

// degradedList is how the request was degraded, for the answer's metadata; nil if it was not.
func (x *exchange) degradedList() (out []string) {
	for _, d := range x.degraded {
		out = append(out, d.String())
	}
	return out
}

// countDegraded books each step and says it in a header.
func (g *Gateway) countDegraded(x *exchange) {
	tier := g.pool.Tiers[x.caller.tier].Name
	for _, d := range x.degraded {
		if d.step != stepElsewhere {
			g.metrics.degraded.WithLabelValues(tier, string(x.zone), d.step).Inc()
		}
	}
	x.w.Header().Set(headerDegraded, strings.Join(x.degradedList(), ", "))
}

// checkLadders says why a ladder cannot be climbed by this process.
func checkLadders(p poolspec.Pool, url func(poolspec.Step) string) error {
	for _, t := range p.Tiers {
		if t.Degrade == nil {
			continue
		}
		for _, steps := range [][]poolspec.Step{t.Degrade.Yellow, t.Degrade.Red} {
			for _, s := range steps {
				if s.Pool == "" {
					continue
				}
				at := url(s)
				switch {
				case at == "":
					return fmt.Errorf("tier %q reroutes to pool %q, whose address is not known", t.Name, s.Pool)
				case s.TLS != nil && !strings.HasPrefix(at, "https://"):
					return fmt.Errorf("tier %q reroutes to pool %q over TLS, and its address is %s", t.Name, s.Pool, at)
				}
			}
		}
	}
	return nil
}
