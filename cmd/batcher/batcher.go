package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/dispatch"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/process"
	"sluice.dev/sluice/internal/relay"
	"sluice.dev/sluice/internal/zone"
)

// batcher is the process: gateway, engine, and what feeds them.
type batcher struct {
	*process.Process
	config config
	engine *dispatch.Engine
	relay  *relay.Server
}

func newBatcher(c config, log *slog.Logger) (*batcher, error) {
	b := &batcher{Process: process.New(c.Config, log), config: c}
	err := b.OpenReports("sluice-batcher")
	if err != nil {
		return nil, err
	}
	engine := dispatch.Config{Batching: batching.FromPool(c.Pool, b.Name()+"-"+startID()), Logger: log, Tracer: b.Reports.Tracer}
	var addWorkers func()
	if c.simulate > 0 {
		addWorkers = b.simulate(&engine)
	}
	b.engine = dispatch.New(engine)
	b.Parked = func() int { return b.engine.Snapshot().Parked }
	b.relay = relay.NewServer(b.engine, tierNames(c.Pool), b.Reports.Tracer, log)
	b.Leaving, b.Drain = b.relay.Leaving, b.drainEngine
	b.Close = func() {
		b.engine.Close()
		b.relay.Close()
	}
	b.SetSignal = b.setSignal
	err = b.MakeGateway(gateway.Options{Engine: b.engine, Relayed: b.relay.Relayed})
	if err == nil {
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

func tierNames(p poolspec.Pool) []string {
	var names []string
	for _, t := range p.Tiers {
		names = append(names, t.Name)
	}
	return names
}

// serveRelay serves standalone gateways until the drain.
func (b *batcher) serveRelay(l net.Listener) {
	go func() {
		if err := b.relay.Serve(l); err != nil {
			b.Log.Error("standalone gateways are no longer served", "error", err)
		}
	}()
}

// drainEngine answers what is queued and running, and what gateways still send with draining: they take it to
// another batcher.
func (b *batcher) drainEngine(ctx context.Context) error {
	return errors.Join(b.engine.Drain(ctx), b.relay.Drain(ctx))
}

func startID() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// setSignal passes the fleet's zone to the gateway and its load to the engine's window.
func (b *batcher) setSignal(s zone.Signal) {
	b.Gateway.SetSignal(s)
	lambda := 0.0
	for _, x := range s.Batchers {
		lambda += x.Lambda
	}
	b.engine.SetFleetLambda(lambda)
	share, _ := s.Share(b.config.Pod) // 0 while the document does not know this pod
	b.engine.SetShare(share)
}
