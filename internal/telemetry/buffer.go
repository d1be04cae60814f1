package telemetry

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// complainEvery is how often a failing export is logged.
const complainEvery = time.Minute

// buffer counts the spans between their end and their export, and drops what is over the bound before the SDK's
// own queue would, which does not say so.
type buffer struct {
	sdktrace.SpanProcessor // the SDK's, which batches
	sdktrace.SpanExporter
	log      *slog.Logger
	endpoint string

	waiting                atomic.Int64
	exported, failed, full atomic.Uint64
	complained             atomic.Int64 // Unix nanoseconds
}

// OnEnd implements sdktrace.SpanProcessor.
func (b *buffer) OnEnd(s sdktrace.ReadOnlySpan) {
	if b.waiting.Add(1) > maxBuffered {
		b.waiting.Add(-1)
		b.full.Add(1)
		return
	}
	b.SpanProcessor.OnEnd(s)
}

// Shutdown implements sdktrace.SpanProcessor; it shuts the exporter down too.
func (b *buffer) Shutdown(ctx context.Context) error { return b.SpanProcessor.Shutdown(ctx) }

// exports is the buffer as the SDK's processor sees it.
type exports struct{ *buffer }

// ExportSpans implements sdktrace.SpanExporter. The error ends here: it is counted and logged.
func (e exports) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	n := len(spans)
	e.waiting.Add(int64(-n))
	if err == nil {
		e.exported.Add(uint64(n))
		return nil
	}
	e.failed.Add(uint64(n))
	now, last := time.Now().UnixNano(), e.complained.Load()
	if now-last >= int64(complainEvery) && e.complained.CompareAndSwap(last, now) {
		e.log.Warn("spans could not be exported and are lost", "endpoint", e.endpoint, "spans", n, "error", err)
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (e exports) Shutdown(ctx context.Context) error { return e.SpanExporter.Shutdown(ctx) }
