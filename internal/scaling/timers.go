package scaling

import "time"

// advance moves the timers to now.
func (s *State) advance(now time.Time, p Policy, o Observation, f figures) {
	step := time.Duration(0)
	if !s.LastTick.IsZero() {
		step = since(now, s.LastTick)
	}
	s.LastTick = now
	if lapsedFor(now, s.NoRoomSince, p.ColdStart) {
		s.NoRoomSince = time.Time{}
	}
	if !f.known {
		s.DepthScrapes, s.OverSince = 0, time.Time{}
		s.resetBelow()
		return
	}
	if f.overDue {
		s.DepthScrapes++
	} else {
		s.DepthScrapes = 0
	}
	switch {
	case f.load(f.offered, o.Ready, f.warm) <= overCapacity:
		s.OverSince = time.Time{}
	case s.OverSince.IsZero():
		s.OverSince = now
	}
	s.advanceAbove(now, p, o, f, step)
	switch {
	case !f.below(p, o):
		s.resetBelow()
		return
	case s.BelowSince.IsZero():
		s.BelowSince, s.PeakSince = now, now
	case since(now, s.PeakSince) >= p.DownWindow:
		s.PeakSince, s.PeakBefore, s.PeakOffered = now, s.PeakOffered, 0
	}
	s.PeakOffered = max(s.PeakOffered, f.offered)
}

// resetBelow starts the down window again.
func (s *State) resetBelow() {
	s.BelowSince, s.PeakSince, s.PeakOffered, s.PeakBefore = time.Time{}, time.Time{}, 0, 0
}

// peak is the highest offered rate of at least the down window.
func (s *State) peak() float64 { return max(s.PeakOffered, s.PeakBefore) }

const (
	// overCapacity is the load over which some of it must be refused, as in the zones.
	overCapacity = 1.02
	// overFor is how long that must be seen: at two scrapes.
	overFor = 2 * time.Second
)

// farBelow is how far below the line, as a part of it, the load must fall for the up timer to start again.
// Noise of 5 % stays inside.
const farBelow = 0.9

// advanceAbove runs the up timer: forward above the line, backward just below it, back to zero far below.
// Partial data is a lower bound and so cannot say that the load is below.
func (s *State) advanceAbove(now time.Time, p Policy, o Observation, f figures, step time.Duration) {
	load := f.load(f.offered, o.Ready, f.warm)
	switch {
	case load > f.line:
		if s.AboveSince.IsZero() {
			s.AboveSince = now
		}
	case s.AboveSince.IsZero() || !o.Complete:
	case load < farBelow*f.line:
		s.AboveSince = time.Time{}
	default:
		run := min(since(now, s.AboveSince)-step, p.UpWindow) - step
		s.AboveSince = now.Add(-run)
		if run <= 0 {
			s.AboveSince = time.Time{}
		}
	}
}

// below says that nothing speaks against a worker leaving, but for time.
func (f figures) below(p Policy, o Observation) bool {
	return o.Complete && !o.Rolling && o.Draining == 0 && f.starting == 0 && f.lapsed == 0 && !f.overDue &&
		o.Ready > 0 && f.load(f.offered, o.Ready, f.warm) < float64(p.BelowPercent)/100
}

// notAfter brings instants that another clock put into the future back to now: they then wait a whole
// window rather than for ever.
func (s State) notAfter(now time.Time) State {
	for _, t := range []*time.Time{&s.AboveSince, &s.BelowSince, &s.LastScaleUp, &s.LastScaleDown, &s.LastDepthStep, &s.LastTick, &s.OverSince, &s.PeakSince, &s.ShortSince, &s.NoRoomSince} {
		if t.After(now) {
			*t = now
		}
	}
	return s
}

// record notes the change that d makes.
func (s *State) record(now time.Time, current int, d Decision) {
	switch {
	case d.Desired > current:
		s.LastScaleUp = now
		s.resetBelow()
		if d.Reason == ReasonQueuePersistent {
			s.LastDepthStep = now
		}
	case d.Desired < current:
		s.resetBelow()
		s.Victim = ""
		if len(d.Victims) > 0 {
			s.Victim = d.Victims[0]
		}
		if d.Reason == ReasonPendingRemoved {
			s.NoRoomSince = now // not a scale-down: these workers never served
			return
		}
		s.LastScaleDown = now
	}
}
