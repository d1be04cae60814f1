package gateway

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/telemetry"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

// exchange is one request on its way through the pipeline. Each step reads what earlier ones wrote.
type exchange struct {
	w http.ResponseWriter
	r *http.Request
	// codec reads the body and writes the answer in the shape of the API that was called.
	codec codec

	arrival time.Time // monotonic: latencies, deadlines
	wall    time.Time // the same instant for comparing with dates (a key's expiry)

	id    string // what the client sees: its own X-Request-Id or one made here
	retry bool   // the client says that this is not its first attempt: not demand

	clientTimeout time.Duration // what the client will wait, 0: it did not say
	caller        caller
	call          call // what the body asks for
	maxTokens     int64
	warnings      []string

	zone     zone.Name       // that the request was judged by
	pending  *refusal        // of the zone, while the tier's ladder may still have an answer
	degraded []degrade.Taken // what the ladder did
	instead  string          // the step that answered instead of the batcher, "": none
	grant    quota.Grant
	levels   []quota.Level
	deadline time.Time
	writeBy  time.Time // when the server gives up writing the answer; zero: not bound yet
	result   batching.Result

	trace *telemetry.Request // nil: not traced
}

// exchanges are used again: each is half a KiB, and one that was in use a moment ago is still in the processor's
// caches. Nothing may keep an exchange beyond its request.
var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// boundWriting ends the writing of the answer at t: a client that never reads holds nothing.
func (x *exchange) boundWriting(t time.Time) {
	x.writeBy = t
	_ = http.NewResponseController(x.w).SetWriteDeadline(t) // not every test writer has one
}

func (x *exchange) free() {
	*x = exchange{}
	exchanges.Put(x)
}

// call is what a body asks for, whichever API it came by.
type call struct {
	model  string
	input  string
	params wire.Parameters
	// ignored are parameters of the API that no backend here takes.
	ignored []string
	// stream and usageChunk shape the answer only.
	stream, usageChunk bool
	chat               bool
}

// maxIDBytes bounds a client's own request id.
const maxIDBytes = 128

// newID returns a request id of 26 characters. It names, it protects nothing: so it is not from crypto/rand,
// which cost a system call's worth of every request.
func newID() string {
	var b [12]byte
	binary.LittleEndian.PutUint64(b[:], rand.Uint64())
	binary.LittleEndian.PutUint32(b[8:], rand.Uint32())
	return "r-" + hex.EncodeToString(b[:])
}

// checkHeaders is the first step: what can be refused before a byte of the body is read.
func (g *Gateway) checkHeaders(x *exchange) *refusal {
	h := x.r.Header
	if id := h.Get("X-Request-Id"); id != "" {
		if !validToken(id, maxIDBytes) {
			return &refusal{reason: ReasonInvalidHeader, param: "X-Request-Id",
				detail: "X-Request-Id must have 1 to 128 characters out of A-Z a-z 0-9 . _ : / @ -"}
		}
		x.id = id
		x.w.Header().Set("X-Request-Id", id)
	}
	if ct := h.Get("Content-Type"); ct != "" && !isJSON(ct) {
		return refuse(ReasonMediaType, "Content-Type is %.64q, want application/json", ct)
	}
	if x.r.ContentLength > int64(g.pool.Gateway.MaxBodyBytes) {
		return refuse(ReasonBodyTooLarge, "the body has %d bytes, at most %d are read", x.r.ContentLength, g.pool.Gateway.MaxBodyBytes)
	}
	x.retry = isRetry(h)
	var r *refusal
	x.clientTimeout, r = clientTimeout(h)
	return r
}

// isJSON lets through what says it is JSON, and what curl -d says when nobody told it otherwise.
func isJSON(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == "application/json" || t == "application/x-www-form-urlencoded" || strings.HasPrefix(t, "application/") && strings.HasSuffix(t, "+json")
}

// isRetry says that the client states a repeated attempt: OpenAI's SDKs count from 0, Sluice-Attempt counts
// from 1. What a client says about it can only make its demand look smaller.
func isRetry(h http.Header) bool {
	over := func(name string, first int) bool {
		v := h.Get(name)
		if v == "" {
			return false
		}
		n, err := strconv.Atoi(v)
		return err == nil && n > first
	}
	return over("X-Stainless-Retry-Count", 0) || over("Sluice-Attempt", 1)
}

