package zone

import (
	"math"
	"slices"
	"time"
)

const (
	// smoothing is the shortest time constant of the load. 5 % of noise from one scrape of 2 s to the next becomes
	// 2 %.
	smoothing = 5 * time.Second
	// counted is how many arrivals the load is averaged over at least. A count of n is off by its root, and an
	// average over 5,000 · 2 arrivals by 1 %, as far as the lines of entering and leaving tolerate: with 5 s
	// for every pool, one of 50/s entered and left Red five times a minute at a constant load.
	counted = 5000
	// slowest bounds what that makes of a pool of a few requests a second.
	slowest = time.Minute
	// jump is the part by which the load must differ from its smoothed value to be believed at once,
	jump = 0.2
	// jumpDeviations is how many standard deviations of a count it must be beside.
	jumpDeviations = 5
)

// smooth folds an observation into the smoothed load. Without a report the load stays as it was.
func (s *State) smooth(now time.Time, p Policy, o Observation) {
	if len(s.Load) != len(p.Tiers) || len(s.LoadFor) != len(p.Tiers) {
		s.Load, s.LoadFor = make([]float64, len(p.Tiers)), make([]time.Duration, len(p.Tiers))
		s.LastTick = time.Time{}
	} else {
		s.Load, s.LoadFor = slices.Clone(s.Load), slices.Clone(s.LoadFor) // the caller's old state stays as it is
	}
	if o.Sources == 0 {
		return
	}
	first, step := s.LastTick.IsZero(), now.Sub(s.LastTick)
	constant := s.constant()
	for i := range s.Load {
		r := 0.0
		if i < len(o.Offered) && o.Offered[i] > 0 && !math.IsInf(o.Offered[i], 1) {
			r = o.Offered[i]
		}
		if first || s.jumped(r, s.Load[i], step) {
			s.Load[i], s.LoadFor[i] = r, smoothing/2
			continue
		}
		// A plain mean of what came since the beginning or the last jump, until that is long enough.
		weight := max(1-math.Exp(-float64(step)/float64(constant)), float64(step)/float64(s.LoadFor[i]+step))
		s.Load[i] += weight * (r - s.Load[i])
		s.LoadFor[i] = min(s.LoadFor[i]+step, slowest)
	}
}

// constant is the time constant for the load as it is: that in which counted requests come.
func (s *State) constant() time.Duration {
	total := 0.0
	for _, l := range s.Load {
		total += l
	}
	if total*slowest.Seconds() <= counted {
		return slowest
	}
	return max(smoothing, time.Duration(counted/total*float64(time.Second)))
}

// jumped says whether a rate that was counted over step differs from load by more than the noise of counting.
func (s *State) jumped(r, load float64, step time.Duration) bool {
	deviation := math.Sqrt(max(load*step.Seconds(), 1)) / max(step.Seconds(), 1e-3)
	return math.Abs(r-load) > max(jump*load, jumpDeviations*deviation)
}

// notAfter brings instants that another clock put into the future back to now.
func (s State) notAfter(now time.Time) State {
	for _, t := range []*time.Time{&s.Since, &s.CalmSince, &s.LastTick, &s.AdmitAt} {
		if t.After(now) {
			*t = now
		}
	}
	return s
}
