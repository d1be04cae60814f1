package workload

import (
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/wire"
)

// The Secret of a pool with TLS, mounted where the gateway runs.
const (
	tlsVolume    = "sluice-tls"
	tlsDirectory = "/etc/sluice/tls"
	tlsFileMode  = 0o440 // the pod's fsGroup reads it
)

// publicPort is a port that clients call.
type publicPort struct {
	name               string
	service, container int32
}

// publicPorts are 80 without TLS, 443 with it, or both where the pool says so. With TLS, 80 is closed by default: a
// key that a forgotten client goes on sending in the clear is not noticed otherwise.
func publicPorts(pool *v1alpha1.InferencePool) []publicPort {
	plain := publicPort{portHTTP, 80, wire.PortPublic}
	t := pool.Spec.Gateway.TLS
	if t == nil {
		return []publicPort{plain}
	}
	ports := []publicPort{{portHTTPS, 443, wire.PortTLS}}
	if t.PlainHTTP == v1alpha1.PlainHTTPOpen {
		ports = append(ports, plain)
	}
	return ports
}

func publicContainerPorts(pool *v1alpha1.InferencePool) (ports []*corev1ac.ContainerPortApplyConfiguration) {
	for _, p := range publicPorts(pool) {
		ports = append(ports, containerPort(p.name, p.container))
	}
	return ports
}

// publicIngress lets everybody reach the public ports that are open.
func publicIngress(pool *v1alpha1.InferencePool) *networkingv1ac.NetworkPolicyIngressRuleApplyConfiguration {
	rule := networkingv1ac.NetworkPolicyIngressRule()
	for _, p := range publicPorts(pool) {
		rule.WithPorts(tcp(p.container))
	}
	return rule
}

// mountCertificate mounts the pool's Secret into the container that serves clients. A pod without the certificate
// starts, says what is missing and serves as soon as it comes; until then it is not Ready, and must not be restarted
// for that: the startup probe asks only whether it lives.
func mountCertificate(pool *v1alpha1.InferencePool, c *corev1ac.ContainerApplyConfiguration) {
	if pool.Spec.Gateway.TLS == nil {
		return
	}
	c.WithVolumeMounts(corev1ac.VolumeMount().WithName(tlsVolume).WithMountPath(tlsDirectory).WithReadOnly(true))
	c.WithStartupProbe(httpProbe(wire.PathHealthz, wire.PortInternal).WithPeriodSeconds(1).WithTimeoutSeconds(1).WithFailureThreshold(60))
}

// withCertificateVolume names the Secret, optional: otherwise the kubelet would hold the pod back without a word of
// what is wrong in the pool's conditions.
func withCertificateVolume(pool *v1alpha1.InferencePool, pod *corev1ac.PodSpecApplyConfiguration) {
	if t := pool.Spec.Gateway.TLS; t != nil {
		pod.WithVolumes(corev1ac.Volume().WithName(tlsVolume).WithSecret(corev1ac.SecretVolumeSource().
			WithSecretName(t.SecretName).WithOptional(true).WithDefaultMode(tlsFileMode)))
	}
}
