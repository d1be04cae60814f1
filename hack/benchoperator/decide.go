package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/scaling"
)

// decideMicros is the time of one scaling.Decide in microseconds, the best of three: a busy machine only ever
// makes it longer. The pool has 16 workers; the load wanders so that all of steady, above, jammed and below
// are among the decisions, with their messages.
func decideMicros() float64 {
	policy := scaling.Policy{
		Mode: scaling.Auto, Min: 2, Max: 32, TargetPercent: 75, AbovePercent: 80, UpWindow: 2 * time.Minute,
		BelowPercent: 50, DownWindow: 10 * time.Minute, ColdStart: 5 * time.Minute, MaxSize: batchSize,
		BacklogThreshold: 300 * time.Millisecond,
	}
	const workers = 16
	o := scaling.Observation{
		Complete: true, Sources: 2, ServiceTime: 100 * time.Millisecond, Gap: time.Millisecond,
		Current: workers, Ready: workers,
	}
	for i := range workers {
		o.Workers = append(o.Workers, scaling.Worker{Name: fmt.Sprintf("pool-worker-%d", i), IdleFor: time.Duration(i) * time.Millisecond})
	}
	mu := workers * scaling.PerWorker(batchSize, o.ServiceTime, o.Gap)
	loads := []struct {
		part  float64
		depth int
	}{{0.65, 100}, {0.9, 400}, {1.2, 8000}, {0.3, 0}}
	decide := func(b *testing.B) {
		var s scaling.State
		now := time.Unix(1, 0)
		i := 0
		for b.Loop() {
			l := loads[i/300%len(loads)] // ten minutes of each
			o.Offered, o.Depth = l.part*mu, l.depth
			now = now.Add(2 * time.Second)
			_, s = scaling.Decide(now, policy, o, s)
			i++
		}
	}
	var took []float64
	for range 3 {
		took = append(took, float64(testing.Benchmark(decide).NsPerOp())/1000)
	}
	return slices.Min(took)
}
