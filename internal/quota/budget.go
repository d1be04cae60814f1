package quota

import (
	"math"
	"math/bits"
	"time"
)

// budget is what several tenants share: one bucket for each dimension, all of whose content is either some
// tenant's credit or free. With R a minute's worth (the rate, and the burst) and n tenants that asked within
// the last minute:
//
//	place  = R / (n + 1)      a tenant's fair part; one more is kept for whoever comes next
//	level  = free + sum of credits + what has flowed in and is not divided yet <= R
//
// What flows in is divided equally among the tenants whose credit is below a place, and the free part while
// that is below one. What they have no room for stays free, and whoever asks may take what is free beyond the
// kept place. So
//
//   - the budget holds exactly, over any window: admitted <= R + R*w;
//   - nobody spends another's credit: a tenant that asks for less than its fair part is served whatever the
//     others do;
//   - nothing is left unused while somebody asks for it: what some tenants do not take is divided equally
//     among those who want more (max-min fairness);
//   - a tenant that begins to ask finds a place's worth at once, if one is free: one is, unless more than one
//     tenant began within the minute while the others had used up all of theirs.
//
// A request that costs more than a place may also take what is kept for the next tenant, so that a large one
// can pass at all.
type budget struct {
	requests, tokens pot
	members          []*member
	index            map[string]*member
	reserved         reserved
}

// membership is how long a tenant that does not ask keeps its place.
const membership = time.Minute

// member is one tenant's part of a budget.
type member struct {
	name     string
	asked    time.Time
	requests int64 // credit; below 0 is a debt, when more was used than reserved
	tokens   int64
}

// pot is one dimension of a budget.
type pot struct {
	bucket
	of      func(*member) *int64
	credits int64 // sum over the members
	pending int64 // flowed in and not divided yet
}

func newBudget(now time.Time) *budget {
	return &budget{
		requests: pot{bucket: bucket{last: now}, of: func(m *member) *int64 { return &m.requests }},
		tokens:   pot{bucket: bucket{last: now}, of: func(m *member) *int64 { return &m.tokens }},
		index:    map[string]*member{},
	}
}

func (b *budget) pots() [2]*pot { return [2]*pot{&b.requests, &b.tokens} }

func (b *budget) limitTo(now time.Time, lim Limits) {
	for i, rate := range []int64{lim.RequestsPerMinute, lim.TokensPerMinute} {
		p := b.pots()[i]
		if p.rate == rate {
			continue
		}
		p.divide(now, b.members)
		p.limitTo(now, rate)
		for _, m := range b.members { // a lower limit has less room for each
			p.set(m, min(*p.of(m), p.place(len(b.members))))
		}
	}
}

// member returns the tenant's place. A new one begins with a place's worth, as far as that is free.
func (b *budget) member(now time.Time, tenant string) *member {
	m := b.index[tenant]
	if m == nil {
		m = &member{name: tenant}
		for _, p := range b.pots() {
			p.divide(now, b.members)
		}
		b.members = append(b.members, m)
		b.index[tenant] = m
		n := len(b.members)
		for _, p := range b.pots() {
			for _, o := range b.members { // places are smaller now: what is over one is free for the new
				p.set(o, min(*p.of(o), p.place(n)))
			}
			p.set(m, max(0, min(p.place(n), p.free())))
		}
	}
	m.asked = now
	return m
}

// check says whether the cost can be taken now, and when it can otherwise.
func (b *budget) check(now time.Time, m *member, c Cost, scope Scope) Reply {
	r := Reply{Granted: true}
	n := len(b.members)
	for i, cost := range []int64{c.Requests, c.Tokens} {
		p := b.pots()[i]
		if p.rate == 0 || cost <= 0 {
			continue
		}
		no := Reply{Of: []Dimension{Requests, Tokens}[i], Scope: scope, Limit: p.rate, Share: p.place(n)}
		if cost > p.rate {
			no.TooLarge = true
			return no
		}
		if p.within(m, cost, n) {
			continue
		}
		p.divide(now, b.members)
		if p.within(m, cost, n) {
			continue
		}
		no.RetryAfter, no.Estimated = p.waitOf(m, cost, n)
		if no.RetryAfter > r.RetryAfter {
			r = no
		}
	}
	return r
}

