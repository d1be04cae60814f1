package workload

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/wire"
)

// Names of ports in Services and containers.
const (
	portHTTP     = "http"
	portHTTPS    = "https"
	portInternal = "internal"
	portRelay    = "relay"
	portBatch    = "batch"
)

// publicService is what clients call: port 80 of the pool's name, or 443 where the pool says TLS. It leads to the
// standalone gateways, or to the batchers with theirs inside.
func publicService(pool *v1alpha1.InferencePool, s Settings) *corev1ac.ServiceApplyConfiguration {
	component := ComponentBatcher
	if s.ThroughGateways {
		component = ComponentGateway
	}
	spec := corev1ac.ServiceSpec().WithSelector(SelectorLabels(pool.Name, component))
	for _, p := range publicPorts(pool) {
		spec.WithPorts(corev1ac.ServicePort().
			WithName(p.name).
			WithProtocol(corev1.ProtocolTCP).
			WithPort(p.service).
			WithTargetPort(intstr.FromInt32(p.container)))
	}
	return corev1ac.Service(pool.Name, pool.Namespace).
		WithLabels(Labels(pool.Name, ComponentBatcher)).
		WithOwnerReferences(owner(pool)).
		WithSpec(spec)
}

// workersService is headless: batchers watch its EndpointSlices and choose a worker themselves.
func workersService(pool *v1alpha1.InferencePool) *corev1ac.ServiceApplyConfiguration {
	return headless(pool, WorkersServiceName(pool.Name), ComponentWorker, portBatch, wire.PortWorker)
}

// batchersService is headless: gateways watch its EndpointSlices and choose a batcher themselves, and batchers
// count each other. It does not change when the pool's own Service leads to gateways.
func batchersService(pool *v1alpha1.InferencePool) *corev1ac.ServiceApplyConfiguration {
	return headless(pool, BatchersServiceName(pool.Name), ComponentBatcher, portRelay, wire.PortRelay)
}

func headless(pool *v1alpha1.InferencePool, name, component, portName string, port int32) *corev1ac.ServiceApplyConfiguration {
	return corev1ac.Service(name, pool.Namespace).
		WithLabels(Labels(pool.Name, component)).
		WithOwnerReferences(owner(pool)).
		WithSpec(corev1ac.ServiceSpec().
			WithClusterIP(corev1.ClusterIPNone).
			WithSelector(SelectorLabels(pool.Name, component)).
			WithPorts(corev1ac.ServicePort().
				WithName(portName).
				WithProtocol(corev1.ProtocolTCP).
				WithPort(port).
				WithTargetPort(intstr.FromInt32(port))))
}

// disruptionBudget lets a node drain take one pod of the component at a time. AlwaysAllow: a pod that is
// not Ready protects nothing and must not block the drain.
func disruptionBudget(pool *v1alpha1.InferencePool, component string) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	return policyv1ac.PodDisruptionBudget(pool.Name+"-"+component, pool.Namespace).
		WithLabels(Labels(pool.Name, component)).
		WithOwnerReferences(owner(pool)).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithSelector(selector(pool.Name, component)).
			WithMaxUnavailable(intstr.FromInt32(1)).
			WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow))
}

// workerNetworkPolicy lets only this pool's batchers run batches; the operator and metrics readers share
// the port. (The kubelet's probes come from the node, which policies do not bind.)
func workerNetworkPolicy(pool *v1alpha1.InferencePool, s Settings) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return networkPolicy(pool, ComponentWorker).WithSpec(networkingv1ac.NetworkPolicySpec().
		WithPodSelector(selector(pool.Name, ComponentWorker)).
		WithPolicyTypes(networkingv1.PolicyTypeIngress).
		WithIngress(networkingv1ac.NetworkPolicyIngressRule().
			WithPorts(tcp(wire.PortWorker)).
			WithFrom(component(pool, ComponentBatcher), operator(s), metricsReaders())))
}

