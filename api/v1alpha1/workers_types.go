package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// WorkersSpec are the GPU workers of a pool.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",message="minReplicas must be at most maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.coldStart) || duration(self.coldStart) >= duration('1s') && duration(self.coldStart) <= duration('2h')",message="coldStart must be between 1s and 2h"
type WorkersSpec struct {
	// image is the worker's image. Unset, the operator's default is written to status.workers.image once
	// and kept, so that a newer operator restarts no worker.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// replicas is the number of workers in scaling mode External, within minReplicas and maxReplicas. It is
	// what `kubectl scale` and an HPA write. In the other modes the operator decides and a condition says
	// that this field waits. Switching to External writes the current number here when it is unset.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// minReplicas is the smallest number of workers, in every mode.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MinReplicas int32 `json:"minReplicas,omitempty"`

	// maxReplicas is the largest number of workers, in every mode.
	// +optional
	// +kubebuilder:default=16
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxReplicas int32 `json:"maxReplicas,omitempty"`

	// warmReplicas are workers kept beyond what the load needs: a number, or a percentage of the workers
	// that the load needs (rounded up). They shorten the first seconds of a spike.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 1000 : self.matches('^(100|[0-9]{1,2})%$')",message="warmReplicas must be a number (0-1000) or a percentage (0%-100%)"
	WarmReplicas *intstr.IntOrString `json:"warmReplicas,omitempty"`

	// coldStart is the time from a worker's creation to Ready that is normal: image pull, model load and
	// warm-up. A starting worker counts as supply on its way for this long. Between 1s and 2h.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	ColdStart metav1.Duration `json:"coldStart,omitzero"`

	// gpu is the extended resource that a worker asks for.
	// +optional
	// +kubebuilder:default={}
	GPU GPUSpec `json:"gpu,omitzero"`

	// backend is what runs a batch.
	// +optional
	// +kubebuilder:default={}
	Backend BackendSpec `json:"backend,omitzero"`

	// rollout says how workers are replaced when their template changes.
	// +optional
	// +kubebuilder:default={}
	Rollout RolloutSpec `json:"rollout,omitzero"`

	// pod adjusts the worker's pod.
	// +optional
	// +kubebuilder:default={}
	Pod PodSpec `json:"pod,omitzero"`
}

// GPUSpec is the extended resource that a worker asks for.
type GPUSpec struct {
	// resourceName is the resource as a device plugin advertises it, e.g. nvidia.com/gpu or
	// nvidia.com/mig-1g.10gb.
	// +optional
	// +kubebuilder:default="nvidia.com/gpu"
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	ResourceName string `json:"resourceName,omitempty"`

	// count is how many of them a worker needs (0-16); 0 runs the worker without a GPU, as for a simulated
	// backend or with pod.resourceClaims.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	Count *int32 `json:"count,omitempty"`
}

// RolloutSpec says how workers are replaced when their template changes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxSurge) || !has(self.maxUnavailable) || self.maxSurge + self.maxUnavailable > 0",message="maxSurge and maxUnavailable must not both be 0: no worker could be replaced"
type RolloutSpec struct {
	// maxSurge is how many workers may be started beyond the desired number. More than 0 needs as many
	// spare GPUs: without them the rollout waits for ever.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxSurge int32 `json:"maxSurge"`

	// maxUnavailable is how many workers may be missing meanwhile.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxUnavailable int32 `json:"maxUnavailable"`
}

// BackendType selects a backend.
// +kubebuilder:validation:Enum=Simulated;Python;OpenInference
type BackendType string

const (
	// BackendSimulated sleeps for a service time and answers with its input.
	BackendSimulated BackendType = "Simulated"
	// BackendPython runs a Python function of the image in a supervised subprocess.
	BackendPython BackendType = "Python"
	// BackendOpenInference calls a model server in the same pod by the Open Inference Protocol v2.
	BackendOpenInference BackendType = "OpenInference"
)

