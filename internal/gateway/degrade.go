package gateway

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/poolspec"
)

// headerDegraded says on an answer how the request was degraded.
const headerDegraded = "Sluice-Degraded"

// degrade makes a request cheaper in Yellow and Red, as its tier's ladder says, and answers one that the zone
// refused in another way if the ladder has one.
func (g *Gateway) degrade(x *exchange) *refusal {
	l := g.ladders[x.caller.tier]
	if l == nil {
		return x.pending // nil: hardly any pool has ladders
	}
	x.degraded = l.In(x.zone).Cheaper(&x.call.params, g.pool.Gateway.BackendParameterMode)
	if x.pending == nil {
		return nil
	}
	return g.answerInstead(x, x.pending)
}

// answerInstead tries what the tier's ladder has for a request that is refused for want of capacity; ref is
// the answer if nothing helps.
func (g *Gateway) answerInstead(x *exchange, ref *refusal) *refusal {
	l := g.ladders[x.caller.tier]
	if l == nil || !degrade.Helps(string(ref.reason)) {
		return ref
	}
	by, ok := l.In(x.zone).Instead(func(s poolspec.Step) bool { return g.reroute(x, s) })
	switch {
	case ok && by.Answer == "":
		x.instead = degrade.StepReroute
		return nil
	case x.r.Context().Err() != nil:
		return refuse(Reason(batching.Cancelled), "the client went away")
	case ok:
		x.degraded = degrade.After(x.degraded, by)
		x.result, x.instead = batching.Result{Output: by.Answer}, degrade.StepAnswer
		return nil
	}
	return ref
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
		if d.Step != stepElsewhere {
			g.metrics.degraded.WithLabelValues(tier, string(x.zone), d.Step).Inc()
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
