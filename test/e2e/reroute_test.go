package e2e

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metric is the sum over a pool's pods of a component of the samples of a metric whose labels match.
func metric(ctx context.Context, ns, pool, component, name, labels string) float64 {
	GinkgoHelper()
	line := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*` + labels + `[^}]*\})? ([0-9.e+]+)$`)
	sum := 0.0
	for _, p := range pods(ctx, ns, pool, component) {
		raw, err := env.clientset.CoreV1().RESTClient().Get().Namespace(ns).Resource("pods").Name(p.Name + ":8081").SubResource("proxy").Suffix("metrics").DoRaw(ctx)
		Expect(err).NotTo(HaveOccurred())
		for _, m := range line.FindAllStringSubmatch(string(raw), -1) {
			v, err := strconv.ParseFloat(m[1], 64)
			Expect(err).NotTo(HaveOccurred())
			sum += v
		}
	}
	return sum
}

var _ = Describe("a degrade ladder", func() {
	// busy serves 180/s and hands the rest to spare.
	busy := func(extra string) string {
		return poolYAML("busy", 1, 1, fmt.Sprintf(`  batching: {maxSize: 20}
  gateway: {auth: Keys}
  tiers:
  - {name: free, shedding: First, degrade: {yellow: [{maxTokens: 4096}, {reroute: {pool: spare, model: spare%s}}]}}
`, extra))
	}
	DescribeTable("hands what a pool cannot serve to another pool of the namespace: nothing is lost, and answers and metrics say so",
		func(ctx context.Context, spareTLS, rerouteTLS string) {
			ns := newNamespace(ctx)
			if spareTLS != "" {
				Expect(env.client.Create(ctx, secretOf(ns, "spare-tls", newPair(1, ns, "spare")))).To(Succeed())
				apply(ctx, ns, busy(""))
				Eventually(func() metav1.Condition { return condition(ctx, ns, "busy", "ReroutesUsable") }).WithContext(ctx).Should(HaveField("Reason", "ReroutePoolMissing"))
			}
			apply(ctx, ns, poolYAML("spare", 1, 1, "  gateway: {auth: Keys"+spareTLS+"}\n  tiers: [{name: free, shedding: First}]\n"))
			if spareTLS != "" {
				Eventually(func() metav1.Condition { return condition(ctx, ns, "busy", "ReroutesUsable") }).WithContext(ctx).Should(And(
					HaveField("Reason", "RerouteNeedsTLS"), HaveField("Message", ContainSubstring("caSecretName"))))
			}
			apply(ctx, ns, busy(rerouteTLS))
			key := newTenant(ctx, ns, "acme", "free")
			for _, pool := range []string{"busy", "spare"} {
				waitReady(ctx, ns, pool)
			}
			out, err := kubectl(ctx, "", "-n", ns, "rollout", "status", "deployment/busy-batcher", "--timeout=90s")
			Expect(err).NotTo(HaveOccurred(), out)
			Eventually(func() metav1.Condition { return condition(ctx, ns, "busy", "ReroutesUsable") }).WithContext(ctx).Should(HaveField("Status", metav1.ConditionTrue))
			Eventually(func() int { return ask(ctx, ns, "busy", "/v1/inference", key, question("busy", "hello")).Status }).WithContext(ctx).Should(Equal(http.StatusOK))

			l := startLoad(ctx, ns, "busy", "350rps:40s", tierLoad{"free", 1, key})
			By("an answer that says so")
			Eventually(func() string {
				return ask(ctx, ns, "busy", "/v1/inference", key, question("busy", "hello")).Header.Get("Sluice-Degraded")
			}).
				WithContext(ctx).WithTimeout(35 * time.Second).Should(ContainSubstring("reroute=spare"))
			Eventually(func() string { return string(getPool(ctx, ns, "busy").Status.Zone.Name) }).WithContext(ctx).WithTimeout(20 * time.Second).Should(BeElementOf("Yellow", "Red"))
			phase, err := l.phase(ctx)
			Expect(err).NotTo(HaveOccurred())
			Expect(phase).To(Equal(corev1.PodRunning))
			l.report(ctx).expectAllServed()

			By("and the counts of both pools")
			rerouted := metric(ctx, ns, "busy", "batcher", "sluice_degraded_requests_total", `step="reroute"`)
			Expect(rerouted).To(BeNumerically(">", 1000))
			Expect(metric(ctx, ns, "spare", "batcher", "sluice_requests_total", `code="200"`)).To(BeNumerically(">=", rerouted), "spare served all of them")
			Expect(metric(ctx, ns, "busy", "batcher", "sluice_reroute_failures_total", "")).To(BeNumerically("<", rerouted/20))
			Expect(condition(ctx, ns, "busy", "ReroutesUsable")).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring("spare"))))
			AddReportEntry("handed to the other pool", strings.TrimSuffix(strconv.FormatFloat(rerouted, 'f', 0, 64), ".0"))
		},
		Entry("in plain HTTP", "", ""),
		Entry("that serves HTTPS only", ", tls: {secretName: spare-tls}", ", tls: {caSecretName: spare-tls}"),
	)
})
