package gateway

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
)

// reservedCompletion is what a request that names no max_tokens reserves for its answer, where the limits are
// large enough. It is settled against what was used a moment later.
const reservedCompletion = 256

// budgets are the limits that tenants share.
type budgets struct {
	pool  quota.Limits
	tiers []quota.Limits
}

func newBudgets(p poolspec.Pool) budgets {
	b := budgets{pool: quota.Limits(p.Gateway.SharedLimits)}
	for _, t := range p.Tiers {
		b.tiers = append(b.tiers, quota.Limits(t.Limits))
	}
	return b
}

// ask is what the request wants of its tenant's limits and of those that it shares. Its cost is prompt tokens
// + max_tokens.
func (g *Gateway) ask(x *exchange) quota.Ask {
	tier := x.caller.tier
	q := quota.Ask{
		Tenant: x.caller.tenant, Limits: x.caller.limits, Tier: g.pool.Tiers[tier].Name,
		TierLimits: g.budgets.tiers[tier], PoolLimits: g.budgets.pool, Cost: quota.Cost{Requests: 1},
	}
	least := int64(0)
	for _, l := range []quota.Limits{q.Limits, q.TierLimits, q.PoolLimits} {
		if n := l.TokensPerMinute; n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	if least == 0 {
		return q // nobody counts tokens
	}
	prompt := g.tokens.count(x.call.input)
	completion := x.maxTokens
	if n := x.call.params.MaxTokens; n != nil {
		completion = int64(*n)
	}
	if completion == 0 {
		completion = min(reservedCompletion, max(0, least-prompt))
	}
	q.Cost.Tokens = prompt + completion
	return q
}

// reserveQuota takes the request's cost from its tenant's limits and those it shares, from all or from none.
func (g *Gateway) reserveQuota(x *exchange) *refusal {
	if x.caller.limits.Unlimited() && g.budgets.tiers[x.caller.tier].Unlimited() && g.budgets.pool.Unlimited() {
		return nil
	}
	q := g.ask(x)
	reply := g.quota.Reserve(x.r.Context(), x.arrival, q)
	x.levels = reply.Levels
	if reply.Granted {
		x.grant = reply.Grant
		return nil
	}
	return overLimit(q, reply)
}

// overLimit says which limit refused, whose it is, and from when on the same request passes.
func overLimit(q quota.Ask, reply quota.Reply) *refusal {
	whose := "the tenant"
	switch reply.Scope {
	case quota.OfTier:
		whose = "all tenants of tier " + q.Tier + " together"
	case quota.OfPool:
		whose = "all tenants of the pool together"
	}
	if reply.TooLarge {
		return refuse(ReasonCostAboveBurst, "the request costs %d tokens (prompt + max_tokens); the limit of %s is %d %s a minute, so it could never pass", q.Cost.Tokens, whose, reply.Limit, reply.Of)
	}
	reason := limitReasons[reply.Scope][0]
	r := refuse(reason, "%s may make %d requests a minute", whose, reply.Limit)
	if reply.Of == quota.Tokens {
		r = refuse(limitReasons[reply.Scope][1], "%s may use %d tokens a minute; this request costs %d", whose, reply.Limit, q.Cost.Tokens)
	}
	if reply.Share > 0 {
		r.detail += fmt.Sprintf("; this tenant's fair part is %d now, and it is used up", reply.Share)
	}
	r.retryAfter, r.exact = reply.RetryAfter, !reply.Estimated
	return r
}

// limitReasons are the reasons of a limit on requests and on tokens.
var limitReasons = map[quota.Scope][2]Reason{
	quota.OfTenant: {ReasonQuotaRequests, ReasonQuotaTokens},
	quota.OfTier:   {ReasonTierRequests, ReasonTierTokens},
	quota.OfPool:   {ReasonSharedRequests, ReasonSharedTokens},
}

// settle gives back what a refused or failed request reserved, and charges a served one for what it used. A
// client that leaves pays what it reserved: leaving must not be a way to use the GPU for nothing. An answer
// that did not come from this pool costs nothing here.
func (g *Gateway) settle(x *exchange, ref *refusal) {
	if x.grant.Slot == 0 {
		return
	}
	used := quota.Cost{}
	switch {
	case ref == nil && x.instead == "":
		used = quota.Cost{Requests: 1, Tokens: int64(x.result.Usage.PromptTokens + x.result.Usage.CompletionTokens)}
	case ref != nil && ref.reason == Reason(batching.Cancelled):
		used = x.grant.Cost
	}
	g.quota.Settle(time.Now(), x.grant, used)
}

// localQuota keeps the limits in this process alone.
type localQuota struct{ *quota.Ledger }

// Reserve implements Quota.
func (q localQuota) Reserve(_ context.Context, now time.Time, a quota.Ask) quota.Reply {
	return q.Ledger.Reserve(now, a)
}
