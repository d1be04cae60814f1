package workload

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/wire"
)

// hungFactor times inferenceTimeout is when a worker gives up its own backend. The batcher gives the batch up
// at inferenceTimeout and sends the requests elsewhere; killing the backend at the same instant would
// throw away a model that is merely slow, and cost a cold start.
const hungFactor = 2

// loadFactor times coldStart is how long a load may take before the worker is started anew.
const loadFactor = 2

// drainMargin is for the answer "draining", the last answers and the end of the backend.
const drainMargin = 5 * time.Second

// batchTimeout is when a worker's own backend counts as hung.
func batchTimeout(pool *v1alpha1.InferencePool) time.Duration {
	return hungFactor * duration(pool.Spec.Batching.InferenceTimeout)
}

// WorkerGrace is the termination grace period of a worker: the batch that runs, and a margin.
func WorkerGrace(pool *v1alpha1.InferencePool) time.Duration {
	return workerDrain(pool) + drainMargin
}

// workerDrain is how long a worker itself waits for its batch.
func workerDrain(pool *v1alpha1.InferencePool) time.Duration {
	return batchTimeout(pool) + drainMargin
}

func workerDeployment(pool *v1alpha1.InferencePool, s Settings) *appsv1ac.DeploymentApplyConfiguration {
	spec := pool.Spec.Workers
	load := loadFactor * duration(spec.ColdStart)
	container := corev1ac.Container().
		WithName(ContainerWorker).
		WithImage(s.WorkerImage).
		WithImagePullPolicy(corev1.PullIfNotPresent).
		WithArgs(workerArgs(pool)...).
		WithPorts(containerPort(portBatch, wire.PortWorker)).
		WithEnv(fieldEnv("POD_NAME", "metadata.name"), fieldEnv("POD_NAMESPACE", "metadata.namespace")).
		WithSecurityContext(containerSecurity(true)).
		// Until the startup probe has succeeded the liveness probe does not run: nothing kills a model that
		// loads for as long as coldStart promises, twice.
		WithStartupProbe(httpProbe(wire.PathReadyz, wire.PortWorker).WithPeriodSeconds(1).WithTimeoutSeconds(1).WithFailureThreshold(int32(seconds(load)))).
		WithReadinessProbe(httpProbe(wire.PathReadyz, wire.PortWorker).WithPeriodSeconds(1).WithTimeoutSeconds(1).WithFailureThreshold(2)).
		WithLivenessProbe(httpProbe(wire.PathHealthz, wire.PortWorker).WithPeriodSeconds(10).WithTimeoutSeconds(5).WithFailureThreshold(3))

	pod := corev1ac.PodSpec().
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithSecurityContext(podSecurity()).
		WithTerminationGracePeriodSeconds(seconds(WorkerGrace(pool)))
	adjustPod(pod, spec.Pod)
	withScratch(pod, container, spec.Pod)

	gpu := corev1.ResourceList{}
	if n := deref(spec.GPU.Count, 1); n > 0 {
		gpu[corev1.ResourceName(spec.GPU.ResourceName)] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	// The adjustments are for whoever runs the model: the model server where there is one.
	if oi := spec.Backend.OpenInference; oi != nil && oi.Image != "" {
		server := modelServer(oi)
		adjustContainer(server, spec.Pod)
		if r := resources(spec.Pod, gpu); r != nil {
			server.WithResources(r)
		}
		pod.WithInitContainers(server)
	} else {
		adjustContainer(container, spec.Pod)
		if r := resources(spec.Pod, gpu); r != nil {
			container.WithResources(r)
		}
	}
	pod.WithContainers(container)

	template := corev1ac.PodTemplateSpec().WithLabels(podLabels(pool, ComponentWorker, spec.Pod)).WithSpec(pod)
	if len(spec.Pod.Annotations) > 0 {
		template.WithAnnotations(spec.Pod.Annotations)
	}
	return appsv1ac.Deployment(WorkerName(pool.Name), pool.Namespace).
		WithLabels(Labels(pool.Name, ComponentWorker)).
		WithOwnerReferences(owner(pool)).
		WithSpec(appsv1ac.DeploymentSpec().
			WithReplicas(s.WorkerReplicas).
			WithRevisionHistoryLimit(3).
			WithProgressDeadlineSeconds(int32(seconds(imagePull + load))).
			WithSelector(selector(pool.Name, ComponentWorker)).
			WithStrategy(appsv1ac.DeploymentStrategy().
				WithType("RollingUpdate").
				// Integers: a percentage of few workers rounds to a surge that no GPU is free for.
				WithRollingUpdate(appsv1ac.RollingUpdateDeployment().
					WithMaxSurge(intstr.FromInt32(spec.Rollout.MaxSurge)).
					WithMaxUnavailable(intstr.FromInt32(spec.Rollout.MaxUnavailable)))).
			WithTemplate(template))
}

// modelServer is a sidecar: an init container that restarts. It starts before the worker and ends after it,
// so that a worker that drains still has a server to finish its batch.
func modelServer(oi *v1alpha1.OpenInferenceBackend) *corev1ac.ContainerApplyConfiguration {
	c := corev1ac.Container().
		WithName(ContainerModelServer).
		WithImage(oi.Image).
		WithImagePullPolicy(corev1.PullIfNotPresent).
		WithRestartPolicy(corev1.ContainerRestartPolicyAlways).
		WithSecurityContext(containerSecurity(false)) // model servers write caches where they like
	if len(oi.Args) > 0 {
		c.WithArgs(oi.Args...)
	}
	return c
}

// workerArgs are the flags of cmd/gpuworker.
func workerArgs(pool *v1alpha1.InferencePool) []string {
	spec := pool.Spec.Workers
	args := []string{
		"--max-batch=" + strconv.Itoa(int(pool.Spec.Batching.MaxSize)),
		"--batch-timeout=" + batchTimeout(pool).String(),
		"--load-timeout=" + (loadFactor * duration(spec.ColdStart)).String(),
		"--grace=" + workerDrain(pool).String(),
	}
	if t := pool.Spec.Telemetry; t != nil && t.Traces != nil {
		args = append(args, "--otlp-endpoint="+t.Traces.Endpoint)
	}
	b := spec.Backend
	switch b.Type {
	case v1alpha1.BackendPython:
		args = append(args, "--backend=python", "--python-function="+b.Python.Function, "--python-interpreter="+b.Python.Interpreter)
		if b.Python.Path != "" {
			args = append(args, "--python-path="+b.Python.Path)
		}
	case v1alpha1.BackendOpenInference:
		oi := b.OpenInference
		args = append(args, "--backend=oip", "--oip-url="+oi.URL, "--oip-model="+oi.Model, "--oip-input="+oi.Input, "--oip-output="+oi.Output)
	default:
		args = append(args, "--backend=simulated")
		if sim := b.Simulated; sim != nil {
			args = append(args,
				"--service-time="+sim.ServiceTime.Duration.String(),
				"--jitter-percent="+strconv.Itoa(int(sim.JitterPercent)),
				"--start-delay="+sim.StartDelay.Duration.String(),
				"--fail-permille="+strconv.Itoa(int(sim.FailPermille)),
				"--crash-permille="+strconv.Itoa(int(sim.CrashPermille)))
		}
	}
	return args
}
