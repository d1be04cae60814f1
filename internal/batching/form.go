package batching

import (
	"math"
	"strconv"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// Batch is what leaves for one worker. It belongs to the Core; the runner may read it until it reports
// the outcome to Finish, and must not keep it.
type Batch struct {
	ID      string
	Worker  string // address
	Tickets []*Ticket
	// Params hold for the whole batch, when the backend takes them so.
	Params *wire.Parameters
	// PerItem says that each ticket's own parameters go with it.
	PerItem bool
	// Timeout is how long the batch may take.
	Timeout time.Duration

	at      int64
	worker  *worker
	suspect bool   // it holds one input only, a suspected one
	next    *Batch // that leaves together with this one
}

// unchain cuts b off those that leave together with it, and returns them. Nil has none.
func (b *Batch) unchain() (rest *Batch) {
	if b != nil {
		rest, b.next = b.next, nil
	}
	return rest
}

// window returns how long the oldest request waits for company while a worker is idle:
//
//	clamp(S/(M_share * target) - 1/lambda, 0, maxWait)
//
// just long enough that a batch leaves every S/(M_share*target), which keeps the busy time at its target.
func (c *Core) window(at int64) int64 {
	if c.stopped {
		return 0
	}
	lambda := c.wanted.perSecond(at)
	if lambda <= 0 || c.live == 0 {
		return 0
	}
	share := float64(c.live) * c.share(at)
	w := float64(c.est.p50())/(share*c.cfg.Target) - 1e9/lambda
	return int64(min(max(w, 0), float64(c.cfg.MaxWait)))
}

// urgentBefore returns the slack below which a batch leaves at once: S_p99 + g + margin.
func (c *Core) urgentBefore() int64 {
	return c.est.p99() + c.est.gap() + int64(margin)
}

// cycle returns S + g: how long a worker takes from one batch to the next.
func (c *Core) cycle() int64 { return c.est.p50() + c.est.gap() }

// rank returns the place, in the order of filling, of the highest tier that waits in g.
func (c *Core) rank(g *group) int {
	for k, i := range c.order {
		if g.tiers[i].n > 0 {
			return k
		}
	}
	return len(c.order)
}

// due returns the group of which a batch must leave now, given that a worker is idle; nil for none.
func (c *Core) due(at int64) *group {
	var best *group
	bestRank := math.MaxInt
	consider := func(g *group) {
		if r := c.rank(g); r < bestRank {
			best, bestRank = g, r
		}
	}
	if len(c.groups) > 1 { // a tier whose floor is owed a whole batch gets one of its own parameters
		for i := range c.tiers {
			if t := &c.tiers[i]; t.waiting.head != nil && t.credit >= float64(c.cfg.MaxSize) {
				return t.waiting.head.group
			}
		}
	}
	for _, g := range c.full {
		consider(g)
	}
	if c.interactive > 0 {
		window := c.window(at)
		for _, i := range c.order {
			if t := &c.tiers[i]; !t.Background && t.waiting.head != nil && at-t.waiting.head.enqueued >= window {
				consider(t.overdue(at, window))
			}
		}
		if e := c.urgent.min(); e != nil {
			switch g, left := e.t.group, e.at-at; {
			case left <= c.urgentBefore():
				consider(g)
				fallthrough
			case left <= c.urgentBefore()+c.cycle():
				// A worker comes free once a cycle at the latest: the one after this is too late. Before full batches of
				// the same tier, or rare parameters would starve under overload: 89 of 121 requests did in 10 s.
				if best != nil && c.rank(g) == bestRank {
					best = g
				}
			}
		}
	}
	if best == nil && c.depth > c.interactive && c.spareWorker(at) {
		waiting := c.depth - c.interactive
		for _, i := range c.order {
			t := &c.tiers[i]
			if t.Background && t.waiting.head != nil &&
				(c.stopped || waiting >= c.cfg.MaxSize || at-t.waiting.head.enqueued >= int64(c.cfg.MaxWait)) {
				return t.waiting.head.group
			}
		}
	}
	return best
}

// overdue returns the group of the tier's oldest request, given that this one has waited for the window. Second attempts
// that were left behind by a batch with others of them are no older than that batch: they are spread thin on purpose,
// and while the last of them waits for its turn, other groups have theirs.
func (t *tier) overdue(at, window int64) *group {
	first := t.waiting.head
	if !first.retry {
		return first.group
	}
	for x := first; x != nil && x.enqueued < first.group.tried && at-x.enqueued >= window; x = x.links[byTier].next {
		if x.group != first.group && (!x.retry || x.group.tried < first.group.tried) {
			return x.group
		}
	}
	return first.group
}

// spareWorker says whether background requests may have a batch of their own: when a worker stays idle for
// the next interactive batch, or no interactive request came for a second.
func (c *Core) spareWorker(at int64) bool {
	c.countIdle(at)
	return c.idle >= 2 || c.stopped || c.wanted.perSecond(at) == 0
}

// dueAt returns when due will return something though nothing happens; MaxInt64 for never.
func (c *Core) dueAt(at int64) int64 {
	when := int64(math.MaxInt64)
	if c.interactive > 0 {
		window := c.window(at)
		for i := range c.tiers {
			if t := &c.tiers[i]; !t.Background && t.waiting.head != nil {
				when = min(when, t.waiting.head.enqueued+window)
			}
		}
		if e := c.urgent.min(); e != nil {
			when = min(when, e.at-c.urgentBefore())
		}
	}
	if c.depth > c.interactive {
		free := at
		if !c.spareWorker(at) { // nothing tells when the quiet second is over: look again
			free = at + rateBucket
		}
		for i := range c.tiers {
			if t := &c.tiers[i]; t.Background && t.waiting.head != nil {
				when = min(when, max(free, t.waiting.head.enqueued+int64(c.cfg.MaxWait)))
			}
		}
	}
	return when
}

// Next answers what has expired and returns the next batch that must leave now, nil for none.
func (c *Core) Next(now time.Time) *Batch {
	at := c.at(now)
	c.expire(at)
	for c.depth > 0 {
		c.countIdle(at)
		if c.idle == 0 {
			return nil
		}
		g := c.due(at)
		if g == nil {
			return nil
		}
		var b *Batch
		before, diverted := c.depth, c.poisons.diverted
		c.candidates(at, func(w *worker) bool {
			b = c.fill(at, g, w)
			return b == nil && g.total > 0
		})
		if b != nil {
			return b
		}
		if c.depth == before && c.poisons.diverted == diverted {
			c.blocked = true
			return nil
		}
	}
	return nil
}

// fill takes a batch out of g for w: every tier its floor, then strictly by tier. Nil when nothing in g
// may run there.
func (c *Core) fill(at int64, g *group, w *worker) *Batch {
	n := min(c.cfg.MaxSize, g.total)
	b := c.newBatch(at, g, w)
	thin := c.thin(at, g)
	rest := n
	for i := range c.tiers {
		t, q := &c.tiers[i], &g.tiers[i]
		c.quota[i] = 0
		if t.queued == 0 {
			t.credit = 0
		} else if t.Reserved > 0 {
			// Credit, and not a share of this batch: 2 % of 20 slots would always be none.
			t.credit = min(t.credit+t.Reserved*float64(n), float64(c.cfg.MaxSize))
			c.quota[i] = min(int(t.credit), q.n, rest)
			rest -= c.quota[i]
		}
	}
	for _, i := range c.order {
		more := min(rest, g.tiers[i].n-c.quota[i])
		c.quota[i] += more
		rest -= more
	}
	for _, i := range c.order {
		c.take(at, g, i, c.quota[i], &thin, b)
	}
	for _, i := range c.order { // slots that dropped or excluded requests left
		if room := n - len(b.Tickets); room > 0 {
			c.take(at, g, i, room, &thin, b)
		}
	}
	if len(b.Tickets) == 0 {
		c.recycle(b)
		return nil
	}
	c.send(at, b, w)
	return b
}

// send makes b run at w.
func (c *Core) send(at int64, b *Batch, w *worker) {
	if w.freed >= 0 {
		c.est.gaps.add(at, at-w.freed)
	}
	c.sequence++
	b.ID = c.cfg.ID + "-" + strconv.FormatUint(c.sequence, 10)
	b.Timeout = c.est.timeout(c.cfg.InferenceTimeout)
	c.account(at)
	w.state, w.since, w.batch = wire.ViewMine, at, b
	c.running += len(b.Tickets)
	c.workersChanged()
}

func (c *Core) newBatch(at int64, g *group, w *worker) *Batch {
	var b *Batch
	if n := len(c.spare); n > 0 {
		b, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		b = &Batch{Tickets: make([]*Ticket, 0, c.cfg.MaxSize)}
	}
	b.at, b.worker, b.Worker = at, w, w.Addr
	b.suspect = g.key.suspect != 0
	b.Params, b.PerItem = g.key.parameters(), c.mode == ParamsItem
	return b
}

// recycle keeps a batch for the next one, without what it pointed to.
func (c *Core) recycle(b *Batch) {
	clear(b.Tickets)
	*b = Batch{Tickets: b.Tickets[:0]}
	if len(c.spare) <= len(c.workers) {
		c.spare = append(c.spare, b)
	}
}

// thin returns how many second attempts a batch may carry: as few as their deadlines allow, so that one
// poison input takes few with it. In order of age, the j-th must leave within slack_j = its deadline - now -
// (S+g); half of that is planned with, the other half is for what goes wrong. The fleet forms
// 1 + M*slack_j/(2*(S+g)) batches until then, this one included, so
//
//	k = max over j of ceil(j / (1 + M*slack_j / (2*(S+g))))
//
// which is ceil(waiting*(S+g)/(M*slack)) for second attempts with one slack, and does not jump to a full
// batch because of a single one that is nearly out of time.
func (c *Core) thin(at int64, g *group) int {
	if g.retries == 0 {
		return 0
	}
	cycle := float64(c.cycle())
	k, j := 1.0, 0.0
	for _, i := range c.order {
		for t := g.tiers[i].retries.head; t != nil; t = t.links[byFlow].next {
			slack := float64(t.deadline-at) - cycle
			if slack < 0 {
				continue // it will be answered, not run
			}
			j++
			k = max(k, math.Ceil(j/(1+math.Floor(float64(max(c.live, 1))*slack/2/cycle))))
		}
	}
	return int(min(k, float64(c.cfg.MaxSize)))
}

// take moves up to n requests of a tier into b: second attempts first, then flow by flow in turn. What
// cannot be finished in time is answered instead: now + S + g > deadline.
func (c *Core) take(at int64, g *group, i, n int, thin *int, b *Batch) {
	q := &g.tiers[i]
	hopeless := at + c.cycle()
	taken := 0
	for t := q.retries.head; t != nil && taken < n && *thin > 0; {
		next := t.links[byFlow].next
		switch {
		case hopeless > t.deadline:
			c.unlink(t)
			c.finish(t, &Error{Cause: Expired, Detail: "no time was left for a second attempt"})
		case c.divert(at, t):
		case t.avoid == b.Worker && c.live > 1:
		default:
			c.board(t, b)
			g.tried = at
			taken++
			*thin--
		}
		t = next
	}
	for q.turn != nil && taken < n {
		f := q.turn
		t := f.fifo.head
		q.turn = f.next
		if hopeless > t.deadline {
			c.unlink(t)
			c.finish(t, &Error{Cause: Expired, Detail: "the request could not be finished before its deadline"})
			continue
		}
		if c.divert(at, t) {
			continue
		}
		c.board(t, b)
		taken++
	}
	tier := &c.tiers[i]
	tier.credit = max(0, tier.credit-float64(taken))
}

func (c *Core) board(t *Ticket, b *Batch) {
	c.unlink(t)
	t.state = running
	b.Tickets = append(b.Tickets, t)
}
