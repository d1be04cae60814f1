package worker

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a worker. Durations are in seconds.
const (
	MetricBatches       = "sluice_worker_batches_total"          // finished well
	MetricItems         = "sluice_worker_items_total"            // in those batches
	MetricBusySeconds   = "sluice_worker_busy_seconds_total"     // time in which a batch ran, failed ones too
	MetricBatchDuration = "sluice_worker_batch_duration_seconds" // of batches that finished well
	MetricFailures      = "sluice_worker_failures_total"         // batches that ran and failed, by code
	MetricRefusals      = "sluice_worker_refusals_total"         // calls that ran nothing, by code
	MetricAbandoned     = "sluice_worker_abandoned_total"        // batches whose caller had hung up when they ended
	MetricRestarts      = "sluice_worker_backend_restarts_total" // deaths of a loaded backend
	MetricMemory        = "sluice_worker_backend_memory_bytes"   // resident main memory, 0 where unknown
	MetricReady         = "sluice_worker_ready"                  // 1 while /readyz says 200
	MetricLoadSeconds   = "sluice_worker_load_seconds"           // the last load with its warm-up batch
)

// labelCode is the label that holds a wire code; resetCode is its value for a simulated crash.
const (
	labelCode = "code"
	codeReset = "reset"
)

type metrics struct {
	registry  *prometheus.Registry
	batches   prometheus.Counter
	items     prometheus.Counter
	busy      prometheus.Counter
	duration  prometheus.Histogram
	failures  *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	abandoned prometheus.Counter
	restarts  prometheus.Counter
	load      prometheus.Gauge
}

func newMetrics(s *Server) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	byCode := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{labelCode})
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		batches:  counter(MetricBatches, "Batches that finished well."),
		items:    counter(MetricItems, "Items of the batches that finished well."),
		busy:     counter(MetricBusySeconds, "Time in which a batch ran, failed ones too."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: MetricBatchDuration, Help: "Time that the backend took for batches that finished well.",
			// Around the 100 ms that a batch is expected to take, and out to a hang.
			Buckets: []float64{.005, .01, .025, .05, .075, .09, .1, .11, .125, .15, .2, .3, .5, 1, 2.5, 5, 10},
		}),
		failures:  byCode(MetricFailures, "Batches that ran and failed."),
		refusals:  byCode(MetricRefusals, "Calls that ran nothing."),
		abandoned: counter(MetricAbandoned, "Batches whose caller had hung up when they ended."),
		restarts:  counter(MetricRestarts, "Deaths of a loaded backend."),
		load:      prometheus.NewGauge(prometheus.GaugeOpts{Name: MetricLoadSeconds, Help: "Duration of the last load with its warm-up batch."}),
	}
	m.registry.MustRegister(m.batches, m.items, m.busy, m.duration, m.failures, m.refusals, m.abandoned, m.restarts, m.load,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: MetricMemory, Help: "Resident main memory of the backend, 0 where unknown."},
			func() float64 { return float64(s.memoryBytes()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: MetricReady, Help: "1 while the worker takes batches."},
			func() float64 {
				if s.ready() {
					return 1
				}
				return 0
			}),
	)
	return m
}

func (s *Server) memoryBytes() uint64 {
	s.mu.Lock()
	inst := s.instance
	s.mu.Unlock()
	if m, ok := inst.(MemoryReporter); ok {
		return m.MemoryBytes()
	}
	return 0
}
