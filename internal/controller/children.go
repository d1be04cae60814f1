package controller

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/workload"
)

// childKind is how objects of a kind are read and what of them the operator owns.
type childKind struct {
	gvk   schema.GroupVersionKind
	empty func() client.Object
	// owned extracts the fields that FieldManager owns, with the values that they have now.
	owned func(client.Object) (any, error)
}

// kinds are the kinds of children.
var kinds = map[workload.Kind]childKind{
	workload.KindDeployment: kindOf(appsv1.SchemeGroupVersion.WithKind("Deployment"), func() *appsv1.Deployment { return &appsv1.Deployment{} },
		func(o *appsv1.Deployment) (any, error) { return appsv1ac.ExtractDeployment(o, FieldManager) }),
	workload.KindService: kindOf(corev1.SchemeGroupVersion.WithKind("Service"), func() *corev1.Service { return &corev1.Service{} },
		func(o *corev1.Service) (any, error) { return corev1ac.ExtractService(o, FieldManager) }),
	workload.KindConfigMap: kindOf(corev1.SchemeGroupVersion.WithKind("ConfigMap"), func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
		func(o *corev1.ConfigMap) (any, error) { return corev1ac.ExtractConfigMap(o, FieldManager) }),
	workload.KindServiceAccount: kindOf(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
		func(o *corev1.ServiceAccount) (any, error) { return corev1ac.ExtractServiceAccount(o, FieldManager) }),
	workload.KindRoleBinding: kindOf(rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
		func(o *rbacv1.RoleBinding) (any, error) { return rbacv1ac.ExtractRoleBinding(o, FieldManager) }),
	workload.KindPodDisruptionBudget: kindOf(policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), func() *policyv1.PodDisruptionBudget { return &policyv1.PodDisruptionBudget{} },
		func(o *policyv1.PodDisruptionBudget) (any, error) {
			return policyv1ac.ExtractPodDisruptionBudget(o, FieldManager)
		}),
	workload.KindNetworkPolicy: kindOf(networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), func() *networkingv1.NetworkPolicy { return &networkingv1.NetworkPolicy{} },
		func(o *networkingv1.NetworkPolicy) (any, error) {
			return networkingv1ac.ExtractNetworkPolicy(o, FieldManager)
		}),
}

func kindOf[T client.Object](gvk schema.GroupVersionKind, empty func() T, owned func(T) (any, error)) childKind {
	return childKind{
		gvk:   gvk,
		empty: func() client.Object { return empty() },
		owned: func(o client.Object) (any, error) { return owned(o.(T)) },
	}
}

// childKeys are the children that a pool has; workload.Children makes exactly these.
func childKeys(p *v1alpha1.InferencePool) []childKey {
	pool := p.Name
	keys := []childKey{
		{workload.KindServiceAccount, workload.BatcherName(pool)},
		{workload.KindRoleBinding, workload.BatcherName(pool)},
		{workload.KindConfigMap, workload.ZoneName(pool)},
		{workload.KindNetworkPolicy, workload.WorkerName(pool)},
		{workload.KindNetworkPolicy, workload.BatcherName(pool)},
		{workload.KindService, workload.WorkersServiceName(pool)},
		{workload.KindService, workload.BatchersServiceName(pool)},
		{workload.KindService, pool},
		{workload.KindPodDisruptionBudget, workload.WorkerName(pool)},
		{workload.KindPodDisruptionBudget, workload.BatcherName(pool)},
		{workload.KindDeployment, workload.WorkerName(pool)},
		{workload.KindDeployment, workload.BatcherName(pool)},
	}
	if p.Spec.Gateway.Replicas > 0 {
		keys = append(keys, gatewayKeys(pool)...)
	}
	return keys
}

// gatewayKeys are the children that a pool has only while it has standalone gateways.
func gatewayKeys(pool string) []childKey {
	return []childKey{
		{workload.KindNetworkPolicy, workload.GatewayName(pool)},
		{workload.KindPodDisruptionBudget, workload.GatewayName(pool)},
		{workload.KindDeployment, workload.GatewayName(pool)},
	}
}
