package workload

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// The life of a batcher or gateway after SIGTERM: unready and still accepting for acceptAfterTerm, then waiting for what
// is parked, up to the longest tier's timeout, then margin to write the last answers.
const (
	acceptAfterTerm = 5 * time.Second
	graceMargin     = 5 * time.Second
)

// imagePull is the time that an image pull may take within a rollout's deadline.
const imagePull = 10 * time.Minute

// lostNodeSeconds is how long a batcher or gateway may stay on a node that does not answer. The default of 300 s would
// leave a pool with half its batchers for that long.
const lostNodeSeconds = 30

// BatcherGrace is the termination grace period of a batcher or gateway.
func BatcherGrace(pool *v1alpha1.InferencePool) time.Duration {
	longest := time.Duration(0)
	for _, t := range pool.Spec.Tiers {
		longest = max(longest, t.Timeout.Duration)
	}
	return acceptAfterTerm + longest + graceMargin
}

func batcherDeployment(pool *v1alpha1.InferencePool, s Settings) (*appsv1ac.DeploymentApplyConfiguration, error) {
	return front{
		component: ComponentBatcher, name: BatcherName(pool.Name), container: ContainerBatcher,
		image: s.BatcherImage, replicas: s.BatcherReplicas, pod: pool.Spec.Batchers.Pod,
		ports: []*corev1ac.ContainerPortApplyConfiguration{
			containerPort(portInternal, wire.PortInternal), containerPort(portRelay, wire.PortRelay)},
	}.deployment(pool)
}

// gatewayDeployment are the standalone gateways: of the batchers' identity, with the same document, and with
// the same life, for they answer the same clients.
func gatewayDeployment(pool *v1alpha1.InferencePool, s Settings) (*appsv1ac.DeploymentApplyConfiguration, error) {
	return front{
		component: ComponentGateway, name: GatewayName(pool.Name), container: ContainerGateway,
		image: s.GatewayImage, replicas: pool.Spec.Gateway.Replicas, pod: pool.Spec.Gateway.Pod,
		ports: []*corev1ac.ContainerPortApplyConfiguration{containerPort(portInternal, wire.PortInternal)},
	}.deployment(pool)
}

// front is a component that answers clients.
type front struct {
	component, name, container, image string
	replicas                          int32
	pod                               v1alpha1.PodSpec
	ports                             []*corev1ac.ContainerPortApplyConfiguration
}

func (f front) deployment(pool *v1alpha1.InferencePool) (*appsv1ac.DeploymentApplyConfiguration, error) {
	document, err := poolspec.Encode(Document(pool))
	if err != nil {
		return nil, err
	}
	container := corev1ac.Container().
		WithName(f.container).
		WithImage(f.image).
		WithImagePullPolicy(corev1.PullIfNotPresent).
		WithArgs("--pool="+document).
		WithPorts(append(publicContainerPorts(pool), f.ports...)...).
		WithEnv(
			fieldEnv("POD_NAME", "metadata.name"),
			fieldEnv("POD_UID", "metadata.uid"),
			fieldEnv("POD_NAMESPACE", "metadata.namespace"),
			fieldEnv("POD_IP", "status.podIP")).
		WithSecurityContext(containerSecurity(true)).
		// The process is alive at once; its caches take a moment.
		WithStartupProbe(httpProbe(wire.PathReadyz, wire.PortInternal).WithPeriodSeconds(1).WithTimeoutSeconds(1).WithFailureThreshold(60)).
		WithReadinessProbe(httpProbe(wire.PathReadyz, wire.PortInternal).WithPeriodSeconds(1).WithTimeoutSeconds(1).WithFailureThreshold(2)).
		WithLivenessProbe(httpProbe(wire.PathHealthz, wire.PortInternal).WithPeriodSeconds(10).WithTimeoutSeconds(5).WithFailureThreshold(3))
	if r := resources(f.pod, nil); r != nil {
		container.WithResources(r)
	}
	mountCertificate(pool, container)
	mountTrust(pool, container)
	adjustContainer(container, f.pod)

	pod := corev1ac.PodSpec().
		WithServiceAccountName(BatcherName(pool.Name)).
		WithAutomountServiceAccountToken(true).
		WithEnableServiceLinks(false).
		WithSecurityContext(podSecurity()).
		WithTerminationGracePeriodSeconds(seconds(BatcherGrace(pool))).
		WithTolerations(lostNode("node.kubernetes.io/not-ready"), lostNode("node.kubernetes.io/unreachable")).
		WithTopologySpreadConstraints(
			spread(pool, f.component, corev1.LabelHostname),
			spread(pool, f.component, corev1.LabelTopologyZone)).
		WithContainers(container)
	withCertificateVolume(pool, pod)
	withTrustVolume(pool, pod)
	adjustPod(pod, f.pod)

	template := corev1ac.PodTemplateSpec().WithLabels(podLabels(pool, f.component, f.pod)).WithSpec(pod)
	if len(f.pod.Annotations) > 0 {
		template.WithAnnotations(f.pod.Annotations)
	}
	return appsv1ac.Deployment(f.name, pool.Namespace).
		WithLabels(Labels(pool.Name, f.component)).
		WithOwnerReferences(owner(pool)).
		WithSpec(appsv1ac.DeploymentSpec().
			WithReplicas(f.replicas).
			WithRevisionHistoryLimit(3).
			WithProgressDeadlineSeconds(int32(seconds(imagePull))).
			WithSelector(selector(pool.Name, f.component)).
			WithStrategy(appsv1ac.DeploymentStrategy().
				WithType("RollingUpdate").
				WithRollingUpdate(appsv1ac.RollingUpdateDeployment().
					WithMaxSurge(intstr.FromInt32(1)).
					WithMaxUnavailable(intstr.FromInt32(0)))).
			WithTemplate(template)), nil
}

func containerPort(name string, port int32) *corev1ac.ContainerPortApplyConfiguration {
	return corev1ac.ContainerPort().WithName(name).WithContainerPort(port).WithProtocol(corev1.ProtocolTCP)
}

func lostNode(taint string) *corev1ac.TolerationApplyConfiguration {
	return corev1ac.Toleration().
		WithKey(taint).
		WithOperator(corev1.TolerationOpExists).
		WithEffect(corev1.TaintEffectNoExecute).
		WithTolerationSeconds(lostNodeSeconds)
}

func spread(pool *v1alpha1.InferencePool, component, key string) *corev1ac.TopologySpreadConstraintApplyConfiguration {
	return corev1ac.TopologySpreadConstraint().
		WithMaxSkew(1).
		WithTopologyKey(key).
		WithWhenUnsatisfiable(corev1.ScheduleAnyway).
		WithLabelSelector(metav1ac.LabelSelector().WithMatchLabels(SelectorLabels(pool.Name, component)))
}
