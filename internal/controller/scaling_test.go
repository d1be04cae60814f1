package controller

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/scaling"
	"sluice.dev/sluice/internal/workload"
)

func (w *world) replicas(deployment string) int32 {
	GinkgoHelper()
	d := &appsv1.Deployment{}
	Expect(api.Get(w.ctx, w.key(deployment), d)).To(Succeed())
	return *d.Spec.Replicas
}

// quickWindows make a pool scale within seconds.
func quickWindows(s *v1alpha1.InferencePoolSpec) {
	s.Scaling.Up.Window = metav1.Duration{Duration: 10 * time.Second}
	s.Scaling.Down.Window = metav1.Duration{Duration: 30 * time.Second}
}

// observedDeployment plays the controller of Deployments: it has seen the newest template and runs n pods of it.
func (w *world) observedDeployment(name string, n int32) { w.updatedDeployment(name, n, n) }

// updatedDeployment says of a Deployment that updated of its n pods are of the newest template.
func (w *world) updatedDeployment(name string, n, updated int32) {
	GinkgoHelper()
	d := &appsv1.Deployment{}
	Expect(api.Get(w.ctx, w.key(name), d)).To(Succeed())
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: updated, ReadyReplicas: n, AvailableReplicas: n}
	Expect(api.Status().Update(w.ctx, d)).To(Succeed())
}

