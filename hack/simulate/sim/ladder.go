package sim

import (
	"sluice.dev/sluice/hack/simulate/load"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// Steps are the steps of a ladder in the order of TierResult and BinTier.
var Steps = [...]string{degrade.StepMaxTokens, degrade.StepParameter, degrade.StepReroute, degrade.StepAnswer}

// StepCounts counts what ladders did, by Steps.
type StepCounts [len(Steps)]int

// Instead is how many requests were answered in the pool's stead.
func (c StepCounts) Instead() (n int) {
	for i, s := range Steps {
		if s == degrade.StepReroute || s == degrade.StepAnswer {
			n += c[i]
		}
	}
	return n
}

// cheaper lets the tier's ladder make a request cheaper, and returns the parameters that it set. What the trace
// says was generated is taken to be what the client asked for at most.
func (b *batcher) cheaper(p *parked, tier int, q load.Request) (set wire.Parameters) {
	w := b.w
	l := w.ladders[tier]
	if l == nil {
		return set
	}
	asked := int(q.Answer)
	params := wire.Parameters{MaxTokens: &asked}
	p.taken = l.In(p.zone).Cheaper(&params, w.cfg.ParamsMode)
	// The clients' own parameters are left out: the trace has none, and a backend with one set of parameters a
	// batch would get batches of one.
	set.Switch = params.Switch
	if *params.MaxTokens != asked {
		set.MaxTokens = params.MaxTokens
		if p.cost.Requests > 0 {
			p.cost.Tokens -= int64(asked - *params.MaxTokens)
		}
	}
	return set
}

// instead lets the tier's ladder answer a request that is refused for want of capacity, and says whether it did.
func (b *batcher) instead(p *parked, tier int, reason string) bool {
	w := b.w
	l := w.ladders[tier]
	if l == nil || !degrade.Helps(reason) {
		return false
	}
	by, ok := l.In(p.zone).Instead(w.otherPool)
	if ok {
		w.rec.degraded(tier, degrade.After(p.taken, by))
	}
	return ok
}

// otherPool is the pool that a request is handed to: it leaves the simulation, answered or not.
func (w *world) otherPool(poolspec.Step) bool {
	return w.opt.RerouteFailsPercent == 0 || w.rng.Float64()*100 >= w.opt.RerouteFailsPercent
}
