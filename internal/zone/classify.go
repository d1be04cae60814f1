package zone

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// The numbers of the rule. Entering is quick and leaving slow: without the holds a fluid simulation changed
// zone 20 times a minute.
const (
	overCapacity   = 1.02 // of mu: load that enters Yellow, on two calls in a row
	overTicks      = 2
	underCapacity  = 0.95 // of mu: load under which a zone may be left
	yellowHold     = 30 * time.Second
	redHold        = 10 * time.Second
	leaveThreshold = 2 // a zone is left below its threshold over this: 150 of 300 ms, 375 of 750 ms
)

// Classify says in which zone a pool is now, why, and how much of each tier is admitted:
//
//	Yellow  enter  backlog >= yellow, or load > 1.02 mu on two calls in a row (one, when mu itself fell)
//	        leave  backlog < yellow/2 and load < 0.95 mu, for 30 s
//	Red     enter  backlog >= red, or the tiers above the lowest offer >= mu
//	        leave  to Yellow only: backlog < red/2 and those tiers < 0.95 mu, for 10 s
//	               (< mu, where the backlog alone was the cause: else the lowest tier would stay shut out
//	               of capacity that nobody uses)
//
// Without capacity the zone is Red with ReasonNoCapacity, until there is any. Without any report it stays as
// it was. Load is the Interactive tiers' offered rate, smoothed over 5 s or, where fewer come, over 5,000 requests; a
// jump of more than 20 % that counting does not explain is believed at once.
//
// Classify is a function of its arguments alone and safe for concurrent use. A gateway calls it with its own
// observation whenever its view of the workers changes, the operator once a scrape.
func Classify(now time.Time, p Policy, o Observation, s State) (Decision, State) {
	s = s.notAfter(now)
	was := s.Name
	if was == "" {
		s.Name, s.Since = Green, now
	}
	mu := o.Capacity
	if !(mu > 0) || math.IsInf(mu, 1) {
		mu = 0
	}
	fell := mu < s.Capacity*underCapacity
	s.smooth(now, p, o)
	f := figures{mu: mu, depth: max(o.Depth, 0), load: s.Load, backlog: backlogOf(o.Depth, mu)}
	for i, t := range p.Tiers {
		if t.Background {
			continue
		}
		f.total += f.load[i]
		if i < len(p.Tiers)-1 {
			f.upper += f.load[i]
		}
	}
	s.LastTick, s.Capacity = now, mu

	next, reason, message := s.next(now, p, o, f, fell)
	if next != s.Name {
		s.Name, s.Since, s.CalmSince = next, now, time.Time{}
	}
	fresh := admission(p, f, s.Name)
	switch {
	case next != was, len(s.Admit) != len(p.Tiers),
		reason != ReasonMetricsMissing && (now.Sub(s.AdmitAt) >= settleAfter || f.differ(fresh, s.Admit)):
		s.Admit, s.AdmitAt = fresh, now
	}
	if reason != ReasonMetricsMissing || next != was {
		s.Reason = reason // else the cause of the zone is still the one it had
	}
	return Decision{
		Name: s.Name, Reason: reason, Message: message, Since: s.Since, Changed: s.Name != was,
		Admit: slices.Clone(s.Admit), Backlog: f.backlog,
	}, s
}

// figures are the numbers that follow from one observation.
type figures struct {
	mu      float64
	depth   int
	backlog time.Duration
	load    []float64 // by tier
	total   float64   // of the Interactive tiers
	upper   float64   // of those above the lowest tier
}

// next moves the timers and says the zone.
func (s *State) next(now time.Time, p Policy, o Observation, f figures, fell bool) (Name, string, string) {
	if f.mu == 0 {
		s.OverTicks, s.CalmSince = 0, time.Time{}
		return Red, ReasonNoCapacity, "no worker serves"
	}
	name := s.Name
	if s.Reason == ReasonNoCapacity && name == Red {
		name = Green // the cause is gone altogether; what the load asks for follows below
	}
	if o.Sources == 0 {
		s.OverTicks, s.CalmSince = 0, time.Time{}
		return name, ReasonMetricsMissing, "nobody reports: the zone stays as it was"
	}
	if f.total > overCapacity*f.mu {
		s.OverTicks++
	} else {
		s.OverTicks = 0
	}

	switch {
	case f.upper >= f.mu:
		s.CalmSince = time.Time{}
		return Red, ReasonOfferedOverCapacity, fmt.Sprintf("the tiers above the lowest offer %s, capacity %s", rate(f.upper), rate(f.mu))
	case p.over(Red, f):
		s.CalmSince = time.Time{}
		return Red, ReasonBacklogHigh, f.queueMessage(p, Red)
	case name == Red:
		return s.leaveRed(now, p, o, f)
	case p.over(Yellow, f):
		s.CalmSince = time.Time{}
		return Yellow, ReasonBacklogHigh, f.queueMessage(p, Yellow)
	case s.OverTicks >= overTicks || s.OverTicks > 0 && fell:
		s.CalmSince = time.Time{}
		return Yellow, ReasonOfferedOverCapacity, fmt.Sprintf("%s offered, capacity %s", rate(f.total), rate(f.mu))
	case name == Yellow:
		return s.leaveYellow(now, p, o, f)
	}
	return Green, ReasonCalm, fmt.Sprintf("%s offered, capacity %s", rate(f.total), rate(f.mu))
}

