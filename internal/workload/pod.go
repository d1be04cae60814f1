package workload

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"sluice.dev/sluice/api/v1alpha1"
)

// unprivileged is the user of every image of Sluice.
const unprivileged = 65532

// scratchVolume is the one writable directory, /tmp, of a container whose root is read-only.
const scratchVolume = "sluice-tmp"

// podSecurity and containerSecurity meet the restricted pod security standard.
func podSecurity() *corev1ac.PodSecurityContextApplyConfiguration {
	return corev1ac.PodSecurityContext().
		WithRunAsNonRoot(true).
		WithRunAsUser(unprivileged).
		WithRunAsGroup(unprivileged).
		WithFSGroup(unprivileged).
		WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))
}

func containerSecurity(readOnlyRoot bool) *corev1ac.SecurityContextApplyConfiguration {
	return corev1ac.SecurityContext().
		WithAllowPrivilegeEscalation(false).
		WithReadOnlyRootFilesystem(readOnlyRoot).
		WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))
}

func httpProbe(path string, port int32) *corev1ac.ProbeApplyConfiguration {
	return corev1ac.Probe().
		WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromInt32(port)).WithScheme(corev1.URISchemeHTTP)).
		WithSuccessThreshold(1)
}

func fieldEnv(name, path string) *corev1ac.EnvVarApplyConfiguration {
	return corev1ac.EnvVar().WithName(name).WithValueFrom(corev1ac.EnvVarSource().
		WithFieldRef(corev1ac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath(path)))
}

// adjustPod puts a user's adjustments into a pod, all but those of the main container.
func adjustPod(pod *corev1ac.PodSpecApplyConfiguration, p v1alpha1.PodSpec) {
	if len(p.NodeSelector) > 0 {
		pod.WithNodeSelector(p.NodeSelector)
	}
	for _, t := range p.Tolerations {
		pod.WithTolerations(toleration(t))
	}
	for _, v := range p.Volumes {
		pod.WithVolumes(volume(v))
	}
	if p.RuntimeClassName != "" {
		pod.WithRuntimeClassName(p.RuntimeClassName)
	}
	if p.PriorityClassName != "" {
		pod.WithPriorityClassName(p.PriorityClassName)
	}
	for _, name := range p.ImagePullSecrets {
		pod.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(name))
	}
	if p.ServiceAccountName != "" {
		pod.WithServiceAccountName(p.ServiceAccountName)
	}
	for _, c := range p.ResourceClaims {
		claim := corev1ac.PodResourceClaim().WithName(c.Name)
		if c.ResourceClaimName != "" {
			claim.WithResourceClaimName(c.ResourceClaimName)
		} else {
			claim.WithResourceClaimTemplateName(c.ResourceClaimTemplateName)
		}
		pod.WithResourceClaims(claim)
	}
}

// adjustContainer puts a user's adjustments into the main container. The container's own variables come
// first and cannot be replaced.
func adjustContainer(c *corev1ac.ContainerApplyConfiguration, p v1alpha1.PodSpec) {
	own := map[string]bool{}
	for _, e := range c.Env {
		own[*e.Name] = true
	}
	for _, e := range p.Env {
		if !own[e.Name] {
			c.WithEnv(envVar(e))
		}
	}
	for _, m := range p.Mounts {
		mount := corev1ac.VolumeMount().WithName(m.Name).WithMountPath(m.MountPath)
		if m.ReadOnly {
			mount.WithReadOnly(true)
		}
		if m.SubPath != "" {
			mount.WithSubPath(m.SubPath)
		}
		c.WithVolumeMounts(mount)
	}
}

// withScratch gives the container a writable /tmp unless the user mounts one.
func withScratch(pod *corev1ac.PodSpecApplyConfiguration, c *corev1ac.ContainerApplyConfiguration, p v1alpha1.PodSpec) {
	for _, m := range p.Mounts {
		if m.MountPath == "/tmp" {
			return
		}
	}
	pod.WithVolumes(corev1ac.Volume().WithName(scratchVolume).WithEmptyDir(corev1ac.EmptyDirVolumeSource()))
	c.WithVolumeMounts(corev1ac.VolumeMount().WithName(scratchVolume).WithMountPath("/tmp"))
}

// resources are the user's, with the extended resource gpu and the pod's claims added; nil for none.
func resources(p v1alpha1.PodSpec, gpu corev1.ResourceList) *corev1ac.ResourceRequirementsApplyConfiguration {
	r := corev1ac.ResourceRequirements()
	limits := corev1.ResourceList{}
	for k, v := range p.Resources.Limits {
		limits[k] = v
	}
	for k, v := range gpu {
		limits[k] = v
	}
	if len(limits) > 0 {
		r.WithLimits(limits)
	}
	if len(p.Resources.Requests) > 0 || len(gpu) > 0 {
		requests := corev1.ResourceList{}
		for k, v := range p.Resources.Requests {
			requests[k] = v
		}
		for k, v := range gpu {
			requests[k] = v
		}
		r.WithRequests(requests)
	}
	for _, c := range p.ResourceClaims {
		r.WithClaims(corev1ac.ResourceClaim().WithName(c.Name))
	}
	if r.Limits == nil && r.Requests == nil && r.Claims == nil {
		return nil
	}
	return r
}

func toleration(t corev1.Toleration) *corev1ac.TolerationApplyConfiguration {
	c := corev1ac.Toleration()
	if t.Key != "" {
		c.WithKey(t.Key)
	}
	if t.Operator != "" {
		c.WithOperator(t.Operator)
	}
	if t.Value != "" {
		c.WithValue(t.Value)
	}
	if t.Effect != "" {
		c.WithEffect(t.Effect)
	}
	if t.TolerationSeconds != nil {
		c.WithTolerationSeconds(*t.TolerationSeconds)
	}
	return c
}

func envVar(e v1alpha1.EnvVar) *corev1ac.EnvVarApplyConfiguration {
	c := corev1ac.EnvVar().WithName(e.Name)
	switch {
	case e.ConfigMapKeyRef != nil:
		c.WithValueFrom(corev1ac.EnvVarSource().WithConfigMapKeyRef(
			corev1ac.ConfigMapKeySelector().WithName(e.ConfigMapKeyRef.Name).WithKey(e.ConfigMapKeyRef.Key)))
	case e.SecretKeyRef != nil:
		c.WithValueFrom(corev1ac.EnvVarSource().WithSecretKeyRef(
			corev1ac.SecretKeySelector().WithName(e.SecretKeyRef.Name).WithKey(e.SecretKeyRef.Key)))
	case e.Value != "":
		c.WithValue(e.Value)
	}
	return c
}

func volume(v v1alpha1.Volume) *corev1ac.VolumeApplyConfiguration {
	c := corev1ac.Volume().WithName(v.Name)
	switch {
	case v.ConfigMap != "":
		c.WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(v.ConfigMap))
	case v.Secret != "":
		c.WithSecret(corev1ac.SecretVolumeSource().WithSecretName(v.Secret))
	case v.PersistentVolumeClaim != "":
		c.WithPersistentVolumeClaim(corev1ac.PersistentVolumeClaimVolumeSource().WithClaimName(v.PersistentVolumeClaim))
	case v.EmptyDir != nil:
		d := corev1ac.EmptyDirVolumeSource()
		if v.EmptyDir.InMemory {
			d.WithMedium(corev1.StorageMediumMemory)
		}
		// The schema's pattern admits only what parses.
		if q, err := resource.ParseQuantity(v.EmptyDir.SizeLimit); err == nil {
			d.WithSizeLimit(q)
		}
		c.WithEmptyDir(d)
	}
	return c
}
