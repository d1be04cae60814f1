package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
)

// A device plugin that calls a GPU unhealthy takes it out of what its node offers, and that is all: the kubelet
// lets the pod that has it run on, and nothing in Kubernetes moves it. Whether that GPU still works, the worker
// knows best: its batches fail or they do not, and one whose every batch fails is not Ready. So
//
//	it serves          it stays: its answers are right, and the next pod may find no GPU; the condition tells
//	it does not serve  two say the same of the GPU: it is evicted, for its replacement gets a healthy one, or
//	                   waits for one, which CapacityAvailable tells after coldStart
//
// An eviction, not a deletion: it heeds the pool's disruption budget, which always admits that of a pod that is
// not Ready, and the operator needs no right to delete pods. No pod is evicted twice: no new one gets an unhealthy
// device.

// lostWorkers are the workers to be replaced. A pool whose fleet the operator is not to shrink (Observe, or Down is
// paused) keeps its pods.
func lostWorkers(pool *v1alpha1.InferencePool, workers []fleet.Worker) []fleet.Worker {
	if policy := scalingPolicy(pool); policy.PausedDown || pool.Spec.Scaling.Mode == v1alpha1.ScalingObserve {
		return nil
	}
	var lost []fleet.Worker
	for _, w := range workers {
		if w.Phase == fleet.WorkerFailing && w.LostGPU != "" {
			lost = append(lost, w)
		}
	}
	return lost
}

// lostGPU says of a worker with an unhealthy GPU what becomes of it.
func lostGPU(p plan, w fleet.Worker) string {
	does := "it does not serve and is left as it is (scaling is observed or paused)"
	switch {
	case w.Phase == fleet.WorkerReady:
		does = "it still serves, and is replaced once it does not"
	case w.Phase == fleet.WorkerStarting:
		does = "it is starting, and is replaced unless it becomes Ready within coldStart"
	case len(p.replaced) > 0:
		does = "it does not serve and is being replaced"
	}
	return fmt.Sprintf("GPU lost: the device plugin calls %s of worker %s unhealthy; %s. Repair or drain its node", w.LostGPU, w.Name, does)
}

// replaceLost evicts the workers that the plan wants replaced, and tells of each.
func (r *InferencePoolReconciler) replaceLost(ctx context.Context, pool *v1alpha1.InferencePool, p plan) error {
	for _, w := range p.replaced {
		meta := metav1.ObjectMeta{Namespace: pool.Namespace, Name: w.Name}
		eviction := &policyv1.Eviction{ObjectMeta: meta, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &w.UID}}}
		err := r.Client.SubResource("eviction").Create(ctx, &corev1.Pod{ObjectMeta: meta}, eviction)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) {
			continue // it went by itself (another may have its name), or it is Ready again and the budget holds it
		}
		if err != nil {
			return fmt.Errorf("evict worker %s, whose GPU is lost: %w", w.Name, err)
		}
		workersReplaced.Inc()
		r.event(pool, corev1.EventTypeWarning, EventReplaced, "worker %s was evicted: it does not serve, and the device plugin calls its %s unhealthy", w.Name, w.LostGPU)
	}
	return nil
}
