package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"sluice.dev/sluice/internal/batching"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	traceID       = "4bf92f3577b34da6a3ce929d0e0e4736"
	sampledParent = "00-" + traceID + "-00f067aa0ba902b7-01"
	silentParent  = "00-" + traceID + "-00f067aa0ba902b7-00"
)

func newTest(t *testing.T, percent int, e sdktrace.SpanExporter) *Tracer {
	t.Helper()
	tr, err := newTracer(t.Context(), Config{Endpoint: "http://collector:4318", SamplePercent: percent, Service: "test", Pool: "llm"}, e)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func request(traceparent string) *http.Request {
	r, _ := http.NewRequest(http.MethodPost, "/v1/inference", nil)
	r.Pattern = "POST /v1/inference"
	if traceparent != "" {
		r.Header.Set("traceparent", traceparent)
	}
	return r
}

// spans ends the tracer and returns what was exported, by name.
func (k *kept) spans(t *testing.T, tr *Tracer) map[string]sdktrace.ReadOnlySpan {
	t.Helper()
	if err := tr.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	m := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range k.all {
		m[s.Name()] = s
	}
	return m
}

// kept is an exporter that keeps spans over its Shutdown.
type kept struct {
	mu  sync.Mutex
	all []sdktrace.ReadOnlySpan
}

func (k *kept) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, spans...)
	return nil
}
func (k *kept) Shutdown(context.Context) error { return nil }

func TestSwitchedOffCostsNothing(t *testing.T) {
	var off *Tracer
	r, ctx, h := request(sampledParent), context.Background(), http.Header{}
	b := &batching.Batch{Tickets: []*batching.Ticket{{}, {}}}
	if n := testing.AllocsPerRun(100, func() {
		x := off.Request(r, epoch)
		if x.Carried() != nil {
			t.Fatal("a request is traced")
		}
		x.Admit()
		x.End(End{At: epoch})
		c, s := off.Batch(ctx, b)
		Inject(c, h)
		s.End(batching.Outcome{})
		off.Work(r.Header, epoch).End("b", 1, 0, "")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(h) != 0 || off.Shutdown(ctx) != nil {
		t.Error("something happened")
	}
}

func TestTheClientDecidesForItsOwnRequests(t *testing.T) {
	for _, c := range []struct {
		name, parent string
		percent      int
		traced       bool
	}{
		{"sampled by its client", sampledParent, 0, true},
		{"not sampled by its client", silentParent, 100, false},
		{"nobody said, all are", "", 100, true},
		{"nobody said, none are", "", 0, false},
		{"an unreadable header is none", "00-" + traceID + "-0000000000000000-01", 0, false},
		{"an unreadable header is none, and all are", "ff-nonsense", 100, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := &kept{}
			tr := newTest(t, c.percent, k)
			x := tr.Request(request(c.parent), epoch)
			x.End(End{At: epoch.Add(time.Second)})
			s, traced := k.spans(t, tr)["POST /v1/inference"]
			if traced != c.traced || (x != nil) != c.traced {
				t.Fatalf("traced: %v", traced)
			}
			if c.parent == sampledParent && (s.SpanContext().TraceID().String() != traceID || s.Parent().SpanID().String() != "00f067aa0ba902b7") {
				t.Errorf("the client's trace is not continued: %v under %v", s.SpanContext(), s.Parent())
			}
		})
	}
}

func TestSampling(t *testing.T) {
	tr := newTest(t, 10, &kept{})
	defer tr.Shutdown(context.Background())
	n := 0
	for i := range 20000 {
		if tr.sampled(trace.SpanContext{}, epoch.Add(time.Duration(i)*time.Second)) {
			n++
		}
	}
	if n < 1800 || n > 2200 { // 10 %, and almost five standard deviations
		t.Errorf("%d of 20,000 at 10 %%", n)
	}
}

// A client that says "sampled" of everything traces a thousand requests a second and no more.
func TestAClientCannotTraceWithoutBound(t *testing.T) {
	tr := newTest(t, 0, &kept{})
	defer tr.Shutdown(context.Background())
	flood := func(at time.Time) (n int) {
		for i := range 5000 {
			if tr.sampled(parentOf(request(sampledParent).Header), at.Add(time.Duration(i)*100*time.Microsecond)) {
				n++
			}
		}
		return n
	}
	if n := flood(epoch); n != maxPerSecond {
		t.Errorf("%d in half a second", n)
	}
	if n := flood(epoch.Add(time.Second)); n != maxPerSecond {
		t.Errorf("%d in the next second", n)
	}
	if got := metric(t, tr, metricSkipped, ""); got != 8000 {
		t.Errorf("%v skipped", got)
	}
}

func TestARequestBecomesSpans(t *testing.T) {
	k := &kept{}
	tr := newTest(t, 0, k)
	x := tr.Request(request(sampledParent), epoch)
	x.admitted = epoch.Add(time.Millisecond)
	at := func(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }
	b := &batching.Batch{ID: "b-1", Worker: "10.0.0.1:9000", Tickets: []*batching.Ticket{
		{Request: batching.Request{Trace: x.Carried()}}, {}, {Request: batching.Request{Trace: tr.Forwarded(request(sampledParent).Header).Carried()}},
	}}
	ctx, span := tr.Batch(t.Context(), b)
	h := http.Header{}
	Inject(ctx, h)
	span.End(batching.Outcome{Kind: batching.Answered})
	x.End(End{At: at(150), Formed: at(41), ID: "r-1", Tier: "paid", Tenant: "acme", Status: 200, Reason: "ok", Attempts: 1, BatchID: "b-1", BatchSize: 3})
	work := tr.Work(h, epoch)
	work.End("b-1", 3, 100*time.Millisecond, "")
	s := k.spans(t, tr)
	root, admit, queue, batch, worker := s["POST /v1/inference"], s[spanAdmit], s[spanQueue], s[spanBatch], s[spanWorker]
	if len(s) != 5 {
		t.Fatalf("%d spans", len(s))
	}
	for _, c := range []struct {
		what     string
		span     sdktrace.ReadOnlySpan
		from, to int
	}{{"request", root, 0, 150}, {"admit", admit, 0, 1}, {"queue", queue, 1, 41}} {
		if !c.span.StartTime().Equal(at(c.from)) || !c.span.EndTime().Equal(at(c.to)) {
			t.Errorf("%s: from %v to %v", c.what, c.span.StartTime(), c.span.EndTime())
		}
	}
	if admit.Parent().SpanID() != root.SpanContext().SpanID() || queue.Parent().SpanID() != root.SpanContext().SpanID() {
		t.Error("admit and queue are not the request's children")
	}
	if batch.Parent().IsValid() || batch.SpanContext().TraceID() == root.SpanContext().TraceID() {
		t.Error("the batch, which has many parents, is one request's child")
	}
	linked := func(from, to sdktrace.ReadOnlySpan) bool {
		return slices.ContainsFunc(from.Links(), func(l sdktrace.Link) bool { return l.SpanContext.SpanID() == to.SpanContext().SpanID() })
	}
	if !linked(batch, root) || !linked(root, batch) || len(batch.Links()) != 2 {
		t.Errorf("links: %v and %v", batch.Links(), root.Links())
	}
	if worker.Parent().SpanID() != batch.SpanContext().SpanID() {
		t.Error("the worker's span is not the batch's child")
	}
}

func TestABatchOfUntracedRequestsIsNotTraced(t *testing.T) {
	k := &kept{}
	tr := newTest(t, 100, k)
	ctx, span := tr.Batch(t.Context(), &batching.Batch{Tickets: []*batching.Ticket{{}, {}}})
	h := http.Header{}
	Inject(ctx, h)
	span.End(batching.Outcome{})
	if s := k.spans(t, tr); len(s) != 0 || len(h) != 0 {
		t.Errorf("%v, %v", s, h)
	}
}

// stuck is a collector that does not answer until released.
type stuck struct {
	kept
	release chan struct{}
}

func (s *stuck) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	<-s.release
	return s.kept.ExportSpans(ctx, spans)
}

