package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/workload"
)

// poolBuilder builds a pool step by step; what is not set is defaulted by the API server.
type poolBuilder struct{ pool v1alpha1.InferencePool }

// MakePool begins a pool that serves model m.
func MakePool(name, namespace string) *poolBuilder {
	b := &poolBuilder{}
	b.pool.Name, b.pool.Namespace = name, namespace
	b.pool.Spec.Model = "m"
	return b
}

func (b *poolBuilder) Workers(minimum, maximum int32) *poolBuilder {
	b.pool.Spec.Workers.MinReplicas, b.pool.Spec.Workers.MaxReplicas = minimum, maximum
	return b
}

func (b *poolBuilder) Mode(m v1alpha1.ScalingMode) *poolBuilder {
	b.pool.Spec.Scaling.Mode = m
	return b
}

func (b *poolBuilder) Replicas(n int32) *poolBuilder {
	b.pool.Spec.Workers.Replicas = &n
	return b
}

func (b *poolBuilder) With(change func(*v1alpha1.InferencePoolSpec)) *poolBuilder {
	change(&b.pool.Spec)
	return b
}

func (b *poolBuilder) Obj() *v1alpha1.InferencePool { return b.pool.DeepCopy() }

// reports stands in for the scraper: what the batchers report is what a spec says.
type reports struct {
	mu      sync.Mutex
	load    fleet.Load
	watched map[types.NamespacedName][]fleet.Target
}

func (r *reports) Watch(pool types.NamespacedName, targets []fleet.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watched[pool] = targets
}

func (r *reports) Forget(pool types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.watched, pool)
}

func (r *reports) Load(types.NamespacedName, time.Time) fleet.Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.load
}

// recorded keeps events.
type recorded struct{ events []string }

func (r *recorded) Eventf(_ runtime.Object, _ runtime.Object, _, reason, _, note string, args ...any) {
	r.events = append(r.events, reason+": "+fmt.Sprintf(note, args...))
}

// world is one namespace of the API server, one reconciler, and hands that move its clock, its Pods and its
// reports. Nothing runs by itself: there is no controller of Deployments here.
type world struct {
	ctx       context.Context
	namespace string
	now       time.Time
	reports   *reports
	events    *recorded
	r         *InferencePoolReconciler
}

func newWorld(ctx context.Context) *world {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-"}}
	Expect(api.Create(ctx, ns)).To(Succeed())
	w := &world{
		ctx: ctx, namespace: ns.Name, now: time.Now().Truncate(time.Second),
		reports: &reports{watched: map[types.NamespacedName][]fleet.Target{}},
		events:  &recorded{},
	}
	w.restart()
	return w
}

// restart replaces the reconciler by one that remembers nothing, as a new leader does.
func (w *world) restart() {
	w.r = &InferencePoolReconciler{
		Client: api, Live: api, Loads: w.reports, Events: w.events,
		Now:     func() time.Time { return w.now },
		Options: Options{WorkerImage: "worker:1", BatcherImage: "batcher:1", GatewayImage: "gateway:1", Namespace: "sluice-system"},
	}
}

func (w *world) create(pool *v1alpha1.InferencePool) *v1alpha1.InferencePool {
	GinkgoHelper()
	pool.Namespace = w.namespace
	Expect(api.Create(w.ctx, pool)).To(Succeed())
	return pool
}

// tick moves the clock by one scrape and reconciles.
func (w *world) tick(pool string) {
	GinkgoHelper()
	w.now = w.now.Add(fleet.Interval)
	w.reports.mu.Lock()
	w.reports.load.Rounds++
	w.reports.mu.Unlock()
	w.reconcile(pool)
}

func (w *world) ticks(n int, pool string) {
	GinkgoHelper()
	for range n {
		w.tick(pool)
	}
}

func (w *world) reconcile(pool string) {
	GinkgoHelper()
	_, err := w.r.Reconcile(w.ctx, ctrl.Request{NamespacedName: w.key(pool)})
	Expect(err).NotTo(HaveOccurred())
}

func (w *world) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: w.namespace, Name: name}
}

func (w *world) pool(name string) *v1alpha1.InferencePool {
	GinkgoHelper()
	pool := &v1alpha1.InferencePool{}
	Expect(api.Get(w.ctx, w.key(name), pool)).To(Succeed())
	return pool
}

func (w *world) condition(pool, kind string) metav1.Condition {
	GinkgoHelper()
	c := meta.FindStatusCondition(w.pool(pool).Status.Conditions, kind)
	Expect(c).NotTo(BeNil(), "condition %s", kind)
	return *c
}

// load makes every batcher report: offered requests/s, all of the lowest tier, and a queue.
func (w *world) load(offered float64, depth int) {
	w.reports.mu.Lock()
	defer w.reports.mu.Unlock()
	rounds := w.reports.load.Rounds
	w.reports.load = fleet.Load{
		Rounds: rounds, Complete: true, Sources: 2, Offered: offered, Depth: depth,
		ByTier: map[string]float64{"free": offered}, Queued: map[string]int{"free": depth},
		ServiceTime: 100 * time.Millisecond, Views: map[string]fleet.WorkerView{},
	}
}

// podState is a change of a pod's status.
type podState func(*corev1.Pod)

func readyPod(ip string) podState {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.PodIP = ip
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	}
}

func unschedulablePod(message string) podState {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}
	}
}

func waitingPod(reason, message string) podState {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "worker", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}
	}
}

// pod makes a pod of a pool's component, as a ReplicaSet would.
func (w *world) pod(pool, component, name, node string, state podState) *corev1.Pod {
	GinkgoHelper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace, Labels: workload.Labels(pool, component)},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers:                    []corev1.Container{{Name: component, Image: "x"}},
		},
	}
	if component == workload.ComponentWorker {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	}
	Expect(api.Create(w.ctx, p)).To(Succeed())
	state(p)
	Expect(api.Status().Update(w.ctx, p)).To(Succeed())
	return p
}

func (w *world) delete(obj client.Object) {
	GinkgoHelper()
	Expect(api.Delete(w.ctx, obj, client.GracePeriodSeconds(0))).To(Succeed())
}

// newSteadyWorld has a pool "a" with two workers and two batchers that has served load requests/s for so many ticks.
func newSteadyWorld(ctx context.Context, load float64, ticks int) *world {
	GinkgoHelper()
	w := newWorld(ctx)
	w.create(MakePool("a", w.namespace).Obj())
	w.reconcile("a")
	w.serving("a", 2)
	w.load(load, 0)
	w.ticks(ticks, "a")
	return w
}

// serving makes n ready workers and two ready batchers.
func (w *world) serving(pool string, n int) {
	GinkgoHelper()
	for i := range n {
		w.pod(pool, workload.ComponentWorker, fmt.Sprintf("%s-w%d", pool, i), "node", readyPod(fmt.Sprintf("10.0.0.%d", i+1)))
	}
	for i := range 2 {
		w.pod(pool, workload.ComponentBatcher, fmt.Sprintf("%s-b%d", pool, i), "node", readyPod(fmt.Sprintf("10.0.1.%d", i+1)))
	}
}