// batcherNetworkPolicy is frontNetworkPolicy, and opens the relay port to the pool's standalone gateways and
// to nobody else: who reaches it chooses tiers. The rule stands whether the pool has gateways or not, so that
// those that are leaving are served to the end.
func batcherNetworkPolicy(pool *v1alpha1.InferencePool, s Settings) *networkingv1ac.NetworkPolicyApplyConfiguration {
	np := frontNetworkPolicy(pool, ComponentBatcher, s)
	np.Spec.WithIngress(networkingv1ac.NetworkPolicyIngressRule().WithPorts(tcp(wire.PortRelay)).WithFrom(component(pool, ComponentGateway)))
	return np
}

func gatewayNetworkPolicy(pool *v1alpha1.InferencePool, s Settings) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return frontNetworkPolicy(pool, ComponentGateway, s)
}

// frontNetworkPolicy opens the public port to everybody and the internal one to the operator (stats), the
// pool's batchers and gateways (a tenant's bucket lives at one of them) and metrics readers.
func frontNetworkPolicy(pool *v1alpha1.InferencePool, of string, s Settings) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return networkPolicy(pool, of).WithSpec(networkingv1ac.NetworkPolicySpec().
		WithPodSelector(selector(pool.Name, of)).
		WithPolicyTypes(networkingv1.PolicyTypeIngress).
		WithIngress(
			publicIngress(pool),
			networkingv1ac.NetworkPolicyIngressRule().
				WithPorts(tcp(wire.PortInternal)).
				WithFrom(component(pool, ComponentBatcher), component(pool, ComponentGateway), operator(s), metricsReaders())))
}

func networkPolicy(pool *v1alpha1.InferencePool, component string) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return networkingv1ac.NetworkPolicy(pool.Name+"-"+component, pool.Namespace).
		WithLabels(Labels(pool.Name, component)).
		WithOwnerReferences(owner(pool))
}

func tcp(port int32) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
	return networkingv1ac.NetworkPolicyPort().WithProtocol(corev1.ProtocolTCP).WithPort(intstr.FromInt32(port))
}

func component(pool *v1alpha1.InferencePool, name string) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	return networkingv1ac.NetworkPolicyPeer().WithPodSelector(selector(pool.Name, name))
}

func operator(s Settings) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	return networkingv1ac.NetworkPolicyPeer().
		WithNamespaceSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{corev1.LabelMetadataName: s.OperatorNamespace})).
		WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"control-plane": "controller-manager"}))
}

func metricsReaders() *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	return networkingv1ac.NetworkPolicyPeer().
		WithNamespaceSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{LabelMetricsReader: "true"}))
}

// serviceAccount is the identity of batchers and gateways.
func serviceAccount(pool *v1alpha1.InferencePool) *corev1ac.ServiceAccountApplyConfiguration {
	return corev1ac.ServiceAccount(BatcherName(pool.Name), pool.Namespace).
		WithLabels(Labels(pool.Name, ComponentBatcher)).
		WithOwnerReferences(owner(pool)).
		WithAutomountServiceAccountToken(false) // the pods that need it ask for it
}

// roleBinding lets batchers and gateways read what they watch, in their namespace only.
func roleBinding(pool *v1alpha1.InferencePool) *rbacv1ac.RoleBindingApplyConfiguration {
	return rbacv1ac.RoleBinding(BatcherName(pool.Name), pool.Namespace).
		WithLabels(Labels(pool.Name, ComponentBatcher)).
		WithOwnerReferences(owner(pool)).
		WithRoleRef(rbacv1ac.RoleRef().
			WithAPIGroup("rbac.authorization.k8s.io").
			WithKind("ClusterRole").
			WithName(ClusterRoleDataPlane)).
		WithSubjects(rbacv1ac.Subject().
			WithKind("ServiceAccount").
			WithName(BatcherName(pool.Name)).
			WithNamespace(pool.Namespace))
}
