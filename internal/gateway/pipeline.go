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
	{"poison", (*Gateway).checkPoison},    // an input that is known to fail is no load and costs no quota
	{"limits", (*Gateway).reserveQuota},   // requests and tokens per minute: the tenant's, its tier's, the pool's
	{"hours", (*Gateway).checkHours},      // an Internal tier's window
	{"zone", (*Gateway).checkZone},        // the worse of the fleet's zone and this gateway's own
	{"feasibility", (*Gateway).setExpiry}, // the deadline that the batcher admits or refuses by
	{"degrade", (*Gateway).degrade},       // cheaper, elsewhere or at least an answer, before it is shed
	{"admit", (*Gateway).submit},          // queue bounds and feasibility, then parked until the answer is there
}

func (g *Gateway) newExchange(w http.ResponseWriter, r *http.Request, c codec) *exchange {
	now := time.Now()
	x := exchanges.Get().(*exchange)
	x.w, x.r, x.codec, x.arrival, x.wall, x.id = w, r, c, now, now, newID()
	x.caller.tier = -1
	x.trace = g.reports.Tracer.Request(r, now)
	w.Header()["X-Request-Id"] = []string{x.id} // the name is canonical already
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
	x.free()
}

// refuseRoute answers a request that no pipeline serves.
func (g *Gateway) refuseRoute(w http.ResponseWriter, r *http.Request, c codec, ref *refusal) {
	x := g.newExchange(w, r, c)
	g.answer(x, ref)
	x.free()
}

// answer writes what became of the request and reports it.
func (g *Gateway) answer(x *exchange, ref *refusal) {
	latency := time.Since(x.arrival)
	g.tell(x, ref, latency)
	if ref != nil && ref.answer().status == statusClientClosed {
		return // nobody reads it
	}
	if now := x.arrival.Add(latency); x.writeBy.IsZero() || x.writeBy.Sub(now) > 2*g.writeTimeout {
		x.boundWriting(now.Add(g.writeTimeout))
	}
	h := x.w.Header()
	if ref == nil && x.degraded != nil {
		g.countDegraded(x)
	}
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
	body := x.r.Body
	if x.r.ContentLength < 0 { // else net/http reads no more than that, and checkHeaders has seen it
		body = http.MaxBytesReader(x.w, body, int64(g.pool.Gateway.MaxBodyBytes))
	}
	_, err := buf.ReadFrom(body)
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

// checkPoison answers an input that is known to fail the function, before it counts as load: a flood of one
// poison must not make the pool shed or grow.
func (g *Gateway) checkPoison(x *exchange) *refusal {
	if k, ok := g.engine.(poisonKeeper); ok {
		if e := k.Poisoned(x.call.input, x.call.params); e != nil {
			return refuse(Reason(e.Cause), "%s", e.Detail)
		}
	}
	return nil
}

// setExpiry fixes the deadline, and with it the time until which the answer can be written: now, while the connection
// is in the processor's caches, it takes a quarter of what it would take before the answer (1.2 us at 10,000/s).
func (g *Gateway) setExpiry(x *exchange) *refusal {
	x.deadline = deadlineOf(x.arrival, g.pool.Tiers[x.caller.tier].Timeout.D(), x.clientTimeout, g.zone.serviceTime())
	x.boundWriting(x.deadline.Add(g.writeTimeout))
	return nil
}

// submit hands the request to the batcher and waits for its answer. One that the batcher refuses for want of
// capacity may still be answered in another way.
func (g *Gateway) submit(x *exchange) *refusal {
	if x.instead != "" {
		return nil // answered already
	}
	x.trace.Admit()
	res, err := g.engine.Submit(x.r.Context(), batching.Request{
		Trace: x.trace.Carried(),
		ID:    x.id, Route: x.r.Header.Get("Idempotency-Key"), Tier: x.caller.tier, Flow: x.caller.flow, Input: x.call.input, Params: x.call.params,
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
	return g.answerInstead(x, r)
}
