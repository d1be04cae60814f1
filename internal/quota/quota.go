// Package quota keeps what each tenant may ask for per minute: requests, and tokens (prompt tokens +
// max_tokens). A request's cost is reserved when it is admitted, given back when it is shed or fails, and
// settled against what it used, so parallel requests cannot overshoot.
//
// All numbers are integers and exact: over any window w, what is admitted is at most burst + rate*w, where
// the burst is one minute's worth. That holds for a tenant's own limits and for a budget that many tenants
// share, which is divided among them in fair parts: see budget.
//
// The package owns no goroutine and no clock; every call is told the time.
package quota

import "time"

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

// Scope names whose limit it is.
type Scope string

// The scopes of a limit.
const (
	OfTenant Scope = "tenant"
	OfTier   Scope = "tier" // all tenants of a tier together
	OfPool   Scope = "pool" // all tenants of a pool together
)

// Ask is what one request asks for.
type Ask struct {
	Tenant string `json:"tenant"`
	Limits Limits `json:"limits"` // the tenant's own
	Tier   string `json:"tier,omitempty"`
	// TierLimits and PoolLimits bound what all tenants of the tier, and of the pool, take together.
	TierLimits Limits `json:"tier_limits,omitzero"`
	PoolLimits Limits `json:"pool_limits,omitzero"`
	Cost       Cost   `json:"cost"`
}

// Unlimited says that nothing bounds the request.
func (a Ask) Unlimited() bool {
	return a.Limits.Unlimited() && a.TierLimits.Unlimited() && a.PoolLimits.Unlimited()
}

// Share is the question to one of n gateways that keep a share of every limit each. A cost that fits a limit
// but no share of it takes a whole share, rather than be called impossible.
func (a Ask) Share(n int) Ask {
	for _, l := range []*Limits{&a.Limits, &a.TierLimits, &a.PoolLimits} {
		whole := l.TokensPerMinute
		*l = l.Share(n)
		if a.Cost.Tokens <= whole {
			a.Cost.Tokens = min(a.Cost.Tokens, l.TokensPerMinute)
		}
	}
	return a
}

// most bounds every number that comes from elsewhere: far above what a limit or a request can be, and so far
// below an int64 that sums of them do not overflow.
const most = 1 << 44

// valid says that the numbers can be counted with: what comes over the network may be anything.
func (l Limits) valid() bool {
	return l.RequestsPerMinute >= 0 && l.TokensPerMinute >= 0 && max(l.RequestsPerMinute, l.TokensPerMinute) <= most
}

// Valid says that the numbers can be counted with.
func (c Cost) Valid() bool {
	return c.Requests >= 0 && c.Tokens >= 0 && max(c.Requests, c.Tokens) <= most
}

// Valid says that the numbers can be counted with.
func (a Ask) Valid() bool {
	return a.Limits.valid() && a.TierLimits.valid() && a.PoolLimits.valid() && a.Cost.Valid()
}

// Grant is a reservation. Settle it exactly once; the zero value settles to nothing.
type Grant struct {
	Tenant string `json:"tenant,omitempty"`
	Tier   string `json:"tier,omitempty"` // whose budget was charged too, "" for none
	Pool   bool   `json:"pool,omitempty"` // the pool's budget was charged too
	Cost   Cost   `json:"cost"`
	Slot   int64  `json:"slot,omitempty"` // in which the ledger keeps it, 0: nothing is reserved
	Owner  string `json:"-"`              // gateway that holds it, "" is this one
}

// Reply is the answer to a reservation.
type Reply struct {
	Granted bool  `json:"granted"`
	Grant   Grant `json:"grant"`
	// Of and Scope are the limit that refused, when not granted.
	Of    Dimension `json:"of,omitempty"`
	Scope Scope     `json:"scope,omitempty"`
	// Limit is that limit, per minute, and Share the tenant's fair part of it where several share it.
	Limit int64 `json:"limit,omitempty"`
	Share int64 `json:"share,omitempty"`
	// TooLarge says that the cost is above the burst: it can never be granted, waiting does not help.
	TooLarge bool `json:"too_large,omitempty"`
	// RetryAfter is when the same request passes if the tenant asks for nothing else until then and, for a
	// budget that is shared, no further tenant begins to ask.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Estimated says that RetryAfter is no promise: the request costs more than the tenant's fair part of a
	// shared budget, so it needs what the others leave.
	Estimated bool `json:"estimated,omitempty"`
	// Levels are the tenant's own limits after this call, in the order requests, tokens.
	Levels []Level `json:"levels,omitempty"`
	// Fallback says that the bucket's owner did not answer and this gateway's share decided.
	Fallback bool `json:"-"`
}