// BackendSpec is what runs a batch: one type and its settings.
//
// +kubebuilder:validation:XValidation:rule="has(self.type) && self.type == 'Python' ? has(self.python) : !has(self.python)",message="python is required when type is Python, and only then"
// +kubebuilder:validation:XValidation:rule="has(self.type) && self.type == 'OpenInference' ? has(self.openInference) : !has(self.openInference)",message="openInference is required when type is OpenInference, and only then"
// +kubebuilder:validation:XValidation:rule="!has(self.simulated) || !has(self.type) || self.type == 'Simulated'",message="simulated may only be set when type is Simulated"
type BackendSpec struct {
	// type is Simulated, Python or OpenInference.
	// +optional
	// +kubebuilder:default=Simulated
	Type BackendType `json:"type,omitempty"`

	// simulated sets the simulated backend.
	// +optional
	Simulated *SimulatedBackend `json:"simulated,omitempty"`

	// python names the function to run.
	// +optional
	Python *PythonBackend `json:"python,omitempty"`

	// openInference says where the model server beside the worker listens.
	// +optional
	OpenInference *OpenInferenceBackend `json:"openInference,omitempty"`
}

// SimulatedBackend sleeps for a service time whatever the batch size, and answers each input with itself.
type SimulatedBackend struct {
	// serviceTime is the time of a batch.
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	ServiceTime metav1.Duration `json:"serviceTime,omitzero"`

	// jitterPercent spreads the service time evenly by so much to both sides.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	JitterPercent int32 `json:"jitterPercent"`

	// startDelay is the time before the worker is ready, in place of a model load.
	// +optional
	// +kubebuilder:default="0s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	StartDelay metav1.Duration `json:"startDelay,omitzero"`

	// failPermille is how many of a thousand batches fail with an application error.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	FailPermille int32 `json:"failPermille"`

	// crashPermille is how many of a thousand batches crash the worker.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	CrashPermille int32 `json:"crashPermille"`
}

// PythonBackend names the Python function that runs a batch: a list of strings in, a list of as many
// strings out. A function with a second parameter gets each item's parameters as a list of dictionaries.
type PythonBackend struct {
	// function is module:function, importable in the image.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$`
	Function string `json:"function"`

	// interpreter is the Python to run, e.g. /opt/venv/bin/python.
	// +optional
	// +kubebuilder:default="python3"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Interpreter string `json:"interpreter,omitempty"`

	// path is the directory in which the module is looked for first.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Path string `json:"path,omitempty"`
}

// OpenInferenceBackend says where the model server beside the worker listens (Triton, KServe, MLServer).
type OpenInferenceBackend struct {
	// url is the server's base address in the same pod.
	// +optional
	// +kubebuilder:default="http://127.0.0.1:8000"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^http://(127\.0\.0\.1|localhost|\[::1\]):[0-9]{1,5}$`
	URL string `json:"url,omitempty"`

	// model is the model's name on that server.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Model string `json:"model"`

	// input is the name of the BYTES tensor that takes the strings.
	// +optional
	// +kubebuilder:default="text_input"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Input string `json:"input,omitempty"`

	// output is the name of the BYTES tensor that returns them.
	// +optional
	// +kubebuilder:default="text_output"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Output string `json:"output,omitempty"`

	// image is the model server's image, run as a sidecar container in the worker's pod; the GPU is given
	// to it. Unset, the pod is expected to have one injected.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// args are the arguments of that container.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	Args []string `json:"args,omitempty"`
}

// BatchersSpec are the batchers of a pool.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",message="minReplicas must be at most maxReplicas"
type BatchersSpec struct {
	// image is the batcher's image. Unset, the operator's default is written to status.batchers.image once
	// and kept, so that a newer operator restarts no batcher.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// minReplicas is the smallest number of batchers. Two survive the loss of one.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MinReplicas int32 `json:"minReplicas,omitempty"`

	// maxReplicas is the largest number of batchers.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MaxReplicas int32 `json:"maxReplicas,omitempty"`

	// requestsPerSecond is the rate that one batcher is expected to carry; the number of batchers is the
	// offered load over this, within minReplicas and maxReplicas.
	// +optional
	// +kubebuilder:default=5000
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=1000000
	RequestsPerSecond int32 `json:"requestsPerSecond,omitempty"`

	// pod adjusts the batcher's pod.
	// +optional
	// +kubebuilder:default={}
	Pod PodSpec `json:"pod,omitzero"`
}