// With a collector that hangs, the buffer fills, the rest is dropped and counted exactly, and nobody waits.
func TestAStuckCollectorDropsAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &stuck{release: make(chan struct{})}
		tr := newTest(t, 100, e)
		const over = 300
		for range maxBuffered + over {
			_, s := tr.tracer.Start(context.Background(), "s")
			s.End()
		}
		if got := metric(t, tr, metricSpansDropped, droppedFull); got != over {
			t.Errorf("%v dropped, want %d", got, over)
		}
		close(e.release)
		if err := tr.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := metric(t, tr, metricSpansExported, ""); got != maxBuffered || len(e.all) != maxBuffered {
			t.Errorf("%v exported, %d arrived, want %d", got, len(e.all), maxBuffered)
		}
	})
}

type failing struct{ kept }

func (*failing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("collector says no")
}

func TestAFailingCollectorIsCountedAndLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		tr := newTest(t, 100, &failing{})
		tr.buffer.log = slog.New(slog.NewTextHandler(&out, nil))
		for range 30 { // a span every 4 s: two minutes
			_, s := tr.tracer.Start(context.Background(), "s")
			s.End()
			time.Sleep(4 * time.Second)
		}
		if err := tr.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := metric(t, tr, metricSpansDropped, droppedExport); got != 30 {
			t.Errorf("%v counted", got)
		}
		if n := strings.Count(out.String(), "collector says no"); n != 2 {
			t.Errorf("%d lines in two minutes:\n%s", n, &out)
		}
	})
}

func TestEndpoints(t *testing.T) {
	for e, ok := range map[string]bool{
		"http://c:4318": true, "https://c.example/otlp/v1/traces": true,
		"c:4318": false, "grpc://c:4317": false, "http://": false, "http://u:p@c": false, "http://c?x=1": false, "": false, "http://c:%zz": false,
	} {
		if err := CheckEndpoint(e); (err == nil) != ok {
			t.Errorf("%q: %v", e, err)
		}
	}
}

func FuzzTraceparent(f *testing.F) {
	f.Add(sampledParent, "a=b")
	f.Add("00-", strings.Repeat("k=v,", 200))
	f.Fuzz(func(t *testing.T, parent, state string) {
		sc := parentOf(http.Header{"Traceparent": {parent}, "Tracestate": {state}})
		if sc.IsSampled() && !sc.IsValid() {
			t.Errorf("%q is sampled and names no trace", parent)
		}
	})
}
