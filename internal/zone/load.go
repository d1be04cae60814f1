package zone

import (
	"math"
	"time"
)

const (
	// smoothing is the time constant of the load. 5 % of noise from one scrape of 2 s to the next becomes 2 %.
	smoothing = 5 * time.Second
	// jump is the part by which the load must differ from its smoothed value to be believed at once.
	jump = 0.2
)

// smooth folds an observation into the smoothed load. Without a report the load stays as it was.
func (s *State) smooth(now time.Time, p Policy, o Observation) {
	if len(s.Load) != len(p.Tiers) {
		s.Load = make([]float64, len(p.Tiers))
		s.LastTick = time.Time{}
	} else {
		s.Load = append([]float64(nil), s.Load...) // the caller's old state stays as it is
	}
	if o.Sources == 0 {
		return
	}
	weight := 1.0
	if !s.LastTick.IsZero() {
		weight = 1 - math.Exp(-now.Sub(s.LastTick).Seconds()/smoothing.Seconds())
	}
	for i := range s.Load {
		r := 0.0
		if i < len(o.Offered) && o.Offered[i] > 0 && !math.IsInf(o.Offered[i], 1) {
			r = o.Offered[i]
		}
		if math.Abs(r-s.Load[i]) > jump*s.Load[i] {
			s.Load[i] = r
		} else {
			s.Load[i] += weight * (r - s.Load[i])
		}
	}
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
