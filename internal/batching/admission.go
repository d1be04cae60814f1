package batching

import (
	"fmt"
	"math"
	"time"
)

// share returns the part of the fleet that is this batcher's, in (0, 1]: what the zone signal says; else its
// own arrivals over the fleet's, unless it is alone; else one of so many batchers. The signal's share comes
// first because its two numbers were measured in one place: a gateway that sheds hides from this batcher what
// the fleet's arrivals count.
func (c *Core) share(at int64) float64 {
	switch {
	case c.given > 0:
		return min(1, max(c.given, 1e-3))
	case c.batchers == 1:
		return 1
	case c.fleet > 0:
		return min(1, max(c.offered.perSecond(at)/c.fleet, 1e-3))
	}
	return 1 / float64(max(c.batchers, 1))
}

// perWorker returns c = B/(S+g), items a second.
func (c *Core) perWorker() float64 {
	return float64(c.cfg.MaxSize) * 1e9 / float64(c.est.p50()+c.est.gap())
}

// mu returns the capacity that this batcher can count on: its share of M*c, or what the others leave when
// that is more. A batcher with a tenth of the load of an idle fleet is not held to a tenth of it.
func (c *Core) mu(at int64) float64 {
	all, share := float64(c.live)*c.perWorker(), c.share(at)
	own := all * share
	if c.fleet > 0 {
		own = max(own, all-c.fleet*(1-share))
	}
	return own
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

// predict returns the latency that t would have from now: next idle + wait + S + g, where wait is the
// shorter of two, because a tier is served both from what the higher ones leave and from its own floor:
//
//	ahead / (mu - floors of lower tiers that wait - higher tiers' lambda)
//	(own + 1) / (own floor * mu)
//
//	own   = min(queued in t, own flow's queued * active flows)
//	ahead = queued in higher tiers + own
//
// The second term of own is the round robin: a flow with little waiting passes those with much. Dividing all
// that is ahead by the floor's rate, as one formula for both would, refuses a tier its floor whenever a
// higher tier queues (simulated at 2x overload: 0.3 % of the slots instead of 2 %). It is false when the
// tier gets nothing at all at this load.
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
	own := c.aheadInTier(t)
	left, floor := mu*(1-floors)-higher, c.tiers[t.Tier].Reserved*mu
	if ahead+own == 0 && (idle == 0 || left > 0) {
		return base, true
	}
	wait := math.Inf(1)
	if left > mu*1e-6 {
		wait = float64(ahead+own) / left
	}
	if floor > 0 {
		wait = min(wait, float64(own+1)/floor)
	}
	return base + int64(seconds(wait)), !math.IsInf(wait, 1)
}

// aheadInTier returns how many requests of its own tier leave before t.
func (c *Core) aheadInTier(t *Ticket) int {
	queued := c.tiers[t.Tier].queued
	if queued == 0 {
		return 0
	}
	g := c.groups[keyOf(c.mode, t.Params)]
	if g == nil { // parameters of its own: it waits for the turn of its batch
		return queued
	}
	q := &g.tiers[t.Tier]
	if f := q.flows[t.Flow]; f != nil {
		return min(queued, f.n*len(q.flows))
	}
	return 0
}

// seconds makes a duration of a number that may be infinite.
func seconds(s float64) time.Duration {
	if !(s < 3600) {
		return time.Hour
	}
	return time.Duration(s * 1e9)
}
