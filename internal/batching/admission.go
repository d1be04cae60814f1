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
	return float64(c.cfg.MaxSize) * 1e9 / float64(c.cycle())
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
		// The target is for what is answered, the prediction is for the median batch: under overload everything
		// that passes stands just below the line, so without the spread half of it would be late.
		spread := c.est.p99() - c.est.p50() + int64(margin)
		limit = min(limit, int64(tier.LatencyTarget)-(at-t.arrival)-spread)
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

// predict returns the latency that t would have from now: wait + S + g, where wait is the shorter of two,
// because a tier is served both from what the higher ones leave and from its own floor:
//
//	until slots(wait) * (1 - floors of lower tiers that wait) > ahead + higher(wait)
//	(own + 1) / (own floor * mu) after the next worker is free
//
//	own   = min(turns, queued in t + t's arrivals during the wait)
//	turns = own flow's queued * active flows
//	ahead = queued in higher tiers + own
//
// The first term of own is the round robin: a flow with little waiting passes those with much, and one with much
// is passed by what comes to the others meanwhile. It is false when the tier gets nothing at all at this load.
func (c *Core) predict(at int64, t *Ticket, mu float64) (int64, bool) {
	c.countIdle(at)
	base := c.cycle()
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
			higher += r.accepted.rising(at)
		}
	}
	own, turns := c.aheadInTier(t)
	floor := c.tiers[t.Tier].Reserved * mu
	if ahead+own == 0 && (c.idle > 0 || mu*(1-floors) > higher) {
		return c.nextIdle(at) + base, true
	}
	wait := c.waitFor(at, ahead+own, higher, mu, floors)
	if own < turns && !math.IsInf(wait, 1) {
		own = min(turns, own+int(c.tiers[t.Tier].accepted.rising(at)*wait))
		wait = c.waitFor(at, ahead+own, higher, mu, floors)
	}
	if floor > 0 {
		wait = min(wait, float64(c.nextIdle(at))/1e9+float64(own+1)/floor)
	}
	return base + int64(seconds(wait)), !math.IsInf(wait, 1)
}

// waitFor returns in how many seconds a slot is there for who has ahead others before him and is passed by higher
// a second: +Inf when never. Workers come free one by one, each with a batch of slots, so it counts them:
// the k-th time that worker w is free, at f_w + k·(S + g), brings B slots of which this batcher's are mu / (M·c).
// (The fluid mean, ahead / (mu - higher), is wrong by a batch of each worker, which the lower tiers, with a
// quarter of mu left, see four times: at 1.5x of four workers in step it refused a request that the next moment
// had a slot for, and promised 500 ms to others who got 600.)
//
// What the higher tiers bring meanwhile is Poisson: two standard deviations of it are counted too.
func (c *Core) waitFor(at int64, ahead int, higher, mu, floors float64) float64 {
	if len(c.frees) == 0 {
		return math.Inf(1)
	}
	cycle := float64(c.cycle()) / 1e9
	slots := mu * cycle * (1 - floors) / float64(c.live) // of one worker, each time
	round := slots * float64(len(c.frees))
	net := round - higher*cycle
	have, from := 0.0, 0.0
	if behind := float64(ahead) - round; behind > 0 { // whole rounds before the one that is looked at closely
		if net <= 0 {
			return math.Inf(1)
		}
		k := math.Ceil(behind / net)
		have, from = k*round, k*cycle
	}
	// In the last round, or, for the noise, one of the next few.
	for range 4 {
		for _, f := range c.frees {
			t := from + float64(max(f-at, 0))/1e9
			have += slots
			if more := higher * t; have > float64(ahead)+more+2*math.Sqrt(more) {
				return t
			}
		}
		from += cycle
	}
	if net <= 0 {
		return math.Inf(1)
	}
	return from
}

// aheadInTier returns how many requests of its own tier leave before t if no more come, and the most that may
// leave before it whatever comes.
func (c *Core) aheadInTier(t *Ticket) (own, turns int) {
	queued := c.tiers[t.Tier].queued
	if queued == 0 {
		return 0, 0
	}
	g := c.groups[groupKey(c.mode, t)]
	if g == nil { // parameters of its own: it waits for the turn of its batch
		return queued, queued
	}
	q := &g.tiers[t.Tier]
	if f := q.flows[t.Flow]; f != nil {
		turns = f.n * len(q.flows)
	}
	return min(queued, turns), turns
}

// seconds makes a duration of a number that may be infinite.
func seconds(s float64) time.Duration {
	if !(s < 3600) {
		return time.Hour
	}
	return time.Duration(s * 1e9)
}
