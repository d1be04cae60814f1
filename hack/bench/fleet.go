package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"sluice.dev/sluice/hack/internal/child"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// binaries are the programs under test.
type binaries struct {
	self, batcher, gateway, gpuworker string
	// realtime says that workers run before everything else: each stands for a machine of its own.
	realtime bool
}

// fleet is what one scenario runs against: batchers and workers, each a process.
type fleet struct {
	workers  *workerFleet
	batchers []*child.Process
	gateways []*child.Process
	public   []string // addresses that clients call: of the gateways, or of the batchers
	internal []string
	stopOp   context.CancelFunc
	dir      string
	starts   string // file with the start of every item, for scenarios whose clients hang up
}

// benchPool is the pool that all scenarios use: the API's defaults, tiers named by a header that is believed
// from this machine.
func benchPool(workers int) poolspec.Pool {
	p := poolspec.Default()
	p.Gateway.Auth = "TrustedHeaders"
	p.Gateway.TrustedCIDRs = []string{"127.0.0.0/8"}
	p.Gateway.TenantHeader, p.Gateway.TierHeader = "Sluice-Tenant", "Sluice-Tier"
	p.Gateway.DefaultTier = ""
	p.MaxWorkers = workers
	p.Batching.InferenceTime = poolspec.Duration(serviceTime)
	p.Batching.MaxWait = poolspec.Duration(maxWait)
	p.Batching.MaxSize = maxBatch
	p.TargetPercent = int(100 * target)
	return p
}

func startFleet(ctx context.Context, s scenario, bin binaries, profile string) (_ *fleet, err error) {
	f := &fleet{}
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	if f.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return nil, err
	}
	if s.hangUp > 0 && !s.separate {
		f.starts = filepath.Join(f.dir, "starts")
	}
	if f.workers, err = startWorkers(ctx, s.workers, s.separate, bin, f.starts); err != nil {
		return nil, err
	}
	pool := benchPool(s.workers)
	if s.pool != nil {
		s.pool(&pool)
	}
	doc, err := poolspec.Encode(pool)
	if err != nil {
		return nil, err
	}
	n := max(s.batchers, 1)
	addrs, err := child.FreeAddrs(3 * n)
	if err != nil {
		return nil, err
	}
	var peers []string
	for i := range n {
		peers = append(peers, fmt.Sprintf("batcher-%d=%s", i, addrs[3*i+1]))
	}
	tenants := filepath.Join(f.dir, "tenants.json")
	if s.tenants != "" {
		if err := os.WriteFile(tenants, []byte(s.tenants), 0o600); err != nil {
			return nil, err
		}
	}
	signal := filepath.Join(f.dir, "signal.json")
	var names, relays []string
	for i := range n {
		addrs := addrs[3*i : 3*i+3]
		name := fmt.Sprintf("batcher-%d", i)
		args := []string{"--pool", doc, "--workers", "http://" + strings.Join(f.workers.addrs, ",http://"), "--listen", addrs[0], "--internal-listen", addrs[1], "--zone-file", signal, "--linger", "0s", "--relay-listen", addrs[2]}
		if s.tenants != "" {
			args = append(args, "--tenants", tenants, "--peers", strings.Join(peers, ","))
		}
		if profile != "" && i == 0 {
			args = append(args, "--cpu-profile", profile)
		}
		env := []string{"POD_NAME=" + name, "POD_UID=" + name}
		if s.batchers > 1 { // as pods with a limit have: each its part of the processors
			env = append(env, fmt.Sprintf("GOMAXPROCS=%d", max(1, runtime.NumCPU()/s.batchers)))
		}
		p, err := child.Start(child.Command{Name: name, Env: env, Program: bin.batcher, Args: args})
		if err != nil {
			return nil, err
		}
		f.batchers = append(f.batchers, p)
		f.public, f.internal, names, relays = append(f.public, addrs[0]), append(f.internal, addrs[1]), append(names, name), append(relays, name+"="+addrs[2])
		if err := p.UntilOK(ctx, "http://"+addrs[1]+wire.PathReadyz); err != nil {
			return nil, err
		}
	}
	if s.gateways > 0 {
		if err := f.startGateways(ctx, s.gateways, bin.gateway, doc, strings.Join(relays, ","), profile); err != nil {
			return nil, err
		}
	}
	opCtx, stop := context.WithCancel(ctx)
	f.stopOp = stop
	if s.signal {
		o := &operator{pool: pool, batchers: f.internal, names: names, file: signal}
		go o.run(opCtx)
	}
	return f, nil
}

// startGateways starts n standalone gateways; from then on clients call them alone.
func (f *fleet) startGateways(ctx context.Context, n int, program, doc, relays, profile string) error {
	f.public = nil
	for i := range n {
		addrs, err := child.FreeAddrs(2)
		if err != nil {
			return err
		}
		args := []string{"--pool", doc, "--batchers", relays, "--listen", addrs[0], "--internal-listen", addrs[1], "--linger", "0s"}
		if profile != "" && i == 0 {
			args = append(args, "--cpu-profile", profile+".gateway")
		}
		name := fmt.Sprintf("gateway-%d", i)
		p, err := child.Start(child.Command{Name: name, Env: []string{"POD_NAME=" + name}, Program: program, Args: args})
		if err != nil {
			return err
		}
		f.gateways, f.public = append(f.gateways, p), append(f.public, addrs[0])
		if err := p.UntilOK(ctx, "http://"+addrs[1]+wire.PathReadyz); err != nil {
			return err
		}
	}
	return nil
}

// cpu is the CPU of some processes.
func cpu(of []*child.Process) (sum time.Duration, err error) {
	for _, p := range of {
		c, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += c
	}
	return sum, nil
}

// rssMB is the resident memory of the largest batcher.
func (f *fleet) rssMB() (most float64) {
	for _, p := range f.batchers {
		if mb, err := p.RSSMB(); err == nil { // one that has ended has none, and the run fails for it
			most = max(most, mb)
		}
	}
	return most
}

func (f *fleet) stop() {
	if f.stopOp != nil {
		f.stopOp()
	}
	for _, p := range append(f.gateways, f.batchers...) {
		p.Stop(3 * time.Second)
	}
	if f.workers != nil {
		f.workers.stop()
	}
	_ = os.RemoveAll(f.dir)
}
