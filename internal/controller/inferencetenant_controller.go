package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sluice.dev/sluice/api/v1alpha1"
	v1alpha1ac "sluice.dev/sluice/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// InferenceTenantReconciler says of each InferenceTenant whether gateways can use it: condition Accepted.
type InferenceTenantReconciler struct {
	Client client.Client
	Now    func() time.Time
}

// +kubebuilder:rbac:groups=inference.sluice.dev,resources=inferencetenants,verbs=get;list;watch
// +kubebuilder:rbac:groups=inference.sluice.dev,resources=inferencetenants/status,verbs=get;patch

// Reconcile judges one tenant.
func (r *InferenceTenantReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	tenant := &v1alpha1.InferenceTenant{}
	if err := r.Client.Get(ctx, req.NamespacedName, tenant); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !tenant.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	var pools v1alpha1.InferencePoolList
	var tenants v1alpha1.InferenceTenantList
	if err := r.Client.List(ctx, &pools, client.InNamespace(req.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the pools: %w", err)
	}
	if err := r.Client.List(ctx, &tenants, client.InNamespace(req.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the tenants: %w", err)
	}
	next := tenant.Status.DeepCopy()
	next.ObservedGeneration = tenant.Generation
	c := accepted(tenant, pools.Items, tenants.Items)
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{
		Type: ConditionAccepted, Status: c.status, Reason: c.reason, Message: clip(c.message),
		ObservedGeneration: tenant.Generation, LastTransitionTime: *stamp(r.Now()),
	})
	if equality.Semantic.DeepEqual(&tenant.Status, next) {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, r.write(ctx, tenant, next)
}

func (r *InferenceTenantReconciler) write(ctx context.Context, tenant *v1alpha1.InferenceTenant, next *v1alpha1.InferenceTenantStatus) error {
	status := v1alpha1ac.InferenceTenantStatus()
	if err := convert(next, status); err != nil {
		return err
	}
	err := r.Client.Status().Apply(ctx, v1alpha1ac.InferenceTenant(tenant.Name, tenant.Namespace).WithStatus(status),
		client.FieldOwner(FieldManager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	statusWrites.Inc()
	return nil
}

// accepted says whether a tenant can be served by at least one pool of its namespace and whether its keys
// name it alone.
func accepted(tenant *v1alpha1.InferenceTenant, pools []v1alpha1.InferencePool, tenants []v1alpha1.InferenceTenant) verdict {
	if hash, other := duplicateKey(tenant, tenants); other != "" {
		return no(ReasonKeyDuplicate, "key %s… stands in tenant %s too: a key must name one tenant, remove it from one of them", hash[:12], other)
	}
	var with, without []string
	known := map[string]bool{}
	for _, p := range pools {
		has := false
		for _, t := range p.Spec.Tiers {
			known[t.Name] = true
			has = has || t.Name == tenant.Spec.Tier
		}
		if has {
			with = append(with, p.Name)
		} else {
			without = append(without, p.Name)
		}
	}
	slices.Sort(with)
	switch {
	case len(pools) == 0:
		return no(ReasonNoPool, "there is no InferencePool in the namespace yet: tier %s cannot be looked up", tenant.Spec.Tier)
	case len(with) == 0:
		names := make([]string, 0, len(known))
		for n := range known {
			names = append(names, n)
		}
		slices.Sort(names)
		return no(ReasonTierUnknown, "no pool of the namespace has the tier %s: requests are answered 403; tiers are %s", tenant.Spec.Tier, strings.Join(names, ", "))
	}
	message := fmt.Sprintf("tier %s of %s", tenant.Spec.Tier, strings.Join(with, ", "))
	if len(without) > 0 {
		slices.Sort(without)
		message += fmt.Sprintf("; %s has no such tier and answers 403", strings.Join(without, ", "))
	}
	if len(tenant.Spec.Keys) == 0 {
		message += "; it has no key, and can call only pools whose gateway trusts an upstream's headers"
	}
	return yes(ReasonTierFound, "%s", message)
}

// duplicateKey is the first key of a tenant that another one has too, and that one's name.
func duplicateKey(tenant *v1alpha1.InferenceTenant, tenants []v1alpha1.InferenceTenant) (hash, other string) {
	for i := range tenants {
		t := &tenants[i]
		if t.Name == tenant.Name {
			continue
		}
		for _, k := range t.Spec.Keys {
			if slices.ContainsFunc(tenant.Spec.Keys, func(own v1alpha1.TenantKey) bool { return own.SHA256 == k.SHA256 }) {
				return k.SHA256, t.Name
			}
		}
	}
	return "", ""
}

// SetupWithManager registers the reconciler. A tenant is judged again when a pool of its namespace changes,
// and when a tenant comes or goes that shares one of its keys.
func (r *InferenceTenantReconciler) SetupWithManager(mgr ctrl.Manager) error {
	generation := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("inferencetenant").
		For(&v1alpha1.InferenceTenant{}, generation).
		Watches(&v1alpha1.InferencePool{}, handler.EnqueueRequestsFromMapFunc(r.ofNamespace), generation).
		Watches(&v1alpha1.InferenceTenant{}, handler.EnqueueRequestsFromMapFunc(r.sharingKeys), generation).
		WithOptions(controller.Options{EnableWarmup: ptr.To(true)}).
		Complete(r)
}

func (r *InferenceTenantReconciler) ofNamespace(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.requests(ctx, obj.GetNamespace(), func(*v1alpha1.InferenceTenant) bool { return true })
}

// sharingKeys are the tenants that were said to share a key, or do now. A key that was taken off obj is no
// longer in it, so those that were refused are looked at again too.
func (r *InferenceTenantReconciler) sharingKeys(ctx context.Context, obj client.Object) []reconcile.Request {
	changed := obj.(*v1alpha1.InferenceTenant)
	return r.requests(ctx, obj.GetNamespace(), func(t *v1alpha1.InferenceTenant) bool {
		if t.Name == changed.Name {
			return false
		}
		c := meta.FindStatusCondition(t.Status.Conditions, ConditionAccepted)
		if c != nil && c.Reason == ReasonKeyDuplicate {
			return true
		}
		_, shared := duplicateKey(t, []v1alpha1.InferenceTenant{*changed})
		return shared != ""
	})
}

func (r *InferenceTenantReconciler) requests(ctx context.Context, namespace string, which func(*v1alpha1.InferenceTenant) bool) []reconcile.Request {
	var tenants v1alpha1.InferenceTenantList
	if err := r.Client.List(ctx, &tenants, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "tenants are not judged again", "namespace", namespace)
		return nil
	}
	var reqs []reconcile.Request
	for i := range tenants.Items {
		if which(&tenants.Items[i]) {
			reqs = append(reqs, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&tenants.Items[i])})
		}
	}
	return reqs
}
