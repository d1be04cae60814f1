package main

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/hack/internal/child"
	"sluice.dev/sluice/hack/loadgen/load"
)

const (
	cpuOverFloor       = "cpu_over_floor"
	cpuOverParkedFloor = "cpu_over_parked_floor"

	// leastFloorRate in requests/s: under it a floor would measure the runtime's housekeeping.
	leastFloorRate = 1000
)

// floors are the CPU of the bare and the parked handler for each request, in microseconds, by rate: measured once for
// all scenarios of a rate, as medians of as many runs as those have.
type floors struct {
	bin   binaries
	runs  int
	seed  uint64
	known map[float64][2]float64
}

// around measures the bare handler before and after what measured does; their mean is its floor. A machine that is
// shared is faster or slower from one minute to the next by more than a target's distance: a floor of another minute
// says little.
func (f *floors) around(ctx context.Context, rate float64, seed uint64, measured func() (*result, error)) (*result, error) {
	before, err := floor(ctx, f.bin, "bare", rate, seed)
	if err != nil {
		return nil, err
	}
	r, err := measured()
	if err != nil {
		return nil, err
	}
	after, err := floor(ctx, f.bin, "bare", rate, seed)
	if err != nil {
		return nil, err
	}
	r.FloorMicros = round((before+after)/2, 2)
	r.Derived[cpuOverFloor] = round(r.CPUMicros/r.FloorMicros, 3)
	return r, nil
}

// compare puts the floors of a rate beside a result that has none yet.
func (f *floors) compare(ctx context.Context, r *result, rate float64) error {
	if _, ok := f.known[rate]; !ok {
		var both [2]float64
		for k, kind := range []string{"bare", "parked"} {
			var runs []float64
			for i := range f.runs {
				us, err := floor(ctx, f.bin, kind, rate, f.seed+uint64(i))
				if err != nil {
					return err
				}
				runs = append(runs, us)
			}
			both[k] = middle(runs)
		}
		f.known[rate] = both
	}
	bare, parked := f.known[rate][0], f.known[rate][1]
	if r.FloorMicros == 0 {
		r.FloorMicros = bare
		r.Derived[cpuOverFloor] = round(r.CPUMicros/bare, 3)
	}
	r.ParkedFloorMicros = parked
	r.Derived[cpuOverParkedFloor] = round(r.CPUMicros/parked, 3)
	return nil
}

// floor is the CPU of a bare handler (bare or parked: see serveBare) for each request at a rate, in microseconds.
func floor(ctx context.Context, bin binaries, kind string, rate float64, seed uint64) (float64, error) {
	addrs, err := child.FreeAddrs(1)
	if err != nil {
		return 0, err
	}
	addr := addrs[0]
	p, err := child.Start(child.Command{Name: kind + " handler", Program: bin.self, Args: []string{kind, addr}})
	if err != nil {
		return 0, err
	}
	defer p.Kill()
	if err := p.UntilOK(ctx, "http://"+addr+"/"); err != nil {
		return 0, err
	}
	const settle, length = time.Second, 4 * time.Second
	type reading struct {
		cpu time.Duration
		err error
	}
	readings := make(chan reading, 2)
	go func() {
		for _, d := range []time.Duration{settle, length} {
			time.Sleep(d)
			c, err := p.CPU()
			readings <- reading{c, err}
		}
	}()
	rep, err := load.Run(ctx, load.Plan{
		Targets: []string{addr}, API: load.Echo, Seed: seed, Warmup: settle, Tiers: steady,
		Schedule: load.Poisson([]load.Phase{{From: rate, To: rate, For: settle + length}}, seed),
	})
	if err != nil {
		return 0, err
	}
	a, b := <-readings, <-readings
	if err := firstError(a.err, b.err); err != nil {
		return 0, err
	}
	if rep.Served == 0 {
		return 0, fmt.Errorf("the %s handler answered none of %d requests", kind, rep.Sent)
	}
	return round((b.cpu-a.cpu).Seconds()*1e6/float64(rep.Served), 2), nil
}
