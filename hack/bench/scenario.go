package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"sluice.dev/sluice/hack/loadgen/load"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// scenario is one load on one fleet.
type scenario struct {
	name  string
	about string

	rate     float64 // requests/s
	grows    bool    // to it, in ramp: what is measured is the steady state
	workers  int
	batchers int    // default 1
	gateways int    // standalone ones; 0: the gateway is inside the batcher
	against  string // the scenario of the same load that the p95 is compared with, run first
	separate bool   // each worker a process, so that one can die
	tiers    []load.Tier
	giveUp   time.Duration
	hangUp   float64
	signal   bool          // the zone signal is on
	length   time.Duration // default 12 s
	during   func(ctx context.Context, f *fleet) error
	soak     bool // only with -long
	named    bool // only with -long or by its name: make bench takes under five minutes
	pool     func(*poolspec.Pool)
	tenants  string // the file of --tenants; the batchers share their limits
	// drive measures a scenario whose load is not the generator's. Nil: measure does.
	drive func(ctx context.Context, s scenario, f *fleet) (*result, error)

	// limitP95 is the best p95 that is possible. Nil: by the formula of limit.
	limitP95 func() time.Duration
	targets  []bound
}

// warmup is how long every scenario runs before it is measured: 20 full batches (until then S is a prior)
// take 0.2 s at 10,000/s; the zone signal needs two scrapes.
const warmup = 5 * time.Second

// ramp is the part of the warm-up in which a steady load grows to its rate. Begun at once, 10,000/s found a batcher that
// had no memory yet, and the first second's queue opened thousands of connections more than the load needs: what was
// measured then was the steady state of 6,000 connections and not of 1,500 (242 MiB and not 96, p99 135 ms and not 120).
const ramp = 2 * time.Second

// phases are the scenario's load for so long.
func (s scenario) phases(length time.Duration) []load.Phase {
	steady := load.Phase{From: s.rate, To: s.rate, For: length}
	if !s.grows {
		return []load.Phase{steady}
	}
	steady.For -= ramp
	return []load.Phase{{To: s.rate, For: ramp}, steady}
}

// mixed is the tier mix of overload: enterprise 20 %, paid 30 %, free 50 %.
var mixed = []load.Tier{tier("enterprise", 20), tier("paid", 30), tier("free", 50)}

func tier(name string, weight float64) load.Tier {
	return load.Tier{Name: name, Weight: weight, Header: "Sluice-Tier: " + name + "\nSluice-Tenant: bench-" + name}
}

// steady is one tier that is not shed.
var steady = []load.Tier{tier("enterprise", 1)}

const giveUp = 500 * time.Millisecond

