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
	"log/slog"
	"net"
	"os"

	"sluice.dev/sluice/internal/process"
)

func main() {
	c, err := parseFlags(os.Args[1:], os.Getenv, os.Stderr)
	process.Main("batcher", err, func(ctx context.Context, log *slog.Logger) error {
		return c.Run(ctx, func() (*process.Process, error) { return build(c, log) })
	})
}

// build makes the batcher and lets standalone gateways reach it.
func build(c config, log *slog.Logger) (*process.Process, error) {
	b, err := newBatcher(c, log)
	if err != nil {
		return nil, err
	}
	if c.relayListen != "" {
		l, err := net.Listen("tcp", c.relayListen)
		if err != nil {
			return nil, err
		}
		b.serveRelay(l)
	}
	return b.Process, nil
}
