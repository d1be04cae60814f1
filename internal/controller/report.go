package controller

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
)

// report writes the status once and, only when that succeeded, tells of changes in events and metrics: a
// reconcile that is tried again must not tell twice.
func (r *InferencePoolReconciler) report(ctx context.Context, pool *v1alpha1.InferencePool, seen *observed, p plan, m *memory, applyErr error) error {
	if len(p.marked) > 0 && applyErr == nil {
		m.removal = removed(p, seen)
	}
	v := view{pool: pool, seen: seen, plan: p, applyErr: applyErr, batchers: len(fleet.Serving(seen.batcherPods)), gateways: len(fleet.Serving(seen.gatewayPods))}
	next := nextStatus(v)
	wrote, err := r.writeStatus(ctx, pool, next, m, seen)
	if err != nil {
		return err
	}
	setGauges(client.ObjectKeyFromObject(pool), seen, p, next, meta.IsStatusConditionTrue(next.Conditions, ConditionReady))
	if applyErr != nil {
		return nil
	}
	if fresh := seen.load.Rounds != m.rounds; fresh || p.decision.Desired != p.observation.Current {
		scalingDecisions.WithLabelValues(p.decision.Reason, outcome(p)).Inc()
	}
	if wrote {
		r.tell(pool, &pool.Status, next)
	}
	r.checkRemoval(pool, seen, m)
	r.checkRollout(pool, seen, p, m)
	r.checkPoison(pool, seen, m)
	return nil
}

func outcome(p plan) string {
	switch {
	case p.decision.Desired > p.observation.Current:
		return "up"
	case p.decision.Desired < p.observation.Current:
		return "down"
	}
	return "held"
}

// tell makes an event of each change that a person should see.
func (r *InferencePoolReconciler) tell(pool *v1alpha1.InferencePool, old, next *v1alpha1.InferencePoolStatus) {
	if c := next.Scaling.Changes; len(c) > 0 && (len(old.Scaling.Changes) == 0 || !old.Scaling.Changes[0].Time.Equal(&c[0].Time) || old.Scaling.Changes[0].To != c[0].To) {
		reason := EventScaledUp
		if c[0].To < c[0].From {
			reason = EventScaledDown
		}
		r.event(pool, corev1.EventTypeNormal, reason, "workers: %s (%s)", c[0].Message, c[0].Reason)
	}
	if old.Zone.Name != next.Zone.Name {
		kind := corev1.EventTypeNormal
		if next.Zone.Name == v1alpha1.ZoneRed && old.Zone.Name != "" { // a new pool has no capacity yet: no warning
			kind = corev1.EventTypeWarning
		}
		r.event(pool, kind, EventZoneChanged, "zone %s: %s (%s)", next.Zone.Name, next.Zone.Message, next.Zone.Reason)
		zoneChanges.WithLabelValues(string(next.Zone.Name), next.Zone.Reason).Inc()
	}
	r.tellCondition(pool, old, next, ConditionReady, EventReady, EventNotReady)
	r.tellCondition(pool, old, next, ConditionNamesAvailable, "", EventNameTaken)
	r.tellCondition(pool, old, next, ConditionCapacityAvailable, "", EventNoCapacity)
	r.tellCondition(pool, old, next, ConditionCertificateCurrent, "", EventCertificate)
	r.tellCondition(pool, old, next, ConditionReroutesUsable, "", EventReroute)
}

// tellCondition makes an event of a condition that changed; where good is empty, only of one that turned
// False.
func (r *InferencePoolReconciler) tellCondition(pool *v1alpha1.InferencePool, old, next *v1alpha1.InferencePoolStatus, kind, good, bad string) {
	was, is := meta.FindStatusCondition(old.Conditions, kind), meta.FindStatusCondition(next.Conditions, kind)
	if is == nil || was != nil && was.Status == is.Status {
		return
	}
	switch is.Status {
	case "True":
		if good != "" {
			r.event(pool, corev1.EventTypeNormal, good, "%s", is.Message)
		}
	case "False":
		if was == nil && is.Reason == ReasonNotObserved {
			return // just created
		}
		r.event(pool, corev1.EventTypeWarning, bad, "%s", is.Message)
	}
}

// checkRemoval looks whether the worker that was chosen is the one that left.
func (r *InferencePoolReconciler) checkRemoval(pool *v1alpha1.InferencePool, seen *observed, m *memory) {
	if m.removal == nil {
		return
	}
	done, stayed, instead := m.removal.settled(seen.workers)
	if !done {
		return
	}
	m.removal = nil
	if len(stayed) == 0 {
		return
	}
	wrongWorkers.Inc()
	who := "another one"
	if len(instead) > 0 {
		who = strings.Join(instead, ", ")
	}
	r.event(pool, corev1.EventTypeWarning, EventWrongWorker,
		"worker %s was chosen to leave and %s left: a worker failed or was evicted at the same time", strings.Join(stayed, ", "), who)
}

func (r *InferencePoolReconciler) event(pool *v1alpha1.InferencePool, kind, reason, format string, args ...any) {
	r.Events.Eventf(pool, nil, kind, reason, actionReconcile, format, args...)
}
