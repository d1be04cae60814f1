package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/workload"
)

// rolloutSettled is the part of what the workers left can carry under which the load must fall for a pool that
// was too full to be rolled to count as safe again: noise of 5 % does not move it.
const rolloutSettled = 0.9

// shortfall says that a rollout of the workers would take more of them at a time than the load can spare, and
// how that is. With maxSurge 0 it takes maxUnavailable; with maxUnavailable 0 none.
func shortfall(pool *v1alpha1.InferencePool, seen *observed, p plan, part float64) (string, bool) {
	out, ready := int(pool.Spec.Workers.Rollout.MaxUnavailable), p.observation.Ready
	if out == 0 || ready == 0 {
		return "", false
	}
	left := p.decision.Capacity * float64(max(0, ready-out)) / float64(ready)
	if seen.load.Offered <= part*left {
		return "", false
	}
	return fmt.Sprintf("a rollout takes %d of %d workers at a time, the rest carry %.0f/s of %.0f/s offered", out, ready, round(left), round(seen.load.Offered)), true
}

// rolloutAdvice is what to do about it.
const rolloutAdvice = "raise workers.minReplicas first, or give a spare GPU and set workers.rollout to maxSurge 1, maxUnavailable 0"

// rolloutSafe says before a rollout whether it will cost requests. It holds nothing back: a template is changed
// by a person who wants it (a leak is closed, a model replaced), a pool may be full for days, and the zones shed
// the lowest tiers first meanwhile.
func rolloutSafe(v view) verdict {
	was := meta.FindStatusCondition(v.pool.Status.Conditions, ConditionRolloutSafe)
	d := v.seen.deployment(workload.WorkerName(v.pool.Name))
	switch {
	case was != nil && (v.seen.load.Sources == 0 || d != nil && rolling(d)):
		return verdict{was.Status, was.Reason, was.Message} // nothing is known of the load, or it runs already
	case v.seen.load.Sources == 0:
		return yes(ReasonHeadroom, "no load is known")
	}
	part := 1.0
	if was != nil && was.Reason == ReasonTooFull {
		part = rolloutSettled
	}
	if how, short := shortfall(v.pool, v.seen, v.plan, part); short {
		return no(ReasonTooFull, "%s and load would be shed: before workers.image or workers.pod change, %s", how, rolloutAdvice)
	}
	return yes(ReasonHeadroom, "the workers that a rollout leaves carry the load")
}

// checkRollout warns once as a rollout of workers begins that those which stay cannot carry the load.
func (r *InferencePoolReconciler) checkRollout(pool *v1alpha1.InferencePool, seen *observed, p plan, m *memory) {
	// Not observation.Rolling: that is also true for the moment after a scale-up.
	d := seen.deployment(workload.WorkerName(pool.Name))
	now := d != nil && replacing(d)
	began := now && !m.rolling
	m.rolling = now
	if !began {
		return
	}
	if how, short := shortfall(pool, seen, p, 1); short {
		r.event(pool, corev1.EventTypeWarning, EventRolloutShort, "%s and load will be shed: next time, %s", how, rolloutAdvice)
	}
}
