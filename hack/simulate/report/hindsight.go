package report

import (
	"math"
	"time"

	"sluice.dev/sluice/hack/simulate/sim"
)

// hindsightStep is the time over which the offered rate is averaged: what a queue within the latency target
// evens out, and the noise of arrivals with it.
const hindsightStep = 10 * time.Second

// Cost is GPU time, in worker-hours.
type Cost struct {
	// Simulated is what the pool's workers held, from getting a GPU to leaving.
	Simulated float64 `json:"simulated"`
	// Hindsight is the cheapest fleet that knows the load beforehand and keeps to the utilization target:
	// at every instant ceil(offered / (c · target)) workers Ready, each started one cold start earlier, and
	// kept through every gap that is shorter than a cold start. No policy can do better.
	Hindsight float64 `json:"hindsight"`
	// Fixed is the fleet that a team without autoscaling would run: the hindsight's peak, all the time.
	Fixed float64 `json:"fixed"`
	// Peak is that peak, in workers.
	Peak int `json:"peakWorkers"`
}

func costOf(r *sim.Result) Cost {
	need := needed(r)
	c := Cost{Simulated: r.GPUTime.Hours(), Hindsight: cheapest(need, hindsightStep, r.ColdStart).Hours()}
	for _, n := range need {
		c.Peak = max(c.Peak, n)
	}
	c.Fixed = float64(c.Peak) * r.Duration.Hours()
	return c
}

// needed is the number of workers of each step: for the load at the target, at least minReplicas.
func needed(r *sim.Result) []int {
	var need []int
	offered := 0
	var from time.Duration
	for i, b := range r.Bins {
		offered += b.Offered
		if b.At-from < hindsightStep && i < len(r.Bins)-1 {
			continue
		}
		rate := float64(offered) / max((b.At-from).Seconds(), 1e-9)
		need = append(need, max(r.Min, int(math.Ceil(rate/(r.PerWorker*r.Target)-1e-9))))
		offered, from = 0, b.At
	}
	return need
}

// cheapest is the GPU time of a fleet that has need[i] workers Ready in step i. Layer by layer: the k-th
// worker is needed whenever need >= k; every such stretch costs its length and a cold start before it, and a
// gap between two is bridged when that is cheaper. The first stretch is taken to have started before.
func cheapest(need []int, step, coldStart time.Duration) time.Duration {
	most := 0
	for _, n := range need {
		most = max(most, n)
	}
	total := time.Duration(0)
	for k := 1; k <= most; k++ {
		last := -1 // the last step in which the k-th was needed
		for i, n := range need {
			if n < k {
				continue
			}
			gap := time.Duration(i-last-1) * step
			switch {
			case last >= 0:
				total += min(gap, coldStart)
			case i > 0:
				total += min(coldStart, time.Duration(i)*step)
			}
			total += step
			last = i
		}
	}
	return total
}
