package worker

import (
	"log/slog"
	"time"

	"sluice.dev/sluice/internal/telemetry"
)

// Defaults of Options.
const (
	// DefaultMaxBatch is the size of a batch that the backends are built for.
	DefaultMaxBatch = 100
	// DefaultBatchTimeout is when a running batch counts as hung. It is ten times the batcher's own default
	// timeout (500 ms): the batcher gives up on a slow batch long before the worker kills a process that may
	// take minutes to load its model again.
	DefaultBatchTimeout = 5 * time.Second
	// DefaultLoadTimeout bounds one load with its warm-up. The kubelet's startup probe bounds only the first.
	DefaultLoadTimeout = 30 * time.Minute
	// BodyBytesPerItem times MaxBatch is the largest body: an input of 64 KiB in JSON at its most verbose (6
	// bytes for a byte that is written as an escape), and room for ids and parameters.
	BodyBytesPerItem = 6*64<<10 + 4<<10
	// DefaultWarmUpInput is repeated to fill the warm-up batch.
	DefaultWarmUpInput = "warm-up"
	// DefaultBackoffMin and DefaultBackoffMax bound the wait before a dead backend is loaded again. It
	// doubles with each failure and begins anew after a batch that succeeded.
	DefaultBackoffMin = 100 * time.Millisecond
	DefaultBackoffMax = 30 * time.Second
)

// Options configure a Server. The zero value is usable: every zero field takes its default.
type Options struct {
	// MaxBatch is the largest batch: 1 to 1,000.
	MaxBatch int
	// MaxBodyBytes is the largest body of a request: by default MaxBatch x BodyBytesPerItem, 38.8 MiB.
	MaxBodyBytes int64
	// BatchTimeout is when a running batch counts as hung and its instance is given up.
	BatchTimeout time.Duration
	// LoadTimeout bounds one load with its warm-up batch.
	LoadTimeout time.Duration
	// ServiceTime is the expected time of a batch until the first was measured; it only serves FreeInMs.
	ServiceTime time.Duration
	// WarmUpInput fills the warm-up batch that every load is followed by, MaxBatch times.
	WarmUpInput string
	// SkipWarmUp leaves the warm-up out.
	SkipWarmUp bool
	// BackoffMin and BackoffMax bound the wait before a dead backend is loaded again.
	BackoffMin, BackoffMax time.Duration
	// PredictAPI also serves POST /v1/models/{model}:predict (see predict.go).
	PredictAPI bool
	// Tracer makes a span of each batch that comes with the trace of one; nil makes none.
	Tracer *telemetry.Tracer
	// Log gets loads, deaths and failed batches. Nil discards.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	if o.MaxBatch <= 0 {
		o.MaxBatch = DefaultMaxBatch
	}
	if o.MaxBodyBytes <= 0 {
		o.MaxBodyBytes = int64(o.MaxBatch) * BodyBytesPerItem
	}
	if o.WarmUpInput == "" {
		o.WarmUpInput = DefaultWarmUpInput
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	def(&o.BatchTimeout, DefaultBatchTimeout)
	def(&o.LoadTimeout, DefaultLoadTimeout)
	def(&o.ServiceTime, 100*time.Millisecond)
	def(&o.BackoffMin, DefaultBackoffMin)
	def(&o.BackoffMax, DefaultBackoffMax)
	return o
}
