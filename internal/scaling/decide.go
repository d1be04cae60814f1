package scaling

import (
	"fmt"
	"time"
)

// Decide says how many workers a pool should have now, and why.
//
// Call it once a scrape, every 2 s or so, with the state it returned last; keep the returned state only if
// the decision could be applied. After a restart or a change of leader pass State.Resumed(). It is a
// function of its arguments alone and safe for concurrent use.
func Decide(now time.Time, p Policy, o Observation, s State) (Decision, State) {
	s = s.notAfter(now)
	f := measure(now, p, o, &s)
	s.advance(now, p, o, f)

	d := Decision{
		Utilization: f.utilization(),
		Capacity:    f.mu,
		Backlog:     f.backlog,
	}
	d.CapacityAvailable, d.CapacityReason, d.CapacityMessage = capacityVerdict(now, p, f, s)

	v := recommend(now, p, o, f, s)
	d.Recommended, d.Reason, d.Message = v.to, v.reason, v.message
	d.Desired = v.to
	hold := min(max(o.Current, p.Min), p.Max) // min and max hold in every mode, whatever is paused
	switch {
	case v.to == hold:
	case p.Mode == Observe:
		d.Desired = hold
		d.Message = "observing, not changed: " + d.Message
	case p.PausedUp && v.to > hold:
		d.Desired, d.Reason = hold, ReasonPausedUp
		d.Message = fmt.Sprintf("held: scaling up is paused; otherwise %s", v.message)
	case p.PausedDown && v.to < hold:
		d.Desired, d.Reason = hold, ReasonPausedDown
		d.Message = fmt.Sprintf("held: scaling down is paused; otherwise %s", v.message)
	}
	if n := o.Current - d.Desired; n > 0 {
		d.Victims = victims(o.Workers, n)
	}
	s.record(now, o.Current, d)
	return d, s
}

// verdict is a number of workers and why.
type verdict struct {
	to      int
	reason  string
	message string
}

// recommend is what Auto or External would write, before modes and pauses.
func recommend(now time.Time, p Policy, o Observation, f figures, s State) verdict {
	if p.Mode == External {
		return external(p, o, f)
	}
	if v, ok := withdraw(p, o, f); ok {
		return v
	}
	v, up := scaleUp(now, p, o, f, s)
	if up {
		return v
	}
	switch {
	case o.Current < p.Min:
		return verdict{f.current, ReasonBelowMinimum, fmt.Sprintf("%d → %d: minReplicas", o.Current, f.current)}
	case o.Current > p.Max:
		return verdict{f.current, ReasonAboveMaximum, fmt.Sprintf("%d → %d: maxReplicas", o.Current, f.current)}
	case v.reason != "": // workers are wanted, and something stands against it
		return v
	}
	return scaleDown(now, p, o, f, s)
}

// external obeys spec.workers.replicas.
func external(p Policy, o Observation, f figures) verdict {
	if p.Replicas == nil {
		return verdict{f.current, ReasonExternal, fmt.Sprintf("%s as they are: spec.workers.replicas is not set", count(f.current, "worker"))}
	}
	to := min(max(*p.Replicas, p.Min), p.Max)
	msg := fmt.Sprintf("spec.workers.replicas is %d", *p.Replicas)
	if to != *p.Replicas {
		msg += fmt.Sprintf(", limited: minReplicas %d, maxReplicas %d", p.Min, p.Max)
	}
	if to != o.Current {
		msg = fmt.Sprintf("%d → %d: %s", o.Current, to, msg)
	}
	return verdict{to, ReasonExternal, msg}
}

// withdraw takes back workers above min that found no node within coldStart: they would wait for ever, and
// hold a cluster autoscaler busy.
func withdraw(p Policy, o Observation, f figures) (verdict, bool) {
	to := max(p.Min, f.current-f.lapsed)
	if f.lapsed == 0 || to >= f.current {
		return verdict{}, false
	}
	return verdict{to, ReasonPendingRemoved, fmt.Sprintf("%d → %d: %s found no node within coldStart %s",
		o.Current, to, count(f.lapsed, "worker"), Span(p.ColdStart))}, true
}

