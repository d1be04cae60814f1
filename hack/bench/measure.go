package main

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/hack/loadgen/load"
)

// edge is what is read at both ends of the measured part of a run.
type edge struct {
	at   time.Time
	cpu  time.Duration // of the batchers
	gate time.Duration // of the standalone gateways
	work work
	err  error
}

func (f *fleet) edge() edge {
	c, err := cpu(f.batchers)
	g, err2 := cpu(f.gateways)
	return edge{at: time.Now(), cpu: c, gate: g, work: f.workers.done(), err: firstError(err, err2)}
}

// measure runs a scenario once.
func measure(ctx context.Context, s scenario, bin binaries, seed uint64, profile string) (*result, error) {
	f, err := startFleet(ctx, s, bin, profile)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	if s.drive != nil {
		return s.drive(ctx, s, f)
	}
	length := s.length
	if length == 0 {
		length = 12 * time.Second
	}
	plan := load.Plan{
		Targets: f.public, Schedule: load.Poisson(s.phases(warmup+length), seed),
		Tiers: s.tiers, GiveUp: s.giveUp, HangUp: s.hangUp, Warmup: warmup, Seed: seed,
	}
	left := &departures{}
	plan.Left = left.add
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := f.workers.done()
	var first, last edge
	var startRSS float64
	watched := make(chan error, 1)
	go func() { // what happens beside the load
		if err := sleep(runCtx, warmup); err != nil {
			watched <- err
			return
		}
		first = f.edge()
		startRSS = f.rssMB()
		window, stop := context.WithTimeout(runCtx, length)
		defer stop()
		var err error
		if s.during != nil {
			err = s.during(window, f)
		}
		<-window.Done()
		last = f.edge()
		watched <- err
	}()
	rep, err := load.Run(runCtx, plan)
	if err != nil {
		return nil, err
	}
	if err := <-watched; err != nil && !s.soak {
		return nil, fmt.Errorf("what happens beside the load failed: %w", err)
	}
	if first.err != nil || last.err != nil {
		return nil, fmt.Errorf("cpu of the batcher: %w", firstError(first.err, last.err))
	}
	for _, p := range append(f.gateways, f.batchers...) {
		if err := p.Ended(); err != nil {
			return nil, fmt.Errorf("during the run: %w", err)
		}
	}
	r := sumUp(s, rep, first, last)
	r.RSSMB = round(f.rssMB(), 1)
	all := f.workers.done().minus(before)
	inBatch := uint64(0)
	if f.starts != "" {
		if inBatch, err = left.inBatch(f.starts); err != nil {
			return nil, err
		}
		r.Derived["hung_up_in_batch_pct"] = round(100*float64(inBatch)/float64(max(all.items, 1)), 3)
	}
	r.WastedPct = wasted(all.items, inBatch, rep)
	if s.soak {
		r.Derived["goodput_end_over_start"] = endOverStart(rep)
		r.Derived["rss_end_over_start"] = round(r.RSSMB/startRSS, 3)
	}
	return r, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// wasted is the part of the items that workers ran whose answer reached nobody: counted at the workers and at
// the clients, over the whole run, so the batcher's own idea of it plays no part. inBatch of them are no waste:
// their client hung up when their batch ran already, which nobody can foresee.
func wasted(items, inBatch uint64, rep *load.Report) float64 {
	served := inBatch
	for _, t := range rep.Tiers {
		for _, sec := range t.PerSecond {
			served += sec.Served
		}
	}
	if items == 0 || served >= items {
		return 0
	}
	return round(100*float64(items-served)/float64(items), 3)
}

func sumUp(s scenario, rep *load.Report, first, last edge) *result {
	seconds := last.at.Sub(first.at).Seconds()
	mu := capacity(s.workers)
	r := &result{
		P50Ms: rep.P50Ms, P95Ms: rep.P95Ms, P99Ms: rep.P99Ms, CapacityPerS: round(mu, 1), ShedP99Ms: rep.ShedP99Ms,
		Errors: float64(rep.Errors()), Wrong: float64(rep.Wrong), Lost: float64(rep.Lost), Shed: float64(rep.Refused),
		LateP99Ms: rep.LateP99Ms, ClientCPUMicros: rep.ClientCPUMicros, WithoutRetryAfter: float64(rep.WithoutRetryAfter),
		Tiers: map[string]tierResult{}, Derived: map[string]float64{}, Reasons: map[string]uint64{},
	}
	best := limit(.95, s.rate, float64(s.workers))
	if s.limitP95 != nil {
		best = s.limitP95()
	}
	r.LimitP95Ms = round(ms(best), 1)
	r.GoodputPerSec = round(float64(rep.Served)/rep.Seconds, 1)
	r.OfferedPerSec = round(float64(rep.Sent)/rep.Seconds, 1)
	r.UtilPct = round(100*r.OfferedPerSec/mu, 1)
	if rep.Sent > 0 {
		r.CPUMicros = round((last.cpu-first.cpu).Seconds()*1e6/float64(rep.Sent), 2)
		if s.gateways > 0 {
			r.Derived["gateway_cpu_us_per_request"] = round((last.gate-first.gate).Seconds()*1e6/float64(rep.Sent), 2)
		}
	}
	if w := last.work.minus(first.work); w.batches > 0 {
		r.FillPct = round(100*float64(w.items)/float64(w.batches*maxBatch), 1)
		r.BusyPct = round(100*float64(w.busyMs)/1000/(seconds*float64(s.workers)), 1)
	}
	r.Derived["goodput_pct_of_capacity"] = round(100*r.GoodputPerSec/mu, 2)

	reserved := map[string]float64{}
	for _, t := range benchPool(s.workers).Tiers {
		reserved[t.Name] = float64(t.ReservedPercent) / 100
	}
	var offered, floors []float64
	for _, t := range rep.Tiers {
		offered = append(offered, t.OfferedPerSec)
		floors = append(floors, reserved[t.Name])
		for why, n := range t.Reasons {
			r.Reasons[why] += n
		}
	}
	worst := 100.0
	for i, e := range entitled(mu, offered, floors) {
		t := rep.Tiers[i]
		r.Tiers[t.Name] = tierResult{OfferedPerSec: t.OfferedPerSec, GoodputPerSec: t.GoodputPerSec, OnTimePct: t.OnTimePct, P95Ms: t.P95Ms, Entitled: round(e, 1)}
		if e > 0 {
			worst = min(worst, 100*t.GoodputPerSec/e)
		}
	}
	r.Derived["worst_tier_pct_of_entitled"] = round(worst, 2)
	r.Derived["enterprise_on_time_pct"] = r.Tiers["enterprise"].OnTimePct
	return r
}

// endOverStart is the goodput of the last minute of a run over that of the first after the warm-up, or of its
// last and first third. (A minute has more than three of the soak's crashes.)
func endOverStart(rep *load.Report) float64 {
	n := 0
	for _, t := range rep.Tiers {
		n = max(n, len(t.PerSecond))
	}
	from := int(warmup / time.Second)
	span := max(min((n-from)/3, 60), 1)
	var start, end float64
	for _, t := range rep.Tiers {
		for i, sec := range t.PerSecond {
			switch {
			case i >= from && i < from+span:
				start += float64(sec.Served)
			case i >= n-span:
				end += float64(sec.Served)
			}
		}
	}
	if start == 0 {
		return 0
	}
	return round(end/start, 3)
}
