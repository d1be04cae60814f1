package controller

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/workload"
)

// The other specs call Reconcile; this one runs the manager as cmd/manager does, with its scoped caches, its
// watches and the scraper.
var _ = Describe("the manager", Serial, func() {
	BeforeEach(func() {
		mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
			Scheme:     scheme,
			Cache:      CacheOptions(),
			Client:     client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: ptr.To(true)}},
			Metrics:    metricsserver.Options{BindAddress: "0"},
			Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(Setup(mgr, Options{WorkerImage: "worker:1", BatcherImage: "batcher:1", GatewayImage: "gateway:1", Namespace: "sluice-system"})).To(Succeed())
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- mgr.Start(ctx) }()
		DeferCleanup(func() {
			stop()
			Eventually(done).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
		})
	})

	It("makes a pool's children, repairs them when they are touched, and then keeps still", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Obj())
		Eventually(func() int { return len(w.everything()) }).WithTimeout(30 * time.Second).Should(Equal(12))

		By("a Service deleted under its feet comes back")
		w.delete(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: w.namespace}})
		Eventually(func() map[string]client.Object { return w.everything() }).WithTimeout(30 * time.Second).Should(HaveKey("Service a"))

		By("a worker that becomes Ready is seen through the cut-down cache")
		w.pod("a", workload.ComponentWorker, "w0", "node", readyPod("10.0.0.1"))
		Eventually(func() int32 { return w.pool("a").Status.Workers.Ready }).WithTimeout(30 * time.Second).Should(Equal(int32(1)))

		By("events tell of the first workers")
		Eventually(func() []string {
			var list eventsv1.EventList
			Expect(api.List(ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
			var reasons []string
			for _, e := range list.Items {
				reasons = append(reasons, e.Reason)
			}
			return reasons
		}).WithTimeout(30 * time.Second).Should(ContainElement(EventScaledUp))

		By("and nothing is written from then on, over several ticks")
		var before map[string]string
		Eventually(func() bool {
			was := before
			before = w.versions("a")
			return was != nil && mapsEqual(was, before)
		}).WithTimeout(60 * time.Second).WithPolling(3 * time.Second).Should(BeTrue())
	})

	It("judges tenants when they, their twins and their pools change", func(ctx context.Context) {
		w := newWorld(ctx)
		hash := "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
		tenant := func(name, tier string) {
			Expect(api.Create(ctx, &v1alpha1.InferenceTenant{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace},
				Spec:       v1alpha1.InferenceTenantSpec{Tier: tier, Keys: []v1alpha1.TenantKey{{SHA256: hash}}},
			})).To(Succeed())
		}
		accepted := func(name string) func() string {
			return func() string {
				t := &v1alpha1.InferenceTenant{}
				Expect(api.Get(ctx, w.key(name), t)).To(Succeed())
				c := meta.FindStatusCondition(t.Status.Conditions, ConditionAccepted)
				if c == nil {
					return ""
				}
				return c.Reason + ": " + c.Message
			}
		}
		long := 30 * time.Second
		tenant("acme", "paid")
		Eventually(accepted("acme")).WithTimeout(long).Should(HavePrefix(ReasonNoPool))
		w.create(MakePool("a", w.namespace).Obj())
		Eventually(accepted("acme")).WithTimeout(long).Should(HavePrefix(ReasonTierFound))
		tenant("twin", "free")
		Eventually(accepted("acme")).WithTimeout(long).Should(And(HavePrefix(ReasonKeyDuplicate), ContainSubstring(hash[:12]), ContainSubstring("twin")))
		w.delete(&v1alpha1.InferenceTenant{ObjectMeta: metav1.ObjectMeta{Name: "twin", Namespace: w.namespace}})
		Eventually(accepted("acme")).WithTimeout(long).Should(HavePrefix(ReasonTierFound))
		tenant("stranger", "platinum")
		Eventually(accepted("stranger")).WithTimeout(long).Should(HavePrefix(ReasonKeyDuplicate))
	})
})

func mapsEqual(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}
