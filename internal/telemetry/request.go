package telemetry

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// propagator is W3C Trace Context: traceparent and tracestate. Baggage is not passed on: what a client puts there
// is for its own services.
var propagator propagation.TraceContext

// headerTraceparent is how net/http spells the header.
const headerTraceparent = "Traceparent"

// Inject puts the context's span into the headers of a request to another process; nothing without a span.
func Inject(ctx context.Context, h http.Header) {
	if trace.SpanContextFromContext(ctx).IsValid() {
		propagator.Inject(ctx, propagation.HeaderCarrier(h))
	}
}

func parentOf(h http.Header) trace.SpanContext {
	if len(h[headerTraceparent]) == 0 {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagator.Extract(context.Background(), propagation.HeaderCarrier(h)))
}

// Request is one traced request. Nil is one that is not traced; its methods do nothing.
type Request struct {
	tracer  trace.Tracer
	ctx     context.Context // holds span
	span    trace.Span
	arrival time.Time
	// admitted is when the request was handed to the batcher, zero when it was refused before.
	admitted time.Time
}

// Request begins the trace of a request that arrived at the given time, or continues its client's. It returns nil
// when the request is not traced. The span is named by the pattern that http.ServeMux matched: a client cannot
// make up names.
func (t *Tracer) Request(r *http.Request, arrival time.Time) *Request {
	if t == nil {
		return nil
	}
	parent := parentOf(r.Header)
	if !t.sampled(parent, arrival) {
		return nil
	}
	method, route := methodOf(r.Method), r.Pattern
	if _, path, ok := strings.Cut(route, " "); ok {
		route = path
	}
	ctx, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), method+" "+route,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(arrival),
		trace.WithAttributes(attrMethod.String(method), attrRoute.String(route)))
	return &Request{tracer: t.tracer, ctx: ctx, span: span, arrival: arrival}
}

// methodOf is the method as the semantic conventions want it: one that is not known is "_OTHER".
func methodOf(m string) string {
	switch m {
	case http.MethodGet, http.MethodPost, http.MethodHead, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "_OTHER"
}

// Forwarded is a request whose trace another process began: it gets no spans here, but batches link to it. Nil
// when it is not traced.
func (t *Tracer) Forwarded(h http.Header) *Request {
	if t == nil {
		return nil
	}
	parent := parentOf(h)
	if !parent.IsSampled() {
		return nil
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
	return &Request{tracer: t.tracer, ctx: ctx, span: trace.SpanFromContext(ctx)}
}

// Carried is the request as batching.Request.Trace holds it: nil, and not a nil pointer in an interface, when it is
// not traced.
func (r *Request) Carried() any {
	if r == nil {
		return nil
	}
	return r
}

// Context returns ctx with the request's span, for Inject.
func (r *Request) Context(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, r.span)
}

// TraceID is the trace's id in hexadecimal, "" when the request is not traced.
func (r *Request) TraceID() string {
	if r == nil {
		return ""
	}
	return r.span.SpanContext().TraceID().String()
}

// Admit says that the request is handed to the batcher now.
func (r *Request) Admit() {
	if r != nil {
		r.admitted = time.Now()
	}
}

// End says what became of a request.
type End struct {
	At time.Time
	// Formed is when its last batch left, zero when it was in none or that is not known.
	Formed       time.Time
	ID           string
	Tier, Tenant string // "" for not known
	Status       int
	Reason       string
	Attempts     int
	BatchID      string
	BatchSize    int
}

// End makes the spans admit and queue, after the fact, and ends the request's. A request that is refused has the
// status of its answer; only what is this side's fault is an error of the span (5xx).
func (r *Request) End(e End) {
	if r == nil {
		return
	}
	attrs := make([]attribute.KeyValue, 0, 8)
	attrs = append(attrs, attrRequestID.String(e.ID), attrStatus.Int(e.Status), attrReason.String(e.Reason))
	if e.Tier != "" {
		attrs = append(attrs, attrTier.String(e.Tier))
	}
	if e.Tenant != "" {
		attrs = append(attrs, attrTenant.String(e.Tenant))
	}
	if e.BatchID != "" {
		attrs = append(attrs, attrBatchID.String(e.BatchID), attrBatchSize.Int(e.BatchSize), attrAttempts.Int(e.Attempts))
	}
	if e.Status >= http.StatusInternalServerError {
		r.span.SetStatus(codes.Error, e.Reason)
		attrs = append(attrs, attrErrorType.String(e.Reason))
	}
	if r.admitted.IsZero() {
		r.child(spanAdmit, r.arrival, e.At)
	} else {
		r.child(spanAdmit, r.arrival, r.admitted)
		if e.Formed.IsZero() {
			e.Formed = e.At
		}
		r.child(spanQueue, r.admitted, e.Formed)
	}
	r.span.SetAttributes(attrs...)
	r.span.End(trace.WithTimestamp(e.At))
}

func (r *Request) child(name string, from, to time.Time) {
	_, span := r.tracer.Start(r.ctx, name, trace.WithTimestamp(from))
	span.End(trace.WithTimestamp(to))
}
