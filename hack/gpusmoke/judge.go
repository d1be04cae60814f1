package main

import (
	"fmt"
	"slices"
	"time"
)

// sizes are the batch sizes that are measured.
var sizes = []int{1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100}

// fixedCostRatio is how much longer than a batch of 1 the largest batch may take in a fixed-cost function. At
// 1.5 a full batch of 100 still serves 67 times as many items a second as single requests would.
const fixedCostRatio = 1.5

// sample is the time of the batches of one size.
type sample struct {
	n                 int
	median, low, high time.Duration
}

func summarize(n int, times []time.Duration) sample {
	t := slices.Sorted(slices.Values(times))
	return sample{n: n, median: t[len(t)/2], low: t[0], high: t[len(t)-1]}
}

// verdict is the line fixed + perItem · n that fits the medians best (least squares), and what it means.
type verdict struct {
	fixed, perItem time.Duration
	ratio          float64 // largest batch / batch of 1
	largest        int
	throughput     float64 // items/s of the largest batch
}

func judge(samples []sample) verdict {
	var sumN, sumT, sumNN, sumNT float64
	for _, s := range samples {
		n, t := float64(s.n), float64(s.median)
		sumN, sumT, sumNN, sumNT = sumN+n, sumT+t, sumNN+n*n, sumNT+n*t
	}
	k := float64(len(samples))
	slope := (k*sumNT - sumN*sumT) / (k*sumNN - sumN*sumN)
	first, last := samples[0], samples[len(samples)-1]
	return verdict{
		fixed: time.Duration((sumT - slope*sumN) / k), perItem: time.Duration(slope),
		ratio: float64(last.median) / float64(first.median), largest: last.n,
		throughput: float64(last.n) / last.median.Seconds(),
	}
}

func (v verdict) fixedCost() bool { return v.ratio <= fixedCostRatio }

func (v verdict) String() string {
	line := fmt.Sprintf("time of a batch of n = %.2f ms + n x %.4f ms; a batch of %d takes %.2f times a batch of 1 and serves %.0f items/s.\n",
		ms(v.fixed), ms(v.perItem), v.largest, v.ratio, v.throughput)
	if v.fixedCost() {
		return line + "This is a fixed-cost function: full batches are nearly free, so batching pays."
	}
	return line + fmt.Sprintf("This is NOT a fixed-cost function (the limit is %.1f): its time grows with the batch. Batching still saves the fixed part;\n"+
		"set batching.inferenceTime to the time of a full batch, and look whether a smaller batching.maxSize serves as many items a second.", fixedCostRatio)
}
