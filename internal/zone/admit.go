package zone

import (
	"math"
	"time"
)

// Causes for which a zone refuses a request: stable words in answers, logs and metrics, beside batching's.
const (
	CauseShed   = "shed"              // the tier is admitted in part, or not at all
	CausePaused = "background_paused" // background tiers wait for quieter times
)

// drain is the time in which Yellow and Red work off the queue: its items / drain is kept free of new ones.
const drain = 10 * time.Second

// throttleFloor is the part of its load that a Throttle tier is admitted even when nothing is left for it.
const throttleFloor = 0.01

// admission is the percentage of each tier that is admitted. Highest first, each tier gets
//
//	min(its load, mu - the higher tiers' - queued items / 10 s - the lower tiers' reserve)
//
// but at least its own reserve; Never is never cut, Background pauses, and in Red a First tier gets nothing.
func admission(p Policy, f figures, n Name) []float64 {
	admit := make([]float64, len(p.Tiers))
	if n == Green {
		for i := range admit {
			admit[i] = 100
		}
		return admit
	}
	reserve := make([]float64, len(p.Tiers))
	lower := 0.0
	for i, t := range p.Tiers {
		reserve[i] = t.floor(n, f.load[i], f.mu)
		lower += reserve[i]
	}
	left := f.mu - float64(f.depth)/drain.Seconds()
	for i, t := range p.Tiers {
		lower -= reserve[i]
		load := f.load[i]
		var a float64
		switch {
		case t.Background:
		case t.Shedding == Never:
			a = load
			admit[i] = 100
		case t.Shedding == First && n == Red:
		default:
			a = min(load, max(left-lower, reserve[i]))
			admit[i] = percentage(a, load)
		}
		left -= a
	}
	return admit
}

// settleRate is the part of the capacity by which an admitted rate must differ for percentages to be computed
// anew within settleAfter. The lowest tier gets what is left, so 2 % of noise on the tiers above it is many
// points of a small one: without this its percentage moved with every scrape, and the document with it.
const settleRate = 0.03

// differ says that two lists of percentages admit rates that differ by a part of the capacity that matters.
func (f figures) differ(a, b []float64) bool {
	for i := range a {
		if math.Abs(a[i]-b[i])/100*f.load[i] > settleRate*f.mu {
			return true
		}
	}
	return false
}

// floor is the rate that a tier is admitted whatever the others want. Workers keep the reserved slots for
// it, so refusing it would only leave them empty.
func (t Tier) floor(n Name, load, mu float64) float64 {
	switch {
	case t.Background, t.Shedding == Never, t.Shedding == First && n == Red, mu == 0:
		return 0
	}
	floor := float64(t.ReservedPercent) / 100 * mu
	if t.Shedding == Throttle {
		floor = max(floor, throttleFloor*load)
	}
	return min(floor, load)
}

// percentage rounds to 0.1. A tier that offers nothing is not cut.
func percentage(admitted, load float64) float64 {
	if load <= 0 || admitted >= load {
		return 100
	}
	return math.Round(max(admitted, 0)/load*1000) / 10
}

// Stricter returns, tier by tier, the smaller of two lists of percentages. Where one list is shorter, the
// other alone counts.
func Stricter(a, b []float64) []float64 {
	if len(b) > len(a) {
		a, b = b, a
	}
	out := append([]float64(nil), a...)
	for i, x := range b {
		out[i] = min(out[i], x)
	}
	return out
}
