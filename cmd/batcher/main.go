// Command batcher is a pool's batcher with the gateway in the same process: it answers clients on one port
// and the operator, the kubelet and Prometheus on another.
//
// In Kubernetes it learns its workers, tenants and zone by watching; outside,
//
//	go run ./cmd/batcher --simulate-workers 2
//
// serves the same API in a second, and --workers URL,URL uses running workers.
//
// SIGTERM or SIGINT: not ready at once; for --linger requests are still accepted and each answer closes its
// connection; then what is under way is finished, at most for the longest tier timeout. A second signal ends
// it at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"

	"k8s.io/klog/v2"
)

func main() {
	c, err := parseFlags(os.Args[1:], os.Getenv, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "batcher:", err)
		os.Exit(2)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	klog.SetSlogLogger(log) // of the Kubernetes client
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal kills
	if err := run(ctx, c, log); err != nil {
		log.Error("batcher ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c config, log *slog.Logger) error {
	if c.cpuProfile != "" {
		f, err := os.Create(c.cpuProfile)
		if err != nil {
			return fmt.Errorf("--cpu-profile: %w", err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("--cpu-profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	public, err := net.Listen("tcp", c.listen)
	if err != nil {
		return err
	}
	internal, err := net.Listen("tcp", c.internalListen)
	if err != nil {
		return errors.Join(err, public.Close())
	}
	b, err := newBatcher(c, log)
	if err != nil {
		return errors.Join(err, public.Close(), internal.Close())
	}
	return b.serve(ctx, public, internal)
}
