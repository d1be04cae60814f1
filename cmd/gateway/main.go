// Command gateway is a pool's gateway in a process of its own: it answers clients on one port and the operator,
// the kubelet, Prometheus and the other gateways on another, and hands requests to the batchers.
//
// In Kubernetes it learns the batchers, the other gateways, tenants and the zone by watching; outside,
//
//	go run ./cmd/batcher --simulate-workers 2 --listen :8090 --internal-listen :8091 --relay-listen :8092 &
//	go run ./cmd/gateway --batchers b=127.0.0.1:8092
//
// serves the same API as the batcher itself.
//
// SIGTERM or SIGINT: as for the batcher. A second signal ends it at once.
package main

import (
	"context"
	"log/slog"
	"os"

	"sluice.dev/sluice/internal/process"
)

func main() {
	c, err := parseFlags(os.Args[1:], os.Getenv, os.Stderr)
	process.Main("gateway", err, func(ctx context.Context, log *slog.Logger) error {
		return c.Run(ctx, func() (*process.Process, error) { return newGateway(c, log) })
	})
}