// scenarios are all of `make bench`, in order.
func scenarios(long time.Duration) []scenario {
	noErrors := []bound{atMost("errors", 0), atMost("wrong_answers", 0), atMost("lost", 0)}
	with := func(b ...bound) []bound { return append(b, noErrors...) }
	overload := func(name string, x float64) scenario {
		return scenario{
			name: name, about: fmt.Sprintf("%.1fx the capacity of 4 workers, three tiers, clients give up at 500 ms", x),
			rate: x * capacity(4), workers: 4, tiers: mixed, giveUp: giveUp, signal: true,
			limitP95: func() time.Duration { return 500 * time.Millisecond }, // what admission promises
			targets: []bound{atLeast("goodput_pct_of_capacity", 97), atMost("wasted_items_pct", .5), atMost("shed_p99_ms", 10),
				atLeast("enterprise_on_time_pct", 99.9), atLeast("worst_tier_pct_of_entitled", 95), atMost("wrong_answers", 0), atMost("lost", 0)},
		}
	}
	all := []scenario{
		{name: "steady10k", about: "10,000/s on 13 workers", rate: 10000, grows: true, workers: 13, tiers: steady,
			targets: with(atMost("p95_ms", 128), atMost("p99_ms", 140), atMost(cpuOverFloor, 1.4))},
		{name: "steady5k", about: "5,000/s on 13 workers", rate: 5000, grows: true, workers: 13, tiers: steady, targets: with(atMost("p95_ms", 122))},
		{name: "steady2k", named: true, about: "2,000/s on 13 workers", rate: 2000, grows: true, workers: 13, tiers: steady, targets: with()},
		{name: "lonely", about: "5/s on 13 workers", rate: 5, workers: 13, tiers: steady, length: 30 * time.Second,
			targets: with(atMost("p95_ms", ms(serviceTime)+8))},
		overload("overload15", 1.5),
		overload("overload20", 2),
		{name: "replicas2", about: "10,000/s, two batchers share 13 workers", rate: 10000, grows: true, workers: 13, batchers: 2, tiers: steady, signal: true,
			limitP95: func() time.Duration { return limit(.95, 5000, 6.5) }, targets: with(atMost("p95_ms", 150))},
		{name: "gateway10k", named: true, about: "10,000/s on 13 workers through a standalone gateway", rate: 10000, grows: true, workers: 13, gateways: 1, tiers: steady,
			against: "steady10k", targets: with(atMost("p95_over_steady10k_ms", 10))},
		{name: "gateway5k", named: true, about: "5,000/s on 13 workers through a standalone gateway", rate: 5000, grows: true, workers: 13, gateways: 1, tiers: steady,
			against: "steady5k", targets: with(atMost("p95_over_steady5k_ms", 10))},
		{name: "gateway2k", named: true, about: "2,000/s on 13 workers through a standalone gateway", rate: 2000, grows: true, workers: 13, gateways: 1, tiers: steady,
			against: "steady2k", targets: with(atMost("p95_over_steady2k_ms", 10))},
		{name: "crash", about: "70 % load on 4 workers; one is killed in mid-batch, later another hangs", rate: .7 * capacity(4), workers: 4,
			separate: true, tiers: steady, during: crash, targets: []bound{atMost("wrong_answers", 0), atMost("lost", 0)}},
		{name: "churn", about: "70 % load on 4 workers, all replaced one by one", rate: .7 * capacity(4), workers: 4,
			separate: true, tiers: steady, during: churn, targets: []bound{atMost("wrong_answers", 0), atMost("lost", 0)}},
		{name: "cancel", about: "70 % load on 4 workers, 30 % of the clients hang up within 200 ms", rate: .7 * capacity(4), workers: 4, tiers: steady,
			hangUp: .3, targets: with(atMost("wasted_items_pct", .5))},
		quotaScenario(),
	}
	if long > 0 {
		all = append(all, scenario{name: "soak", about: "expiries, cancels and crashes for " + long.String(), soak: true,
			rate: 1.1 * capacity(4), workers: 4, separate: true, tiers: mixed, giveUp: giveUp, hangUp: .1, signal: true, length: long, during: crashAgainAndAgain,
			limitP95: func() time.Duration { return 500 * time.Millisecond },
			targets:  []bound{atMost("wrong_answers", 0), atMost("lost", 0), atLeast("goodput_end_over_start", .95), atMost("rss_end_over_start", 1.25)}})
	}
	return all
}

// crash kills a worker in mid-batch, lets it come back after three seconds as a pod would, then freezes
// another for three seconds: its connections stay open and nothing answers.
func crash(ctx context.Context, f *fleet) error {
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	if err := killBusy(ctx, f, 0); err != nil {
		return err
	}
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	if err := f.workers.startOne(ctx, 0); err != nil {
		return err
	}
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	hung := f.workers.processes[1]
	if err := hung.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() { _ = hung.Signal(syscall.SIGCONT) }()
	return sleep(ctx, 3*time.Second)
}

// killBusy kills the i-th worker while it runs a batch.
func killBusy(ctx context.Context, f *fleet, i int) error {
	for {
		st, err := workerState(f.workers.addrs[i])
		if err != nil {
			return err
		}
		if st.State == wire.WorkerBusy && st.FreeInMs > 20 {
			f.workers.remember(i)
			f.workers.processes[i].Kill()
			return nil
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

// churn replaces every worker as a rollout does: SIGTERM, wait until it has drained, start the next.
func churn(ctx context.Context, f *fleet) error {
	for i := range f.workers.addrs {
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		f.workers.remember(i)
		f.workers.processes[i].Stop(5 * time.Second)
		if err := f.workers.startOne(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// crashAgainAndAgain kills one worker after the other in mid-batch, for as long as the soak lasts.
func crashAgainAndAgain(ctx context.Context, f *fleet) error {
	for i := 0; ; i = (i + 1) % len(f.workers.addrs) {
		if sleep(ctx, 15*time.Second) != nil {
			return nil
		}
		if err := killBusy(ctx, f, i); err != nil {
			return err
		}
		if sleep(ctx, 2*time.Second) != nil {
			return nil
		}
		if err := f.workers.startOne(ctx, i); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