func (b *budget) take(n int64, m *member, c Cost) {
	for i, cost := range []int64{c.Requests, c.Tokens} {
		if p := b.pots()[i]; p.rate > 0 {
			p.take(m, cost)
		}
	}
	b.reserved.add(n, c)
}

func (b *budget) settle(now time.Time, g Grant, used Cost) {
	if !b.reserved.remove(g.Slot, g.Cost) {
		return
	}
	m := b.index[g.Tenant] // nil: it has left; what it gives back is free
	for i, x := range [][2]int64{{g.Cost.Requests, used.Requests}, {g.Cost.Tokens, used.Tokens}} {
		p := b.pots()[i]
		p.accrue(now)
		p.settle(x[0], x[1])
		if m != nil && p.rate > 0 {
			p.set(m, max(-p.rate, min(*p.of(m)+x[0]-x[1], p.place(len(b.members)))))
		}
	}
}

func (b *budget) expire(oldest int64) {
	c := b.reserved.expire(oldest)
	b.requests.release(c.Requests)
	b.tokens.release(c.Tokens)
}

// sweep lets the tenants go that have not asked for a minute and owe nothing.
func (b *budget) sweep(now time.Time) {
	for _, p := range b.pots() {
		p.divide(now, b.members)
	}
	rest := b.members[:0]
	for _, m := range b.members {
		if now.Sub(m.asked) < membership || m.requests < 0 || m.tokens < 0 {
			rest = append(rest, m)
			continue
		}
		for _, p := range b.pots() {
			p.set(m, 0) // its credit is free
		}
		delete(b.index, m.name)
	}
	clear(b.members[len(rest):])
	b.members = rest
}

// idle says that forgetting the budget forgets nothing.
func (b *budget) idle() bool { return len(b.members) == 0 && b.requests.full() && b.tokens.full() }

// place is a tenant's fair part among n, and the most that it can save up; at least 1.
func (p *pot) place(n int) int64 { return max(1, p.rate/int64(n+1)) }

// free is what is nobody's credit and nobody's share of what flowed in.
func (p *pot) free() int64 { return p.level - p.credits - p.pending }

func (p *pot) set(m *member, credit int64) {
	c := p.of(m)
	p.credits += credit - *c
	*c = credit
}

// within says whether m may take cost: from its credit and what is free beyond the kept place; a cost above a
// place may take that too.
func (p *pot) within(m *member, cost int64, n int) bool {
	spare := p.free()
	if cost <= p.place(n) {
		spare -= p.place(n)
	}
	return *p.of(m)+max(0, spare) >= cost
}

func (p *pot) take(m *member, cost int64) {
	p.bucket.take(cost)
	p.set(m, max(0, *p.of(m)-cost)) // the rest was free
}

// accrue lets in what has flowed in since the last time.
func (p *pot) accrue(now time.Time) {
	if p.rate == 0 {
		return
	}
	before := p.level
	p.refill(now)
	p.pending += p.level - before
}

// divide gives everybody a part of what has flowed in. It looks at every member, so it is done only when that
// matters: before a refusal, and when a tenant begins.
func (p *pot) divide(now time.Time, members []*member) {
	p.accrue(now)
	place := p.place(len(members))
	kept := max(0, place-p.free()) // room in the free part
	for p.pending > 0 {
		places := int64(0)
		for _, m := range members {
			if *p.of(m) < place {
				places++
			}
		}
		if places == 0 {
			p.pending = 0 // all of it is free
			return
		}
		if kept > 0 {
			places++
		}
		each := p.pending / places
		if each == 0 {
			return
		}
		for _, m := range members {
			if room := place - *p.of(m); room > 0 {
				n := min(each, room)
				p.set(m, *p.of(m)+n)
				p.pending -= n
			}
		}
		n := min(each, kept)
		kept -= n
		p.pending -= n
	}
}

// waitOf is how long it takes until m may take cost when everybody else takes all that is theirs. For a cost
// above a place it is an estimate.
func (p *pot) waitOf(m *member, cost int64, n int) (wait time.Duration, estimated bool) {
	place := p.place(n)
	missing := cost - *p.of(m)
	if cost > place {
		missing, estimated = max(place-*p.of(m), place-p.free(), 1), true
	}
	// In the worst case all n+1 places grow at once, one unit each in turn.
	hi, units := bits.Mul64(uint64(missing), uint64(n+1))
	if hi > 0 || units > math.MaxInt64 {
		units = math.MaxInt64
	}
	return p.flow(int64(units)), estimated
}
