package telemetry

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"sluice.dev/sluice/internal/batching"
)

// Batch is the span of one batch, from leaving the queue to its answer. Nil is one that is not traced.
type Batch struct{ span trace.Span }

// Batch begins the span of a batch of which at least one request is traced; else it returns ctx and nil. The
// returned context carries the span, for Inject.
func (t *Tracer) Batch(ctx context.Context, b *batching.Batch) (context.Context, *Batch) {
	if t == nil {
		return ctx, nil
	}
	var links []trace.Link
	for _, ticket := range b.Tickets {
		if r, ok := ticket.Trace.(*Request); ok {
			links = append(links, trace.Link{SpanContext: r.span.SpanContext()})
		}
	}
	if links == nil {
		return ctx, nil
	}
	ctx, span := t.tracer.Start(ctx, spanBatch, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(links...),
		trace.WithAttributes(attrBatchID.String(b.ID), attrBatchSize.Int(len(b.Tickets)), attrWorker.String(b.Worker)))
	for _, ticket := range b.Tickets {
		if r, ok := ticket.Trace.(*Request); ok {
			r.span.AddLink(trace.Link{SpanContext: span.SpanContext()})
		}
	}
	return ctx, &Batch{span}
}

// outcomes name how a batch ended.
var outcomes = map[batching.Kind]string{
	batching.Answered: "answered", batching.Refused: "refused", batching.Busy: "busy", batching.Leaving: "leaving",
	batching.Raised: "raised", batching.Crashed: "crashed", batching.TimedOut: "timed_out",
}

// End ends the span. A worker that was busy or leaves is no error: the batch goes to another.
func (b *Batch) End(o batching.Outcome) {
	if b == nil {
		return
	}
	name := outcomes[o.Kind]
	b.span.SetAttributes(attrOutcome.String(name))
	switch o.Kind {
	case batching.Answered, batching.Busy, batching.Leaving:
	default: // not o.Detail: an exception may quote an input
		b.span.SetStatus(codes.Error, name)
		b.span.SetAttributes(attrErrorType.String(name))
	}
	b.span.End()
}

// Work is the span of a batch in its worker's process. Nil is one that is not traced.
type Work struct {
	ctx  context.Context
	span trace.Span
}

// Work continues the trace of a batch that came with these headers; nil when it is not traced.
func (t *Tracer) Work(h http.Header, arrival time.Time) *Work {
	if t == nil {
		return nil
	}
	parent := parentOf(h)
	if !parent.IsSampled() {
		return nil
	}
	ctx, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), spanWorker,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(arrival))
	return &Work{ctx, span}
}

// Context returns ctx with the span, for Inject.
func (w *Work) Context(ctx context.Context) context.Context {
	if w == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, w.span)
}

// End ends the span of a batch that ran for service; code is wire's code of a refusal or failure, "" for none.
func (w *Work) End(batchID string, size int, service time.Duration, code string) {
	if w == nil {
		return
	}
	if batchID != "" {
		w.span.SetAttributes(attrBatchID.String(batchID), attrBatchSize.Int(size))
	}
	if service > 0 {
		w.span.SetAttributes(attrServiceMs.Float64(float64(service) / float64(time.Millisecond)))
	}
	if code != "" {
		w.span.SetStatus(codes.Error, code)
		w.span.SetAttributes(attrErrorType.String(code))
	}
	w.span.End()
}
