package main

import "time"

// The physics of the simulated fleet. S and B are what the simulated workers do; g is the gap that the
// design's own simulation grants between a worker finishing and its next batch.
const (
	maxBatch    = 100                    // B
	serviceTime = 100 * time.Millisecond // S
	gap         = time.Millisecond       // g
	target      = 0.75                   // utilization that the window aims at
	maxWait     = 40 * time.Millisecond
)

// capacity is mu = M·B / (S + g), in requests per second.
func capacity(workers int) float64 {
	return float64(workers) * maxBatch / (serviceTime + gap).Seconds()
}

// window is clamp(S / (M_share · target) - 1/lambda, 0, maxWait): the longest that the first request of a
// batch waits for company, at lambda requests per second to a batcher with share workers.
func window(lambda, share float64) time.Duration {
	if lambda <= 0 || share <= 0 {
		return 0
	}
	w := serviceTime.Seconds()/(share*target) - 1/lambda
	return min(max(time.Duration(w*float64(time.Second)), 0), maxWait)
}

// limit is the best q-quantile of latency that a batcher can give: S + g + q·A. A batch is open for A, the
// shorter of its window and the time in which it fills, B / lambda, and arrivals are spread evenly over A, so
// the q-quantile of what is left of A is q·A. It holds below saturation, where a worker is free when a batch
// closes.
func limit(q, lambda, share float64) time.Duration {
	open := window(lambda, share)
	if lambda > 0 {
		open = min(open, time.Duration(maxBatch/lambda*float64(time.Second)))
	}
	return serviceTime + gap + time.Duration(q*float64(open))
}

// entitled is what a tier may expect at overload, in requests per second: its own load, or what the tiers
// above leave of the capacity after the floors of those below, whichever is less. offered and reserved (the
// share of the capacity that is a tier's own) are in the order of the tiers, highest first.
//
// The lowest tier is shed first: zone Red, in which it gets nothing, is entered when the tiers above it offer mu
// and left when they offer under 95 % of it. From there on it is entitled to nothing; its floor is not given to
// the others, because between the two lines either zone may hold.
func entitled(mu float64, offered, reserved []float64) []float64 {
	out := make([]float64, len(offered))
	left := mu
	// A floor is used only as far as its tier has load.
	floor := func(i int) float64 { return min(offered[i], reserved[i]*mu) }
	for i := range offered {
		left -= floor(i)
	}
	for i := range offered {
		more := min(offered[i]-floor(i), max(left, 0))
		out[i] = floor(i) + more
		left -= more
	}
	above, lowest := 0.0, len(offered)-1
	for _, o := range offered[:lowest] {
		above += o
	}
	if lowest > 0 && above >= .95*mu {
		out[lowest] = 0
	}
	return out
}
