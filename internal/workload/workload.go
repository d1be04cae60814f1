// Package workload says what a pool consists of: it maps an InferencePool to the apply configurations of all
// its children. It is pure: no client, no clock, and the same pool always gives the same configurations, so
// that comparing them with what runs finds drift and nothing else.
package workload

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
)

// Labels of everything that belongs to a pool. The operator's caches select by LabelManagedBy.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelInstance  = "app.kubernetes.io/instance"
	LabelComponent = "app.kubernetes.io/component"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	LabelPool      = "inference.sluice.dev/pool"

	// Product is the value of LabelName and LabelManagedBy.
	Product = "sluice"
	// ComponentBatcher, ComponentGateway and ComponentWorker are the values of LabelComponent.
	ComponentBatcher = "batcher"
	ComponentGateway = "gateway"
	ComponentWorker  = "worker"

	// LabelMetricsReader on a namespace opens the metrics ports of every pool to its pods, e.g. to Prometheus.
	LabelMetricsReader = "inference.sluice.dev/metrics-reader"
)

// ClusterRoleDataPlane is the install-time ClusterRole that a pool's batchers are bound to.
const ClusterRoleDataPlane = "sluice-data-plane"

// ContainerBatcher, ContainerGateway and ContainerWorker are the names of the main containers.
const (
	ContainerBatcher     = "batcher"
	ContainerGateway     = "gateway"
	ContainerWorker      = "worker"
	ContainerModelServer = "model-server"
)

// Names of a pool's children.
func BatcherName(pool string) string { return pool + "-batcher" }

// WorkerName is the name of the workers' Deployment, PodDisruptionBudget and NetworkPolicy.
func WorkerName(pool string) string { return pool + "-worker" }

// GatewayName is the name of the standalone gateways' Deployment, PodDisruptionBudget and NetworkPolicy.
func GatewayName(pool string) string { return pool + "-gateway" }

// BatchersServiceName is the name of the headless Service by which gateways find the batchers, and the
// batchers each other.
func BatchersServiceName(pool string) string { return pool + "-batchers" }

// WorkersServiceName is the name of the headless Service by which batchers find the workers.
func WorkersServiceName(pool string) string { return pool + "-workers" }

// ZoneName is the name of the ConfigMap that tells the gateways the zone.
func ZoneName(pool string) string { return pool + "-zone" }

// Settings are what a pool's children depend on beside the pool's spec.
type Settings struct {
	// BatcherImage, WorkerImage and GatewayImage are the images to run, already chosen: see the controller.
	BatcherImage, WorkerImage, GatewayImage string
	// ThroughGateways says that the pool's Service leads to the standalone gateways.
	ThroughGateways bool
	// BatcherReplicas and WorkerReplicas are the numbers to run.
	BatcherReplicas, WorkerReplicas int32
	// OperatorNamespace is where the operator runs: only its pods may read a pool's internal ports.
	OperatorNamespace string
	// ZoneDocument is the document of the zone ConfigMap, under ZoneKey.
	ZoneKey, ZoneDocument string
}

// Kind names the kind of a child, as in its apiVersion.
type Kind string

// Kinds of children.
const (
	KindDeployment          Kind = "Deployment"
	KindService             Kind = "Service"
	KindConfigMap           Kind = "ConfigMap"
	KindServiceAccount      Kind = "ServiceAccount"
	KindRoleBinding         Kind = "RoleBinding"
	KindPodDisruptionBudget Kind = "PodDisruptionBudget"
	KindNetworkPolicy       Kind = "NetworkPolicy"
)

// Child is one object that a pool consists of, as it should be.
type Child struct {
	Kind   Kind
	Name   string
	Config runtime.ApplyConfiguration
}

