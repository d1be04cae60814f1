package dispatch

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/telemetry"
)

// Engine is a Batcher with workers behind HTTP: the batching.Submitter of a pool. Safe for concurrent use.
type Engine struct {
	*batching.Batcher
	client *client
	tracer *telemetry.Tracer
	log    *slog.Logger

	ctx     context.Context
	cancel  context.CancelFunc
	probing sync.WaitGroup

	mu     sync.Mutex
	probes map[Endpoint]*prober
}

// New returns a running Engine without workers. Close it.
func New(cfg Config) *Engine {
	if cfg.Transport == nil {
		cfg.Transport = NewTransport()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Engine{client: newClient(cfg.Transport), tracer: cfg.Tracer, log: cfg.Logger, probes: map[Endpoint]*prober{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.Batcher = batching.NewBatcher(cfg.Batching, runner{e})
	return e
}

// SetWorkers makes endpoints the whole set of workers. A new one gets its first batch once it said that it
// is idle; one that left finishes its batch.
func (e *Engine) SetWorkers(endpoints []Endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]batching.WorkerID, 0, len(endpoints))
	want := map[Endpoint]bool{}
	for _, ep := range endpoints {
		ep.Addr = strings.TrimSuffix(strings.TrimPrefix(ep.Addr, "http://"), "/")
		if want[ep] {
			continue
		}
		want[ep] = true
		ids = append(ids, batching.WorkerID{Addr: ep.Addr, Pod: ep.Pod})
	}
	for ep, p := range e.probes {
		if !want[ep] {
			p.cancel()
			delete(e.probes, ep)
		}
	}
	e.Batcher.SetWorkers(ids)
	if e.ctx.Err() != nil {
		return
	}
	for ep := range want {
		if e.probes[ep] == nil {
			e.probes[ep] = e.startProber(ep)
		}
	}
}

// Close answers what is parked with draining, aborts running batches and stops everything.
func (e *Engine) Close() {
	e.cancel()
	e.Batcher.Close()
	e.probing.Wait()
	if t, ok := e.client.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// runner is the Engine as the Batcher sees it.
type runner struct{ e *Engine }

// Run implements batching.Runner.
func (r runner) Run(ctx context.Context, b *batching.Batch) batching.Outcome {
	ctx, span := r.e.tracer.Batch(ctx, b)
	o := r.e.client.run(ctx, b)
	span.End(o)
	switch o.Kind {
	case batching.Refused, batching.Raised, batching.Crashed, batching.TimedOut:
		if ctx.Err() == nil {
			r.e.log.Warn("batch failed", "worker", b.Worker, "batch", b.ID, "items", len(b.Tickets), "why", o.Detail)
		}
	}
	return o
}

// WorkerLost implements batching.LossListener: the worker is asked how it is.
func (r runner) WorkerLost(addr string) {
	// When the last one is lost, all are asked at once, however long they were to be left alone: a pause of
	// this process makes every batch time out, and must not cost seconds without capacity after it.
	none := r.e.Snapshot().Live == 0
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	for ep, p := range r.e.probes {
		if ep.Addr == addr || none {
			p.wake()
		}
	}
}
