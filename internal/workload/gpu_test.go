package workload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/api/v1alpha1"
)

// Whatever the GPU is called and however it is asked for, the container that runs the model has it, and the pod goes
// where the user says.
func TestWhatAWorkerAsksOfItsNode(t *testing.T) {
	backends := map[string]v1alpha1.BackendSpec{
		"in the worker":                   {Type: "Python", Python: &v1alpha1.PythonBackend{Function: "app:run", Interpreter: "python3"}},
		"in the model server beside it":   {Type: "OpenInference", OpenInference: &v1alpha1.OpenInferenceBackend{Model: "llm", Image: "triton:1"}},
		"in a model server somebody adds": {Type: "OpenInference", OpenInference: &v1alpha1.OpenInferenceBackend{Model: "llm"}},
	}
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			pool := defaulted()
			w := &pool.Spec.Workers
			w.Backend = backend
			w.GPU = v1alpha1.GPUSpec{ResourceName: "nvidia.com/mig-1g.10gb", Count: ptr.To(int32(2))}
			w.Pod = v1alpha1.PodSpec{
				RuntimeClassName: "nvidia",
				NodeSelector:     map[string]string{"nvidia.com/gpu.product": "H100"},
				Tolerations:      []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
				ResourceClaims:   []v1alpha1.ResourceClaim{{Name: "slice", ResourceClaimTemplateName: "mig"}, {Name: "net", ResourceClaimName: "rdma"}},
			}
			pod := deployment(t, pool, "llm-worker").Spec.Template.Spec
			c := modelContainer(pod)
			for _, list := range []*corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				if q := (*list)["nvidia.com/mig-1g.10gb"]; q.Cmp(resource.MustParse("2")) != 0 || len(*list) != 1 {
					t.Errorf("it asks for %v, want two MIG slices and nothing else", *list)
				}
			}
			if len(c.Resources.Claims) != 2 || *c.Resources.Claims[0].Name != "slice" || *c.Resources.Claims[1].Name != "net" {
				t.Errorf("its claims are %+v", c.Resources.Claims)
			}
			if len(pod.ResourceClaims) != 2 || *pod.ResourceClaims[0].ResourceClaimTemplateName != "mig" || *pod.ResourceClaims[1].ResourceClaimName != "rdma" {
				t.Errorf("the pod's claims are %+v", pod.ResourceClaims)
			}
			if *pod.RuntimeClassName != "nvidia" || pod.NodeSelector["nvidia.com/gpu.product"] != "H100" {
				t.Errorf("runtime class %v, node selector %v", pod.RuntimeClassName, pod.NodeSelector)
			}
			if len(pod.Tolerations) != 1 || *pod.Tolerations[0].Key != "nvidia.com/gpu" || *pod.Tolerations[0].Operator != corev1.TolerationOpExists || *pod.Tolerations[0].Effect != corev1.TaintEffectNoSchedule {
				t.Errorf("tolerations %+v", pod.Tolerations)
			}
			for _, other := range pod.Containers {
				if len(pod.InitContainers) > 0 && other.Resources != nil {
					t.Errorf("the container %s beside the model server asks for %+v too", *other.Name, other.Resources)
				}
			}
		})
	}
}

// modelContainer is the one that runs the model: the model server where there is one.
func modelContainer(pod *corev1ac.PodSpecApplyConfiguration) corev1ac.ContainerApplyConfiguration {
	if len(pod.InitContainers) > 0 {
		return pod.InitContainers[0]
	}
	return pod.Containers[0]
}
