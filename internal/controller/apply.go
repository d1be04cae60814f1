package controller

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/workload"
	"sluice.dev/sluice/internal/zone"
)

// apply writes what differs from the plan: the marks of leaving workers first, then the children.
func (r *InferencePoolReconciler) apply(ctx context.Context, pool *v1alpha1.InferencePool, seen *observed, p plan, m *memory) error {
	// A pool without its own names would only half exist, so it begins with none of its children. One that
	// runs already goes on with the others.
	if len(seen.taken) > 0 && seen.deployment(workload.WorkerName(pool.Name)) == nil {
		return nil
	}
	document, err := zoneDocument(pool, seen, p)
	if err != nil {
		return err
	}
	p.settings.ZoneDocument = document
	children, err := workload.Children(pool, p.settings)
	if err != nil {
		return err
	}
	if err := r.markVictims(ctx, pool, p); err != nil {
		return err
	}
	var errs []error
	for _, c := range children {
		key := childKey{c.Kind, c.Name}
		if _, taken := seen.taken[key]; taken {
			continue
		}
		if err := r.applyChild(ctx, key, c, seen.children[key], m); err != nil {
			errs = append(errs, fmt.Errorf("apply %s: %w", key, err))
		}
	}
	if err := r.seedReplicas(ctx, pool, p); err != nil {
		errs = append(errs, err)
	}
	if err := r.replaceLost(ctx, pool, p); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		errs = append(errs, r.removeLeftovers(ctx, seen))
	}
	return errors.Join(errs...)
}

// zoneDocument is the new document, or the one that stands while the new one does not differ enough: a
// ConfigMap rewritten every tick would be sent to every gateway every tick.
func zoneDocument(pool *v1alpha1.InferencePool, seen *observed, p plan) (string, error) {
	if p.publish {
		return p.signal.Encode()
	}
	m := seen.children[childKey{workload.KindConfigMap, workload.ZoneName(pool.Name)}].(*corev1.ConfigMap)
	return m.Data[zone.SignalKey], nil
}

// applyChild applies a child unless every field that the operator owns is as it should be. The comparison
// is remembered by the version of the object, so that a steady pool costs a hash a child.
func (r *InferencePoolReconciler) applyChild(ctx context.Context, key childKey, c workload.Child, live client.Object, m *memory) error {
	desired, err := json.Marshal(c.Config)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(desired)
	if live != nil {
		if m.verified[key] == (verified{live.GetResourceVersion(), digest}) {
			return nil
		}
		same, err := ownedAs(live, c.Kind, desired)
		if err != nil {
			return err
		}
		if same {
			m.verified[key] = verified{live.GetResourceVersion(), digest}
			return nil
		}
	}
	applied.WithLabelValues(string(c.Kind)).Inc()
	return r.Client.Apply(ctx, c.Config, client.FieldOwner(FieldManager), client.ForceOwnership)
}

// ownedAs says whether the fields of live that the operator owns are the desired ones: a field that somebody
// else changed is no longer owned, one that was removed is missing.
func ownedAs(live client.Object, kind workload.Kind, desired []byte) (bool, error) {
	config, err := kinds[kind].owned(live)
	if err != nil {
		return false, err
	}
	owned, err := json.Marshal(config)
	if err != nil {
		return false, err
	}
	var a, b any
	if err := errors.Join(json.Unmarshal(owned, &a), json.Unmarshal(desired, &b)); err != nil {
		return false, err
	}
	return reflect.DeepEqual(a, b), nil
}

// seedReplicas writes the current number of workers into spec.workers.replicas when the pool is switched to
// External without one: from then on the number in the spec is the one that acts.
func (r *InferencePoolReconciler) seedReplicas(ctx context.Context, pool *v1alpha1.InferencePool, p plan) error {
	if pool.Spec.Scaling.Mode != v1alpha1.ScalingExternal || pool.Spec.Workers.Replicas != nil {
		return nil
	}
	patch := fmt.Appendf(nil, `{"spec":{"workers":{"replicas":%d}}}`, p.decision.Desired)
	target := &v1alpha1.InferencePool{}
	target.Name, target.Namespace = pool.Name, pool.Namespace
	if err := r.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("write spec.workers.replicas: %w", err)
	}
	return nil
}
