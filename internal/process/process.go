package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/zone"
)

// Process is a gateway with its ports and what feeds it. The functions must be set before Serve.
type Process struct {
	Config  Config
	Log     *slog.Logger
	Gateway *gateway.Gateway
	Tenants *gateway.Tenants
	Quota   *gateway.FleetQuota
	// Reports are what OpenReports made.
	Reports gateway.Reports

	// Sources run until their context ends; Synced returns when what they bring is there for the first time.
	Sources []func(context.Context)
	Synced  func(context.Context) error
	// SetSignal takes the zone document.
	SetSignal func(zone.Signal)

	// Leaving is called as soon as the process is told to stop, before the linger. Nil: nothing to do.
	Leaving func()
	// Parked is the number of requests under way.
	Parked func() int
	// Drain returns when nothing is under way behind the gateway, or with ctx's error. Nil: nothing is.
	Drain func(context.Context) error
	// Close ends what is behind the gateway, after the drain.
	Close func()

	ready gateway.Readiness
	cert  *gateway.Certificate // nil without TLS
}

// New returns a process whose quota and tenants are empty; its gateway is made with Options.
func New(c Config, log *slog.Logger) *Process {
	p := &Process{Config: c, Log: log, Tenants: &gateway.Tenants{}, Synced: func(context.Context) error { return nil }}
	p.Quota = gateway.NewFleetQuota(p.Name(), LongestTimeout(c.Pool))
	p.Sources = append(p.Sources, p.Quota.Run)
	if t := c.Pool.Gateway.TLS; t != nil {
		p.cert = gateway.NewCertificate(t.Directory, log)
		p.Sources = append(p.Sources, p.cert.Run)
	}
	return p
}

// OpenReports begins what the pool's telemetry asks for, before MakeGateway: service names the program in traces,
// usage records go to standard output (the log goes to standard error). Serve ends it.
func (p *Process) OpenReports(service string) (err error) {
	p.Reports, err = gateway.NewReports(context.Background(), p.Config.Pool, service, p.Config.Pod, os.Stdout, p.Log)
	return err
}

// reportsMargin is how long a slow collector or a full pipe may hold up the exit.
const reportsMargin = 2 * time.Second

func (p *Process) closeReports() {
	ctx, cancel := context.WithTimeout(context.Background(), reportsMargin)
	defer cancel()
	if err := p.Reports.Close(ctx); err != nil {
		p.Log.Warn("the last spans or usage records may be lost", "error", err)
	}
}

// Name is what the others know the process by.
func (p *Process) Name() string {
	if p.Config.Pod != "" {
		return p.Config.Pod
	}
	name, _ := os.Hostname() // only a name
	return name
}

// MakeGateway makes the gateway in front of an engine.
func (p *Process) MakeGateway(o gateway.Options) (err error) {
	o.Pool, o.Tenants, o.Quota = p.Config.Pool, p.Tenants, p.Quota
	if !p.Config.InCluster {
		o.PoolURL = func(pool string) string { return p.Config.PoolURLs[pool] }
	}
	o.Pod, o.PodUID, o.Log, o.AccessLogPerSecond = p.Config.Pod, p.Config.PodUID, p.Log, p.Config.AccessPerSecond
	o.Reports, o.Certificate = p.Reports, p.cert
	if p.Gateway, err = gateway.New(o); err != nil {
		return err
	}
	p.Gateway.Registry().MustRegister(p.Quota)
	p.Sources = append(p.Sources, p.Gateway.Run)
	return nil
}

// LongestTimeout is the longest time that a request of the pool may take.
func LongestTimeout(p poolspec.Pool) time.Duration {
	var d time.Duration
	for _, t := range p.Tiers {
		d = max(d, t.Timeout.D())
	}
	return d
}

