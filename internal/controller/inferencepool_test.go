package controller

import (
	"context"
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/workload"
	"sluice.dev/sluice/internal/zone"
)

// everything is what stands in a namespace, of the kinds that a pool's children have.
func (w *world) everything() map[string]client.Object {
	GinkgoHelper()
	all := map[string]client.Object{}
	for kind, list := range map[string]client.ObjectList{
		"Deployment": &appsv1.DeploymentList{}, "Service": &corev1.ServiceList{}, "ConfigMap": &corev1.ConfigMapList{},
		"ServiceAccount": &corev1.ServiceAccountList{}, "RoleBinding": &rbacv1.RoleBindingList{},
		"PodDisruptionBudget": &policyv1.PodDisruptionBudgetList{}, "NetworkPolicy": &networkingv1.NetworkPolicyList{},
	} {
		Expect(api.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
		each(list, func(o client.Object) { all[kind+" "+o.GetName()] = o })
	}
	return all
}

var runtimeEach = meta.EachListItem

func each(list client.ObjectList, do func(client.Object)) {
	GinkgoHelper()
	Expect(runtimeEach(list, func(o runtime.Object) error { do(o.(client.Object)); return nil })).To(Succeed())
}

// versions are the resourceVersions of everything, the pool included: equal maps mean that nothing was
// written.
func (w *world) versions(pool string) map[string]string {
	GinkgoHelper()
	v := map[string]string{"pool": w.pool(pool).ResourceVersion}
	for name, o := range w.everything() {
		v[name] = o.GetResourceVersion()
	}
	return v
}

var _ = Describe("an InferencePool", func() {
	It("becomes all its children, owned by it", func(ctx context.Context) {
		w := newWorld(ctx)
		pool := w.create(MakePool("a", w.namespace).Obj())
		w.reconcile("a")
		all := w.everything()
		for _, name := range []string{
			"Deployment a-batcher", "Deployment a-worker", "Service a", "Service a-workers", "Service a-batchers", "ConfigMap a-zone", "ServiceAccount a-batcher",
			"RoleBinding a-batcher", "PodDisruptionBudget a-batcher", "PodDisruptionBudget a-worker", "NetworkPolicy a-worker", "NetworkPolicy a-batcher",
		} {
			Expect(all).To(HaveKey(name))
			o := all[name]
			Expect(metav1.IsControlledBy(o, pool)).To(BeTrue(), name)
			Expect(o.GetFinalizers()).To(BeEmpty(), name)
			Expect(o.GetLabels()).To(HaveKeyWithValue(workload.LabelManagedBy, "sluice"), name)
			delete(all, name)
		}
		Expect(all).To(BeEmpty(), "and nothing else")

		By("with a readable zone document")
		m := &corev1.ConfigMap{}
		Expect(api.Get(ctx, w.key("a-zone"), m)).To(Succeed())
		signal, err := zone.DecodeSignal(m.Data[zone.SignalKey])
		Expect(err).NotTo(HaveOccurred())
		Expect(signal.Zone).To(Equal(zone.Red))
		Expect(signal.Reason).To(Equal(zone.ReasonNoCapacity))

		By("and is not Ready before they serve")
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionFalse))
		w.serving("a", 2)
		w.load(100, 0)
		w.ticks(2, "a")
		Expect(w.condition("a", ConditionReady)).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("ObservedGeneration", int64(1))))
		Expect(w.pool("a").Status.Workers.Summary).To(Equal("2/2"))
		raw := &unstructured.Unstructured{}
		raw.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("InferencePool"))
		Expect(api.Get(ctx, w.key("a"), raw)).To(Succeed())
		depth, shown, err := unstructured.NestedInt64(raw.Object, "status", "queue", "depth")
		Expect(err).NotTo(HaveOccurred())
		Expect(shown).To(BeTrue(), "an empty queue is shown as 0")
		Expect(depth).To(BeZero())
		Expect(w.pool("a").Status.Zone.Name).To(Equal(v1alpha1.ZoneGreen))
	})

	It("is not written to while nothing changes", func(ctx context.Context) {
		w := newSteadyWorld(ctx, 100, 7)
		before := w.versions("a")
		w.ticks(10, "a")
		Expect(w.versions("a")).To(Equal(before))
		w.restart()
		w.ticks(10, "a")
		Expect(w.versions("a")).To(Equal(before), "and not by a new leader either")
	})

	It("is not written to by a new leader that knows no rates yet, unless something happened", func(ctx context.Context) {
		w := newSteadyWorld(ctx, 1500, 7)
		before := w.versions("a")
		w.restart()
		w.reports.load = fleet.Load{Missing: []string{"a-b0 (not scraped yet)", "a-b1 (not scraped yet)"}}
		w.reconcile("a")
		w.reports.load = fleet.Load{Missing: []string{"a-b0 (just started)", "a-b1 (just started)"}}
		w.tick("a")
		Expect(w.versions("a")).To(Equal(before))

		By("a worker dies")
		w.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-w0", Namespace: w.namespace}})
		w.reconcile("a")
		Expect(w.pool("a").Status.Workers.Ready).To(Equal(int32(1)))
		Expect(w.condition("a", ConditionMetricsAvailable).Status).To(Equal(metav1.ConditionTrue), "it is not known that they are missing")

		By("nobody answers the second scrape either")
		w.reports.load.Rounds = 2
		w.reconcile("a")
		Expect(w.condition("a", ConditionMetricsAvailable).Status).To(Equal(metav1.ConditionFalse))
	})

	DescribeTable("repairs drift", func(ctx context.Context, name string, obj client.Object, patch string, look func(client.Object) any) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Obj())
		w.ticks(2, "a")
		Expect(api.Get(ctx, w.key(name), obj)).To(Succeed())
		before := look(obj)
		Expect(api.Patch(ctx, obj, client.RawPatch("application/strategic-merge-patch+json", []byte(patch)))).To(Succeed())
		Expect(look(obj)).NotTo(Equal(before), "the patch does something")
		w.tick("a")
		Expect(api.Get(ctx, w.key(name), obj)).To(Succeed())
		Expect(look(obj)).To(Equal(before))
	},
		Entry("of the number of workers", "a-worker", &appsv1.Deployment{}, `{"spec":{"replicas":9}}`,
			func(o client.Object) any { return *o.(*appsv1.Deployment).Spec.Replicas }),
		Entry("of an image", "a-batcher", &appsv1.Deployment{}, `{"spec":{"template":{"spec":{"containers":[{"name":"batcher","image":"evil"}]}}}}`,
			func(o client.Object) any { return o.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image }),
		Entry("of a Service's selector", "a", &corev1.Service{}, `{"spec":{"selector":{"inference.sluice.dev/pool":"b"}}}`,
			func(o client.Object) any { return o.(*corev1.Service).Spec.Selector }),
		Entry("of a label by which the operator finds its own", "a-zone", &corev1.ConfigMap{}, `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`,
			func(o client.Object) any { return o.GetLabels()["app.kubernetes.io/managed-by"] }),
		Entry("of a network policy", "a-worker", &networkingv1.NetworkPolicy{}, `{"spec":{"ingress":null}}`,
			func(o client.Object) any {
				b, _ := json.Marshal(o.(*networkingv1.NetworkPolicy).Spec.Ingress)
				return string(b)
			}),
	)

	It("makes a child again that was deleted", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Obj())
		w.reconcile("a")
		w.delete(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: w.namespace}})
		w.tick("a")
		Expect(w.everything()).To(HaveKey("Service a"))
	})

	It("leaves somebody else's object alone and says so", func(ctx context.Context) {
		w := newWorld(ctx)
		foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: w.namespace}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5432}}}}
		Expect(api.Create(ctx, foreign)).To(Succeed())
		w.create(MakePool("a", w.namespace).Obj())
		w.ticks(2, "a")
		Expect(w.condition("a", ConditionNamesAvailable)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", ReasonNameTaken),
			HaveField("Message", And(ContainSubstring("Service a"), ContainSubstring("another name")))))
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionFalse))
		Expect(w.everything()).To(HaveLen(1), "no half of a pool")
		Expect(w.events.events).To(ContainElement(HavePrefix(EventNameTaken)))
		got := &corev1.Service{}
		Expect(api.Get(ctx, w.key("a"), got)).To(Succeed())
		Expect(got.ResourceVersion).To(Equal(foreign.ResourceVersion))

		By("and goes on once the name is free")
		w.delete(foreign)
		w.tick("a")
		Expect(w.condition("a", ConditionNamesAvailable).Status).To(Equal(metav1.ConditionTrue))
		Expect(w.everything()).To(HaveLen(12))
	})

	It("that is deleted is left to the garbage collector, which finds an owner on everything", func(ctx context.Context) {
		w := newWorld(ctx)
		pool := w.create(MakePool("a", w.namespace).Obj())
		w.reconcile("a")
		w.delete(pool)
		w.reconcile("a")
		Expect(w.reports.watched).NotTo(HaveKey(w.key("a")))
		for name, o := range w.everything() {
			Expect(metav1.IsControlledBy(o, pool)).To(BeTrue(), name)
		}
	})

	It("keeps its images when the operator's defaults change", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Obj())
		w.ticks(2, "a")
		generation := func(name string) int64 {
			d := &appsv1.Deployment{}
			Expect(api.Get(ctx, w.key(name), d)).To(Succeed())
			return d.Generation
		}
		worker, batcher := generation("a-worker"), generation("a-batcher")
		w.restart()
		w.r.WorkerImage, w.r.BatcherImage = "worker:2", "batcher:2"
		w.ticks(3, "a")
		Expect(generation("a-worker")).To(Equal(worker))
		Expect(generation("a-batcher")).To(Equal(batcher))
		Expect(w.pool("a").Status.Workers.Image).To(Equal("worker:1"))
	})
})
