package batching

import (
	"fmt"
	"math"
	"time"
)

// Core is the queues, the workers' states and the rules, without clock, lock or goroutine. After any call
// that may have changed something, the caller takes what must leave with Next, until that returns nil, and
// calls Next again no later than Wake says. Times must not go backwards.
type Core struct {
	cfg   Config
	done  func(*Ticket)
	epoch time.Time
	mode  string // how the backend takes parameters

	tiers  []tier
	order  []int // tiers as they are filled: interactive ones first, then background, each highest first
	groups map[paramKey]*group
	full   []*group // with interactive >= B

	depth       int
	interactive int
	bytes       int64
	running     int // in batches

	urgent deadlines // interactive requests by effective deadline
	expiry deadlines // those whose real deadline is another, and background ones, by it

	workers    []*worker // in order of preference
	live       int
	idle       int
	nextFree   int64
	frees      []int64 // when each worker that is known to come free does, in order
	freshUntil int64   // idle, nextFree, frees and grace hold until then
	grace      int64   // how long a worker must have been free
	mine       int     // workers that run a batch of ours
	debt       float64
	accounted  int64
	blocked    bool // due, but no idle worker may take it: a second attempt waits for another worker

	poisons   poisons
	est       estimator
	offered   rate // all tiers
	wanted    rate // interactive tiers
	fleet     float64
	given     float64 // share, from the zone signal
	batchers  int
	stopped   bool // admits nothing
	sequence  uint64
	spare     []*Batch
	quota     []int // scratch of fill
	batches   uint64
	items     uint64
	busy      time.Duration
	wasted    uint64
	retries   uint64
	proved    bool // the function has answered a batch
	firstTime bool
}

// NewCore returns an empty Core. done is called with every admitted ticket exactly once, when it is
// answered, in the call that answered it; it must not call the Core.
func NewCore(cfg Config, done func(*Ticket)) *Core {
	c := &Core{
		cfg: cfg, done: done, mode: cfg.ParamsMode,
		groups: map[paramKey]*group{},
		tiers:  make([]tier, len(cfg.Tiers)), quota: make([]int, len(cfg.Tiers)),
		freshUntil: math.MinInt64, firstTime: true,
		poisons: newPoisons(cfg.RememberPoison),
	}
	c.urgent.pos, c.expiry.pos = urgentPos, expiryPos
	c.est.prior = int64(cfg.InferenceTime + copies)
	for i, t := range cfg.Tiers {
		c.tiers[i].Tier, c.tiers[i].waiting.kind = t, byTier
		c.tiers[i].counts.Name = t.Name
		if !t.Background {
			c.order = append(c.order, i)
		}
	}
	for i, t := range cfg.Tiers {
		if t.Background {
			c.order = append(c.order, i)
		}
	}
	c.groups[paramKey{}] = &group{tiers: make([]tierQueue, len(c.tiers)), fullPos: -1}
	if c.cfg.MaxDepth == 0 {
		c.cfg.MaxDepth = depthLimit
	}
	if c.cfg.MaxBytes == 0 {
		c.cfg.MaxBytes = bytesLimit
	}
	return c
}

// at turns a time into nanoseconds since the epoch, which is the first time the Core was told.
func (c *Core) at(now time.Time) int64 {
	if c.firstTime {
		c.firstTime, c.epoch = false, now
	}
	return int64(now.Sub(c.epoch))
}

// Enqueue admits t, or says why not. An admitted ticket is answered through the done function.
func (c *Core) Enqueue(now time.Time, t *Ticket) *Error {
	at := c.at(now)
	if t.Tier < 0 || t.Tier >= len(c.tiers) {
		return &Error{Cause: Infeasible, Detail: fmt.Sprintf("tier %d does not exist", t.Tier)}
	}
	tier := &c.tiers[t.Tier]
	t.arrival, t.enqueued = at, at
	if !t.Arrival.IsZero() {
		t.arrival = min(at, int64(t.Arrival.Sub(c.epoch)))
	}
	t.deadline = t.arrival + int64(tier.Timeout)
	if !t.Deadline.IsZero() {
		t.deadline = min(t.deadline, int64(t.Deadline.Sub(c.epoch)))
	}
	t.effective = max(t.deadline, t.arrival+2*c.est.p50())
	if p := c.poisons.find(at, &t.Request); p != nil {
		if p.serving(at) { // no load: nothing is lost with it, and nothing would be won by more workers
			tier.counts.Failed++
			return c.poisons.refusal(at, p)
		}
		t.suspect = p.key
	}
	c.offered.add(at)
	tier.offered.add(at)
	if !tier.Background {
		c.wanted.add(at)
	}
	if err := c.admit(at, t); err != nil {
		tier.counts.Refused++
		return err
	}
	tier.counts.Admitted++
	tier.accepted.add(at)
	c.push(t)
	c.blocked = false
	return nil
}

