package controller

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/workload"
	"sluice.dev/sluice/internal/zone"
)

// childKey names a child of a pool.
type childKey struct {
	kind workload.Kind
	name string
}

func (k childKey) String() string { return fmt.Sprintf("%s %s", k.kind, k.name) }

// observed is all that a reconcile knows of a pool, read once and passed down.
type observed struct {
	now      time.Time
	children map[childKey]client.Object // what exists and is the pool's
	// taken are names that somebody else's object has, with whose it is.
	taken map[childKey]string

	// leftovers are the children of standalone gateways that the pool no longer has.
	leftovers []client.Object

	workers     []fleet.Worker
	batcherPods []corev1.Pod
	gatewayPods []corev1.Pod // none while the gateway runs inside the batchers
	load        fleet.Load
	// others are the pools that the ladders name; nil for one that is not there.
	others map[string]*v1alpha1.InferencePool
	// awaiting says that this process has not scraped often enough yet to know rates, of a pool whose status
	// says what its predecessor knew: what stands there stays until it is known better.
	awaiting bool
	// signal is the zone document as last published; its Generation is 0 for none.
	signal zone.Signal
}

// deployment is the pool's Deployment of a component, nil while there is none.
func (o *observed) deployment(name string) *appsv1.Deployment {
	d, _ := o.children[childKey{workload.KindDeployment, name}].(*appsv1.Deployment)
	return d
}

// roundsToRate is how many scrapes a rate takes.
const roundsToRate = 2

// observe reads the pool's children, Pods and reports; resumed says that the pool has a predecessor's status.
func (r *InferencePoolReconciler) observe(ctx context.Context, pool *v1alpha1.InferencePool, resumed bool) (*observed, error) {
	o := &observed{now: r.Now(), children: map[childKey]client.Object{}, taken: map[childKey]string{}}
	for _, key := range childKeys(pool) {
		if err := r.observeChild(ctx, pool, key, o); err != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
	}
	if pool.Spec.Gateway.Replicas == 0 {
		if err := r.observeLeftovers(ctx, pool, o); err != nil {
			return nil, err
		}
	}
	if err := r.observeReroutes(ctx, pool, o); err != nil {
		return nil, err
	}
	pods, err := r.pods(ctx, pool)
	if err != nil {
		return nil, err
	}
	o.batcherPods = pods[workload.ComponentBatcher]
	if pool.Spec.Gateway.Replicas > 0 {
		o.gatewayPods = pods[workload.ComponentGateway]
	}
	o.workers = fleet.Workers(pods[workload.ComponentWorker], o.now, pool.Spec.Workers.ColdStart.Duration)
	key := client.ObjectKeyFromObject(pool)
	r.Loads.Watch(key, fleet.Targets(o.batcherPods, o.gatewayPods, pool.Spec.Gateway.TLS != nil))
	o.load = r.Loads.Load(key, o.now)
	o.awaiting = resumed && o.load.Sources == 0 && o.load.Rounds < roundsToRate
	if throughGateways(pool, o) && o.load.Gateways == 0 {
		// The Service leads to gateways and none reports: what clients want is not known, which is not nothing.
		o.load.Complete = false
		if len(fleet.Serving(o.gatewayPods)) == 0 {
			o.load.Missing = append(o.load.Missing, "no standalone gateway is ready")
		}
	}
	if m, ok := o.children[childKey{workload.KindConfigMap, workload.ZoneName(pool.Name)}].(*corev1.ConfigMap); ok {
		// A document that cannot be read is replaced by the next one.
		if s, err := zone.DecodeSignal(m.Data[zone.SignalKey]); err == nil {
			o.signal = s
		}
	}
	return o, nil
}

// observeChild reads one child. An object of the name that the pool does not control is not the pool's:
// it is noted and left alone.
func (r *InferencePoolReconciler) observeChild(ctx context.Context, pool *v1alpha1.InferencePool, key childKey, o *observed) error {
	at := client.ObjectKey{Namespace: pool.Namespace, Name: key.name}
	obj := kinds[key.kind].empty()
	err := r.Client.Get(ctx, at, obj)
	if apierrors.IsNotFound(err) {
		// The cache holds only what has the operator's label: look whether the name is free indeed.
		other := &metav1.PartialObjectMetadata{}
		other.SetGroupVersionKind(kinds[key.kind].gvk)
		if err = r.Live.Get(ctx, at, other); apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && metav1.IsControlledBy(other, pool) {
			return nil // of this pool, and the label was taken off: applying puts it back
		}
		if err == nil {
			o.taken[key] = whose(other)
			return nil
		}
	}
	switch {
	case err != nil:
		return err
	case !metav1.IsControlledBy(obj, pool):
		o.taken[key] = whose(obj)
	default:
		o.children[key] = obj
	}
	return nil
}

// observeLeftovers finds what is left of standalone gateways. The cache is enough: it holds what carries the
// operator's label, and nothing else of theirs is the operator's to remove.
func (r *InferencePoolReconciler) observeLeftovers(ctx context.Context, pool *v1alpha1.InferencePool, o *observed) error {
	for _, key := range gatewayKeys(pool.Name) {
		obj := kinds[key.kind].empty()
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: key.name}, obj)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("read %s: %w", key, err)
		case metav1.IsControlledBy(obj, pool) && obj.GetDeletionTimestamp() == nil:
			o.leftovers = append(o.leftovers, obj)
		}
	}
	return nil
}

// whose says whose an object is, for people.
func whose(obj metav1.Object) string {
	if ref := metav1.GetControllerOf(obj); ref != nil {
		if obj.GetDeletionTimestamp() != nil {
			return fmt.Sprintf("%s %s, and is being deleted", ref.Kind, ref.Name)
		}
		return fmt.Sprintf("%s %s", ref.Kind, ref.Name)
	}
	return "somebody else"
}

// pods are the pool's Pods by component.
func (r *InferencePoolReconciler) pods(ctx context.Context, pool *v1alpha1.InferencePool) (map[string][]corev1.Pod, error) {
	var list corev1.PodList
	// The pods are read and never changed here, so the cache's own copies will do.
	opts := []client.ListOption{client.InNamespace(pool.Namespace), client.MatchingLabels{workload.LabelPool: pool.Name}, client.UnsafeDisableDeepCopy}
	if r.PodsIndexed {
		opts = append(opts, client.MatchingFields{podsByPool: pool.Name})
	}
	if err := r.Client.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("list the pods: %w", err)
	}
	by := map[string][]corev1.Pod{}
	for _, p := range list.Items {
		component := p.Labels[workload.LabelComponent]
		by[component] = append(by[component], p)
	}
	return by, nil
}
