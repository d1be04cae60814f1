// Package controller is the operator: for each InferencePool, every two seconds and at once when something
// of the pool changes,
//
//	observe  children, Pods, the batchers' last reports
//	decide   scaling.Decide, scaling.BatcherReplicas, zone.Classify: pure
//	apply    server-side, the children that differ in a field that the operator owns
//	report   one status write, then events and metrics
//
// The operator is stateless but for what is in the pool's status; what it keeps in memory only delays a
// decision when it is lost.
package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
)

// FieldManager owns the fields that the operator applies.
const FieldManager = "sluice"

// Loads is where the reports of a pool's batchers come from; see fleet.Scraper.
type Loads interface {
	Watch(pool types.NamespacedName, targets []fleet.Target)
	Load(pool types.NamespacedName, now time.Time) fleet.Load
	Forget(pool types.NamespacedName)
}

// Options are what an operator is started with.
type Options struct {
	// WorkerImage, BatcherImage and GatewayImage are the images of pools that name none.
	WorkerImage, BatcherImage, GatewayImage string
	// Namespace is the operator's own.
	Namespace string
}

// InferencePoolReconciler reconciles InferencePools. All fields but the unexported ones must be set.
type InferencePoolReconciler struct {
	Client client.Client
	// Live reads past the cache, which sees only what carries the operator's label.
	Live   client.Reader
	Loads  Loads
	Events events.EventRecorder
	Now    func() time.Time
	// PodsIndexed says that Client is a cache with the index podsByPool.
	PodsIndexed bool
	Options

	mu    sync.Mutex
	pools map[types.NamespacedName]*memory
}

// +kubebuilder:rbac:groups=inference.sluice.dev,resources=inferencepools,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=inference.sluice.dev,resources=inferencepools/status,verbs=get;patch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services;configmaps;serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=rolebindings,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=clusterroles,resourceNames=sluice-data-plane,verbs=bind
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings one pool a step nearer to its spec and asks to be called again after fleet.Interval.
func (r *InferencePoolReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, req)
	if ctx.Err() != nil {
		return ctrl.Result{}, nil // the operator ends; whatever it was about to write, the next leader will
	}
	return result, err
}

func (r *InferencePoolReconciler) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &v1alpha1.InferencePool{}
	if err := r.Client.Get(ctx, req.NamespacedName, pool); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	if !pool.DeletionTimestamp.IsZero() {
		r.forget(req.NamespacedName) // the garbage collector removes the children
		return ctrl.Result{}, nil
	}
	m := r.recall(pool)
	seen, err := r.observe(ctx, pool, m.resumed)
	if err != nil {
		return ctrl.Result{}, err
	}
	p := decide(pool, seen, m, r.Options)
	applyErr := r.apply(ctx, pool, seen, p, m)
	if apierrors.HasStatusCause(applyErr, corev1.NamespaceTerminatingCause) {
		r.forget(req.NamespacedName) // the pool goes with its namespace, its children before or after it
		return ctrl.Result{}, nil
	}
	err = r.report(ctx, pool, seen, p, m, applyErr)
	if err = errors.Join(applyErr, err); err != nil {
		return ctrl.Result{}, err
	}
	m.keep(p, seen)
	return ctrl.Result{RequeueAfter: fleet.Interval, Priority: ptr.To(handler.LowPriority)}, nil
}

var _ reconcile.Reconciler = (*InferencePoolReconciler)(nil)

// recall is what is remembered of a pool, or what its status says after a restart. A pool is reconciled by
// one goroutine at a time, so only the map needs the lock.
func (r *InferencePoolReconciler) recall(pool *v1alpha1.InferencePool) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := client.ObjectKeyFromObject(pool)
	if m := r.pools[key]; m != nil && m.uid == pool.UID {
		return m
	}
	if r.pools == nil {
		r.pools = map[types.NamespacedName]*memory{}
	}
	m := resume(pool)
	r.pools[key] = m
	return m
}

// forget drops all that is kept of a pool that is gone, its gauges too.
func (r *InferencePoolReconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	delete(r.pools, key)
	r.mu.Unlock()
	r.Loads.Forget(key)
	deleteGauges(key)
}