// clientTimeout is the shortest wait that the headers name: Sluice-Timeout-Ms (ours: a wrong value is
// refused), x-envoy-expected-rq-timeout-ms and x-stainless-timeout in seconds (set by proxies and SDKs: a
// wrong value is not the caller's fault and is ignored).
func clientTimeout(h http.Header) (time.Duration, *refusal) {
	const day = 24 * time.Hour
	var least time.Duration
	take := func(n float64, unit time.Duration) {
		if d := time.Duration(min(n*float64(unit), float64(day))); d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	if v := h.Get("Sluice-Timeout-Ms"); v != "" {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil || n == 0 {
			return 0, &refusal{reason: ReasonInvalidHeader, param: "Sluice-Timeout-Ms", detail: "Sluice-Timeout-Ms must be a whole number of milliseconds, at least 1"}
		}
		take(float64(n), time.Millisecond)
	}
	foreign := func(name string, unit time.Duration) {
		v := h.Get(name)
		if v == "" { // almost always: the error of parsing nothing was 3 % of the pipeline
			return
		}
		if n, err := strconv.ParseFloat(v, 64); err == nil && n > 0 && !math.IsInf(n, 0) {
			take(n, unit)
		}
	}
	foreign("X-Envoy-Expected-Rq-Timeout-Ms", time.Millisecond)
	foreign("X-Stainless-Timeout", time.Second)
	return least, nil
}

// deadlineOf is arrival + min(tier timeout, what the client says), but at least twice the service time S:
// one impatient client must not force batches of one.
func deadlineOf(arrival time.Time, tierTimeout, client, s time.Duration) time.Time {
	d := tierTimeout
	if client > 0 {
		d = min(d, max(client, 2*s))
	}
	return arrival.Add(d)
}

// checkCall is validity of what the body asks for, whichever API it came by.
func (g *Gateway) checkCall(x *exchange) *refusal {
	c := &x.call
	switch {
	case c.model == "":
		return &refusal{reason: ReasonInvalidRequest, param: "model", detail: fmt.Sprintf("model is missing; this pool serves %q", g.pool.Model)}
	case c.model != g.pool.Model:
		return &refusal{reason: ReasonUnknownModel, param: "model", detail: fmt.Sprintf("model %.128q is not served here; this pool serves %q", c.model, g.pool.Model)}
	case c.input == "":
		return &refusal{reason: ReasonEmptyInput, param: x.codec.inputField(), detail: x.codec.inputField() + " is empty"}
	case len(c.input) > g.pool.Gateway.MaxInputBytes:
		return &refusal{reason: ReasonInputTooLarge, param: x.codec.inputField(),
			detail: fmt.Sprintf("the input has %d bytes, at most %d are taken", len(c.input), g.pool.Gateway.MaxInputBytes)}
	}
	if n := c.params.MaxTokens; n != nil && (*n < 1 || *n > maxMaxTokens) {
		return &refusal{reason: ReasonInvalidRequest, param: "max_tokens", detail: fmt.Sprintf("max_tokens is %d, want 1 to %d", *n, maxMaxTokens)}
	}
	if t := c.params.Temperature; t != nil && !(*t >= 0 && *t <= 2) {
		return &refusal{reason: ReasonInvalidRequest, param: "temperature", detail: fmt.Sprintf("temperature is %v, want 0 to 2", *t)}
	}
	return g.checkParameters(x)
}

// maxMaxTokens bounds max_tokens: longer than any model's context.
const maxMaxTokens = 10_000_000

// checkParameters handles what the backend does not take: 400 where the pool says Reject, else the answer
// carries a Warning. It is never dropped in silence.
func (g *Gateway) checkParameters(x *exchange) *refusal {
	ignored := x.call.ignored
	if g.pool.Gateway.BackendParameterMode == "none" {
		if x.call.params.MaxTokens != nil {
			ignored = append(ignored, "max_tokens")
		}
		if x.call.params.Temperature != nil {
			ignored = append(ignored, "temperature")
		}
	}
	if len(ignored) == 0 {
		return nil
	}
	if g.pool.Gateway.RejectUnsupported {
		return &refusal{reason: ReasonUnsupportedParameter, param: ignored[0],
			detail: "the pool's backend does not take " + strings.Join(ignored, ", ")}
	}
	x.warnings = append(x.warnings, "ignored, the backend does not take it: "+strings.Join(ignored, ", "))
	if g.pool.Gateway.BackendParameterMode == "none" {
		x.maxTokens = int64(deref(x.call.params.MaxTokens))
		x.call.params = wire.Parameters{}
	}
	return nil
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}
