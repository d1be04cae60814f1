package quota

import (
	"sync"
	"time"
)

// slots is how many equal parts the longest life of a reservation is kept in. Reservations that nobody
// settles (their gateway died) must not stay held for ever: they are summed up in time slots, and a slot that
// is older than any request can live is counted as spent. So what is kept has a fixed size however many
// requests are under way.
const slots = 8

type slot struct {
	n    int64 // number of the slot since the ledger began, from 1
	cost Cost
}

// reserved is what was reserved and not settled yet, by slot.
type reserved [slots]slot

func (r *reserved) add(n int64, c Cost) {
	s := &r[n%slots]
	s.n = n
	s.cost.Requests += c.Requests
	s.cost.Tokens += c.Tokens
}

// remove takes a reservation out; false when it is unknown by now.
func (r *reserved) remove(n int64, c Cost) bool {
	s := &r[n%slots]
	if s.n != n || s.cost.Requests < c.Requests || s.cost.Tokens < c.Tokens {
		return false
	}
	s.cost.Requests -= c.Requests
	s.cost.Tokens -= c.Tokens
	return true
}

// expire takes out the slots up to the oldest that may live and returns their sum.
func (r *reserved) expire(oldest int64) (sum Cost) {
	for i := range r {
		if s := &r[i]; s.n != 0 && s.n <= oldest {
			sum.Requests += s.cost.Requests
			sum.Tokens += s.cost.Tokens
			*s = slot{}
		}
	}
	return sum
}

// account is a tenant's two buckets.
type account struct {
	requests, tokens bucket
	reserved         reserved
}

// Ledger holds the accounts of the tenants that are active, and the budgets they share. Safe for concurrent
// use. Its size is bounded by the number of limited tenants that asked within the last minute or so: an
// account that is full again is dropped, which forgets nothing, and so is a budget's member that has not asked
// for a minute.
type Ledger struct {
	mu       sync.Mutex
	began    time.Time
	slotLen  time.Duration
	accounts map[string]*account
	budgets  map[string]*budget // by tier; "" is the pool's
	swept    time.Time
}

// NewLedger returns an empty ledger. hold is the longest time a request can take until it is settled (the
// longest tier timeout); a reservation that is older counts as spent.
func NewLedger(now time.Time, hold time.Duration) *Ledger {
	return &Ledger{
		began: now, swept: now, slotLen: max(hold/(slots-2), time.Second),
		accounts: map[string]*account{}, budgets: map[string]*budget{},
	}
}

// Reserve takes the cost from the tenant's buckets and from the budgets it shares, from all or from none.
func (l *Ledger) Reserve(now time.Time, q Ask) Reply {
	if q.Unlimited() {
		return Reply{Granted: true}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)

	r := Reply{Granted: true}
	a := l.account(now, q)
	if a != nil {
		r.worse(a.check(q.Cost))
	}
	var shared [2]*budget
	var who [2]*member
	if r.Granted { // a request that its tenant's own limit refuses is no demand for what is shared
		shared[0], who[0] = l.join(now, q.Tier, q.TierLimits, q)
		shared[1], who[1] = l.join(now, "", q.PoolLimits, q)
		for i, scope := range []Scope{OfTier, OfPool} {
			if shared[i] != nil {
				r.worse(shared[i].check(now, who[i], q.Cost, scope))
			}
		}
	}
	if r.Granted {
		n := l.slot(now)
		r.Grant = Grant{Tenant: q.Tenant, Cost: q.Cost, Slot: n, Pool: shared[1] != nil}
		if shared[0] != nil {
			r.Grant.Tier = q.Tier
		}
		if a != nil {
			a.take(n, q.Cost)
		}
		for i, b := range shared {
			if b != nil {
				b.take(n, who[i], q.Cost)
			}
		}
	}
	if a != nil {
		r.Levels = a.levels()
	}
	return r
}

// worse keeps the refusal that lasts longest: the other limits pass by then.
func (r *Reply) worse(o Reply) {
	switch {
	case o.Granted || r.TooLarge:
	case r.Granted, o.TooLarge, o.RetryAfter > r.RetryAfter:
		*r = o
	}
}

