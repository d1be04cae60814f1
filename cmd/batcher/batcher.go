package main

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/dispatch"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/process"
	"sluice.dev/sluice/internal/zone"
)

// batcher is the process: gateway, engine, and what feeds them.
type batcher struct {
	*process.Process
	config config
	engine *dispatch.Engine
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
	b.Drain, b.Close = b.engine.Drain, b.engine.Close
	b.SetSignal = b.setSignal
	err = b.MakeGateway(gateway.Options{Engine: b.engine})
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
