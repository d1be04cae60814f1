package e2e

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
)

var _ = Describe("a pool", func() {
	It("of config/samples answers, scales up and sheds free users under load, and calms down again", func(ctx context.Context) {
		ns := newNamespace(ctx)
		out, err := kubectl(ctx, "", "-n", ns, "apply", "--server-side", "-f", "../../config/samples")
		Expect(err).NotTo(HaveOccurred(), out)
		enterprise := newTenant(ctx, ns, "e2e-enterprise", "enterprise")
		paid := newTenant(ctx, ns, "e2e-paid", "paid")
		free := newTenant(ctx, ns, "e2e-free", "free")
		waitReady(ctx, ns, "llm-v1")

		By("answering a request through its Service")
		a := ask(ctx, ns, "llm-v1", "/v1/inference", enterprise, question("llm-v1", "hello"))
		Expect(a.Status).To(Equal(http.StatusOK), a.Raw)
		Expect(a.Body).To(HaveKeyWithValue("output", "hello"))
		Expect(a.Header.Get("X-Request-Id")).NotTo(BeEmpty())

		By("running under load")
		began := time.Now()
		l := startLoad(ctx, ns, "llm-v1", demoSchedule,
			tierLoad{"enterprise", 20, enterprise}, tierLoad{"paid", 30, paid}, tierLoad{"free", 50, free})
		zones := map[v1alpha1.ZoneName]bool{}
		maxReady := int32(0)
		var names []string
		Eventually(func(g Gomega) {
			s := getPool(ctx, ns, "llm-v1").Status
			zones[s.Zone.Name] = true
			if s.Workers.Ready > maxReady {
				maxReady = s.Workers.Ready
				names = nil
				for _, p := range workerPods(ctx, ns, "llm-v1") {
					names = append(names, p.Name)
				}
			}
			g.Expect(zones).To(HaveKey(v1alpha1.ZoneGreen))
			g.Expect(zones).To(HaveKey(v1alpha1.ZoneYellow))
			g.Expect(zones).To(HaveKey(v1alpha1.ZoneRed))
			g.Expect(maxReady).To(BeNumerically(">", 2), "workers were added")
			g.Expect(s.Zone.Name).To(Equal(v1alpha1.ZoneGreen), "calm again")
			g.Expect(s.Workers.Desired).To(BeNumerically("<", maxReady), "a worker is removed")
			g.Expect(s.Workers.Ready).To(BeNumerically("<", maxReady), "and gone")
		}).WithContext(ctx).WithTimeout(5 * time.Minute).Should(Succeed())
		AddReportEntry("calm after", time.Since(began).String())

		r := l.report(ctx)
		r.expectNothingLost()
		Expect(r.Unavailable).To(BeNumerically("<", r.Sent/1000), "a 503 would be an outage")
		Expect(r.reasons("enterprise")).NotTo(HaveKey(HaveSuffix("shed")), "enterprise is never shed")
		Expect(r.tier("enterprise").Refused).To(BeNumerically("<", r.tier("enterprise").Sent/100))
		Expect(r.reasons("free")).To(HaveKey(HaveSuffix("shed")), "free is shed")
		Expect(r.share("free")).To(BeNumerically(">", 3*r.share("paid")), "free first: paid loses only what not even the upper tiers fit into")
		Expect(r.tier("enterprise").P95Ms).To(BeNumerically("<", 500), "the target, kept under overload: a promise of the product, not of the machine")

		By("saying why, in status and events")
		pool := getPool(ctx, ns, "llm-v1")
		Expect(pool.Status.Scaling.Changes).NotTo(BeEmpty())
		for _, c := range pool.Status.Scaling.Changes {
			Expect(c.Reason).NotTo(BeEmpty())
			Expect(c.Message).NotTo(BeEmpty())
		}
		left := workerPods(ctx, ns, "llm-v1")
		gone := slices.DeleteFunc(slices.Clone(names), func(n string) bool {
			return slices.ContainsFunc(left, func(p corev1.Pod) bool { return p.Name == n })
		})
		Expect(gone).NotTo(BeEmpty())
		out, err = kubectl(ctx, "", "-n", ns, "describe", "slp", "llm-v1")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(And(ContainSubstring("Events:"), ContainSubstring("Zone"), ContainSubstring("Scal")))
	})

	It("that is deleted leaves nothing behind", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("short", 1, 2, ""))
		waitReady(ctx, ns, "short")
		out, err := kubectl(ctx, "", "-n", ns, "delete", "slp", "short", "--wait")
		Expect(err).NotTo(HaveOccurred(), out)
		Eventually(func(g Gomega) {
			for _, list := range []client.ObjectList{
				&appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}, &corev1.ServiceList{},
				&discoveryv1.EndpointSliceList{}, &policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{},
				&rbacv1.RoleBindingList{},
			} {
				g.Expect(env.client.List(ctx, list, client.InNamespace(ns))).To(Succeed())
				g.Expect(list).To(HaveField("Items", BeEmpty()))
			}
			var maps corev1.ConfigMapList
			var accounts corev1.ServiceAccountList
			g.Expect(env.client.List(ctx, &maps, client.InNamespace(ns))).To(Succeed())
			g.Expect(env.client.List(ctx, &accounts, client.InNamespace(ns))).To(Succeed())
			for _, m := range maps.Items {
				g.Expect(m.Name).To(Equal("kube-root-ca.crt"))
			}
			for _, a := range accounts.Items {
				g.Expect(a.Name).To(Equal("default"))
			}
		}).WithContext(ctx).Should(Succeed())
	})

	It("follows spec.workers.replicas in mode External, by kubectl scale", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, strings.Replace(poolYAML("manual", 1, 4, ""), "  scaling:\n", "  scaling:\n    mode: External\n", 1))
		waitReady(ctx, ns, "manual")
		Eventually(func() *int32 { return getPool(ctx, ns, "manual").Spec.Workers.Replicas }).WithContext(ctx).
			Should(HaveValue(Equal(int32(1))), "seeded from the current number")
		out, err := kubectl(ctx, "", "-n", ns, "scale", "slp", "manual", "--replicas=3")
		Expect(err).NotTo(HaveOccurred(), out)
		Eventually(func() int32 { return getPool(ctx, ns, "manual").Status.Workers.Ready }).WithContext(ctx).Should(Equal(int32(3)))
	})

	It("shows its zone to gateways in a ConfigMap", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("zoned", 1, 2, ""))
		waitReady(ctx, ns, "zoned")
		Eventually(func(g Gomega) {
			var m corev1.ConfigMap
			g.Expect(env.client.Get(ctx, types.NamespacedName{Namespace: ns, Name: "zoned-zone"}, &m)).To(Succeed())
			g.Expect(m.Data["signal.json"]).To(ContainSubstring(`"Green"`))
		}).WithContext(ctx).Should(Succeed())
	})
})

// demoSchedule is the load of `make demo`, without its first calm: Yellow at once, Red before
// the workers that were asked for are ready.
const demoSchedule = "1100rps:8s,2150rps:52s,150rps:80s"
