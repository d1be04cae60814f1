package batching

import (
	"math"
	"slices"
	"time"

	"sluice.dev/sluice/internal/rendezvous"
	"sluice.dev/sluice/internal/wire"
)

// WorkerID names a worker. Another Pod at the same Addr is another worker.
type WorkerID struct {
	Addr string
	Pod  string
}

// worker is what this batcher knows of one worker. Its state is set from what happened last, never
// counted up and down.
type worker struct {
	WorkerID
	state   string   // wire.View...
	since   int64    // when it became idle, or its batch left
	until   int64    // other: when it is likely free
	batch   *Batch   // mine
	streak  int      // failures in a row
	common  []uint64 // the inputs (poisons.key) that were in every batch of the streak
	failed  uint64
	message string
	gone    bool  // left the set while it ran a batch of ours
	freed   int64 // when its last batch ended, if a full one waited then and could leave; else -1: a sample of g
}

// idleFrom returns when the worker can take, or could have taken, a batch, as far as is known; MaxInt64 when
// that is not known. It may lie in the past.
func (w *worker) idleFrom() int64 {
	switch {
	case w.gone:
	case w.state == wire.ViewIdle:
		return w.since
	case w.state == wire.ViewOther:
		return w.until
	}
	return math.MaxInt64
}

func (w *worker) live() bool {
	return !w.gone && w.state != wire.ViewUnhealthy && w.state != wire.ViewDraining
}

// SetWorkers makes ids the set of workers. New ones count as unhealthy until WorkerIdle says otherwise;
// one that left while it runs a batch of ours finishes it.
func (c *Core) SetWorkers(now time.Time, ids []WorkerID) {
	at := c.at(now)
	c.poisons.workers(ids)
	known := map[string]*worker{}
	for _, w := range c.workers {
		known[w.Addr] = w
	}
	addrs := make([]string, 0, len(ids))
	next := make([]*worker, 0, len(ids))
	seen := map[string]bool{}
	for _, id := range ids {
		if seen[id.Addr] {
			continue
		}
		seen[id.Addr] = true
		w := known[id.Addr]
		if w == nil || w.Pod != id.Pod {
			if w != nil {
				w.gone = true
			}
			w = &worker{WorkerID: id, state: wire.ViewUnhealthy, since: at, freed: -1, message: "not asked yet"}
		}
		w.gone = false
		addrs = append(addrs, id.Addr)
		next = append(next, w)
	}
	for addr, w := range known {
		if !seen[addr] {
			w.gone = true
		}
	}
	c.workers = c.workers[:0:0]
	for _, i := range rendezvous.Order(c.cfg.ID, addrs) {
		c.workers = append(c.workers, next[i])
	}
	c.workersChanged()
}

// find returns the worker at addr, nil when it is not in the set.
func (c *Core) find(addr string) *worker {
	for _, w := range c.workers {
		if w.Addr == addr {
			return w
		}
	}
	return nil
}

// WorkerIdle reports that the worker said it is idle. It changes nothing while a batch of ours runs there.
func (c *Core) WorkerIdle(now time.Time, addr string) {
	w := c.find(addr)
	if w == nil || w.state == wire.ViewMine || w.state == wire.ViewIdle {
		return
	}
	if w.state == wire.ViewOther && w.streak > 0 && c.at(now) < w.until {
		return // held back
	}
	w.state, w.since, w.freed, w.message = wire.ViewIdle, c.at(now), -1, ""
	c.workersChanged()
}

// WorkerBusy reports that the worker said it is busy for about freeIn. After a batch of ours failed there
// that may be the very batch: the worker stays unhealthy until it says idle.
func (c *Core) WorkerBusy(now time.Time, addr string, freeIn time.Duration) {
	w := c.find(addr)
	if w == nil || w.state == wire.ViewMine || (w.state == wire.ViewUnhealthy && w.streak > 0) {
		return
	}
	c.other(c.at(now), w, freeIn)
	c.workersChanged()
}

func (c *Core) other(at int64, w *worker, freeIn time.Duration) {
	// At least 2 ms: an answer of 0 must not make two batchers ask in a loop.
	w.state, w.until, w.freed = wire.ViewOther, at+int64(max(freeIn, 2*time.Millisecond)), -1
}

// WorkerDraining reports that the worker said it is leaving.
func (c *Core) WorkerDraining(now time.Time, addr string) {
	c.lose(now, addr, wire.ViewDraining, "draining")
}

// WorkerUnhealthy reports that the worker does not answer or says it cannot run a batch.
func (c *Core) WorkerUnhealthy(now time.Time, addr, message string) {
	c.lose(now, addr, wire.ViewUnhealthy, message)
}