// FromFiles takes tenants, peers and the zone from the command line and its files.
func (p *Process) FromFiles() error {
	if p.Config.TenantsFile != "" {
		tenants, err := readTenants(p.Config.TenantsFile)
		if err != nil {
			return err
		}
		p.Tenants.Set(tenants)
	}
	if len(p.Config.Peers) > 0 {
		p.Quota.SetPeers(p.Config.Peers)
	}
	if p.Config.ZoneFile != "" {
		p.Sources = append(p.Sources, p.watchZoneFile)
	}
	return nil
}

// zoneFileEvery is how often the zone file is looked at. In Kubernetes a watch brings the document.
const zoneFileEvery = 100 * time.Millisecond

func (p *Process) watchZoneFile(ctx context.Context) {
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(zoneFileEvery):
		}
		raw, err := os.ReadFile(p.Config.ZoneFile)
		if err != nil || string(raw) == last {
			continue // not there yet, or as before
		}
		last = string(raw)
		s, err := zone.DecodeSignal(last)
		if err != nil {
			p.Log.Error("the zone document cannot be read; the last one holds", "file", p.Config.ZoneFile, "error", err)
			continue
		}
		p.SetSignal(s)
	}
}

// newInternalServer bounds the internal port against a caller that hangs. /debug/pprof/profile takes 30 s.
func newInternalServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
}

// Serve answers until ctx ends, then drains.
func (p *Process) Serve(ctx context.Context, public gateway.Listeners, internal net.Listener) error {
	front := gateway.NewFront(p.Gateway, public, p.cert, p.Log)
	internalServer := newInternalServer(p.Gateway.InternalHandler(gateway.InternalOptions{Readiness: &p.ready, Quota: p.Quota, Pprof: p.Config.Pprof}))
	running, stopSources := context.WithCancel(context.Background())
	var sources sync.WaitGroup
	for _, run := range p.Sources {
		sources.Go(func() { run(running) })
	}
	defer func() {
		p.Close()
		stopSources()
		sources.Wait()
		p.closeReports()
	}()

	failed := make(chan error, 2)
	go func() {
		if err := internalServer.Serve(internal); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	go func() {
		if err := front.Run(); err != nil {
			failed <- err
		}
	}()
	defer internalServer.Close()
	p.Log.Info("listening", "public", public.String(), "internal", internal.Addr().String(), "pool", p.Config.Pool.Name, "model", p.Config.Pool.Model)
	// Ready when the caches are there, whatever the workers do: clients must see a 503, not a refused connection.
	go func() {
		// With TLS but without a certificate there is no way to see one.
		if p.Synced(ctx) == nil && (p.cert == nil || p.cert.Wait(ctx) == nil) && ctx.Err() == nil {
			p.ready.Set(true)
			p.Log.Info("ready")
			context.AfterFunc(ctx, func() { p.ready.Set(false) })
		}
	}()

	select {
	case err := <-failed:
		_ = front.Close()
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	return p.drain(front)
}

// drainMargin is for writing the last answers after the longest tier timeout.
const drainMargin = 2 * time.Second

// drain stops in the order in which clients lose nothing: unready (the Service forgets this pod), a linger in
// which late requests are served and connections closed with their answers, no new connections, the answers
// under way, then what is behind the gateway.
func (p *Process) drain(public *gateway.Front) error {
	p.ready.Set(false)
	p.Gateway.Closing()
	if p.Leaving != nil {
		p.Leaving()
	}
	p.Log.Info("stopping: not ready, still accepting", "linger", p.Config.Linger.String())
	time.Sleep(p.Config.Linger)
	most := LongestTimeout(p.Config.Pool) + drainMargin
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	p.Log.Info("draining", "parked", p.Parked(), "atMost", most.String())
	err := public.Drain(ctx)
	if p.Drain != nil {
		if e := p.Drain(ctx); err == nil {
			err = e
		}
	}
	if err != nil {
		_ = public.Close()
		return fmt.Errorf("drain: requests were still under way after %v: %w", most, err)
	}
	p.Log.Info("drained")
	return nil
}
