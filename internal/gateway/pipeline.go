package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/quota"
)

// step is one question about a request. A step that refuses ends the request.
type step struct {
	name string
	do   func(*Gateway, *exchange) *refusal
}

// pipeline is the whole decision, cheapest question first. The body is read only after the caller is known:
// a flood of wrong keys costs a hash each, not a body.
var pipeline = []step{
	{"headers", (*Gateway).checkHeaders},  // validity, as far as the headers tell it
	{"identity", (*Gateway).identify},     // tenant, tier, limits
	{"body", (*Gateway).readBody},         // validity of the JSON
	{"call", (*Gateway).checkCall},        // validity of what it asks for
	{"limits", (*Gateway).reserveQuota},   // the tenant's requests and tokens per minute
	{"zone", (*Gateway).checkZone},        // the worse of the fleet's zone and this gateway's own
	{"feasibility", (*Gateway).setExpiry}, // the deadline that the batcher admits or refuses by
	{"admit", (*Gateway).submit},          // queue bounds and feasibility, then parked until the answer is there
}

func (g *Gateway) newExchange(w http.ResponseWriter, r *http.Request, c codec) *exchange {
	now := time.Now()
	x := &exchange{w: w, r: r, codec: c, arrival: now, wall: now, id: newID()}
	x.caller.tier = -1
	x.trace = g.reports.Tracer.Request(r, now)
	w.Header().Set("X-Request-Id", x.id)
	return x
}

// serve runs one request through the pipeline and answers it.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, c codec) {
	x := g.newExchange(w, r, c)
	var ref *refusal
	for _, s := range pipeline {
		if ref = s.do(g, x); ref != nil {
			break
		}
	}
	g.settle(x, ref)
	g.answer(x, ref)
}

// refuseRoute answers a request that no pipeline serves.
func (g *Gateway) refuseRoute(w http.ResponseWriter, r *http.Request, c codec, ref *refusal) {
	g.answer(g.newExchange(w, r, c), ref)
}

// answer writes what became of the request and reports it.
func (g *Gateway) answer(x *exchange, ref *refusal) {
	latency := time.Since(x.arrival)
	g.tell(x, ref, latency)
	if ref != nil && ref.answer().status == statusClientClosed {
		return // nobody reads it
	}
	// Not for each answer, but kept on the connection and moved every few seconds, it costs the same: finding it
	// through the request's context misses the cache as often as this call does (2 us at 10,000/s).
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(g.writeTimeout)) // not every test writer has one
	h := x.w.Header()
	for _, m := range x.warnings {
		h.Add("Warning", fmt.Sprintf("299 sluice %q", m))
	}
	if ref == nil {
		quotaHeaders(h, x.levels)
		x.codec.answer(x, ms(latency))
		return
	}
	if ref.levels == nil {
		ref.levels = x.levels
	}
	refusalHeaders(h, ref)
	x.codec.refuse(x, ref)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// readBody reads and decodes the body within the body timeout.
func (g *Gateway) readBody(x *exchange) *refusal {
	rc := http.NewResponseController(x.w)
	_ = rc.SetReadDeadline(x.arrival.Add(g.bodyTimeout)) // not every test writer has one
	buf := buffers.Get().(*bytes.Buffer)
	defer freeBuffer(buf) // what the codec keeps of a body it copies
	_, err := buf.ReadFrom(http.MaxBytesReader(x.w, x.r.Body, int64(g.pool.Gateway.MaxBodyBytes)))
	if err != nil {
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			return refuse(ReasonBodyTooLarge, "at most %d bytes of a body are read", g.pool.Gateway.MaxBodyBytes)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return refuse(ReasonBodyTimeout, "the body did not arrive within %v", g.bodyTimeout)
		case x.r.Context().Err() != nil:
			return refuse(Reason(batching.Cancelled), "the client went away while it sent the body")
		}
		return refuse(ReasonInvalidRequest, "the body could not be read: %v", err)
	}
	// The deadline must not outlive the body: the server goes on reading to notice a client that leaves.
	_ = rc.SetReadDeadline(time.Time{})
	var r *refusal
	x.call, r = x.codec.decode(buf.Bytes())
	return r
}