func (s *State) leaveRed(now time.Time, p Policy, o Observation, f figures) (Name, string, string) {
	line := underCapacity * f.mu
	if s.Reason == ReasonBacklogHigh {
		line = f.mu
	}
	if !s.calm(now, o.Complete && p.under(Red, f) && f.upper < line, redHold) {
		// The reason stays: it is what decides how far the load must fall.
		reason := s.Reason
		if reason != ReasonBacklogHigh && reason != ReasonOfferedOverCapacity {
			reason = ReasonOfferedOverCapacity // after a restart: the stricter
		}
		return Red, reason, "recovering: " + f.loads()
	}
	return Yellow, ReasonRecovering, "from Red: " + f.loads()
}

func (s *State) leaveYellow(now time.Time, p Policy, o Observation, f figures) (Name, string, string) {
	if !s.calm(now, o.Complete && p.under(Yellow, f) && f.total < underCapacity*f.mu, yellowHold) {
		return Yellow, ReasonRecovering, "recovering: " + f.loads()
	}
	return Green, ReasonCalm, f.loads()
}

// calm runs the calm timer and says whether it has run for hold.
func (s *State) calm(now time.Time, is bool, hold time.Duration) bool {
	switch {
	case !is:
		s.CalmSince = time.Time{}
	case s.CalmSince.IsZero():
		s.CalmSince = now
	}
	return is && now.Sub(s.CalmSince) >= hold
}

// threshold is the queue of a zone: a time, or a number of requests.
func (p Policy) threshold(n Name) (backlog time.Duration, depth int) {
	if n == Red {
		return p.RedBacklog, p.RedDepth
	}
	return p.YellowBacklog, p.YellowDepth
}

func (p Policy) over(n Name, f figures) bool {
	backlog, depth := p.threshold(n)
	if backlog > 0 {
		return f.backlog >= backlog
	}
	return depth > 0 && f.depth >= depth
}

func (p Policy) under(n Name, f figures) bool {
	backlog, depth := p.threshold(n)
	if backlog > 0 {
		return f.backlog < backlog/leaveThreshold
	}
	return depth == 0 || f.depth*leaveThreshold < depth
}

func (f figures) queueMessage(p Policy, n Name) string {
	backlog, depth := p.threshold(n)
	if backlog > 0 {
		return fmt.Sprintf("%d waiting are a backlog of %s, the threshold is %s", f.depth, ms(f.backlog), ms(backlog))
	}
	return fmt.Sprintf("%d waiting, the threshold is %d", f.depth, depth)
}

func (f figures) loads() string {
	return fmt.Sprintf("backlog %s, %s offered, capacity %s", ms(f.backlog), rate(f.total), rate(f.mu))
}

// maxBacklog stands for "never".
const maxBacklog = time.Hour

func backlogOf(depth int, mu float64) time.Duration {
	switch {
	case depth <= 0:
		return 0
	case mu <= 0 || float64(depth)/mu > maxBacklog.Seconds():
		return maxBacklog
	}
	return time.Duration(float64(depth) / mu * float64(time.Second))
}

// ms rounds to 10 ms, rate to two digits: a message that differs is a write of the pool's status.
func ms(d time.Duration) string {
	return fmt.Sprintf("%d ms", d.Round(10*time.Millisecond).Milliseconds())
}

func rate(r float64) string {
	if r < 10 {
		return fmt.Sprintf("%.1f/s", max(r, 0))
	}
	unit := math.Pow(10, math.Floor(math.Log10(r))-1)
	return fmt.Sprintf("%.0f/s", math.Round(r/unit)*unit)
}