// account returns the tenant's buckets, up to date; nil when nothing of its own bounds it.
func (l *Ledger) account(now time.Time, q Ask) *account {
	if q.Limits.Unlimited() {
		return nil
	}
	a := l.accounts[q.Tenant]
	if a == nil {
		a = &account{requests: bucket{last: now}, tokens: bucket{last: now}}
		l.accounts[q.Tenant] = a
	}
	l.expire(a, now)
	a.requests.limitTo(now, q.Limits.RequestsPerMinute)
	a.tokens.limitTo(now, q.Limits.TokensPerMinute)
	a.requests.refill(now)
	a.tokens.refill(now)
	return a
}

// join returns a budget and the tenant's place in it; nil when there is no such budget.
func (l *Ledger) join(now time.Time, name string, lim Limits, q Ask) (*budget, *member) {
	if lim.Unlimited() {
		return nil, nil
	}
	b := l.budgets[name]
	if b == nil {
		b = newBudget(now)
		l.budgets[name] = b
	}
	b.expire(l.oldest(now))
	b.limitTo(now, lim)
	return b, b.member(now, q.Tenant)
}

func (a *account) check(c Cost) Reply {
	r := Reply{Granted: true}
	for _, x := range []struct {
		of Dimension
		b  *bucket
		n  int64
	}{{Requests, &a.requests, c.Requests}, {Tokens, &a.tokens, c.Tokens}} {
		if x.b.rate == 0 || x.n <= 0 {
			continue
		}
		if x.n > x.b.rate {
			return Reply{Of: x.of, Scope: OfTenant, Limit: x.b.rate, TooLarge: true}
		}
		if w := x.b.wait(x.n); w > 0 && w > r.RetryAfter {
			r = Reply{Of: x.of, Scope: OfTenant, Limit: x.b.rate, RetryAfter: w}
		}
	}
	return r
}

func (a *account) take(n int64, c Cost) {
	if a.requests.rate > 0 {
		a.requests.take(c.Requests)
	}
	if a.tokens.rate > 0 {
		a.tokens.take(c.Tokens)
	}
	a.reserved.add(n, c)
}

func (a *account) levels() []Level {
	var out []Level
	for _, x := range []struct {
		of Dimension
		b  *bucket
	}{{Requests, &a.requests}, {Tokens, &a.tokens}} {
		if x.b.rate > 0 {
			out = append(out, Level{Of: x.of, Limit: x.b.rate, Remaining: max(0, x.b.level), FullIn: x.b.wait(x.b.rate)})
		}
	}
	return out
}

// Settle ends a reservation: what was not used is given back, what was used beyond it becomes a debt. A
// request that was shed or failed used nothing: Cost{}. A grant that is unknown by now changes nothing.
func (l *Ledger) Settle(now time.Time, g Grant, used Cost) {
	if g.Slot == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[g.Tenant]; a != nil {
		l.expire(a, now)
		if a.reserved.remove(g.Slot, g.Cost) {
			a.requests.refill(now)
			a.tokens.refill(now)
			a.requests.settle(g.Cost.Requests, used.Requests)
			a.tokens.settle(g.Cost.Tokens, used.Tokens)
		}
	}
	if g.Tier != "" {
		l.settleShared(now, g.Tier, g, used)
	}
	if g.Pool {
		l.settleShared(now, "", g, used)
	}
}

func (l *Ledger) settleShared(now time.Time, name string, g Grant, used Cost) {
	if b := l.budgets[name]; b != nil {
		b.expire(l.oldest(now))
		b.settle(now, g, used)
	}
}

// Len is the number of accounts and of members of budgets held.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.accounts)
	for _, b := range l.budgets {
		n += len(b.members)
	}
	return n
}

func (l *Ledger) slot(now time.Time) int64 { return int64(now.Sub(l.began)/l.slotLen) + 1 }

// oldest is the last slot whose reservations count as spent.
func (l *Ledger) oldest(now time.Time) int64 { return l.slot(now) - (slots - 1) }

func (l *Ledger) expire(a *account, now time.Time) {
	c := a.reserved.expire(l.oldest(now))
	a.requests.release(c.Requests)
	a.tokens.release(c.Tokens)
}

// sweep drops, once in ten seconds, what is as good as new.
func (l *Ledger) sweep(now time.Time) {
	if now.Sub(l.swept) < 10*time.Second {
		return
	}
	l.swept = now
	for name, a := range l.accounts {
		l.expire(a, now)
		a.requests.refill(now)
		a.tokens.refill(now)
		if a.requests.full() && a.tokens.full() {
			delete(l.accounts, name)
		}
	}
	for name, b := range l.budgets {
		b.expire(l.oldest(now))
		b.sweep(now)
		if b.idle() {
			delete(l.budgets, name)
		}
	}
}
