package controller

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/workload"
)

// leadsTo is the component that the pool's Service selects.
func (w *world) leadsTo(pool string) string {
	GinkgoHelper()
	s := &corev1.Service{}
	Expect(api.Get(w.ctx, w.key(pool), s)).To(Succeed())
	return s.Spec.Selector[workload.LabelComponent]
}

func (w *world) setGateways(pool string, n int32) {
	GinkgoHelper()
	p := w.pool(pool)
	p.Spec.Gateway.Replicas = n
	Expect(api.Update(w.ctx, p)).To(Succeed())
}

var _ = Describe("standalone gateways", func() {
	gatewayChildren := []string{"Deployment a-gateway", "PodDisruptionBudget a-gateway", "NetworkPolicy a-gateway"}

	It("come and go with spec.gateway.replicas, and the Service leads nowhere else than to who serves", func(ctx context.Context) {
		w := newSteadyWorld(ctx, 100, 2)
		before := w.versions("a")
		Expect(meta.FindStatusCondition(w.pool("a").Status.Conditions, ConditionGatewaysReady)).To(BeNil(), "no gateways, no condition")
		Expect(w.pool("a").Status.Gateway).To(BeNil())

		By("0 -> 2: they are made, the Service still leads to the batchers")
		w.setGateways("a", 2)
		w.ticks(2, "a")
		for _, name := range gatewayChildren {
			Expect(w.everything()).To(HaveKey(name))
		}
		d := &appsv1.Deployment{}
		Expect(api.Get(ctx, w.key("a-gateway"), d)).To(Succeed())
		Expect(*d.Spec.Replicas).To(Equal(int32(2)))
		Expect(d.Spec.Template.Spec.Containers[0].Image).To(Equal("gateway:1"))
		Expect(w.leadsTo("a")).To(Equal(workload.ComponentBatcher))
		Expect(w.condition("a", ConditionGatewaysReady)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Message", ContainSubstring("0 of 2"))))
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionTrue), "the batchers serve")

		By("one of two is not enough for the switch")
		first := w.pod("a", workload.ComponentGateway, "g0", "node", readyPod("10.0.2.1"))
		w.tick("a")
		Expect(w.leadsTo("a")).To(Equal(workload.ComponentBatcher))

		By("both are ready: the Service leads to them, and they are scraped as gateways")
		w.pod("a", workload.ComponentGateway, "g1", "node", readyPod("10.0.2.2"))
		w.reports.load.Gateways = 2
		w.ticks(2, "a")
		Expect(w.leadsTo("a")).To(Equal(workload.ComponentGateway))
		Expect(w.condition("a", ConditionGatewaysReady).Status).To(Equal(metav1.ConditionTrue))
		Expect(w.pool("a").Status.Gateway).To(Equal(&v1alpha1.GatewayStatus{Desired: 2, Ready: 2, Image: "gateway:1"}))
		gateways := 0
		for _, t := range w.reports.watched[w.key("a")] {
			if t.Gateway {
				gateways++
			}
		}
		Expect(gateways).To(Equal(2))
		after := w.versions("a")
		for _, name := range []string{"Deployment a-batcher", "Deployment a-worker", "NetworkPolicy a-batcher", "Service a-batchers"} {
			Expect(after[name]).To(Equal(before[name]), "the switch changes no "+name)
		}

		By("a gateway lost later turns nothing back")
		w.delete(first)
		w.tick("a")
		Expect(w.leadsTo("a")).To(Equal(workload.ComponentGateway))
		Expect(w.condition("a", ConditionGatewaysReady).Status).To(Equal(metav1.ConditionFalse))
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionTrue), "one still serves")

		By("its image stays when the operator's default changes")
		w.restart()
		w.r.GatewayImage = "gateway:2"
		w.ticks(2, "a")
		Expect(w.pool("a").Status.Gateway.Image).To(Equal("gateway:1"))

		By("2 -> 0: back to the batchers, and nothing is left")
		w.setGateways("a", 0)
		w.tick("a")
		Expect(w.leadsTo("a")).To(Equal(workload.ComponentBatcher))
		w.tick("a")
		for _, name := range gatewayChildren {
			Expect(w.everything()).NotTo(HaveKey(name))
		}
		Expect(meta.FindStatusCondition(w.pool("a").Status.Conditions, ConditionGatewaysReady)).To(BeNil())
		Expect(w.pool("a").Status.Gateway).To(BeNil())
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionTrue))
		before = w.versions("a")
		w.ticks(5, "a")
		Expect(w.versions("a")).To(Equal(before), "and nothing is written any more")
	})

	It("that all fail leave no pool that seems idle: workers stay", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).With(func(s *v1alpha1.InferencePoolSpec) { s.Gateway.Replicas = 1 }).Workers(1, 5).Obj())
		w.reconcile("a")
		w.serving("a", 1)
		gateway := w.pod("a", workload.ComponentGateway, "g0", "node", readyPod("10.0.2.1"))
		w.load(100, 0)
		w.reports.load.Gateways = 1
		w.ticks(2, "a")
		Expect(w.leadsTo("a")).To(Equal(workload.ComponentGateway))
		w.delete(gateway)
		w.load(0, 0) // the batchers report, and get nothing
		w.ticks(2, "a")
		Expect(w.condition("a", ConditionMetricsAvailable)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Message", ContainSubstring("no standalone gateway is ready"))))
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionFalse), "nobody answers clients")
	})

	It("are not removed from a namespace in which their name is somebody else's", func(ctx context.Context) {
		w := newWorld(ctx)
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "a-gateway", Namespace: w.namespace, Labels: workload.Labels("a", workload.ComponentGateway)},
			Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": "y"}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"x": "y"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
		Expect(api.Create(ctx, deployment)).To(Succeed())
		w.create(MakePool("a", w.namespace).Obj())
		w.ticks(3, "a")
		Expect(w.everything()).To(HaveKey("Deployment a-gateway"))
		Expect(w.condition("a", ConditionNamesAvailable).Status).To(Equal(metav1.ConditionTrue), "the pool does not want the name")
		w.setGateways("a", 2)
		w.ticks(2, "a")
		Expect(w.condition("a", ConditionNamesAvailable)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Message", ContainSubstring("Deployment a-gateway"))))
		Expect(w.leadsTo("a")).To(Equal(workload.ComponentBatcher))
	})
})
