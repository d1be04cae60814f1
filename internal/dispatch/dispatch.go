// Package dispatch connects the batching core to GPU workers over HTTP: it knows the set of workers, sends
// batches, tells a worker that never ran a batch from one that failed in it, and asks unhealthy workers
// how they are.
package dispatch

import (
	"log/slog"
	"net/http"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/telemetry"
)

// Endpoint is one worker as discovery names it.
type Endpoint struct {
	Addr string // host:port, or a URL (http://host:port)
	Pod  string // name of its pod, empty outside Kubernetes
}

// Config is what an Engine is made of.
type Config struct {
	Batching batching.Config
	// Transport carries the calls to workers; nil means NewTransport(). A Local serves workers in this
	// process.
	Transport http.RoundTripper
	// Tracer makes the spans of batches that carry traced requests; nil makes none.
	Tracer *telemetry.Tracer
	// Logger gets one line for a worker that changes between healthy and not; nil discards.
	Logger *slog.Logger
}
