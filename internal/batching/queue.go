package batching

// The queues: group (parameters that agree) -> tier -> flow -> FIFO. Backends that take parameters item by
// item, or none, have one group. Every step is O(1), the two heaps of deadlines O(log n).

// group holds the requests that may share a batch.
type group struct {
	key         paramKey
	tiers       []tierQueue
	total       int // waiting
	interactive int // of them, not of a Background tier
	retries     int // of them, second attempts
	fullPos     int // in Core.full, -1 when interactive < B
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

// list is an intrusive list through Ticket.next and prev.
type list struct{ head, tail *Ticket }

func (l *list) pushBack(t *Ticket) {
	t.next, t.prev = nil, l.tail
	if l.tail != nil {
		l.tail.next = t
	} else {
		l.head = t
	}
	l.tail = t
}

// pushByAge puts t where its time of enqueueing belongs. It comes from a batch that did not run, so that
// is at, or a few steps from, the front.
func (l *list) pushByAge(t *Ticket) {
	after := l.head
	for after != nil && after.enqueued < t.enqueued {
		after = after.next
	}
	if after == nil {
		l.pushBack(t)
		return
	}
	t.next, t.prev = after, after.prev
	if after.prev != nil {
		after.prev.next = t
	} else {
		l.head = t
	}
	after.prev = t
}

func (l *list) remove(t *Ticket) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.head = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		l.tail = t.prev
	}
	t.next, t.prev = nil, nil
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

// push puts t into the queues. front puts it where its age belongs.
func (c *Core) push(t *Ticket, front bool) {
	key := keyOf(c.mode, t.Params)
	g := c.groups[key]
	if g == nil {
		g = &group{key: key, tiers: make([]tierQueue, len(c.tiers)), fullPos: -1}
		c.groups[key] = g
	}
	t.group, t.state = g, queued
	t.urgentPos, t.expiryPos = -1, -1
	q := &g.tiers[t.Tier]
	if t.retry {
		q.retries.pushByAge(t)
		g.retries++
	} else {
		f := q.flowFor(t.Flow)
		t.flow = f
		f.n++
		if front {
			f.fifo.pushByAge(t)
		} else {
			f.fifo.pushBack(t)
		}
	}
	q.n++
	g.total++
	c.depth++
	c.bytes += t.bytes()
	tier := &c.tiers[t.Tier]
	tier.queued++
	tier.pushAge(t)
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
	tier.removeAge(t)
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
	queued           int
	oldest, youngest *Ticket // the list by age
	credit           float64 // slots that the floor still owes, 0 to B
	offered          rate
	accepted         rate
	counts           TierSnapshot
}

func (r *tier) pushAge(t *Ticket) {
	// From the back: a new request is the youngest; one that comes back walks past those that came
	// while it was away, or is found from the front.
	if r.youngest == nil || r.youngest.enqueued <= t.enqueued {
		t.agePrev, t.ageNext = r.youngest, nil
		if r.youngest != nil {
			r.youngest.ageNext = t
		} else {
			r.oldest = t
		}
		r.youngest = t
		return
	}
	after := r.oldest
	for after.enqueued < t.enqueued {
		after = after.ageNext
	}
	t.agePrev, t.ageNext = after.agePrev, after
	if after.agePrev != nil {
		after.agePrev.ageNext = t
	} else {
		r.oldest = t
	}
	after.agePrev = t
}

func (r *tier) removeAge(t *Ticket) {
	if t.agePrev != nil {
		t.agePrev.ageNext = t.ageNext
	} else {
		r.oldest = t.ageNext
	}
	if t.ageNext != nil {
		t.ageNext.agePrev = t.agePrev
	} else {
		r.youngest = t.agePrev
	}
	t.ageNext, t.agePrev = nil, nil
}
