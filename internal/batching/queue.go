package batching

// The queues: group (parameters that agree) -> tier -> flow -> FIFO. Backends that take parameters item by
// item, or none, have one group. Every step is O(1), the two heaps of deadlines O(log n).

// group holds the requests that may share a batch.
type group struct {
	key         paramKey
	tiers       []tierQueue
	total       int   // waiting
	interactive int   // of them, not of a Background tier
	retries     int   // of them, second attempts
	fullPos     int   // in Core.full, -1 when interactive < B
	tried       int64 // when a batch last carried second attempts of it
}

// tierQueue is a tier's part of a group.
type tierQueue struct {
	n         int
	retries   list             // second attempts, before the flows
	flows     map[string]*flow // those with something waiting
	turn      *flow            // whose turn it is, in a ring
	peak      int              // of flows, since the map was made
	spareFlow *flow            // the last one that emptied: a pool with one flow allocates none
}

// flow is the FIFO of one flow key.
type flow struct {
	key        string
	fifo       list
	n          int
	next, prev *flow
}

// list is an intrusive list of tickets by time of enqueueing, oldest first. A ticket can be in one list of each
// kind. The zero value is an empty list byFlow.
type list struct {
	head, tail *Ticket
	kind       kind
}

type kind uint8

const (
	byFlow kind = iota // of a flow, or of the second attempts of a tier
	byTier             // of everything that waits in a tier
	kinds
)

type links struct{ next, prev *Ticket }

// insert puts t where its age belongs: at the end when it is new. One that comes back from a batch that did not
// run is at, or a few steps from, the front.
func (l *list) insert(t *Ticket) {
	var before, after *Ticket
	if l.tail == nil || l.tail.enqueued <= t.enqueued {
		before = l.tail
	} else {
		for after = l.head; after.enqueued < t.enqueued; {
			after = after.links[l.kind].next
		}
		before = after.links[l.kind].prev
	}
	t.links[l.kind] = links{next: after, prev: before}
	*l.nextOf(before), *l.prevOf(after) = t, t
}

func (l *list) remove(t *Ticket) {
	own := &t.links[l.kind]
	*l.nextOf(own.prev), *l.prevOf(own.next) = own.next, own.prev
	*own = links{}
}

// nextOf returns what points to the ticket after t, nil being the place before the first.
func (l *list) nextOf(t *Ticket) **Ticket {
	if t == nil {
		return &l.head
	}
	return &t.links[l.kind].next
}

// prevOf returns what points to the ticket before t, nil being the place after the last.
func (l *list) prevOf(t *Ticket) **Ticket {
	if t == nil {
		return &l.tail
	}
	return &t.links[l.kind].prev
}

// flowFor returns the flow of a key, in the ring.
func (q *tierQueue) flowFor(key string) *flow {
	f := q.flows[key]
	if f != nil {
		return f
	}
	if f = q.spareFlow; f != nil {
		q.spareFlow = nil
		f.key = key
	} else {
		f = &flow{key: key}
	}
	if q.flows == nil {
		q.flows = map[string]*flow{}
	}
	q.flows[key] = f
	q.peak = max(q.peak, len(q.flows))
	if q.turn == nil {
		f.next, f.prev = f, f
		q.turn = f
	} else { // at the end of the round
		f.next, f.prev = q.turn, q.turn.prev
		f.prev.next, q.turn.prev = f, f
	}
	return f
}

// dropFlow takes an empty flow out of the ring.
func (q *tierQueue) dropFlow(f *flow) {
	delete(q.flows, f.key)
	if len(q.flows) == 0 && q.peak > 64 { // a map never shrinks
		q.flows, q.peak = nil, 0
	}
	if f.next == f {
		q.turn = nil
	} else {
		f.prev.next, f.next.prev = f.next, f.prev
		if q.turn == f {
			q.turn = f.next
		}
	}
	*f = flow{}
	q.spareFlow = f
}

// push puts t into the queues, where its age belongs.
func (c *Core) push(t *Ticket) {
	key := groupKey(c.mode, t)
	g := c.groups[key]
	if g == nil {
		g = &group{key: key, tiers: make([]tierQueue, len(c.tiers)), fullPos: -1}
		c.groups[key] = g
	}
	t.group, t.state = g, queued
	t.urgentPos, t.expiryPos = -1, -1
	q := &g.tiers[t.Tier]
	if t.retry {
		q.retries.insert(t)
		g.retries++
	} else {
		f := q.flowFor(t.Flow)
		t.flow = f
		f.n++
		f.fifo.insert(t)
	}
	q.n++
	g.total++
	c.depth++
	c.bytes += t.bytes()
	tier := &c.tiers[t.Tier]
	tier.queued++
	tier.waiting.insert(t)
	if tier.Background {
		c.expiry.push(t, t.deadline)
		return
	}
	g.interactive++
	c.interactive++
	c.urgent.push(t, t.effective)
	if t.effective != t.deadline {
		c.expiry.push(t, t.deadline)
	}
	if g.interactive >= c.cfg.MaxSize && g.fullPos < 0 {
		g.fullPos = len(c.full)
		c.full = append(c.full, g)
	}
}

// unlink takes t out of the queues, for whatever reason.
func (c *Core) unlink(t *Ticket) {
	g := t.group
	q := &g.tiers[t.Tier]
	if t.retry {
		q.retries.remove(t)
		g.retries--
	} else {
		f := t.flow
		f.fifo.remove(t)
		if f.n--; f.n == 0 {
			q.dropFlow(f)
		}
		t.flow = nil
	}
	q.n--
	g.total--
	c.depth--
	c.bytes -= t.bytes()
	tier := &c.tiers[t.Tier]
	tier.queued--
	tier.waiting.remove(t)
	c.expiry.remove(t)
	c.urgent.remove(t)
	if !tier.Background {
		g.interactive--
		c.interactive--
		if g.fullPos >= 0 && g.interactive < c.cfg.MaxSize {
			last := c.full[len(c.full)-1]
			c.full[g.fullPos] = last
			last.fullPos = g.fullPos
			c.full[len(c.full)-1] = nil
			c.full = c.full[:len(c.full)-1]
			g.fullPos = -1
		}
	}
	t.group = nil
	if g.total == 0 && g.key != (paramKey{}) {
		delete(c.groups, g.key)
	}
	if c.depth == 0 {
		c.urgent.shrink()
		c.expiry.shrink()
	}
}

// tier is a tier's state over all groups.
type tier struct {
	Tier
	queued   int
	waiting  list
	credit   float64 // slots that the floor still owes, 0 to B
	offered  rate
	accepted rate
	counts   TierSnapshot
}