var _ = Describe("scaling", func() {
	// begin is a pool of n ready workers and two batchers, seen by the operator.
	begin := func(ctx context.Context, n int, change func(*v1alpha1.InferencePoolSpec)) *world {
		GinkgoHelper()
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Workers(int32(n), 8).With(quickWindows).With(change).Obj())
		w.reconcile("a")
		w.serving("a", n)
		w.observedDeployment("a-worker", int32(n))
		w.observedDeployment("a-batcher", 2)
		w.tick("a")
		return w
	}
	nothing := func(*v1alpha1.InferencePoolSpec) {}

	It("adds workers by demand, and says why in status and event", func(ctx context.Context) {
		w := begin(ctx, 2, nothing)
		w.load(3000, 2000) // 2 workers carry 2000/s
		w.ticks(2, "a")
		Expect(w.replicas("a-worker")).To(BeNumerically(">=", 4))
		change := w.pool("a").Status.Scaling.Changes[0]
		Expect(change.From).To(Equal(int32(2)))
		Expect(change.Message).NotTo(BeEmpty())
		Expect(w.events.events).To(ContainElement(HavePrefix(EventScaledUp)))
		Expect(w.pool("a").Status.Zone.Name).NotTo(Equal(v1alpha1.ZoneGreen))
	})

	It("changes nothing in mode Observe, and says what it would do", func(ctx context.Context) {
		w := begin(ctx, 2, func(s *v1alpha1.InferencePoolSpec) { s.Scaling.Mode = v1alpha1.ScalingObserve })
		w.load(3000, 2000)
		w.ticks(5, "a")
		Expect(w.replicas("a-worker")).To(Equal(int32(2)))
		Expect(w.condition("a", ConditionScaling).Message).To(ContainSubstring("observing"))
	})

	It("obeys spec.workers.replicas in mode External, seeded from the number that runs", func(ctx context.Context) {
		w := begin(ctx, 2, func(s *v1alpha1.InferencePoolSpec) { s.Workers.MinReplicas = 1; s.Workers.Replicas = nil })
		pool := w.pool("a")
		pool.Spec.Scaling.Mode = v1alpha1.ScalingExternal
		Expect(api.Update(ctx, pool)).To(Succeed())
		w.load(3000, 2000)
		w.tick("a")
		pool = w.pool("a")
		Expect(pool.Spec.Workers.Replicas).To(HaveValue(Equal(w.replicas("a-worker"))))
		*pool.Spec.Workers.Replicas = 5
		Expect(api.Update(ctx, pool)).To(Succeed())
		w.tick("a")
		Expect(w.replicas("a-worker")).To(Equal(int32(5)))
	})

	It("says that spec.workers.replicas waits in the other modes", func(ctx context.Context) {
		w := begin(ctx, 2, func(s *v1alpha1.InferencePoolSpec) { n := int32(7); s.Workers.Replicas = &n })
		w.tick("a")
		Expect(w.replicas("a-worker")).To(Equal(int32(2)))
		Expect(w.condition("a", ConditionScaling).Message).To(ContainSubstring("spec.workers.replicas (7) waits for scaling.mode External"))
	})

	Context("down", func() {
		It("marks the worker that is idle for longest and takes one replica, in one step", func(ctx context.Context) {
			w := begin(ctx, 3, nothing)
			pool := w.pool("a")
			pool.Spec.Workers.MinReplicas = 1
			Expect(api.Update(ctx, pool)).To(Succeed())
			w.load(100, 0)
			w.reports.load.Views = map[string]fleet.WorkerView{"a-w0": {Idle: time.Second}, "a-w1": {Idle: time.Minute}, "a-w2": {}}
			for range 20 {
				w.tick("a")
				if w.replicas("a-worker") == 2 {
					break
				}
				Expect(w.mark("a-w1")).To(BeEmpty())
			}
			Expect(w.replicas("a-worker")).To(Equal(int32(2)), w.condition("a", ConditionScaling).Message)
			Expect(w.mark("a-w1")).To(Equal(victimCost))
			Expect(w.mark("a-w0")).To(BeEmpty())
			Expect(w.pool("a").Status.Scaling.Victim).To(Equal("a-w1"))
			Expect(w.events.events).To(ContainElement(HavePrefix(EventScaledDown)))

			By("and is content when that one goes")
			w.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-w1", Namespace: w.namespace}})
			w.observedDeployment("a-worker", 2)
			w.ticks(2, "a")
			Expect(w.events.events).NotTo(ContainElement(HavePrefix(EventWrongWorker)))
		})

		It("tells when another worker went instead, and takes the mark off", func(ctx context.Context) {
			w := begin(ctx, 3, nothing)
			pool := w.pool("a")
			pool.Spec.Workers.MinReplicas = 1
			Expect(api.Update(ctx, pool)).To(Succeed())
			w.load(100, 0)
			w.reports.load.Views = map[string]fleet.WorkerView{"a-w1": {Idle: time.Minute}}
			for range 20 {
				w.tick("a")
				if w.mark("a-w1") != "" {
					break
				}
			}
			w.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-w0", Namespace: w.namespace}})
			w.observedDeployment("a-worker", 2)
			w.ticks(2, "a")
			Expect(w.events.events).To(ContainElement(And(HavePrefix(EventWrongWorker), ContainSubstring("a-w1"))))
			Expect(w.mark("a-w1")).To(BeEmpty())
		})

		It("waits a whole window again after a restart, and forgets no other timer", func(ctx context.Context) {
			w := begin(ctx, 3, nothing)
			pool := w.pool("a")
			pool.Spec.Workers.MinReplicas = 1
			Expect(api.Update(ctx, pool)).To(Succeed())
			w.load(100, 0)
			w.ticks(12, "a") // 24 s of 30 s
			Expect(w.replicas("a-worker")).To(Equal(int32(3)))
			w.restart()
			w.ticks(12, "a")
			Expect(w.replicas("a-worker")).To(Equal(int32(3)), "24 s of a new window")
			w.ticks(6, "a")
			Expect(w.replicas("a-worker")).To(Equal(int32(2)), w.condition("a", ConditionScaling).Message)
		})
	})

	It("warns as a rollout begins that the workers left cannot carry the load", func(ctx context.Context) {
		w := begin(ctx, 2, nothing)
		w.load(1500, 0)
		w.ticks(2, "a")
		Expect(w.events.events).NotTo(ContainElement(HavePrefix(EventRolloutShort)))
		pool := w.pool("a")
		pool.Spec.Workers.Pod.Annotations = map[string]string{"rolled": "yes"}
		Expect(api.Update(ctx, pool)).To(Succeed())
		w.ticks(2, "a")
		w.updatedDeployment("a-worker", 2, 1)
		w.ticks(1, "a")
		Expect(w.events.events).To(ContainElement(And(HavePrefix(EventRolloutShort), ContainSubstring("1 of 2 workers"))))
	})

	It("adds batchers by the rate that was measured, and warns when they are too many to fill batches", func(ctx context.Context) {
		w := begin(ctx, 2, func(s *v1alpha1.InferencePoolSpec) {
			s.Batchers.MinReplicas, s.Batchers.MaxReplicas, s.Batchers.RequestsPerSecond = 2, 6, 300
		})
		w.load(1400, 0) // ceil(1400/300)
		w.ticks(2, "a")
		Expect(w.replicas("a-batcher")).To(Equal(int32(5)))
		Expect(w.pool("a").Status.Batchers.Desired).To(Equal(int32(5)))
		Expect(w.condition("a", ConditionFillSufficient).Status).To(Equal(metav1.ConditionTrue))

		By("five batchers of 1400/s wait 40 ms for 56 requests in all: none fills a batch of 100")
		w.observedDeployment("a-batcher", 5)
		w.reports.load.BatchesPerSecond, w.reports.load.ItemsPerSecond, w.reports.load.BusySeconds = 19, 1400*0.5, 1.9
		w.ticks(2, "a")
		Expect(w.condition("a", ConditionFillSufficient)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "TooManyBatchers"),
			HaveField("Message", And(ContainSubstring("busy 95 %"), ContainSubstring("5 batchers share 1400/s"), ContainSubstring("only 1 can fill")))))

		By("and takes one away a window after the load fell")
		w.load(700, 0)
		w.ticks(17, "a")
		Expect(w.replicas("a-batcher")).To(Equal(int32(4)))
	})

	It("says that a pool is too full to be rolled before it is, and does not waver", func(ctx context.Context) {
		w := begin(ctx, 2, nothing) // they carry 2000/s
		w.load(900, 0)
		w.ticks(6, "a")
		Expect(w.condition("a", ConditionRolloutSafe)).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", ReasonHeadroom)))
		w.load(1050, 0)
		w.tick("a")
		Expect(w.condition("a", ConditionRolloutSafe)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", ReasonTooFull),
			HaveField("Message", ContainSubstring("1 of 2 workers at a time, the rest carry 1000/s of 1100/s"))))
		w.load(950, 0)
		w.tick("a")
		Expect(w.condition("a", ConditionRolloutSafe).Reason).To(Equal(ReasonTooFull), "noise of 5 % is no headroom")
		w.load(850, 0)
		w.tick("a")
		Expect(w.condition("a", ConditionRolloutSafe).Reason).To(Equal(ReasonHeadroom))

		By("and a pool that gives a spare GPU loses no worker to a rollout")
		pool := w.pool("a")
		pool.Spec.Workers.Rollout = v1alpha1.RolloutSpec{MaxSurge: 1, MaxUnavailable: 0}
		Expect(api.Update(ctx, pool)).To(Succeed())
		w.load(1900, 0)
		w.tick("a")
		Expect(w.condition("a", ConditionRolloutSafe).Reason).To(Equal(ReasonHeadroom))
	})

	It("keeps the up timer over a restart", func(ctx context.Context) {
		w := begin(ctx, 2, nothing)
		w.load(1900, 0) // 95 % of 2000/s, no queue
		w.ticks(3, "a")
		Expect(w.pool("a").Status.Scaling.AboveSince).NotTo(BeNil())
		w.restart()
		w.ticks(4, "a")
		Expect(w.replicas("a-worker")).To(BeNumerically(">", 2), "10 s above 80 % in all")
	})

	It("leaves the number alone while nobody reports, and says so", func(ctx context.Context) {
		w := begin(ctx, 3, func(s *v1alpha1.InferencePoolSpec) {})
		pool := w.pool("a")
		pool.Spec.Workers.MinReplicas = 1
		Expect(api.Update(ctx, pool)).To(Succeed())
		w.reports.load = fleet.Load{Missing: []string{"a-b0 (refused)", "a-b1 (refused)"}}
		w.ticks(60, "a")
		Expect(w.replicas("a-worker")).To(Equal(int32(3)))
		Expect(w.condition("a", ConditionMetricsAvailable)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", ReasonReportsMissing),
			HaveField("Message", ContainSubstring("a-b0"))))
		Expect(w.condition("a", ConditionScaling).Reason).To(Equal(scaling.ReasonMetricsMissing))
	})

	It("counts a worker that dies as lost capacity at once, without a new scrape", func(ctx context.Context) {
		w := begin(ctx, 2, nothing)
		w.load(1500, 0)
		w.ticks(3, "a")
		before := w.pool("a").Status.CapacityPerSecond
		w.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-w0", Namespace: w.namespace}})
		w.reconcile("a") // the Pod watch, between two ticks
		Expect(w.pool("a").Status.CapacityPerSecond).To(Equal(before / 2))
		Expect(w.pool("a").Status.Zone.Name).To(Equal(v1alpha1.ZoneYellow))
	})

	It("takes one scrape for one scrape, however often it looks", func(ctx context.Context) {
		w := begin(ctx, 2, nothing)
		w.load(2100, 0)
		w.tick("a")
		for range 5 {
			w.reconcile("a")
		}
		Expect(w.pool("a").Status.Zone.Name).To(Equal(v1alpha1.ZoneGreen), "over capacity on one scrape is noise")
		w.tick("a")
		Expect(w.pool("a").Status.Zone.Name).To(Equal(v1alpha1.ZoneYellow))
	})
})

