package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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
