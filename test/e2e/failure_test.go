package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ = Describe("a failure", func() {
	It("of a worker pod in mid-batch loses no request", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("mortal", 3, 3, ""))
		key := newTenant(ctx, ns, "acme", "enterprise")
		waitReady(ctx, ns, "mortal")
		l := startLoad(ctx, ns, "mortal", "600rps:25s", tierLoad{"enterprise", 1, key})
		for range 3 { // whenever it is killed, a batch is likely to run: three workers share 600 requests/s
			Eventually(func() int { return readyCount(workerPods(ctx, ns, "mortal")) }).WithContext(ctx).Should(Equal(3))
			victim := workerPods(ctx, ns, "mortal")[0]
			Expect(env.client.Delete(ctx, &victim, client.GracePeriodSeconds(0))).To(Succeed())
			Eventually(func() error {
				return env.client.Get(ctx, client.ObjectKeyFromObject(&victim), &corev1.Pod{})
			}).WithContext(ctx).ShouldNot(Succeed())
		}
		r := l.report(ctx)
		r.expectAllServed()
	})

	It("of a batcher pod is survived by the other", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("twins", 2, 2, ""))
		key := newTenant(ctx, ns, "acme", "enterprise")
		waitReady(ctx, ns, "twins")
		l := startLoad(ctx, ns, "twins", "300rps:20s", tierLoad{"enterprise", 1, key})
		out, err := kubectl(ctx, "", "-n", ns, "rollout", "restart", "deployment/twins-batcher")
		Expect(err).NotTo(HaveOccurred(), out)
		out, err = kubectl(ctx, "", "-n", ns, "rollout", "status", "deployment/twins-batcher", "--timeout=90s")
		Expect(err).NotTo(HaveOccurred(), out)
		r := l.report(ctx)
		r.expectAllServed()
	})

	It("of the operator in mid-load changes nothing", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("orphan", 2, 2, ""))
		key := newTenant(ctx, ns, "acme", "enterprise")
		waitReady(ctx, ns, "orphan")
		generations := func() map[string]int64 {
			var list appsv1.DeploymentList
			Expect(env.client.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
			m := map[string]int64{}
			for _, d := range list.Items {
				m[d.Name] = d.Generation
			}
			return m
		}
		before := generations()
		l := startLoad(ctx, ns, "orphan", "500rps:25s", tierLoad{"enterprise", 1, key})
		Expect(env.client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("sluice-system"),
			client.MatchingLabels{"control-plane": "controller-manager"}, client.GracePeriodSeconds(0))).To(Succeed())
		out, err := kubectl(ctx, "", "-n", "sluice-system", "rollout", "status", "deployment/sluice-controller-manager", "--timeout=90s")
		Expect(err).NotTo(HaveOccurred(), out)
		r := l.report(ctx)
		r.expectAllServed()
		Eventually(func() string { return string(condition(ctx, ns, "orphan", "Ready").Status) }).WithContext(ctx).Should(Equal("True"))
		Expect(generations()).To(Equal(before), "no Deployment was written")
	})

	It("of a GPU shows as a condition", Serial, func(ctx context.Context) {
		if !env.local {
			Skip("only the local cluster's device plugin loses a GPU by command")
		}
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("lossy", 2, 2, ""))
		waitReady(ctx, ns, "lossy")
		total := allocatableGPUs(ctx)
		DeferCleanup(func(ctx context.Context) { returnGPUs(ctx, total) })
		for range total {
			localcluster(ctx, "gpu", "lose")
		}
		Eventually(func() int { return allocatableGPUs(ctx) }).WithContext(ctx).Should(BeZero())
		By("a worker that has to move finds no GPU")
		victim := workerPods(ctx, ns, "lossy")[0]
		Expect(env.client.Delete(ctx, &victim)).To(Succeed())
		Eventually(func() metav1.Condition { return condition(ctx, ns, "lossy", "CapacityAvailable") }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse),
			HaveField("Message", ContainSubstring("nvidia.com/gpu")),
		))
		By("and the GPUs come back")
		returnGPUs(ctx, total)
		Eventually(func() metav1.ConditionStatus { return condition(ctx, ns, "lossy", "CapacityAvailable").Status }).WithContext(ctx).
			Should(Equal(metav1.ConditionTrue))
		waitReady(ctx, ns, "lossy")
	})
})

func readyCount(pods []corev1.Pod) int {
	n := 0
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
				n++
			}
		}
	}
	return n
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

func localcluster(ctx context.Context, args ...string) {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, filepath.Join("..", "..", "bin", "localcluster"), args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}

func returnGPUs(ctx context.Context, total int) {
	GinkgoHelper()
	for range total - allocatableGPUs(ctx) {
		localcluster(ctx, "gpu", "return")
	}
	Eventually(func() int { return allocatableGPUs(ctx) }).WithContext(ctx).WithTimeout(30 * time.Second).Should(Equal(total))
}
