package worker

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice.dev/sluice/internal/wire"
)

// phase is where the backend's life stands; busy is kept beside it.
type phase int

const (
	phaseLoading phase = iota // the first load
	phaseReady
	phaseFailed // died or could not be loaded; a load is on its way
)

// Server is a GPU worker: an http.Handler of wire.PathBatch, wire.PathWorkerState, wire.PathHealthz,
// wire.PathReadyz and /metrics. It is safe for concurrent use. It answers not_ready until Run has loaded the
// backend.
type Server struct {
	opt     Options
	backend Backend
	mux     *http.ServeMux
	metrics *metrics

	mu       sync.Mutex
	phase    phase
	draining bool
	message  string   // why it is not ready
	instance Instance // set while phaseReady
	seen     recentIDs

	running bool
	started time.Time     // of the running batch
	slot    chan struct{} // holds one token while nothing runs
	suspect chan struct{} // one token: the instance failed suspectAfter batches in a row
	drained chan struct{} // closed when draining and nothing runs

	service       time.Duration // moving average of successful batches
	batches       uint64
	items         uint64
	busy          time.Duration
	failuresInRow int // application errors since the last success
}

// New returns a worker on the backend. Nothing is loaded before Run.
func New(b Backend, o Options) *Server {
	o = o.withDefaults()
	s := &Server{
		opt: o, backend: b, mux: http.NewServeMux(),
		service: o.ServiceTime,
		slot:    make(chan struct{}, 1), suspect: make(chan struct{}, 1), drained: make(chan struct{}),
		message: "the backend is not loaded yet",
	}
	s.slot <- struct{}{}
	s.metrics = newMetrics(s)
	s.mux.HandleFunc("POST "+wire.PathBatch, s.handleBatch)
	s.mux.HandleFunc("GET "+wire.PathWorkerState, s.handleState)
	s.mux.HandleFunc("GET "+wire.PathHealthz, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	s.mux.HandleFunc("GET "+wire.PathReadyz, s.handleReady)
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	if o.PredictAPI {
		s.mux.HandleFunc("POST /v1/models/{model}", s.handlePredict)
	}
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Registry is the worker's own metrics registry, for a binary to add the collectors of its process to.
func (s *Server) Registry() *prometheus.Registry { return s.metrics.registry }

// State is the worker's view of itself.
func (s *Server) State() wire.WorkerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := wire.WorkerState{
		State: s.stateLocked(), Batches: s.batches, Items: s.items, BusyMs: uint64(s.busy.Milliseconds()),
		Message: s.message,
	}
	if s.instance != nil {
		st.ParamsMode = s.instance.ParamsMode()
	}
	if s.running {
		st.FreeInMs = ms(s.freeInLocked())
	}
	return st
}

func (s *Server) stateLocked() string {
	switch {
	case s.draining:
		return wire.WorkerDraining
	case s.phase == phaseLoading:
		return wire.WorkerLoading
	case s.phase == phaseFailed:
		return wire.WorkerFailed
	case s.running:
		return wire.WorkerBusy
	}
	return wire.WorkerIdle
}

// freeInLocked estimates when the running batch ends: the average service time less what has passed. A batch
// that overran it is expected to take a tenth of its present age more, so that callers of a slow batch ask
// less and less often (10 times for each doubling of its age), and those of a usual one within 1 ms.
func (s *Server) freeInLocked() time.Duration {
	age := time.Since(s.started)
	return max(s.service-age, age/10, time.Millisecond)
}

// Drain makes the worker refuse new batches with wire.CodeDraining and unready at once, and returns when the
// running batch is finished or ctx has ended. It may be called more than once.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		s.message = "the worker is leaving"
		if !s.running {
			close(s.drained)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.drained:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
