package e2e

import (
	"context"
	"fmt"
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leadsTo is the component that the pool's Service selects.
func leadsTo(ctx context.Context, ns, pool string) string {
	GinkgoHelper()
	var s corev1.Service
	Expect(env.client.Get(ctx, types.NamespacedName{Namespace: ns, Name: pool}, &s)).To(Succeed())
	return s.Spec.Selector["app.kubernetes.io/component"]
}

func setGateways(ctx context.Context, ns, pool string, n int) {
	GinkgoHelper()
	out, err := kubectl(ctx, "", "-n", ns, "patch", "slp", pool, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"gateway":{"replicas":%d}}}`, n))
	Expect(err).NotTo(HaveOccurred(), out)
}

var _ = Describe("standalone gateways", func() {
	It("serve like those in the batchers: a batcher killed, the gateways rolled and taken away under load lose nothing", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("split", 2, 2, "  gateway:\n    replicas: 2\n    pod: {resources: {requests: {cpu: 50m, memory: 32Mi}}}\n"))
		key := newTenant(ctx, ns, "acme", "enterprise")
		waitReady(ctx, ns, "split")
		Eventually(func() string { return leadsTo(ctx, ns, "split") }).WithContext(ctx).Should(Equal("gateway"))
		Eventually(func() metav1.ConditionStatus { return condition(ctx, ns, "split", "GatewaysReady").Status }).WithContext(ctx).Should(Equal(metav1.ConditionTrue))
		Eventually(func() int { return ask(ctx, ns, "split", "/v1/inference", key, question("split", "hello")).Status }).WithContext(ctx).Should(Equal(http.StatusOK))
		a := ask(ctx, ns, "split", "/v1/inference", "nobody-has-this-key", question("split", "hello"))
		Expect(a.Status).To(Equal(http.StatusUnauthorized), a.Raw)

		l := startLoad(ctx, ns, "split", "300rps:60s", tierLoad{"enterprise", 1, key})

		By("the operator counts what the gateways see")
		Eventually(func() int32 { return getPool(ctx, ns, "split").Status.OfferedPerSecond }).WithContext(ctx).Should(BeNumerically("~", 300, 75))
		Expect(getPool(ctx, ns, "split").Status.Gateway).To(And(HaveField("Desired", int32(2)), HaveField("Ready", int32(2)), HaveField("Image", env.image("gateway"))))

		By("a batcher is killed: its requests go to the other")
		victim := pods(ctx, ns, "split", "batcher")[0]
		Expect(env.client.Delete(ctx, &victim, client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(func() int { return readyCount(pods(ctx, ns, "split", "batcher")) }).WithContext(ctx).Should(Equal(2))

		By("the gateways are rolled")
		out, err := kubectl(ctx, "", "-n", ns, "rollout", "restart", "deployment/split-gateway")
		Expect(err).NotTo(HaveOccurred(), out)
		out, err = kubectl(ctx, "", "-n", ns, "rollout", "status", "deployment/split-gateway", "--timeout=90s")
		Expect(err).NotTo(HaveOccurred(), out)

		By("and taken away")
		setGateways(ctx, ns, "split", 0)
		Eventually(func() string { return leadsTo(ctx, ns, "split") }).WithContext(ctx).Should(Equal("batcher"))
		Eventually(func() []corev1.Pod { return pods(ctx, ns, "split", "gateway") }).WithContext(ctx).Should(BeEmpty())
		phase, err := l.phase(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(phase).To(Equal(corev1.PodRunning), "all of this happened under load")
		r := l.report(ctx)
		r.expectAllServed()
		out, err = kubectl(ctx, "", "-n", ns, "get", "deployment,pdb,networkpolicy", "-o", "name")
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).NotTo(ContainSubstring("split-gateway"))
	})
})
