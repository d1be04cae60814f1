package scaling

import (
	"math"
	"time"
)

// figures are the numbers that follow from one observation. Workers set aside as warm are left out of
// loaded, which is where "the load is above the line" is judged.
type figures struct {
	known   bool    // somebody reports, and c > 0
	c       float64 // requests/s of one worker
	mu      float64
	offered float64
	demand  float64
	backlog time.Duration
	overDue bool // the queue is over its threshold

	current  int // the Deployment's replicas, within Min and Max
	starting int // with those that the Deployment has still to create
	lapsed   int // found no node within coldStart, or could not be created
	supply   int // Ready + starting

	needed int // workers that the demand needs at the target
	warm   int // workers wanted beyond

	line    float64 // AbovePercent as a fraction
	settled float64 // the load, at most, of workers that are enough while some of them start
}

// Bounds of the arithmetic on absurd loads; the API allows 1000 workers.
const (
	maxWorkers = 100_000
	maxRate    = 1e9
)

// PerWorker is c = B / (S + g): requests/s that one worker serves with full batches. 0 when S + g is not
// positive.
func PerWorker(maxSize int, serviceTime, gap time.Duration) float64 {
	cycle := (serviceTime + gap).Seconds()
	if cycle <= 0 || maxSize <= 0 {
		return 0
	}
	return float64(maxSize) / cycle
}

// BacklogOf is depth / mu, at most MaxBacklog; that also when something waits and mu is 0.
func BacklogOf(depth int, mu float64) time.Duration {
	switch {
	case depth <= 0:
		return 0
	case mu <= 0 || float64(depth)/mu > MaxBacklog.Seconds():
		return MaxBacklog
	}
	return time.Duration(float64(depth) / mu * float64(time.Second))
}

func measure(now time.Time, p Policy, o Observation, s *State) figures {
	f := figures{
		c:       PerWorker(p.MaxSize, o.ServiceTime, o.Gap),
		current: min(max(o.Current, p.Min), p.Max),
		line:    float64(p.AbovePercent) / 100,
	}
	// A fleet sized for the target by a sample that was 5 % low must not look too small under one that is 5 %
	// high: 1.05 / 0.95 = 1.105.
	f.settled = max(f.line, 1.11*float64(p.TargetPercent)/100)
	if o.Offered > 0 { // false for NaN
		f.offered = min(o.Offered, maxRate)
	}
	f.known = o.Sources > 0 && f.c > 0
	f.mu = f.c * float64(o.Ready)
	f.backlog = BacklogOf(o.Depth, f.mu)
	if p.BacklogThreshold > 0 {
		f.overDue = f.backlog > p.BacklogThreshold
	} else {
		f.overDue = p.DepthThreshold > 0 && o.Depth > p.DepthThreshold
	}

	// Pods that the Deployment has still to create are on their way, unless something (a quota, an
	// admission webhook) has kept it from creating them for a whole cold start.
	f.lapsed = o.Unschedulable
	f.starting = o.Starting
	short := f.current - o.Ready - o.Starting - o.Failing - o.Unschedulable
	switch {
	case short <= 0:
		s.ShortSince = time.Time{}
	case s.ShortSince.IsZero():
		s.ShortSince = now
	}
	if short > 0 {
		if since(now, s.ShortSince) < p.ColdStart {
			f.starting += short
		} else {
			f.lapsed += short
		}
	}
	f.supply = o.Ready + f.starting

	f.demand = f.offered + float64(max(o.Depth, 0))/max(p.ColdStart.Seconds(), 1)
	f.needed = f.workersFor(f.demand, p)
	f.warm = p.Warm.of(f.needed)
	return f
}

// workersFor is ceil(demand / (c · target)).
func (f figures) workersFor(demand float64, p Policy) int {
	if f.c <= 0 || p.TargetPercent <= 0 {
		return 0
	}
	// A millionth less, so that a demand of exactly three workers does not need four by rounding.
	n := demand/(f.c*float64(p.TargetPercent)/100) - 1e-6
	return int(math.Ceil(min(max(n, 0), maxWorkers)))
}

func (w Warm) of(needed int) int {
	if w.Percent > 0 {
		return (needed*w.Percent + 99) / 100
	}
	return max(w.Count, 0)
}

// load is rate over the capacity of n workers less the warm ones: infinite when none is left for it.
func (f figures) load(rate float64, n, warm int) float64 {
	capacity := f.c * float64(n-warm)
	switch {
	case rate <= 0:
		return 0
	case capacity <= 0:
		return math.Inf(1)
	}
	return rate / capacity
}

// utilization is u, or -1 where nothing is known.
func (f figures) utilization() float64 {
	if !f.known || f.mu <= 0 {
		return -1
	}
	return f.offered / f.mu
}

// since is the time from t to now, never negative: a clock that was set back must not end a wait.
func since(now, t time.Time) time.Duration { return max(now.Sub(t), 0) }

// lapsedFor says that at least d has passed since t, or that t never was.
func lapsedFor(now, t time.Time, d time.Duration) bool { return t.IsZero() || since(now, t) >= d }
