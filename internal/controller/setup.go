package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/workload"
)

// concurrency is how many pools are reconciled at once. A steady pool costs well under a millisecond; a new
// one a dozen calls to the API server, and must not hold up the others' ticks.
const concurrency = 8

// maxBackoff bounds the wait after errors: a pool whose namespace cannot be written to is tried once a minute.
const maxBackoff = time.Minute

// podsByPool is the index of cached Pods by the pool that they belong to: every tick of every pool lists its
// Pods, and without it looks at those of all pools of the namespace.
const podsByPool = "pool"

func poolLabel(pod client.Object) []string { return []string{pod.GetLabels()[workload.LabelPool]} }

// CacheOptions scope the manager's cache to what carries the operator's label: without them it would hold
// every ConfigMap and Pod of the cluster. Pods are cut down to what is read of them.
func CacheOptions() cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{workload.LabelManagedBy: workload.Product}), Transform: trimOwners}
	pods := ours
	pods.Transform = trimPod
	return cache.Options{
		// Who wrote what is read of the children alone.
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}:            ours,
			&corev1.Service{}:               ours,
			&corev1.ConfigMap{}:             ours,
			&corev1.ServiceAccount{}:        ours,
			&rbacv1.RoleBinding{}:           ours,
			&policyv1.PodDisruptionBudget{}: ours,
			&networkingv1.NetworkPolicy{}:   ours,
			&corev1.Pod{}:                   pods,
		},
	}
}

// trimOwners drops the lists of what others than the operator have written; its own are how drift is seen.
func trimOwners(obj any) (any, error) {
	if o, ok := obj.(client.Object); ok {
		o.SetManagedFields(slices.DeleteFunc(o.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager != FieldManager || e.Subresource != ""
		}))
	}
	return obj, nil
}

// trimPod drops the larger part of a Pod: its spec but for the node, and who wrote what.
func trimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	pod.ManagedFields = nil
	pod.OwnerReferences = nil
	cost, marked := pod.Annotations[corev1.PodDeletionCost]
	pod.Annotations = nil
	if marked {
		pod.Annotations = map[string]string{corev1.PodDeletionCost: cost}
	}
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	return pod, nil
}

// SetupWithManager registers the reconciler, woken by ticks after each scrape of a pool.
func (r *InferencePoolReconciler) SetupWithManager(mgr ctrl.Manager, ticks *Ticks) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("inferencepool").
		For(&v1alpha1.InferencePool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&rbacv1.RoleBinding{}).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&networkingv1.NetworkPolicy{}).
		// A worker that dies is capacity that is gone: the zone is judged again at once.
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(poolOfPod)).
		WatchesRawSource(source.Channel(ticks.events, ticks)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](200*time.Millisecond, maxBackoff),
			UsePriorityQueue:        ptr.To(true),
			// A standby keeps its caches filled: listing them takes a second and a half at 200 pools, in which
			// a new leader would decide nothing.
			EnableWarmup: ptr.To(true),
		}).
		Complete(r)
}

// poolOfPod is the pool that a Pod belongs to, by its label.
func poolOfPod(_ context.Context, pod client.Object) []reconcile.Request {
	name := pod.GetLabels()[workload.LabelPool]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
}

// Ticks wakes the reconciler of a pool after each of its scrapes, behind everything that changed: a new pool
// does not wait for the ticks of a thousand others.
type Ticks struct {
	events chan event.GenericEvent
	handler.Funcs
}

// NewTicks returns Ticks whose Notify is safe for concurrent use.
func NewTicks() *Ticks {
	t := &Ticks{events: make(chan event.GenericEvent, 4096)}
	t.GenericFunc = func(_ context.Context, e event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		req := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}
		if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
			pq.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority)}, req)
			return
		}
		q.Add(req)
	}
	return t
}

// Notify wakes the reconciler of a pool. A tick that finds the channel full is dropped: the next comes.
func (t *Ticks) Notify(pool types.NamespacedName) {
	obj := &v1alpha1.InferencePool{}
	obj.Namespace, obj.Name = pool.Namespace, pool.Name
	select {
	case t.events <- event.GenericEvent{Object: obj}:
	default:
	}
}

// Setup registers both controllers and the scraper with a manager made with CacheOptions.
func Setup(mgr ctrl.Manager, opts Options) error {
	ticks := NewTicks()
	scraper := fleet.NewScraper(fleet.HTTPFetch(), ticks.Notify)
	if err := mgr.Add(scraper); err != nil {
		return fmt.Errorf("add the scraper: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, podsByPool, poolLabel); err != nil {
		return fmt.Errorf("index the pods by pool: %w", err)
	}
	pools := &InferencePoolReconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Loads: scraper, PodsIndexed: true,
		Events: mgr.GetEventRecorder("sluice"), Now: time.Now, Options: opts,
	}
	if err := pools.SetupWithManager(mgr, ticks); err != nil {
		return fmt.Errorf("set up the controller of pools: %w", err)
	}
	tenants := &InferenceTenantReconciler{Client: mgr.GetClient(), Now: time.Now}
	if err := tenants.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of tenants: %w", err)
	}
	return nil
}
