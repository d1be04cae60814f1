package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/dispatch"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/zone"
)

// batcher is the process: gateway, engine, and what feeds them.
type batcher struct {
	config  config
	log     *slog.Logger
	engine  *dispatch.Engine
	gateway *gateway.Gateway
	tenants *gateway.Tenants
	quota   *gateway.FleetQuota
	ready   gateway.Readiness
	// sources run until their context ends; synced returns when what they bring is there for the first time.
	sources []func(context.Context)
	synced  func(context.Context) error
}

func newBatcher(c config, log *slog.Logger) (*batcher, error) {
	b := &batcher{config: c, log: log, tenants: &gateway.Tenants{}, synced: func(context.Context) error { return nil }}
	name := c.pod
	if name == "" {
		name, _ = os.Hostname() // only a name in batch ids
	}
	engine := dispatch.Config{Batching: batching.FromPool(c.pool, name+"-"+startID()), Logger: log}
	var addWorkers func()
	if c.simulate > 0 {
		addWorkers = b.simulate(&engine)
	}
	b.engine = dispatch.New(engine)
	b.quota = gateway.NewFleetQuota(name, longestTimeout(c.pool))
	b.sources = append(b.sources, b.quota.Run)
	var err error
	b.gateway, err = gateway.New(gateway.Options{
		Pool: c.pool, Engine: b.engine, Tenants: b.tenants, Quota: b.quota,
		Pod: c.pod, PodUID: c.podUID, Log: log, AccessLogPerSecond: c.accessPerSecond,
	})
	if err == nil {
		b.sources = append(b.sources, b.gateway.Run)
		switch {
		case c.kubernetes():
			err = b.watchKubernetes()
		default:
			err = b.fromFlags(addWorkers)
		}
	}
	if err != nil {
		b.engine.Close()
		return nil, err
	}
	return b, nil
}

func startID() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func longestTimeout(p poolspec.Pool) time.Duration {
	var d time.Duration
	for _, t := range p.Tiers {
		d = max(d, t.Timeout.D())
	}
	return d
}

// setSignal passes the fleet's zone to the gateway and its load to the engine's window.
func (b *batcher) setSignal(s zone.Signal) {
	b.gateway.SetSignal(s)
	lambda := 0.0
	for _, x := range s.Batchers {
		lambda += x.Lambda
	}
	b.engine.SetFleetLambda(lambda)
	share, _ := s.Share(b.config.pod) // 0 while the document does not know this pod
	b.engine.SetShare(share)
}

// newInternalServer bounds the internal port against a caller that hangs. /debug/pprof/profile takes 30 s.
func newInternalServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
}

// serve answers until ctx ends, then drains.
func (b *batcher) serve(ctx context.Context, public, internal net.Listener) error {
	publicServer := gateway.NewServer(b.gateway, b.log)
	internalServer := newInternalServer(b.gateway.InternalHandler(gateway.InternalOptions{Readiness: &b.ready, Quota: b.quota, Pprof: b.config.pprof}))
	running, stopSources := context.WithCancel(context.Background())
	var sources sync.WaitGroup
	for _, run := range b.sources {
		sources.Go(func() { run(running) })
	}
	defer func() {
		b.engine.Close()
		stopSources()
		sources.Wait()
	}()

	failed := make(chan error, 2)
	go func() {
		if err := internalServer.Serve(internal); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	go func() {
		if err := publicServer.Run(public); err != nil {
			failed <- err
		}
	}()
	defer internalServer.Close()
	b.log.Info("listening", "public", public.Addr().String(), "internal", internal.Addr().String(), "pool", b.config.pool.Name, "model", b.config.pool.Model)
	// Ready when the caches are there, whatever the workers do: clients must see a 503, not a refused connection.
	go func() {
		if b.synced(ctx) == nil && ctx.Err() == nil {
			b.ready.Set(true)
			b.log.Info("ready")
			context.AfterFunc(ctx, func() { b.ready.Set(false) })
		}
	}()

	select {
	case err := <-failed:
		_ = publicServer.Close()
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	return b.drain(publicServer)
}

// drainMargin is for writing the last answers after the longest tier timeout.
const drainMargin = 2 * time.Second

// drain stops in the order in which clients lose nothing: unready (the Service forgets this pod), a linger in
// which late requests are served and connections closed with their answers, no new connections, the answers
// under way, then the engine.
func (b *batcher) drain(public *gateway.Server) error {
	b.ready.Set(false)
	b.gateway.Closing()
	b.log.Info("stopping: not ready, still accepting", "linger", b.config.linger.String())
	time.Sleep(b.config.linger)
	most := longestTimeout(b.config.pool) + drainMargin
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	b.log.Info("draining", "parked", b.engine.Snapshot().Parked, "atMost", most.String())
	err := public.Drain(ctx)
	if e := b.engine.Drain(ctx); err == nil {
		err = e
	}
	if err != nil {
		_ = public.Close()
		return fmt.Errorf("drain: requests were still under way after %v: %w", most, err)
	}
	b.log.Info("drained")
	return nil
}
