// Package quota keeps what each tenant may ask for per minute: requests, and tokens (prompt tokens +
// max_tokens). A request's cost is reserved when it is admitted, given back when it is shed or fails, and
// settled against what it used, so parallel requests cannot overshoot.
//
// All numbers are integers and exact: over any window w, what is admitted is at most burst + rate*w, where
// the burst is one minute's worth.
//
// The package owns no goroutine and no clock; every call is told the time.
package quota

import (
	"sync"
	"time"
)

// Limits bound a tenant, per minute. 0 is unlimited.
type Limits struct {
	RequestsPerMinute int64 `json:"requests_per_minute,omitempty"`
	TokensPerMinute   int64 `json:"tokens_per_minute,omitempty"`
}

// Unlimited says that nothing is bounded.
func (l Limits) Unlimited() bool { return l.RequestsPerMinute == 0 && l.TokensPerMinute == 0 }

// Share is the n-th part of the limits, rounded up so that it never becomes "unlimited".
func (l Limits) Share(n int) Limits {
	if n < 2 {
		return l
	}
	d := int64(n)
	return Limits{RequestsPerMinute: (l.RequestsPerMinute + d - 1) / d, TokensPerMinute: (l.TokensPerMinute + d - 1) / d}
}

// Cost is what one request takes.
type Cost struct {
	Requests int64 `json:"requests,omitempty"`
	Tokens   int64 `json:"tokens,omitempty"`
}

// Dimension names what a limit counts.
type Dimension string

// The dimensions, as answers and headers name them.
const (
	Requests Dimension = "requests"
	Tokens   Dimension = "tokens"
)

// Level is the state of one limit, for the RateLimit headers.
type Level struct {
	Of        Dimension     `json:"of"`
	Limit     int64         `json:"limit"`     // per minute
	Remaining int64         `json:"remaining"` // never negative
	FullIn    time.Duration `json:"full_in"`   // until the whole burst is there again
}

// Grant is a reservation. Settle it exactly once; the zero value settles to nothing.
type Grant struct {
	Tenant string `json:"tenant,omitempty"`
	Cost   Cost   `json:"cost"`
	Slot   int64  `json:"slot,omitempty"` // in which the ledger keeps it, 0: nothing is reserved
	Owner  string `json:"-"`              // gateway that holds it, "" is this one
}

// Reply is the answer to a reservation.
type Reply struct {
	Granted bool  `json:"granted"`
	Grant   Grant `json:"grant"`
	// Of is the limit that refused, when not granted.
	Of Dimension `json:"of,omitempty"`
	// TooLarge says that the cost is above the burst: it can never be granted, waiting does not help.
	TooLarge bool `json:"too_large,omitempty"`
	// RetryAfter is when the same request passes if the tenant asks for nothing else until then.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Levels are the tenant's limits after this call, in the order requests, tokens.
	Levels []Level `json:"levels,omitempty"`
	// Fallback says that the bucket's owner did not answer and this gateway's share decided.
	Fallback bool `json:"-"`
}

// slots is how many equal parts the longest life of a reservation is kept in; see account.
const slots = 8

// account is a tenant's two buckets. Reservations that nobody settles (their gateway died) must not stay
// held for ever: they are summed up in time slots, and a slot that is older than any request can live is
// counted as spent. So the account has a fixed size however many requests are under way.
type account struct {
	requests, tokens bucket
	slots            [slots]slot
	touched          time.Time
}

type slot struct {
	n    int64 // number of the slot since the ledger began, from 1
	cost Cost
}

// Ledger holds the accounts of the tenants that are active. Safe for concurrent use. Its size is bounded by
// the number of limited tenants that asked within the last minute or so: an account that is full again is
// dropped, which forgets nothing.
type Ledger struct {
	mu       sync.Mutex
	began    time.Time
	slotLen  time.Duration
	accounts map[string]*account
	swept    time.Time
}

// NewLedger returns an empty ledger. hold is the longest time a request can take until it is settled (the
// longest tier timeout); a reservation that is older counts as spent.
func NewLedger(now time.Time, hold time.Duration) *Ledger {
	return &Ledger{began: now, swept: now, slotLen: max(hold/(slots-2), time.Second), accounts: map[string]*account{}}
}

// Reserve takes the cost from the tenant's buckets, from both or from none.
func (l *Ledger) Reserve(now time.Time, tenant string, lim Limits, c Cost) Reply {
	if lim.Unlimited() {
		return Reply{Granted: true}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	a := l.accounts[tenant]
	if a == nil {
		a = &account{requests: bucket{last: now}, tokens: bucket{last: now}}
		l.accounts[tenant] = a
	}
	l.expire(a, now)
	a.touched = now
	a.requests.limitTo(now, lim.RequestsPerMinute)
	a.tokens.limitTo(now, lim.TokensPerMinute)
	a.requests.refill(now)
	a.tokens.refill(now)

	r := a.check(c)
	if r.Granted {
		n := l.slot(now)
		if lim.RequestsPerMinute == 0 {
			c.Requests = 0
		}
		if lim.TokensPerMinute == 0 {
			c.Tokens = 0
		}
		a.requests.take(c.Requests)
		a.tokens.take(c.Tokens)
		s := &a.slots[n%slots]
		s.n = n
		s.cost.Requests += c.Requests
		s.cost.Tokens += c.Tokens
		r.Grant = Grant{Tenant: tenant, Cost: c, Slot: n}
	}
	r.Levels = a.levels()
	return r
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
			return Reply{Of: x.of, TooLarge: true}
		}
		if w := x.b.wait(x.n); w > 0 && w > r.RetryAfter {
			r = Reply{Of: x.of, RetryAfter: w}
		}
	}
	return r
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
	a := l.accounts[g.Tenant]
	if a == nil {
		return
	}
	l.expire(a, now)
	s := &a.slots[g.Slot%slots]
	if s.n != g.Slot || s.cost.Requests < g.Cost.Requests || s.cost.Tokens < g.Cost.Tokens {
		return
	}
	s.cost.Requests -= g.Cost.Requests
	s.cost.Tokens -= g.Cost.Tokens
	a.requests.refill(now)
	a.tokens.refill(now)
	if g.Cost.Requests > 0 {
		a.requests.settle(g.Cost.Requests, used.Requests)
	}
	if g.Cost.Tokens > 0 {
		a.tokens.settle(g.Cost.Tokens, used.Tokens)
	}
}

// Len is the number of accounts held.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.accounts)
}

func (l *Ledger) slot(now time.Time) int64 { return int64(now.Sub(l.began)/l.slotLen) + 1 }

// expire counts as spent what was reserved slots-1 slots ago or earlier.
func (l *Ledger) expire(a *account, now time.Time) {
	oldest := l.slot(now) - (slots - 1)
	for i := range a.slots {
		s := &a.slots[i]
		if s.n != 0 && s.n <= oldest {
			a.requests.held -= s.cost.Requests
			a.tokens.held -= s.cost.Tokens
			*s = slot{}
		}
	}
}

// sweep drops, once in ten seconds, the accounts that are as good as new.
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
}
