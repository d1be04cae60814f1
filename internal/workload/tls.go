package workload

import (
	"maps"
	"path"
	"slices"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/poolspec"
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

// What pools that are asked over TLS must be signed by: ca.crt of each Secret that a ladder names, in one volume.
const (
	caVolume    = "sluice-ca"
	caDirectory = "/etc/sluice/ca"
	caKey       = "ca.crt"
)

// caFile is where the certificates of a Secret are, below caDirectory.
func caFile(secret string) string { return path.Join(secret, caKey) }

// RerouteServerName is the name that the certificate of a pool which is rerouted to must be valid for.
func RerouteServerName(namespace string, r *v1alpha1.DegradeReroute) string {
	if r.TLS.ServerName != "" {
		return r.TLS.ServerName
	}
	return r.Pool + "." + namespace + ".svc"
}

func trustDocument(namespace string, r *v1alpha1.DegradeReroute) *poolspec.Trust {
	if r.TLS == nil {
		return nil
	}
	return &poolspec.Trust{CAFile: path.Join(caDirectory, caFile(r.TLS.CASecretName)), ServerName: RerouteServerName(namespace, r)}
}

// Reroutes are the other pools that the ladders of a pool name, with the steps that name them.
func Reroutes(pool *v1alpha1.InferencePool) (out []*v1alpha1.DegradeReroute) {
	for _, t := range pool.Spec.Tiers {
		if t.Degrade == nil {
			continue
		}
		for _, s := range slices.Concat(t.Degrade.Yellow, t.Degrade.Red) {
			if s.Reroute != nil {
				out = append(out, s.Reroute)
			}
		}
	}
	return out
}

// trustSecrets are the Secrets whose ca.crt ladders name.
func trustSecrets(pool *v1alpha1.InferencePool) []string {
	secrets := map[string]bool{}
	for _, r := range Reroutes(pool) {
		if r.TLS != nil {
			secrets[r.TLS.CASecretName] = true
		}
	}
	return slices.Sorted(maps.Keys(secrets))
}

func mountTrust(pool *v1alpha1.InferencePool, c *corev1ac.ContainerApplyConfiguration) {
	if len(trustSecrets(pool)) > 0 {
		c.WithVolumeMounts(corev1ac.VolumeMount().WithName(caVolume).WithMountPath(caDirectory).WithReadOnly(true))
	}
}

// withTrustVolume has ca.crt, and never a key, of those Secrets. They are optional, so that a pod without them serves
// all that needs none; the gateway says what is missing.
func withTrustVolume(pool *v1alpha1.InferencePool, pod *corev1ac.PodSpecApplyConfiguration) {
	secrets := trustSecrets(pool)
	if len(secrets) == 0 {
		return
	}
	volume := corev1ac.ProjectedVolumeSource().WithDefaultMode(tlsFileMode)
	for _, name := range secrets {
		volume.WithSources(corev1ac.VolumeProjection().WithSecret(corev1ac.SecretProjection().WithName(name).WithOptional(true).
			WithItems(corev1ac.KeyToPath().WithKey(caKey).WithPath(caFile(name)))))
	}
	pod.WithVolumes(corev1ac.Volume().WithName(caVolume).WithProjected(volume))
}
