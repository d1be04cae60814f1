package batching

import (
	"testing"
	"time"
)

// The window table of the design: p95 latency and busy time at the loads it names, against S = 100 ms.
func TestWindowKeepsLatencyAndBusyTimeAtTheirLimit(t *testing.T) {
	for _, c := range []struct {
		load      float64
		workers   int
		p95       time.Duration // of the design's table
		busy      float64
		tolerance float64
	}{
		{5, 13, 101 * time.Millisecond, 0.04, 0.02},
		{500, 4, 132 * time.Millisecond, 0.75, 0.04},
		{900, 13, 110 * time.Millisecond, 0.75, 0.04},
		{5000, 13, 111 * time.Millisecond, 0.75, 0.04},
		{10000, 13, 110 * time.Millisecond, 0.79, 0.03},
	} {
		w := newWorld(testConfig(), c.workers, 7)
		const run = 5 * time.Second
		w.poisson(c.load, run, func(int) Request { return Request{} })
		w.run(run)
		p95 := w.quantile(0.95)
		busy := w.busy.Seconds() / run.Seconds() / float64(c.workers)
		fill := float64(w.items) / float64(max(w.batches, 1))
		t.Logf("%6.0f/s %2d workers: p50 %v p95 %v p99 %v busy %.0f %% fill %.1f window %v", c.load, c.workers,
			w.quantile(0.5), p95, w.quantile(0.99), 100*busy, fill, w.core.Snapshot(w.now).Window)
		if p95 > c.p95+4*time.Millisecond || busy > c.busy+c.tolerance || busy < c.busy-c.tolerance {
			t.Errorf("%.0f/s on %d: p95 %v busy %.2f, want %v and %.2f", c.load, c.workers, p95, busy, c.p95, c.busy)
		}
		for _, p := range w.problems {
			t.Error(p)
		}
	}
}

// Under 1.5 and 2 times what four workers can do, with clients that give up after 500 ms.
func TestOverloadServesWhatTheFleetCanAndWastesNothing(t *testing.T) {
	for _, factor := range []float64{1.5, 2} {
		w := newWorld(testConfig(), 4, 3)
		const run = 5 * time.Second
		capacity := 4 * 100 / 0.1
		shares := []float64{0.2, 0.3, 0.5}
		w.poisson(factor*capacity, run, func(int) Request {
			x, tier := w.rng.Float64(), 0
			for x > shares[tier] && tier < 2 {
				x -= shares[tier]
				tier++
			}
			return Request{Tier: tier, Deadline: w.now.Add(500 * time.Millisecond)}
		})
		w.run(time.Second) // the queue has formed
		before := w.served
		w.run(run)
		goodput := float64(w.served-before) / (run - time.Second).Seconds()
		w.run(run + time.Second) // but everybody gets an answer
		for tier, l := range w.latency {
			n := 0
			for _, d := range l {
				if d <= 500*time.Millisecond {
					n++
				}
			}
			offered := factor * capacity * shares[tier] * run.Seconds()
			t.Logf("%.1fx tier %d: offered %.0f served in time %d of %d, %v", factor, tier, offered, n, len(l), w.causes[tier])
			if tier == 0 && float64(n) < 0.98*offered {
				t.Errorf("%.1fx: the highest tier got %d of %.0f", factor, n, offered)
			}
		}
		t.Logf("%.1fx: goodput %.1f %% of capacity, p95 %v, late %d of %d items", factor, 100*goodput/capacity, w.quantile(0.95), w.late, w.items)
		if goodput < 0.97*capacity || float64(w.late) > 0.005*float64(w.items) || w.quantile(0.95) > 500*time.Millisecond {
			t.Errorf("%.1fx: goodput %.0f of %.0f, late %d of %d", factor, goodput, capacity, w.late, w.items)
		}
		for _, p := range w.problems {
			t.Error(p)
		}
	}
}
