package batching

import (
	"container/heap"
	"fmt"
	"testing"
	"time"
)

// pool is the real workers behind several worlds: one batch at a time, a second call gets 409.
type pool struct{ busyUntil map[string]time.Time }

// share makes the worlds use one pool and one clock. It returns a function that runs them all.
func share(p *pool, worlds []*world, hop time.Duration, service time.Duration) func(end time.Duration) (busyAnswers int) {
	refused := 0
	for _, w := range worlds {
		w.outcome = func(b *Batch) Outcome {
			if until := p.busyUntil[b.Worker]; until.After(w.now) {
				refused++
				return Outcome{Kind: Busy, FreeIn: until.Sub(w.now)}
			}
			p.busyUntil[b.Worker] = w.now.Add(service - hop)
			return Outcome{Kind: Answered}
		}
		w.service = func(int) time.Duration { return service }
	}
	return func(end time.Duration) int {
		for {
			var first *world
			for _, w := range worlds {
				if len(w.events) > 0 && (first == nil || w.events[0].at.Before(first.events[0].at)) {
					first = w
				}
			}
			if first == nil || first.events[0].at.Sub(first.start) > end {
				return refused
			}
			e := heap.Pop(&first.events).(event)
			first.now = e.at
			e.do()
			first.settle()
		}
	}
}

// Two batchers on 13 workers at the design load: each sees the other's batches only through 409.
func TestTwoBatchersShareOnePool(t *testing.T) {
	for _, signal := range []bool{false, true} {
		t.Run(fmt.Sprint("signal ", signal), func(t *testing.T) {
			var worlds []*world
			for i := range 2 {
				cfg := testConfig()
				cfg.ID = fmt.Sprint("b", i)
				w := newWorld(cfg, 13, uint64(5+i))
				w.core.SetBatchers(2)
				if signal {
					w.core.SetFleetLambda(10000)
					w.core.SetShare(0.5)
				}
				worlds = append(worlds, w)
			}
			run := share(&pool{map[string]time.Time{}}, worlds, time.Millisecond, 101*time.Millisecond)
			const end = 4 * time.Second
			for _, w := range worlds {
				w.poisson(5000, end, func(int) Request { return Request{} })
			}
			refused := run(end)
			if refused > 80 { // a worker known to be idle first: else 190
				t.Errorf("%d batches met a busy worker", refused)
			}
			for i, w := range worlds {
				fill := float64(w.items) / float64(w.batches)
				t.Logf("batcher %d: p50 %v p95 %v p99 %v fill %.0f batches %d, 409s of both %d, causes %v", i,
					w.quantile(0.5), w.quantile(0.95), w.quantile(0.99), fill, w.batches, refused, w.causes[0])
				if w.quantile(0.95) > 135*time.Millisecond {
					t.Errorf("batcher %d: p95 %v", i, w.quantile(0.95))
				}
				if len(w.causes[0]) != 0 {
					t.Errorf("batcher %d: %v", i, w.causes[0])
				}
				for _, p := range w.problems {
					t.Error(p)
				}
			}
		})
	}
}

// Two batchers, one with twice the load of the other, offer 1.5 times what four workers can do: each must get
// its share of the workers, else one refuses too much and the other answers too late.
func TestTwoBatchersUnderOverloadShareFairly(t *testing.T) {
	const end = 6 * time.Second
	for _, c := range []struct {
		loads  []float64
		signal bool
	}{{[]float64{3000, 3000}, true}, {[]float64{3000, 3000}, false}, {[]float64{4000, 2000}, true}} {
		t.Run(fmt.Sprint(c.loads, c.signal), func(t *testing.T) {
			var worlds []*world
			total := 0.0
			for _, l := range c.loads {
				total += l
			}
			for i := range c.loads {
				cfg := testConfig()
				cfg.ID = fmt.Sprint("b", i)
				w := newWorld(cfg, 4, uint64(5+i))
				if c.signal {
					w.core.SetFleetLambda(total)
					w.core.SetShare(c.loads[i] / total)
				}
				w.core.SetBatchers(len(c.loads))
				worlds = append(worlds, w)
			}
			run := share(&pool{map[string]time.Time{}}, worlds, time.Millisecond, 101*time.Millisecond)
			for i, w := range worlds {
				w.poisson(c.loads[i], end, func(int) Request {
					return Request{Tier: w.rng.IntN(3), Deadline: w.now.Add(500 * time.Millisecond)}
				})
			}
			refused := run(end)
			items, late := 0, 0
			for i, w := range worlds {
				items += w.served
				late += w.late
				top := w.causes[0][Infeasible] + w.causes[0][Expired]
				share := float64(w.served) / end.Seconds() / (4 * 100 / 0.101)
				t.Logf("batcher %d: p95 %v served %.3f of the fleet, late %d, 409s of both %d, causes %v", i, w.quantile(0.95), share, w.late, refused, w.causes)
				if want := c.loads[i] / total; share < want*0.9 || top > 100 || w.quantile(0.95) > 500*time.Millisecond {
					t.Errorf("batcher %d: share %.3f of %.3f, %d of the highest tier not served, p95 %v", i, share, want, top, w.quantile(0.95))
				}
				for _, p := range w.problems {
					t.Error(p)
				}
			}
			if good := float64(items) / end.Seconds(); good < 0.95*4*100/0.101 || late > items/200 {
				t.Errorf("goodput %.0f, late %d", good, late)
			}
		})
	}
}