// Shed counts a request that was refused before it came here, by the zone. It is load of this batcher all the
// same: its share of the fleet is its load over the fleet's, and the fleet's counts what was shed. (Without
// this a batcher that sheds half thinks that half of the workers are another's, and sheds half of the rest.)
func (c *Core) Shed(now time.Time) { c.offered.add(c.at(now)) }

// Cancel says that nobody waits for t any more. A waiting request leaves at once, with its payload, and is
// answered with Cancelled; one that runs is answered when its batch ends (true: it is still referenced).
func (c *Core) Cancel(t *Ticket, cause Cause) (stillRunning bool) {
	switch t.state {
	case queued:
		c.unlink(t)
		c.finish(t, &Error{Cause: cause})
	case running:
		t.abandoned = true
		return true
	}
	return false
}

// finish answers t: with its Result when err is nil.
func (c *Core) finish(t *Ticket, err *Error) {
	n := &c.tiers[t.Tier].counts
	switch {
	case err == nil:
		n.Served++
	case err.Cause == Expired:
		n.Expired++
	case err.Cause == Cancelled:
		n.Cancelled++
	default:
		n.Failed++
	}
	t.Err = err
	t.state = done
	c.done(t)
}

// expire answers everything whose deadline has passed, however busy the workers are. (A request whose
// effective deadline is later than its real one is in both heaps.)
func (c *Core) expire(at int64) {
	for {
		e := c.urgent.min()
		if x := c.expiry.min(); x != nil && (e == nil || x.at < e.at) {
			e = x
		}
		if e == nil || e.at > at {
			return
		}
		t := e.t
		c.unlink(t)
		c.finish(t, &Error{Cause: Expired, Detail: "the deadline passed while the request waited"})
	}
}

// Wake returns when Next must be called again even if nothing happens; zero for never.
func (c *Core) Wake(now time.Time) time.Time {
	at := c.at(now)
	wake := int64(math.MaxInt64)
	if e := c.urgent.min(); e != nil {
		wake = e.at
	}
	if e := c.expiry.min(); e != nil {
		wake = min(wake, e.at)
	}
	c.countIdle(at)
	if c.depth > 0 {
		if c.idle == 0 {
			wake = min(wake, c.freshUntil) // another batcher's batch is likely to end
		} else if !c.blocked {
			wake = min(wake, c.dueAt(at))
		} else {
			wake = min(wake, c.freshUntil)
		}
	}
	if wake == math.MaxInt64 {
		return time.Time{}
	}
	return c.epoch.Add(time.Duration(wake))
}

// SetFleetLambda tells the fleet's arrivals a second, from the zone signal; 0 is unknown.
func (c *Core) SetFleetLambda(perSecond float64) { c.fleet = perSecond }

// SetShare tells this batcher's part of the fleet's arrivals, from the zone signal; 0 is unknown.
func (c *Core) SetShare(share float64) { c.given = share }

// SetBatchers tells how many batchers are ready, this one included; 0 is unknown.
func (c *Core) SetBatchers(n int) { c.batchers = n }

// Stop admits nothing more; what waits leaves without waiting for company.
func (c *Core) Stop() { c.stopped = true }

// FailAll answers everything that waits.
func (c *Core) FailAll(cause Cause, detail string) {
	for i := range c.tiers {
		for t := c.tiers[i].waiting.head; t != nil; t = c.tiers[i].waiting.head {
			c.unlink(t)
			c.finish(t, &Error{Cause: cause, Detail: detail})
		}
	}
}

// Parked returns how many requests wait or run.
func (c *Core) Parked() int { return c.depth + c.running }

// SetParamsMode tells how the backend takes parameters, as a worker said. What waits is sorted anew.
func (c *Core) SetParamsMode(mode string) {
	if mode == c.mode || (mode != ParamsItem && mode != ParamsBatch && mode != ParamsNone) {
		return
	}
	c.mode = mode
	for i := range c.tiers {
		var all []*Ticket
		for t := c.tiers[i].waiting.head; t != nil; t = t.links[byTier].next {
			all = append(all, t)
		}
		for _, t := range all {
			c.unlink(t)
		}
		for _, t := range all {
			c.push(t)
		}
	}
	c.blocked = false
}