// Children are all objects that the pool consists of, in the order in which they should be applied: what
// pods need comes before them. The pool must have been read from the API server, which fills in defaults.
func Children(pool *v1alpha1.InferencePool, s Settings) ([]Child, error) {
	batchers, err := batcherDeployment(pool, s)
	if err != nil {
		return nil, err
	}
	name := pool.Name
	list := []Child{
		{KindServiceAccount, BatcherName(name), serviceAccount(pool)},
		{KindRoleBinding, BatcherName(name), roleBinding(pool)},
		{KindConfigMap, ZoneName(name), zoneConfigMap(pool, s)},
		{KindNetworkPolicy, WorkerName(name), workerNetworkPolicy(pool, s)},
		{KindNetworkPolicy, BatcherName(name), batcherNetworkPolicy(pool, s)},
		{KindService, WorkersServiceName(name), workersService(pool)},
		{KindService, BatchersServiceName(name), batchersService(pool)},
		{KindService, name, publicService(pool, s)},
		{KindPodDisruptionBudget, WorkerName(name), disruptionBudget(pool, ComponentWorker)},
		{KindPodDisruptionBudget, BatcherName(name), disruptionBudget(pool, ComponentBatcher)},
		{KindDeployment, WorkerName(name), workerDeployment(pool, s)},
		{KindDeployment, BatcherName(name), batchers},
	}
	if pool.Spec.Gateway.Replicas > 0 {
		gateways, err := gatewayDeployment(pool, s)
		if err != nil {
			return nil, err
		}
		list = append(list,
			Child{KindNetworkPolicy, GatewayName(name), gatewayNetworkPolicy(pool, s)},
			Child{KindPodDisruptionBudget, GatewayName(name), disruptionBudget(pool, ComponentGateway)},
			Child{KindDeployment, GatewayName(name), gateways})
	}
	return list, nil
}

// Labels are the labels of a pool's objects; component may be empty.
func Labels(pool, component string) map[string]string {
	l := map[string]string{
		LabelName:      Product,
		LabelInstance:  pool,
		LabelManagedBy: Product,
		LabelPool:      pool,
	}
	if component != "" {
		l[LabelComponent] = component
	}
	return l
}

// SelectorLabels select the pods of a pool's component. They can never change: a Deployment's selector is
// immutable.
func SelectorLabels(pool, component string) map[string]string {
	return map[string]string{LabelPool: pool, LabelComponent: component}
}

// selector selects the pods of a pool's component.
func selector(pool, component string) *metav1ac.LabelSelectorApplyConfiguration {
	return metav1ac.LabelSelector().WithMatchLabels(SelectorLabels(pool, component))
}

// owner makes the pool the controller of a child: the garbage collector removes the child with it. No
// finalizer is needed, and blockOwnerDeletion stays off for it needs a right on finalizers.
func owner(pool *v1alpha1.InferencePool) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1alpha1.GroupVersion.String()).
		WithKind("InferencePool").
		WithName(pool.Name).
		WithUID(pool.UID).
		WithController(true)
}

// podLabels are the labels of a component's pods, the user's own first.
func podLabels(pool *v1alpha1.InferencePool, component string, p v1alpha1.PodSpec) map[string]string {
	l := make(map[string]string, len(p.Labels)+5)
	for k, v := range p.Labels {
		l[k] = v
	}
	for k, v := range Labels(pool.Name, component) {
		l[k] = v
	}
	return l
}

// seconds rounds up: a grace period that is too short by a fraction kills what it protects.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func duration(d metav1.Duration) time.Duration { return d.Duration }

// deref is a pointer's value, or what the schema's default would have been.
func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func zoneConfigMap(pool *v1alpha1.InferencePool, s Settings) *corev1ac.ConfigMapApplyConfiguration {
	return corev1ac.ConfigMap(ZoneName(pool.Name), pool.Namespace).
		WithLabels(Labels(pool.Name, "")).
		WithOwnerReferences(owner(pool)).
		WithData(map[string]string{s.ZoneKey: s.ZoneDocument})
}
