// Command gpuworker is a GPU worker: it runs batches, one at a time, on a simulated GPU, on a team's own
// Python function, or on a model server beside it.
//
// SIGTERM or SIGINT: new batches are answered "draining" and readiness is false at once, the running batch is
// finished and answered, then the process exits 0. A second signal, or --grace, ends it at once with 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/collectors"

	"sluice.dev/sluice/internal/telemetry"
	"sluice.dev/sluice/internal/worker"
)

func main() {
	c, err := parseFlags(os.Args[1:], os.Getenv, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fmt.Fprintln(os.Stderr, "gpuworker:", err)
		os.Exit(2)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal kills
	listener, err := net.Listen("tcp", c.listen)
	if err == nil {
		err = serve(ctx, c, listener, log)
	}
	if err != nil {
		log.Error("gpuworker ends", "error", err)
		os.Exit(1)
	}
}

// serve runs the worker on the listener until ctx ends, then drains it.
func serve(ctx context.Context, c config, listener net.Listener, log *slog.Logger) error {
	b, err := c.newBackend(log)
	if err != nil {
		return err
	}
	c.options.Log = log
	if c.otlp != "" {
		c.options.Tracer, err = telemetry.New(ctx, telemetry.Config{Endpoint: c.otlp, Service: "sluice-gpuworker", Namespace: c.namespace, Pod: c.pod, Log: log})
		if err != nil {
			return err
		}
		defer endTraces(c.options.Tracer, log)
	}
	s := worker.New(b, c.options)
	if t := c.options.Tracer; t != nil {
		s.Registry().MustRegister(t)
	}
	s.Registry().MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	server := worker.NewHTTPServer(s)
	server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelWarn)

	running, release := context.WithCancel(context.Background())
	defer release()
	supervised := make(chan error, 1)
	go func() { supervised <- s.Run(running) }()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log.Info("listening", "address", listener.Addr().String(), "backend", c.backend, "max_batch", c.options.MaxBatch)

	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("draining", "grace", c.grace.String())
	graceful, cancel := context.WithTimeoutCause(context.Background(), c.grace,
		fmt.Errorf("the running batch did not end within the grace of %v", c.grace))
	defer cancel()
	err = s.Drain(graceful)
	if err == nil {
		// Callers that have not heard yet that this worker leaves learn it from an answer for a moment longer;
		// after that from a refused connection, which costs them no attempt either.
		wait(graceful, c.linger)
	}
	if e := server.Shutdown(graceful); e != nil && !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	release()
	select {
	case e := <-supervised: // the backend is closed
		err = errors.Join(err, e)
	case <-graceful.Done():
		err = errors.Join(err, context.Cause(graceful))
	}
	return err
}

// endTraces sends what is buffered; a collector that is away holds up the exit for a second.
func endTraces(t *telemetry.Tracer, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := t.Shutdown(ctx); err != nil {
		log.Warn("the last spans may be lost", "error", err)
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
