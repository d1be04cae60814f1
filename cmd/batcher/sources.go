package main

import (
	"context"
	"fmt"
	"net/http"

	"sluice.dev/sluice/internal/discovery"
	"sluice.dev/sluice/internal/dispatch"
	"sluice.dev/sluice/internal/worker"
	"sluice.dev/sluice/internal/worker/backends/simulated"
)

// watchKubernetes lets workers, batchers, tenants and the zone come from the API server.
func (b *batcher) watchKubernetes() error {
	return b.WatchKubernetes(discovery.Options{
		Workers: func(list []discovery.Worker) {
			endpoints := make([]dispatch.Endpoint, 0, len(list))
			for _, w := range list {
				endpoints = append(endpoints, dispatch.Endpoint{Addr: w.Addr, Pod: w.Pod})
			}
			b.Log.Info("workers", "ready", len(endpoints))
			b.engine.SetWorkers(endpoints)
		},
		Batchers: func(list []discovery.Peer) { b.engine.SetBatchers(max(1, len(list))) },
	})
}

// fromFlags takes everything from the command line and files.
func (b *batcher) fromFlags(addSimulated func()) error {
	if err := b.FromFiles(); err != nil {
		return err
	}
	if len(b.config.Peers) > 0 {
		b.engine.SetBatchers(len(b.config.Peers))
	}
	if addSimulated != nil {
		addSimulated()
		return nil
	}
	endpoints := make([]dispatch.Endpoint, 0, len(b.config.workers))
	for _, w := range b.config.workers {
		endpoints = append(endpoints, dispatch.Endpoint{Addr: w})
	}
	b.engine.SetWorkers(endpoints)
	return nil
}

// simulate puts simulated workers behind the engine's transport. The returned function hands them to the engine.
func (b *batcher) simulate(c *dispatch.Config) (addWorkers func()) {
	fleet := worker.InProcess{}
	var endpoints []dispatch.Endpoint
	for i := range b.config.simulate {
		s := worker.New(simulated.New(simulated.Config{ServiceTime: b.config.simulateTime}),
			worker.Options{MaxBatch: b.config.Pool.Batching.MaxSize, ServiceTime: b.config.simulateTime, SkipWarmUp: true, Log: b.Log, Tracer: b.Reports.Tracer})
		b.Sources = append(b.Sources, func(ctx context.Context) { _ = s.Run(ctx) }) // a simulated backend ends only with ctx
		pod := fmt.Sprintf("simulated-%d", i)
		addr := pod + ":9000"
		fleet[addr] = s
		endpoints = append(endpoints, dispatch.Endpoint{Addr: addr, Pod: pod})
	}
	c.Transport = http.RoundTripper(fleet)
	return func() { b.engine.SetWorkers(endpoints) }
}