// reservedCompletion is what a request that names no max_tokens reserves for its answer, where the tenant's
// bucket is large enough. It is settled against what was used a moment later.
const reservedCompletion = 256

// cost is prompt tokens (an estimate of 4 bytes a token, as everywhere in Sluice) + max_tokens.
func (x *exchange) cost() quota.Cost {
	prompt := (int64(len(x.call.input)) + 3) / 4
	completion := x.maxTokens
	if n := x.call.params.MaxTokens; n != nil {
		completion = int64(*n)
	}
	if completion == 0 {
		completion = min(reservedCompletion, max(0, x.caller.limits.TokensPerMinute-prompt))
	}
	return quota.Cost{Requests: 1, Tokens: prompt + completion}
}

// reserveQuota takes the request's cost from its tenant's buckets.
func (g *Gateway) reserveQuota(x *exchange) *refusal {
	if x.caller.limits.Unlimited() {
		return nil
	}
	c := x.cost()
	reply := g.quota.Reserve(x.r.Context(), x.arrival, x.caller.tenant, x.caller.limits, c)
	x.levels = reply.Levels
	switch {
	case reply.Granted:
		x.grant = reply.Grant
		return nil
	case reply.TooLarge:
		return refuse(ReasonCostAboveBurst, "the request costs %d tokens (prompt + max_tokens); the tenant's limit is %d a minute, so it could never pass", c.Tokens, x.caller.limits.TokensPerMinute)
	}
	r := refuse(ReasonQuotaRequests, "the tenant may make %d requests a minute", x.caller.limits.RequestsPerMinute)
	if reply.Of == quota.Tokens {
		r = refuse(ReasonQuotaTokens, "the tenant may use %d tokens a minute; this request costs %d", x.caller.limits.TokensPerMinute, c.Tokens)
	}
	r.retryAfter, r.exact = reply.RetryAfter, true
	return r
}

// settle gives back what a refused or failed request reserved, and charges a served one for what it used. A
// client that leaves pays what it reserved: leaving must not be a way to use the GPU for nothing.
func (g *Gateway) settle(x *exchange, ref *refusal) {
	if x.grant.Slot == 0 {
		return
	}
	used := quota.Cost{}
	switch {
	case ref == nil:
		used = quota.Cost{Requests: 1, Tokens: int64(x.result.Usage.PromptTokens + x.result.Usage.CompletionTokens)}
	case ref.reason == Reason(batching.Cancelled):
		used = x.grant.Cost
	}
	g.quota.Settle(time.Now(), x.grant, used)
}

// setExpiry fixes the deadline.
func (g *Gateway) setExpiry(x *exchange) *refusal {
	x.deadline = deadlineOf(x.arrival, g.pool.Tiers[x.caller.tier].Timeout.D(), x.clientTimeout, g.zone.serviceTime())
	return nil
}

// submit hands the request to the batcher and waits for its answer.
func (g *Gateway) submit(x *exchange) *refusal {
	x.trace.Admit()
	res, err := g.engine.Submit(x.r.Context(), batching.Request{
		Trace: x.trace.Carried(),
		ID:    x.id, Tier: x.caller.tier, Flow: x.caller.flow, Input: x.call.input, Params: x.call.params,
		Arrival: x.arrival, Deadline: x.deadline,
	})
	if err == nil {
		x.result = res
		return nil
	}
	var e *batching.Error
	if !errors.As(err, &e) {
		if errors.Is(err, context.Canceled) {
			return refuse(Reason(batching.Cancelled), "the client went away")
		}
		return refuse(ReasonInternal, "the batcher answered: %v", err)
	}
	r := &refusal{reason: Reason(e.Cause), detail: e.Detail, retryAfter: e.RetryAfter}
	if _, known := answers[r.reason]; !known {
		return refuse(ReasonInternal, "the batcher answered: %v", err)
	}
	if strings.TrimSpace(r.detail) == "" {
		r.detail = answers[r.reason].title
	}
	return r
}

// localQuota keeps the limits in this process alone.
type localQuota struct{ *quota.Ledger }

// Reserve implements Quota.
func (q localQuota) Reserve(_ context.Context, now time.Time, tenant string, lim quota.Limits, c quota.Cost) quota.Reply {
	return q.Ledger.Reserve(now, tenant, lim, c)
}
