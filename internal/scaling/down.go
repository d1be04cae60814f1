package scaling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// scaleDown says whether one worker leaves, and otherwise why the number stays.
func scaleDown(now time.Time, p Policy, o Observation, f figures, s State) verdict {
	hold := func(reason, format string, args ...any) verdict {
		return verdict{f.current, reason, fmt.Sprintf(format, args...)}
	}
	load := f.load(f.offered, o.Ready, f.warm)
	low := load < float64(p.BelowPercent)/100
	switch {
	case f.above(o):
		return hold(ReasonUpWindow, "held: above %d %% for %s of %s", p.AbovePercent, elapsed(since(now, s.AboveSince), p.UpWindow), Span(p.UpWindow))
	case !o.Complete:
		return hold(ReasonMetricsIncomplete, "held: the data is incomplete%s", missing(o))
	case !low:
		return hold(ReasonSteady, "steady: %s for %s", percentOf(f), count(o.Ready, "ready worker"))
	case f.current <= max(p.Min, f.warm):
		return hold(ReasonAtMinimum, "steady: %s, %s", percentOf(f), minimum(p, f))
	case o.Rolling:
		return hold(ReasonWorkersRolling, "held: below %d %%, but a rollout of the workers runs", p.BelowPercent)
	case f.starting > 0:
		return hold(ReasonWorkersStarting, "held: %s starting", count(f.starting, "worker"))
	case o.Draining > 0:
		return hold(ReasonWorkersDraining, "held: below %d %%, but %s still leaving", p.BelowPercent, isAre(o.Draining, "worker"))
	case s.BelowSince.IsZero():
		return hold(ReasonSteady, "steady: %s for %s", percentOf(f), count(o.Ready, "ready worker"))
	}

	// One window from the last change, whichever it was: a worker added a minute ago was added for a reason.
	from := s.BelowSince
	for _, t := range []time.Time{s.LastScaleUp, s.LastScaleDown} {
		if t.After(from) {
			from = t
		}
	}
	if run := since(now, from); run < p.DownWindow {
		return hold(ReasonDownWindow, "held: below %d %% for %s of %s", p.BelowPercent, elapsed(run, p.DownWindow), Span(p.DownWindow))
	}

	left := o.Ready
	if v := ranked(o.Workers); len(v) == 0 || !v[0].Pending {
		left-- // whoever leaves serves now
	}
	peak := s.peak()
	after := f.load(peak, left, p.Warm.of(f.workersFor(peak, p)))
	if after >= f.line {
		return hold(ReasonWouldOverload, "held: %s, but %d would carry %s, at or above %d %%", percentOf(f), left, percent(after), p.AbovePercent)
	}
	return verdict{f.current - 1, ReasonUtilizationLow, fmt.Sprintf("%d → %d: below %d %% for %s, %s offered at most, the rest will carry %s",
		o.Current, f.current-1, p.BelowPercent, Span(p.DownWindow), perSecond(peak), percent(after))}
}

// ranked are the workers in the order in which they should leave: those that do not serve, those that serve
// badly, then the ones idle for longest; by name where all is equal, so that a repeated decision names the
// same one.
func ranked(ws []Worker) []Worker {
	ws = slices.Clone(ws)
	slices.SortFunc(ws, func(a, b Worker) int {
		return cmp.Or(
			before(a.Pending, b.Pending),
			before(a.Unhealthy, b.Unhealthy),
			cmp.Compare(b.IdleFor, a.IdleFor),
			strings.Compare(a.Name, b.Name),
		)
	})
	return ws
}

func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// victims are the names of the n workers that should leave.
func victims(ws []Worker, n int) []string {
	ws = ranked(ws)
	names := make([]string, 0, min(n, len(ws)))
	for _, w := range ws[:min(n, len(ws))] {
		names = append(names, w.Name)
	}
	return names
}
