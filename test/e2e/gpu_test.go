package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
)

// gpuBackend runs testdata/gpu.py on one GPU a worker.
const gpuBackend = `    image: ` + languageImage + `
    gpu: {resourceName: nvidia.com/gpu, count: 1}
    backend: {type: Python, python: {function: "gpu:batchstring", path: /work}}
    pod:
      resources: {requests: {cpu: 50m, memory: 32Mi}}
      volumes: [{name: work, configMap: work}]
      mounts: [{name: work, mountPath: /work, readOnly: true}]
`

// twoTiers and batches of at most 20: the load that fills a worker is small, for the machine has two processors.
const twoTiers = `  batching: {maxSize: 20}
  tiers:
  - {name: enterprise, latencyTarget: 500ms, timeout: 2s, shedding: Never}
  - {name: free, latencyTarget: 500ms, timeout: 2s, shedding: First, reservedPercent: 2}
`

var _ = Describe("a GPU that is lost under load", Serial, func() {
	It("is told of while its worker serves, costs its capacity once that fails, and is made up for when it comes back", func(ctx context.Context) {
		pythonImages(ctx) // skips where the cluster is not the local one, whose device plugin loses a GPU by command
		ns := newNamespace(ctx)
		gpuFunction(ctx, ns)
		total := allocatableGPUs(ctx)
		DeferCleanup(func(ctx context.Context) { returnGPUs(ctx, total) })
		apply(ctx, ns, withWorkers(poolYAML("lossy", 2, 2, twoTiers), gpuBackend))
		enterprise, free := newTenant(ctx, ns, "acme", "enterprise"), newTenant(ctx, ns, "hobby", "free")
		waitReady(ctx, ns, "lossy")
		inUse := map[string]bool{}
		for _, pod := range workerPods(ctx, ns, "lossy") {
			inUse[deviceOf(pod)] = true
		}
		for id, index := range healthyGPUs(ctx) {
			if !inUse[id] {
				localcluster(ctx, "gpu", "lose", index)
			}
		}
		Expect(allocatableGPUs(ctx)).To(Equal(2), "no other GPU is free")

		By("two workers serve two thirds of what they can")
		// 20 a batch and 110 ms a batch: 182/s a worker. After the loss one is left for 235/s, of which enterprise is half.
		l := startLoadOf(ctx, ns, "lossy", "235rps:130s", "digest", tierLoad{"enterprise", 1, enterprise}, tierLoad{"free", 1, free})
		began := time.Now()
		timeline := []string{}
		note := func(what string) {
			timeline = append(timeline, fmt.Sprintf("%.0f s: %s", time.Since(began).Seconds(), what))
		}
		status := func() v1alpha1.InferencePoolStatus { return getPool(ctx, ns, "lossy").Status }
		Eventually(func() string { return status().Utilization }).WithContext(ctx).Should(BeElementOf("60%", "65%", "70%", "75%"))
		before := status().CapacityPerSecond
		victim := workerPods(ctx, ns, "lossy")[0]
		device := deviceOf(victim)

		By("the device plugin calls the GPU of one unhealthy: the kubelet lets its pod run, and it serves on")
		lost := healthyGPUs(ctx)[device]
		localcluster(ctx, "gpu", "lose", lost)
		note("GPU lost")
		Eventually(func() metav1.Condition { return condition(ctx, ns, "lossy", "CapacityAvailable") }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "GPULost"),
			HaveField("Message", And(ContainSubstring(device), ContainSubstring(victim.Name), ContainSubstring("still serves")))))
		note("condition GPULost")
		Expect(allocatableGPUs(ctx)).To(Equal(1))
		served := workerMetric(ctx, ns, victim.Name, "sluice_worker_batches_total")
		batches, err := served()
		Expect(err).NotTo(HaveOccurred())
		Eventually(served).WithContext(ctx).Should(BeNumerically(">", batches+10))
		Expect(status().Workers.Ready).To(Equal(int32(2)))

		By("now every call of its function fails: it is evicted, and its replacement finds no GPU")
		out, err := kubectl(ctx, "", "-n", ns, "exec", victim.Name, "--", distributionPython, "-c", `open("/tmp/gpu-is-lost", "w")`)
		Expect(err).NotTo(HaveOccurred(), out)
		note("the function fails")
		Eventually(func() []string { return podNames(workerPods(ctx, ns, "lossy")) }).WithContext(ctx).Should(And(HaveLen(2), Not(ContainElement(victim.Name))))
		note("its pod is replaced")
		Eventually(func(g Gomega) {
			s := status()
			g.Expect(s.Workers.Ready).To(Equal(int32(1)))
			g.Expect(s.CapacityPerSecond).To(BeNumerically("~", before/2, before/8))
		}).WithContext(ctx).Should(Succeed())
		Eventually(func() string { return string(status().Zone.Name) }).WithContext(ctx).Should(BeElementOf("Yellow", "Red"))
		note("zone " + string(status().Zone.Name))
		Eventually(func() metav1.Condition { return condition(ctx, ns, "lossy", "CapacityAvailable") }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", Not(Equal("GPULost"))),
			HaveField("Message", And(ContainSubstring("Insufficient nvidia.com/gpu"), ContainSubstring("add nodes")))))
		note("condition: no GPU for the replacement")
		Expect(condition(ctx, ns, "lossy", "Ready").Status).To(Equal(metav1.ConditionTrue), "one worker serves on")

		By("the GPU comes back, and all is well again")
		localcluster(ctx, "gpu", "return", lost)
		note("GPU returned")
		Eventually(func(g Gomega) {
			s := status()
			g.Expect(s.Workers.Ready).To(Equal(int32(2)))
			g.Expect(condition(ctx, ns, "lossy", "CapacityAvailable").Status).To(Equal(metav1.ConditionTrue))
			g.Expect(s.CapacityPerSecond).To(BeNumerically(">", before*3/4))
		}).WithContext(ctx).Should(Succeed())
		note("two workers")
		Eventually(func() string { return string(status().Zone.Name) }).WithContext(ctx).Should(Equal("Green"))
		note("zone Green")
		running, err := l.phase(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(running).To(Equal(corev1.PodRunning), "all of it happened under load")

		r := l.report(ctx)
		AddReportEntry("timeline", strings.Join(timeline, "; "))
		AddReportEntry("enterprise", fmt.Sprintf("%+v %v", r.tier("enterprise"), r.reasons("enterprise")))
		AddReportEntry("free", fmt.Sprintf("%+v %v", r.tier("free"), r.reasons("free")))
		r.expectNothingLost()
		e := r.tier("enterprise")
		Expect(e.Served).To(BeNumerically(">=", e.Sent*99/100), "%+v %v", e, r.reasons("enterprise"))
		Expect(e.P95Ms).To(BeNumerically("<", 500))
		Expect(r.tier("free").Refused).To(BeNumerically(">", 0), "what one worker cannot carry was refused, of the tier that is shed first")
		Expect(replacedEvents(ctx, ns)).To(ContainSubstring(victim.Name))
	})
})

