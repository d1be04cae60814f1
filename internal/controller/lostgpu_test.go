package controller

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
)

var _ = Describe("a GPU that its device plugin calls unhealthy", func() {
	// change edits the status of a pod.
	change := func(w *world, name string, states ...podState) {
		GinkgoHelper()
		p := &corev1.Pod{}
		Expect(api.Get(w.ctx, w.key(name), p)).To(Succeed())
		for _, state := range states {
			state(p)
		}
		Expect(api.Status().Update(w.ctx, p)).To(Succeed())
	}
	health := func(h corev1.ResourceHealthStatus) podState {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "worker", AllocatedResourcesStatus: []corev1.ResourceStatus{{
				Name: "nvidia.com/gpu", Resources: []corev1.ResourceHealth{{ResourceID: "GPU-3", Health: h}},
			}}}}
		}
	}
	unready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
	}
	exists := func(w *world, name string) bool {
		GinkgoHelper()
		err := api.Get(w.ctx, w.key(name), &corev1.Pod{})
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		return !apierrors.IsNotFound(err)
	}
	// begin is a pool "a" of two workers that serve, older than coldStart.
	begin := func(ctx context.Context, edit func(*v1alpha1.InferencePoolSpec)) *world {
		GinkgoHelper()
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Workers(2, 4).With(edit).Obj())
		w.reconcile("a")
		w.serving("a", 2)
		w.load(100, 0)
		w.now = w.now.Add(time.Hour)
		w.ticks(2, "a")
		return w
	}
	nothing := func(*v1alpha1.InferencePoolSpec) {}

	It("keeps the worker while it serves, and is told of until it is well again", func(ctx context.Context) {
		w := begin(ctx, nothing)
		capacity := w.pool("a").Status.CapacityPerSecond
		change(w, "a-w0", health(corev1.ResourceHealthStatusUnhealthy))
		w.ticks(3, "a")
		Expect(exists(w, "a-w0")).To(BeTrue())
		Expect(w.condition("a", ConditionCapacityAvailable)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", ReasonGPULost),
			HaveField("Message", And(ContainSubstring("nvidia.com/gpu GPU-3 of worker a-w0"), ContainSubstring("still serves"), ContainSubstring("Repair or drain")))))
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionTrue))
		Expect(w.pool("a").Status.CapacityPerSecond).To(Equal(capacity), "it serves, so it counts")
		change(w, "a-w0", health(corev1.ResourceHealthStatusHealthy))
		w.tick("a")
		Expect(w.condition("a", ConditionCapacityAvailable).Status).To(Equal(metav1.ConditionTrue))
	})

	It("has its worker replaced once that does not serve", func(ctx context.Context) {
		w := begin(ctx, nothing)
		capacity := w.pool("a").Status.CapacityPerSecond
		budget := &policyv1.PodDisruptionBudget{}
		Expect(api.Get(ctx, w.key("a-worker"), budget)).To(Succeed()) // nobody computes its status here: it admits no disruption of what is Ready
		change(w, "a-w0", health(corev1.ResourceHealthStatusUnhealthy), unready)
		w.tick("a")
		Expect(w.condition("a", ConditionWorkersReady)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", ReasonGPULost)))
		Expect(exists(w, "a-w0")).To(BeFalse())
		Expect(exists(w, "a-w1")).To(BeTrue())
		Expect(w.events.events).To(ContainElement(And(HavePrefix(EventReplaced), ContainSubstring("a-w0"), ContainSubstring("GPU-3"))))
		Expect(w.pool("a").Status.CapacityPerSecond).To(BeNumerically("<", capacity))
		events := len(w.events.events)
		w.ticks(3, "a")
		Expect(w.events.events[events:]).NotTo(ContainElement(HavePrefix(EventReplaced)))
	})

	It("is no reason to touch a worker that is only starting", func(ctx context.Context) {
		w := begin(ctx, nothing)
		w.pod("a", "worker", "new", "node", health(corev1.ResourceHealthStatusUnhealthy))
		w.now = time.Now()
		w.tick("a")
		Expect(exists(w, "new")).To(BeTrue())
		Expect(w.condition("a", ConditionCapacityAvailable).Message).To(ContainSubstring("unless it becomes Ready within coldStart"))
	})

	DescribeTable("is only told of where the operator is not to shrink the fleet",
		func(ctx context.Context, edit func(*v1alpha1.InferencePoolSpec)) {
			w := begin(ctx, edit)
			change(w, "a-w0", health(corev1.ResourceHealthStatusUnhealthy), unready)
			w.ticks(3, "a")
			Expect(exists(w, "a-w0")).To(BeTrue())
			Expect(w.condition("a", ConditionCapacityAvailable).Message).To(ContainSubstring("left as it is"))
		},
		Entry("mode Observe", func(s *v1alpha1.InferencePoolSpec) { s.Scaling.Mode = v1alpha1.ScalingObserve }),
		Entry("paused", func(s *v1alpha1.InferencePoolSpec) {
			s.Scaling.Paused = []v1alpha1.ScalingDirection{v1alpha1.ScalingDown}
		}),
	)

	It("is no reason to evict a worker that fails on a healthy one", func(ctx context.Context) {
		w := begin(ctx, nothing)
		change(w, "a-w0", health(corev1.ResourceHealthStatusHealthy), unready)
		w.ticks(3, "a")
		Expect(exists(w, "a-w0")).To(BeTrue())
	})
})
