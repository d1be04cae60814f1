package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/rest"

	"sluice.dev/sluice/internal/discovery"
	"sluice.dev/sluice/internal/dispatch"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
	"sluice.dev/sluice/internal/worker/backends/simulated"
	"sluice.dev/sluice/internal/zone"
)

// watchKubernetes lets workers, batchers, tenants and the zone come from the API server.
func (b *batcher) watchKubernetes() error {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("in-cluster configuration: %w", err)
	}
	cfg.QPS = -1 // four watches need no limit
	o := discovery.Options{
		REST: cfg, Namespace: b.config.namespace, Pool: b.config.pool.Name, Log: b.log,
		Workers: func(list []discovery.Worker) {
			endpoints := make([]dispatch.Endpoint, 0, len(list))
			for _, w := range list {
				endpoints = append(endpoints, dispatch.Endpoint{Addr: w.Addr, Pod: w.Pod})
			}
			b.log.Info("workers", "ready", len(endpoints))
			b.engine.SetWorkers(endpoints)
		},
		Peers: func(list []discovery.Peer) {
			peers := make([]gateway.Peer, 0, len(list))
			for _, p := range list {
				peers = append(peers, gateway.Peer{Name: p.Pod, Addr: net.JoinHostPort(p.IP, strconv.Itoa(wire.PortInternal))})
			}
			b.quota.SetPeers(peers)
			b.engine.SetBatchers(max(1, len(peers)))
		},
		Signal: b.setSignal,
	}
	if b.config.pool.Gateway.Auth != "None" {
		o.Tenants = b.tenants.Set
	}
	w, err := discovery.New(o)
	if err != nil {
		return err
	}
	b.sources = append(b.sources, w.Run)
	b.synced = w.WaitSynced
	return nil
}

// fromFlags takes everything from the command line and files.
func (b *batcher) fromFlags(addSimulated func()) error {
	if b.config.tenantsFile != "" {
		tenants, err := readTenants(b.config.tenantsFile)
		if err != nil {
			return err
		}
		b.tenants.Set(tenants)
	}
	if len(b.config.peers) > 0 {
		b.quota.SetPeers(b.config.peers)
		b.engine.SetBatchers(len(b.config.peers))
	}
	if b.config.zoneFile != "" {
		b.sources = append(b.sources, b.watchZoneFile)
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

// zoneFileEvery is how often the zone file is looked at. In Kubernetes a watch brings the document.
const zoneFileEvery = 100 * time.Millisecond

func (b *batcher) watchZoneFile(ctx context.Context) {
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(zoneFileEvery):
		}
		raw, err := os.ReadFile(b.config.zoneFile)
		if err != nil || string(raw) == last {
			continue // not there yet, or as before
		}
		last = string(raw)
		s, err := zone.DecodeSignal(last)
		if err != nil {
			b.log.Error("the zone document cannot be read; the last one holds", "file", b.config.zoneFile, "error", err)
			continue
		}
		b.setSignal(s)
	}
}

// simulate puts simulated workers behind the engine's transport. The returned function hands them to the engine.
func (b *batcher) simulate(c *dispatch.Config) (addWorkers func()) {
	fleet := worker.InProcess{}
	var endpoints []dispatch.Endpoint
	for i := range b.config.simulate {
		s := worker.New(simulated.New(simulated.Config{ServiceTime: b.config.simulateTime}),
			worker.Options{MaxBatch: b.config.pool.Batching.MaxSize, ServiceTime: b.config.simulateTime, SkipWarmUp: true, Log: b.log})
		b.sources = append(b.sources, func(ctx context.Context) { _ = s.Run(ctx) }) // a simulated backend ends only with ctx
		pod := fmt.Sprintf("simulated-%d", i)
		addr := pod + ":9000"
		fleet[addr] = s
		endpoints = append(endpoints, dispatch.Endpoint{Addr: addr, Pod: pod})
	}
	c.Transport = http.RoundTripper(fleet)
	return func() { b.engine.SetWorkers(endpoints) }
}