// scaleUp says to how many workers to go (true), or what keeps wanted workers from being added (false with
// a reason), or that none is wanted (false without).
func scaleUp(now time.Time, p Policy, o Observation, f figures, s State) (verdict, bool) {
	if !f.known {
		return verdict{f.current, ReasonMetricsMissing, fmt.Sprintf("held: %s as they are, no batcher or gateway reports%s", count(f.current, "worker"), missing(o))}, false
	}
	reason, why := trigger(now, p, o, f, s)
	if reason == "" {
		return verdict{}, false
	}
	add := max(0, f.needed+f.warm-f.supply)
	if f.starting > 0 && f.load(f.demand, f.supply, f.warm) <= f.settled {
		add = 0 // what is on its way is enough, but for noise
	}
	if add == 0 && s.DepthScrapes >= 2 && lapsedFor(now, s.LastDepthStep, p.ColdStart) && lapsedFor(now, s.LastScaleUp, p.ColdStart) {
		add, reason = 1, ReasonQueuePersistent
		why += fmt.Sprintf(", although %s for the load", enough(f))
	}
	to := f.current + add
	switch {
	case add == 0 && f.starting > 0:
		return verdict{f.current, ReasonWorkersStarting, fmt.Sprintf("held: %s starting, enough with the %d ready ones; %s", count(f.starting, "worker"), o.Ready, why)}, false
	case add == 0:
		return verdict{f.current, ReasonSteady, fmt.Sprintf("held: %s; %s", enough(f), why)}, false
	case f.current >= p.Max:
		return verdict{f.current, ReasonAtMaximum, fmt.Sprintf("limited: maxReplicas %d, the load asks for %d; %s", p.Max, to, why)}, false
	case f.lapsed > 0 || !lapsedFor(now, s.NoRoomSince, p.ColdStart):
		return verdict{f.current, ReasonNoRoom, fmt.Sprintf("held: the cluster has no room for more workers, the load asks for %d; %s", to, why)}, false
	case o.Ready == 0 && o.Failing > 0:
		return verdict{f.current, ReasonWorkersFailing, fmt.Sprintf("held: %s did not become ready within coldStart %s and none is ready, more of the same would not either; %s",
			count(o.Failing, "worker"), Span(p.ColdStart), why)}, false
	}
	limit := ""
	if to > p.Max {
		limit = fmt.Sprintf(", limited: maxReplicas, the load asks for %d", to)
		to = p.Max
	}
	return verdict{to, reason, fmt.Sprintf("%d → %d: %s%s", o.Current, to, why, limit)}, true
}

// trigger says which rule asks whether the workers are enough, with its numbers.
func trigger(now time.Time, p Policy, o Observation, f figures, s State) (reason, why string) {
	switch {
	case o.Ready == 0 && (f.offered > 0 || o.Depth > 0):
		reason = ReasonNoCapacity
	case f.overDue && p.BacklogThreshold > 0:
		reason = ReasonBacklogHigh
		why = fmt.Sprintf("backlog %s over %s (%d waiting), ", Span(f.backlog), Span(p.BacklogThreshold), o.Depth)
	case f.overDue:
		reason = ReasonBacklogHigh
		why = fmt.Sprintf("%d waiting, over %d, ", o.Depth, p.DepthThreshold)
	case !s.OverSince.IsZero() && since(now, s.OverSince) >= overFor:
		reason = ReasonOverCapacity
	case f.above(o) && since(now, s.AboveSince) >= p.UpWindow:
		reason = ReasonUtilizationHigh
		why = fmt.Sprintf("above %d %% for %s, ", p.AbovePercent, Span(p.UpWindow))
	default:
		return "", ""
	}
	return reason, why + fmt.Sprintf("%s offered, %s ready carry %s", perSecond(f.offered), count(o.Ready, "worker"), perSecond(f.mu))
}

// above says that the load is over the line for the workers that may carry it.
func (f figures) above(o Observation) bool { return f.load(f.offered, o.Ready, f.warm) > f.line }

func capacityVerdict(now time.Time, p Policy, f figures, s State) (bool, string, string) {
	switch {
	case f.lapsed > 0:
		bound := "maxReplicas"
		if f.current <= p.Min {
			bound = "minReplicas"
		}
		return false, "Unschedulable", fmt.Sprintf("%s found no node within coldStart %s: add nodes with free GPUs, or lower %s", count(f.lapsed, "worker"), Span(p.ColdStart), bound)
	case !lapsedFor(now, s.NoRoomSince, p.ColdStart):
		return false, "Unschedulable", fmt.Sprintf("workers beyond the %d found no node within coldStart and were withdrawn: add nodes with free GPUs, or lower maxReplicas; the next try is at most %s away", f.current, Span(p.ColdStart))
	}
	return true, "Schedulable", "every worker has a node, or waits for one within coldStart"
}
