package batching

import (
	"fmt"
	"time"
)

// share returns the part of the fleet that is this batcher's, in (0, 1]: its own arrivals over the
// fleet's, or one of so many batchers while the fleet's are unknown.
func (c *Core) share(at int64) float64 {
	if c.fleet <= 0 {
		return 1 / float64(c.batchers)
	}
	return min(1, max(c.offered.perSecond(at)/c.fleet, 1e-3))
}

// perWorker returns c = B/(S+g), items a second.
func (c *Core) perWorker() float64 {
	return float64(c.cfg.MaxSize) * 1e9 / float64(c.est.p50()+c.est.gap())
}

// mu returns the capacity that this batcher can count on: its share of M*c, or what the others leave when
// that is more. A batcher with a tenth of the load of an idle fleet is not held to a tenth of it.
func (c *Core) mu(at int64) float64 {
	all := float64(c.live) * c.perWorker()
	own := all * c.share(at)
	if c.fleet > 0 {
		own = max(own, all-max(c.fleet-c.offered.perSecond(at), 0))
	}
	return min(own, all)
}

// admit decides whether t may wait. The cheapest checks come first.
func (c *Core) admit(at int64, t *Ticket) *Error {
	if c.stopped {
		return &Error{Cause: Draining, Detail: "this batcher is shutting down"}
	}
	if c.live == 0 {
		return &Error{Cause: NoCapacity, RetryAfter: time.Second, Detail: "no GPU worker is alive"}
	}
	if t.deadline <= at {
		return &Error{Cause: Expired, Detail: "the deadline had passed when the request arrived"}
	}
	tier := &c.tiers[t.Tier]
	depth, bytes := c.cfg.MaxDepth, c.cfg.MaxBytes
	if tier.Background { // may not crowd out those for whom somebody waits
		depth, bytes = depth/2, bytes/2
	}
	mu := c.mu(at)
	if c.depth >= depth || c.bytes+t.bytes() > bytes {
		return &Error{
			Cause:      QueueFull,
			RetryAfter: seconds(float64(c.depth) / 10 / mu), // a tenth of it has drained
			Detail:     fmt.Sprintf("%d requests and %d bytes wait", c.depth, c.bytes),
		}
	}
	predicted, ok := c.predict(at, t, mu)
	limit := t.deadline - at
	if !tier.Background && c.Parked() > 0 {
		// A request that finds the fleet empty passes whatever the measured S promises: it is the only one
		// that can find out that S is short again. Without it a few seconds of slow batches (S > latency
		// target) refuse everything, so that nothing is measured any more, for ever. (Seen in a benchmark on a
		// machine that was busy for a while.)
		limit = min(limit, int64(tier.LatencyTarget)-(at-t.arrival))
	}
	if ok && predicted <= limit {
		return nil
	}
	e := &Error{Cause: Infeasible, RetryAfter: time.Duration(max(predicted-limit, 0))}
	if !ok {
		e.RetryAfter = time.Second
	}
	return e
}

// predict returns the latency that t would have from now: next idle + ahead/rate + S + g, with
//
//	rate  = max(mu - floors of lower tiers that wait - higher tiers' lambda, own floor * mu)
//	ahead = queued in higher tiers + min(queued in t, own flow's queued * active flows)
//
// The second term of ahead is the round robin: a flow with little waiting passes those with much. It is
// false when the tier gets nothing at all at this load.
func (c *Core) predict(at int64, t *Ticket, mu float64) (int64, bool) {
	idle := c.nextIdle(at)
	base := idle + c.est.p50() + c.est.gap()
	ahead, higher, floors, below := 0, 0.0, 0.0, false
	for _, i := range c.order {
		r := &c.tiers[i]
		switch {
		case i == t.Tier:
			below = true
		case below:
			if r.queued > 0 {
				floors += r.Reserved
			}
		default:
			ahead += r.queued
			higher += r.accepted.perSecond(at)
		}
	}
	tier := &c.tiers[t.Tier]
	own := tier.queued
	if g := c.groups[keyOf(c.mode, t.Params)]; g != nil && own > 0 {
		q := &g.tiers[t.Tier]
		mine, flows := 0, len(q.flows)
		if f := q.flows[t.Flow]; f != nil {
			mine = f.n
		} else {
			flows++
		}
		own = min(own, mine*flows)
	}
	ahead += own
	rate := max(mu*(1-floors)-higher, tier.Reserved*mu)
	if ahead == 0 && (rate > 0 || idle == 0) {
		return base, true
	}
	if rate <= mu*1e-6 {
		return 0, false
	}
	return base + int64(float64(ahead)/rate*1e9), true
}

// seconds makes a duration of a number that may be infinite.
func seconds(s float64) time.Duration {
	if !(s < 3600) {
		return time.Hour
	}
	return time.Duration(s * 1e9)
}
