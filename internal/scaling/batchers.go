package scaling

import (
	"fmt"
	"math"
	"time"
)

// DefaultPerBatcher is the rate in requests/s that a batcher is taken to carry where the policy does not
// say (spec.batchers.requestsPerSecond has the same default).
const DefaultPerBatcher = 5000

// batcherMargin is how far the rate may exceed what the batchers carry before one is added, and must fall
// below what one fewer carries before one leaves: noise of 5 % does neither.
const batcherMargin = 0.06

// batcherUpTicks is the number of scrapes in a row that must ask for more batchers.
const batcherUpTicks = 2

// BatcherReplicas says how many batchers a pool should have now, and why:
// max(Min, min(Max, ceil(rate / PerBatcher))), up within two scrapes, down one at a time after DownWindow.
//
// A batcher fills batches from its own arrivals only: with lambda the fleet's rate, more than lambda·W/B of
// them cannot fill one within the assembly window W. The decision says so where it costs capacity, which is
// while workers are busier than the target with batches that are not full; at a low load half-empty batches
// cost nothing.
func BatcherReplicas(now time.Time, p BatcherPolicy, o BatcherObservation, s BatcherState) (BatcherDecision, BatcherState) {
	if s.BelowSince.After(now) {
		s.BelowSince = now
	}
	d := batcherCount(now, p, o, &s)
	d.FillSufficient, d.FillReason, d.FillMessage = fillVerdict(p, o)
	if d.Desired != o.Current {
		s = BatcherState{}
	}
	return d, s
}

func batcherCount(now time.Time, p BatcherPolicy, o BatcherObservation, s *BatcherState) BatcherDecision {
	current := min(max(o.Current, p.Min), p.Max)
	per := p.PerBatcher
	if per <= 0 {
		per = DefaultPerBatcher
	}
	rate := o.Offered
	if !(rate > 0) || math.IsInf(rate, 1) {
		rate = 0
	}
	needed := func(rate float64) int {
		return min(max(int(math.Ceil(min(rate/per, maxWorkers)-1e-6)), p.Min), p.Max)
	}
	up, down := needed(rate*(1-batcherMargin)), needed(rate*(1+batcherMargin))

	if o.Sources > 0 && up > current {
		s.AboveTicks++
	} else {
		s.AboveTicks = 0
	}
	switch {
	case !o.Complete || o.Rolling || down >= current:
		s.BelowSince = time.Time{}
	case s.BelowSince.IsZero():
		s.BelowSince = now
	}

	carries := fmt.Sprintf("%s offered, %s carry %s", perSecond(rate), count(current, "batcher"), perSecond(per*float64(current)))
	hold := func(reason, message string) BatcherDecision {
		return BatcherDecision{Desired: current, Reason: reason, Message: message}
	}
	switch {
	case s.AboveTicks >= batcherUpTicks:
		to := needed(rate)
		return BatcherDecision{Desired: to, Reason: ReasonUtilizationHigh, Message: fmt.Sprintf("%d → %d: %s", o.Current, to, carries)}
	case o.Current < p.Min:
		return hold(ReasonBelowMinimum, fmt.Sprintf("%d → %d: minReplicas", o.Current, current))
	case o.Current > p.Max:
		return hold(ReasonAboveMaximum, fmt.Sprintf("%d → %d: maxReplicas", o.Current, current))
	case o.Sources == 0:
		return hold(ReasonMetricsMissing, fmt.Sprintf("held: %s as they are, none reports", count(current, "batcher")))
	case current == p.Max && rate > per*float64(current):
		return hold(ReasonAtMaximum, fmt.Sprintf("limited: maxReplicas; %s", carries))
	case s.BelowSince.IsZero():
		return hold(ReasonSteady, "steady: "+carries)
	}
	if run := since(now, s.BelowSince); run < p.DownWindow {
		return hold(ReasonDownWindow, fmt.Sprintf("held: one fewer would do for %s of %s", elapsed(run, p.DownWindow), Span(p.DownWindow)))
	}
	return BatcherDecision{Desired: current - 1, Reason: ReasonUtilizationLow, Message: fmt.Sprintf("%d → %d: one fewer would do for %s; %s", o.Current, current-1, Span(p.DownWindow), carries)}
}

// FillableBatchers is lambda·W/B: how many batchers can fill a batch within the assembly window. At least 1.
func FillableBatchers(lambda float64, maxWait time.Duration, maxSize int) int {
	if maxSize <= 0 {
		return 1
	}
	return int(max(1, min(lambda*maxWait.Seconds()/float64(maxSize)+1e-6, maxWorkers)))
}

func fillVerdict(p BatcherPolicy, o BatcherObservation) (ok bool, reason, message string) {
	fillable := FillableBatchers(o.Offered, p.MaxWait, p.MaxSize)
	// Busier than the target with batches emptier than the target: the missing fill is missing capacity.
	if o.Sources == 0 || o.Current <= fillable || o.BusyPercent <= p.TargetPercent || o.FillPercent >= p.TargetPercent {
		return true, "Filled", "batches are as full as the load allows"
	}
	return false, "TooManyBatchers", fmt.Sprintf("workers are busy %d %% of the time with batches filled to %d %%: %s share %s, and only %d can fill batches of %d within %s; lower batchers.minReplicas",
		o.BusyPercent, o.FillPercent, count(o.Current, "batcher"), perSecond(o.Offered), fillable, p.MaxSize, Span(p.MaxWait))
}
