package sim

import "time"

// Histogram counts latencies in steps of 0.5 ms up to a minute.
type Histogram struct {
	counts []uint32
	n      int
	most   time.Duration
}

const (
	histogramStep = 500 * time.Microsecond
	histogramSize = int(time.Minute / histogramStep)
)

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	if h.counts == nil {
		h.counts = make([]uint32, histogramSize)
	}
	h.counts[min(max(int(d/histogramStep), 0), histogramSize-1)]++
	h.n++
	h.most = max(h.most, d)
}

// Quantile is the q-quantile, 0 without any.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := int(q * float64(h.n-1))
	for i, c := range h.counts {
		if rank -= int(c); rank < 0 {
			return min(time.Duration(i+1)*histogramStep, h.most)
		}
	}
	return h.most
}