// mark is the deletion cost of a pod.
func (w *world) mark(pod string) string {
	GinkgoHelper()
	p := &corev1.Pod{}
	Expect(api.Get(w.ctx, w.key(pod), p)).To(Succeed())
	return p.Annotations[corev1.PodDeletionCost]
}

var _ = Describe("conditions", func() {
	It("tell of workers that find no GPU, once coldStart has lapsed", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Workers(1, 4).With(func(s *v1alpha1.InferencePoolSpec) {
			s.Workers.ColdStart = metav1.Duration{Duration: 20 * time.Second}
		}).Obj())
		w.reconcile("a")
		w.pod("a", workload.ComponentWorker, "pending", "", unschedulablePod("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
		w.tick("a")
		Expect(w.condition("a", ConditionCapacityAvailable).Status).To(Equal(metav1.ConditionTrue), "a node may be on its way")
		w.now = w.now.Add(30 * time.Second)
		w.tick("a")
		Expect(w.condition("a", ConditionCapacityAvailable)).To(And(
			HaveField("Status", metav1.ConditionFalse),
			HaveField("Message", And(ContainSubstring("Insufficient nvidia.com/gpu"), ContainSubstring("add nodes")))))
		Expect(w.replicas("a-worker")).To(Equal(int32(1)), "no more of the same")
		Expect(w.pool("a").Status.Workers.Unschedulable).To(Equal(int32(1)))
	})

	DescribeTable("tell of workers that do not start, and what to do",
		func(ctx context.Context, reason, message, want, advice string) {
			w := newWorld(ctx)
			w.create(MakePool("a", w.namespace).Workers(1, 4).Obj())
			w.reconcile("a")
			w.pod("a", workload.ComponentWorker, "stuck", "node", waitingPod(reason, message))
			w.tick("a")
			Expect(w.condition("a", ConditionWorkersReady)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", want), HaveField("Message", ContainSubstring(advice))))
			Expect(w.condition("a", ConditionReady)).To(HaveField("Status", metav1.ConditionFalse))
		},
		Entry("no image", "ErrImagePull", "not found", "ErrImagePull", "check spec.workers.image"),
		Entry("no image, waiting to try again", "ImagePullBackOff", "Back-off pulling image", "ErrImagePull", "check spec.workers.image"),
		Entry("a crash", "CrashLoopBackOff", "back-off 10s", "CrashLoopBackOff", "kubectl logs stuck --previous"),
		Entry("a missing Secret", "CreateContainerConfigError", `secret "s" not found`, "CreateContainerConfigError", `secret "s" not found`),
	)

	It("tell of a worker that loads for longer than coldStart, and where to look", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Workers(1, 4).Obj())
		w.reconcile("a")
		w.pod("a", workload.ComponentWorker, "slow", "node", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
		w.tick("a")
		Expect(w.condition("a", ConditionWorkersReady)).To(HaveField("Reason", ReasonStarting))
		w.now = w.now.Add(5*time.Minute + time.Second)
		w.tick("a")
		Expect(w.condition("a", ConditionWorkersReady)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "NotReady"),
			HaveField("Message", And(ContainSubstring("not Ready within workers.coldStart"), ContainSubstring("kubectl logs slow")))))
	})

	It("recover when what they tell of is over", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Workers(1, 4).Obj())
		w.reconcile("a")
		p := w.pod("a", workload.ComponentWorker, "stuck", "node", waitingPod("CrashLoopBackOff", ""))
		w.tick("a")
		w.delete(p)
		w.serving("a", 1)
		w.load(10, 0)
		w.ticks(2, "a")
		for _, kind := range []string{ConditionReady, ConditionWorkersReady, ConditionBatchersReady, ConditionCapacityAvailable, ConditionMetricsAvailable, ConditionNamesAvailable} {
			Expect(w.condition("a", kind).Status).To(Equal(metav1.ConditionTrue), kind)
		}
	})

	It("Ready begins with all and survives the loss of one, which WorkersReady tells of", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Workers(2, 4).Obj())
		w.reconcile("a")
		w.load(10, 0)
		w.serving("a", 1)
		w.ticks(2, "a")
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionFalse), "one of two has come")
		second := w.pod("a", workload.ComponentWorker, "second", "node", readyPod("10.0.0.9"))
		w.tick("a")
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionTrue))
		w.delete(second)
		w.tick("a")
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionTrue))
		Expect(w.condition("a", ConditionWorkersReady).Status).To(Equal(metav1.ConditionFalse))
		w.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-w0", Namespace: w.namespace}})
		w.tick("a")
		Expect(w.condition("a", ConditionReady).Status).To(Equal(metav1.ConditionFalse), "nobody serves")
	})
})
