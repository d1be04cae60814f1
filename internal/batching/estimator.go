package batching

import (
	"slices"
	"time"
)

const (
	minSamples  = 20         // before that, the prior holds
	keepSamples = 256        // for p99
	recent      = int64(1e9) // p50 looks at the last second, so that a slow-down is felt within it
	recentMin   = 5          // but at no fewer than this: a median of 5 ignores two outliers
	forget      = int64(2e9) // full batches older than this are no evidence any more
)

// samples is a ring of measurements with their p50 (recent) and p99 (all kept).
type samples struct {
	at, value [keepSamples]int64
	n         uint64
	p50, p99  int64
	stale     bool
	scratch   [keepSamples]int64
}

func (s *samples) add(at, value int64) {
	i := s.n % keepSamples
	s.at[i], s.value[i] = at, value
	s.n++
	s.stale = true
}

// compute brings p50 and p99 up to date. p99 leaves out the largest sample whatever their number: one
// hung batch must not double the timeout of all.
func (s *samples) compute() {
	if !s.stale {
		return
	}
	s.stale = false
	kept := int(min(s.n, keepSamples))
	newest := s.at[(s.n-1)%keepSamples]
	v := s.scratch[:0]
	for k := 0; k < kept; k++ {
		i := (s.n - 1 - uint64(k)) % keepSamples
		if k >= recentMin && newest-s.at[i] > recent {
			break
		}
		v = append(v, s.value[i])
	}
	slices.Sort(v)
	s.p50 = v[len(v)/2]
	v = append(s.scratch[:0], s.value[:kept]...)
	slices.Sort(v)
	s.p99 = max(s.p50, v[(kept-1)*99/100])
}

// estimator measures S and g.
//
// S comes from batches at least 80 % full. A smaller batch takes no longer than a full one, so the median
// of small ones is a lower bound of S: it lifts a prior, or an old measurement, that reality has overtaken
// while no batch is full. It never lowers S, which keeps the estimate right when time grows with n.
type estimator struct {
	prior   int64
	full    samples
	partial samples
	gaps    samples
}

// add records a batch of n of B that took d. A timeout is recorded with the time that was waited: else
// the timeout could never grow to a fleet that became slower.
func (e *estimator) add(at, d int64, n, size int) {
	if 5*n >= 4*size {
		e.full.add(at, d)
	} else {
		e.partial.add(at, d)
		e.age(at)
	}
}

// age forgets full batches of long ago: the prior, lifted by the small batches of now, is better evidence.
// Else an S that was measured too long while the fleet was in trouble keeps batches small for ever.
func (e *estimator) age(at int64) {
	if n := e.full.n; n > 0 && at-e.full.at[(n-1)%keepSamples] > forget {
		e.full.n, e.full.stale = 0, true
	}
}

// p50 returns S in nanoseconds.
func (e *estimator) p50() int64 {
	s := e.prior
	if e.full.n >= minSamples {
		e.full.compute()
		s = e.full.p50
	}
	if e.partial.n >= minSamples {
		e.partial.compute()
		s = max(s, e.partial.p50)
	}
	return max(s, 1)
}

// p99 returns the p99 of S.
func (e *estimator) p99() int64 {
	s := e.prior
	if e.full.n >= minSamples {
		e.full.compute()
		s = e.full.p99
	}
	if e.partial.n >= minSamples {
		e.partial.compute()
		s = max(s, e.partial.p50)
	}
	return max(s, 1)
}

// gap returns g: the median time between a worker finishing and its next batch leaving while a full batch
// was waiting. Never more than S, whatever a pause of this process did.
func (e *estimator) gap() int64 {
	if e.gaps.n < minSamples {
		return int64(priorGap)
	}
	e.gaps.compute()
	return min(e.gaps.p50, e.p50())
}

// timeout is how long a batch may take: min(limit, 3 x p99) once measured. Under 50 ms it would measure
// this process's pauses and not the worker.
func (e *estimator) timeout(limit time.Duration) time.Duration {
	if e.full.n < minSamples {
		return limit
	}
	return min(limit, max(time.Duration(3*e.p99()), 50*time.Millisecond))
}