// PodSpec adjusts a pod. It is narrow on purpose: what is not here is the operator's to set.
type PodSpec struct {
	// labels are added to the pod. Sluice's own (inference.sluice.dev/, app.kubernetes.io/) cannot be set.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('inference.sluice.dev/') && !k.startsWith('app.kubernetes.io/'))",message="labels under inference.sluice.dev/ and app.kubernetes.io/ belong to the operator"
	Labels map[string]string `json:"labels,omitempty"`

	// annotations are added to the pod.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Annotations map[string]string `json:"annotations,omitempty"`

	// nodeSelector restricts the nodes.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations allow tainted nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// resources of the main container: the batcher, the worker or, with openInference.image, the model
	// server. The GPU is set by workers.gpu.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`

	// env of the main container.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Env []EnvVar `json:"env,omitempty"`

	// volumes that mounts refers to.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Volumes []Volume `json:"volumes,omitempty"`

	// mounts of the main container.
	// +optional
	// +listType=map
	// +listMapKey=mountPath
	// +kubebuilder:validation:MaxItems=16
	Mounts []VolumeMount `json:"mounts,omitempty"`

	// runtimeClassName selects a runtime class, e.g. nvidia.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RuntimeClassName string `json:"runtimeClassName,omitempty"`

	// priorityClassName selects a priority class.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// imagePullSecrets are names of Secrets in the pool's namespace; the kubelet reads them, never the operator.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`

	// serviceAccountName runs the pod under another ServiceAccount of the namespace. For batchers it must
	// be one that may read endpointslices, configmaps and inferencetenants: the operator binds its own
	// ServiceAccount only.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// resourceClaims are DRA claims of the pod, given to the main container.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ResourceClaims []ResourceClaim `json:"resourceClaims,omitempty"`
}

// EnvVar is an environment variable: a value, or a key of a ConfigMap or Secret.
//
// +kubebuilder:validation:XValidation:rule="(has(self.value) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0) + (has(self.secretKeyRef) ? 1 : 0) <= 1",message="set at most one of value, configMapKeyRef and secretKeyRef"
type EnvVar struct {
	// name of the variable.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`
	// value of the variable, as it stands.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`
	// configMapKeyRef takes the value from a ConfigMap of the namespace.
	// +optional
	ConfigMapKeyRef *KeyRef `json:"configMapKeyRef,omitempty"`
	// secretKeyRef takes the value from a Secret of the namespace.
	// +optional
	SecretKeyRef *KeyRef `json:"secretKeyRef,omitempty"`
}

// KeyRef is a key of an object in the pool's namespace.
type KeyRef struct {
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// key in the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// Volume is a volume of one of the kinds that the restricted pod security standard allows.
//
// +kubebuilder:validation:XValidation:rule="(has(self.configMap) ? 1 : 0) + (has(self.secret) ? 1 : 0) + (has(self.persistentVolumeClaim) ? 1 : 0) + (has(self.emptyDir) ? 1 : 0) == 1",message="set exactly one of configMap, secret, persistentVolumeClaim and emptyDir"
type Volume struct {
	// name that mounts refers to.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// configMap is the name of a ConfigMap.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ConfigMap string `json:"configMap,omitempty"`
	// secret is the name of a Secret.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Secret string `json:"secret,omitempty"`
	// persistentVolumeClaim is the name of a PersistentVolumeClaim, e.g. one with the model's weights.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PersistentVolumeClaim string `json:"persistentVolumeClaim,omitempty"`
	// emptyDir is an empty directory.
	// +optional
	EmptyDir *EmptyDir `json:"emptyDir,omitempty"`
}

// EmptyDir is an empty directory on the node or in memory.
type EmptyDir struct {
	// inMemory makes it a tmpfs, as shared memory for a model server.
	// +optional
	InMemory bool `json:"inMemory,omitempty"`
	// sizeLimit is its largest size as a quantity, e.g. 2Gi.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$`
	SizeLimit string `json:"sizeLimit,omitempty"`
}

// VolumeMount mounts a volume into the main container.
type VolumeMount struct {
	// name of the volume.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// mountPath is the directory in the container.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	MountPath string `json:"mountPath"`
	// readOnly mounts it so.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
	// subPath mounts only this path of the volume.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	SubPath string `json:"subPath,omitempty"`
}

// ResourceClaim is a DRA claim: an existing one or one made from a template for each pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",message="set exactly one of resourceClaimName and resourceClaimTemplateName"
type ResourceClaim struct {
	// name of the claim in the pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// resourceClaimName is an existing claim.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ResourceClaimName string `json:"resourceClaimName,omitempty"`
	// resourceClaimTemplateName is a template from which each pod gets a claim of its own.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ResourceClaimTemplateName string `json:"resourceClaimTemplateName,omitempty"`
}