// gpuFunction puts gpu.py, and work.py that it imports, into the ConfigMap work.
func gpuFunction(ctx context.Context, ns string) {
	GinkgoHelper()
	files := map[string]string{}
	for _, name := range []string{"gpu.py", "work.py"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		Expect(err).NotTo(HaveOccurred())
		files[name] = string(text)
	}
	Expect(env.client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "work"}, Data: files})).To(Succeed())
}

func podNames(pods []corev1.Pod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}

// replacedEvents are the operator's events of workers that it replaced.
func replacedEvents(ctx context.Context, ns string) string {
	GinkgoHelper()
	out, err := kubectl(ctx, "", "-n", ns, "get", "events", "--field-selector", "reason=WorkerReplaced", "-o", "jsonpath={.items[*].message}")
	Expect(err).NotTo(HaveOccurred(), out)
	return out
}

// deviceOf is the GPU that a pod has, as the kubelet tells it.
func deviceOf(pod corev1.Pod) string {
	GinkgoHelper()
	for _, r := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
		if r.Name == "nvidia.com/gpu" && len(r.Resources) == 1 {
			return string(r.Resources[0].ResourceID)
		}
	}
	Fail(fmt.Sprintf("pod %s has no GPU in its status: %+v", pod.Name, pod.Status.ContainerStatuses[0]))
	return ""
}

// healthyGPUs are the device plugin's: the index of each by its id.
func healthyGPUs(ctx context.Context) map[string]string {
	GinkgoHelper()
	gpus := map[string]string{}
	for line := range strings.Lines(localcluster(ctx, "gpu", "list")) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "true" {
			gpus[f[1]] = f[0]
		}
	}
	return gpus
}

func allocatableGPUs(ctx context.Context) int {
	GinkgoHelper()
	var nodes corev1.NodeList
	Expect(env.client.List(ctx, &nodes)).To(Succeed())
	sum := resource.Quantity{}
	for _, n := range nodes.Items {
		sum.Add(n.Status.Allocatable["nvidia.com/gpu"])
	}
	return int(sum.Value())
}

func localcluster(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, filepath.Join("..", "..", "bin", "localcluster"), args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return string(out)
}

func returnGPUs(ctx context.Context, total int) {
	GinkgoHelper()
	for range total - allocatableGPUs(ctx) {
		localcluster(ctx, "gpu", "return")
	}
	Eventually(func() int { return allocatableGPUs(ctx) }).WithContext(ctx).WithTimeout(30 * time.Second).Should(Equal(total))
}