func (c *Core) lose(now time.Time, addr, state, message string) {
	w := c.find(addr)
	if w == nil || w.state == wire.ViewMine {
		return
	}
	if w.state != state {
		w.since = c.at(now)
	}
	w.state, w.message = state, message
	c.workersChanged()
}

// WorkerView returns how the worker at addr looks, when that state began, and its failures in a row; ""
// when it is not in the set.
func (c *Core) WorkerView(now time.Time, addr string) (view string, since time.Time, streak int) {
	w := c.find(addr)
	if w == nil {
		return "", time.Time{}, 0
	}
	return w.state, c.epoch.Add(time.Duration(w.since)), w.streak
}

// workersChanged recomputes what is derived from the workers' states.
func (c *Core) workersChanged() {
	c.live, c.mine = 0, 0
	for _, w := range c.workers {
		if w.batch != nil {
			c.mine++
		}
		if w.live() {
			c.live++
		}
	}
	c.freshUntil = math.MinInt64
	c.blocked = false
}

// countIdle brings c.idle, c.nextFree and c.frees up to date: how many workers can take a batch now, when the
// first of the others is likely to, and when each is. Between changes of a worker it costs one comparison.
func (c *Core) countIdle(at int64) {
	if at < c.freshUntil {
		return
	}
	c.grace = c.yieldFor(at)
	c.idle, c.nextFree, c.freshUntil = 0, math.MaxInt64, math.MaxInt64
	c.frees = c.frees[:0]
	s := c.est.p50()
	for _, w := range c.workers {
		if w.batch != nil {
			c.nextFree = min(c.nextFree, w.since+s)
			if !w.gone {
				c.frees = append(c.frees, w.since+s+c.est.gap())
			}
			continue
		}
		from := w.idleFrom()
		if from == math.MaxInt64 {
			continue
		}
		c.frees = append(c.frees, from+c.grace)
		if from += c.grace; from <= at {
			c.idle++
			continue
		}
		c.nextFree = min(c.nextFree, from)
		c.freshUntil = min(c.freshUntil, from)
	}
	slices.Sort(c.frees)
}

// yield is how long a batcher that used more than its share leaves a free worker to the others.
const yield = int64(5 * time.Millisecond)

// yieldFor returns how long a worker must have been free before this batcher takes it: nothing, or 5 ms while
// it is in debt or has its share of the workers. Whoever finishes a batch knows first that the worker is free
// and would take it again; under overload the other batchers would never get it. Nobody has to know who the
// others are or what they need: debts add up to nothing while all workers run, so someone with a right to the
// worker comes within a millisecond or two, and if nobody does, it is taken after all. (Simulated, two
// batchers at 1.5x of four workers: without this one got 58 % of the fleet and the other 26 %, with its
// deadlines missed; with it 50 % and 48 %.)
func (c *Core) yieldFor(at int64) int64 {
	c.account(at)
	if c.debt > 0 || float64(c.mine) >= math.Ceil(float64(c.live)*c.share(at)-0.01) {
		return yield
	}
	return 0
}

// account adds the time since the last call to the debt: worker time used minus this batcher's share of it,
// forgotten beyond one S either way.
func (c *Core) account(at int64) {
	if dt := float64(at - c.accounted); dt > 0 {
		s := float64(c.est.p50())
		c.debt = min(s, max(-s, c.debt+dt*(float64(c.mine)-float64(c.live)*c.share(at))))
		c.accounted = at
	}
}

// nextIdle returns how long it takes until a worker can take a batch.
func (c *Core) nextIdle(at int64) int64 {
	c.countIdle(at)
	if c.idle > 0 {
		return 0
	}
	if c.nextFree == math.MaxInt64 { // nobody runs anything, nobody is idle: live is 0
		return c.est.p50()
	}
	return max(c.nextFree-at, 0)
}

// candidates calls yield with the idle workers in the order in which they should be tried: by preference,
// but first those known to be idle, then those whose other batch should be over by now, and last those that
// failed their last batch: a worker that fails at once would be idle most often and attract everything. (Two
// batchers at 10,000/s on 13 workers, simulated: the second rule takes their 409s from 47 a second to 1.)
func (c *Core) candidates(at int64, yield func(*worker) bool) {
	for pass := range 3 {
		for _, w := range c.workers {
			if w.idleFrom() <= at-c.grace && w.class() == pass && !yield(w) {
				return
			}
		}
	}
}

func (w *worker) class() int {
	switch {
	case w.streak > 0:
		return 2
	case w.state == wire.ViewOther:
		return 1
	}
	return 0
}
