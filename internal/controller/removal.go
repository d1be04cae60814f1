package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
)

// victimCost makes a pod the first to go among those that the ReplicaSet controller finds equal: it takes
// pods without a node and pods that are not Ready first, as scaling does in its choice.
const victimCost = "-1000"

// removal is a scale-down under way: which workers were to leave, and which were there then.
type removal struct {
	victims []string
	present []types.UID
}

// markVictims sets the deletion cost of the workers that are to leave, and takes it off others. It must
// succeed before replicas fall, or any worker may go.
func (r *InferencePoolReconciler) markVictims(ctx context.Context, pool *v1alpha1.InferencePool, p plan) error {
	for _, name := range p.marked {
		if err := r.setDeletionCost(ctx, pool.Namespace, name, victimCost); err != nil {
			return err
		}
	}
	for _, name := range p.unmarked {
		if err := r.setDeletionCost(ctx, pool.Namespace, name, nil); err != nil {
			return err
		}
	}
	return nil
}

func (r *InferencePoolReconciler) setDeletionCost(ctx context.Context, namespace, name string, cost any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{corev1.PodDeletionCost: cost}}})
	if err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	err = r.Client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager))
	if err != nil && !apierrors.IsNotFound(err) { // a pod that is gone already has left
		return fmt.Errorf("set the deletion cost of worker %s: %w", name, err)
	}
	return nil
}

// strayMarks are workers that carry the operator's deletion cost and were not chosen, now or by the removal
// that is under way: an older removal took another pod.
func strayMarks(workers []fleet.Worker, marked []string, under *removal) []string {
	var stray []string
	for _, w := range workers {
		if w.DeletionCost != victimCost || w.Phase == fleet.WorkerDraining || slices.Contains(marked, w.Name) ||
			under != nil && slices.Contains(under.victims, w.Name) {
			continue
		}
		stray = append(stray, w.Name)
	}
	return stray
}

// removed begins the watch over a removal that was just written.
func removed(p plan, seen *observed) *removal {
	rm := &removal{victims: p.marked}
	for _, w := range seen.workers {
		if w.Phase != fleet.WorkerDraining && w.Phase != fleet.WorkerEnded {
			rm.present = append(rm.present, w.UID)
		}
	}
	return rm
}

// settled says whether as many workers left as were to, and which of the victims stayed although others
// went.
func (rm *removal) settled(workers []fleet.Worker) (done bool, stayed, wentInstead []string) {
	here := map[types.UID]fleet.Worker{}
	for _, w := range workers {
		here[w.UID] = w
	}
	left := 0
	for _, uid := range rm.present {
		w, exists := here[uid]
		leaving := w.Phase == fleet.WorkerDraining || w.Phase == fleet.WorkerEnded
		if exists && !leaving {
			if slices.Contains(rm.victims, w.Name) {
				stayed = append(stayed, w.Name)
			}
			continue
		}
		left++
		if exists && !slices.Contains(rm.victims, w.Name) {
			wentInstead = append(wentInstead, w.Name)
		}
	}
	return left >= len(rm.victims), stayed, wentInstead
}
