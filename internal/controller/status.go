package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	v1alpha1ac "sluice.dev/sluice/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/workload"
)

// quiet is the shortest time between two writes of numbers alone.
const quiet = 10 * time.Second

// keptChanges is how many changes of the number of workers stand in the status.
const keptChanges = 10

// nextStatus is the status after this reconcile.
func nextStatus(v view) *v1alpha1.InferencePoolStatus {
	pool, seen, p := v.pool, v.seen, v.plan
	s := pool.Status.DeepCopy()
	s.ObservedGeneration = pool.Generation
	s.Zone = v1alpha1.ZoneStatus{
		Name: v1alpha1.ZoneName(p.zone.Name), Since: stamp(p.zone.Since), Reason: p.zone.Reason,
		Message: p.zone.Message, CalmSince: stamp(p.zoneState.CalmSince),
	}
	s.Queue = v1alpha1.QueueStatus{Depth: int32(round(float64(seen.load.Depth))), Backlog: roundTime(p.decision.Backlog)}
	s.Utilization = "n/a"
	if u := p.decision.Utilization; u >= 0 {
		s.Utilization = fmt.Sprintf("%.0f%%", math.Round(min(u, 100)*20)*5)
	}
	s.BusyPercent = int32(math.Round(float64(p.busyPercent)/5) * 5)
	s.FillPercent = int32(math.Round(float64(p.fillPercent)/5) * 5)
	s.CapacityPerSecond = int32(round(p.decision.Capacity))
	s.OfferedPerSecond = int32(round(seen.load.Offered))
	s.ServiceTime = roundTime(p.observation.ServiceTime)
	s.Selector = labels.Set(workload.SelectorLabels(pool.Name, workload.ComponentWorker)).String()
	s.Workers = workersStatus(v)
	s.Batchers = v1alpha1.BatchersStatus{Desired: int32(p.batchers.Desired), Ready: int32(v.batchers), Image: p.settings.BatcherImage}
	s.Gateway = gatewayStatus(v)
	s.Scaling = scalingStatus(v, s.Scaling)
	judge(v, &s.Conditions)
	return s
}

func workersStatus(v view) v1alpha1.WorkersStatus {
	o := v.plan.observation
	w := v1alpha1.WorkersStatus{
		Summary: fmt.Sprintf("%d/%d", o.Ready, v.plan.decision.Desired),
		Desired: int32(v.plan.decision.Desired),
		Ready:   int32(o.Ready), Starting: int32(o.Starting), Unschedulable: int32(o.Unschedulable), Draining: int32(o.Draining),
		Image: v.plan.settings.WorkerImage,
	}
	for _, pod := range v.seen.workers {
		if pod.Phase != fleet.WorkerDraining && pod.Phase != fleet.WorkerEnded {
			w.Replicas++
		}
	}
	if d := measuredColdStart(v); d > 0 {
		w.ColdStart = &metav1.Duration{Duration: d}
	}
	return w
}

func scalingStatus(v view, s v1alpha1.ScalingStatus) v1alpha1.ScalingStatus {
	st, d, from := v.plan.scalingState, v.plan.decision, v.plan.observation.Current
	next := v1alpha1.ScalingStatus{
		AboveSince: stamp(st.AboveSince), BelowSince: stamp(st.BelowSince),
		LastScaleUp: stamp(st.LastScaleUp), LastScaleDown: stamp(st.LastScaleDown), LastDepthStep: stamp(st.LastDepthStep),
		Victim: st.Victim, Changes: s.Changes,
	}
	if d.Desired != from && v.applyErr == nil && len(v.seen.taken) == 0 {
		change := v1alpha1.ScalingChange{Time: *stamp(v.seen.now), From: int32(from), To: int32(d.Desired), Reason: d.Reason, Message: d.Message}
		next.Changes = slices.Insert(slices.Clone(s.Changes), 0, change)
		next.Changes = next.Changes[:min(keptChanges, len(next.Changes))]
	}
	return next
}

// weighty says that a difference between two statuses is worth a write at once; all else are numbers and
// messages.
func weighty(a, b *v1alpha1.InferencePoolStatus) bool {
	return a.ObservedGeneration != b.ObservedGeneration ||
		a.Zone.Name != b.Zone.Name ||
		!equality.Semantic.DeepEqual(a.Workers, b.Workers) ||
		a.Batchers != b.Batchers ||
		!equality.Semantic.DeepEqual(a.Gateway, b.Gateway) ||
		len(a.Scaling.Changes) != len(b.Scaling.Changes) ||
		len(b.Scaling.Changes) > 0 && !equality.Semantic.DeepEqual(a.Scaling.Changes[0], b.Scaling.Changes[0]) ||
		!equality.Semantic.DeepEqual(bare(a.Conditions), bare(b.Conditions))
}

// bare are conditions by what programs look at. The reason of Scaling says what holds it this moment, and
// noise in the load changes it: it is as light as a number.
func bare(conditions []metav1.Condition) map[string]string {
	m := make(map[string]string, len(conditions))
	for _, c := range conditions {
		m[c.Type] = fmt.Sprint(c.Status, c.Reason, c.ObservedGeneration)
		if c.Type == ConditionScaling {
			m[c.Type] = fmt.Sprint(c.Status, c.ObservedGeneration)
		}
	}
	return m
}

// writeStatus applies the status when it differs, numbers alone when they differ by more than noise and at
// most every 10 s. It says whether it wrote.
func (r *InferencePoolReconciler) writeStatus(ctx context.Context, pool *v1alpha1.InferencePool, next *v1alpha1.InferencePoolStatus, m *memory, seen *observed) (bool, error) {
	if equality.Semantic.DeepEqual(&pool.Status, next) {
		return false, nil
	}
	if !weighty(&pool.Status, next) && (seen.awaiting || seen.now.Sub(m.written) < quiet || noise(&pool.Status, next)) {
		return false, nil
	}
	status := v1alpha1ac.InferencePoolStatus()
	if err := convert(next, status); err != nil {
		return false, err
	}
	err := r.Client.Status().Apply(ctx, v1alpha1ac.InferencePool(pool.Name, pool.Namespace).WithStatus(status),
		client.FieldOwner(FieldManager), client.ForceOwnership)
	if apierrors.IsNotFound(err) {
		return false, nil // deleted meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("write the status: %w", err)
	}
	statusWrites.Inc()
	m.written = seen.now
	return true, nil
}

// convert goes from a type to its apply configuration: both have the same JSON.
func convert(from, to any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// round keeps two digits.
func round(v float64) float64 {
	if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	unit := math.Pow(10, max(0, math.Floor(math.Log10(v))-1))
	return min(math.Round(v/unit)*unit, math.MaxInt32)
}

// roundTime rounds to 5 ms below a second, else to 0.1 s.
func roundTime(d time.Duration) metav1.Duration {
	if d < time.Second {
		return metav1.Duration{Duration: d.Round(5 * time.Millisecond)}
	}
	return metav1.Duration{Duration: d.Round(100 * time.Millisecond)}
}
