package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// removalsByDefault is how many workers are removed in a run of the suite; REMOVALS=200 is the long form.
	removalsByDefault = 20
	// removalLoad is how many workers' worth of load runs meanwhile: a fleet is never shrunk below it.
	removalLoad = 2
	// deletionMark is the deletion cost that the operator gives to a worker that is to leave.
	deletionMark = "-1000"
)

// external is poolYAML in mode External.
func external(name string, workers, most int) string {
	return strings.Replace(poolYAML(name, workers, most, ""), "  scaling:\n", "  scaling:\n    mode: External\n", 1)
}

var _ = Describe("a removal of workers", func() {
	It("takes the workers that were named and loses nothing in flight, whatever is asked for", func(ctx context.Context) {
		removals := removalsByDefault
		if v := os.Getenv("REMOVALS"); v != "" {
			n, err := strconv.Atoi(v)
			Expect(err).NotTo(HaveOccurred(), "REMOVALS")
			removals = n
		}
		const most = 8
		ns := newNamespace(ctx)
		manifest := external("shrinking", removalLoad, most)
		// A quick start: the spec is about how workers go.
		apply(ctx, ns, strings.Replace(manifest, "startDelay: 2s", "startDelay: 0s", 1))
		key := newTenant(ctx, ns, "acme", "enterprise")
		waitReady(ctx, ns, "shrinking")
		leaving := watchLeaving(ctx, ns, "shrinking")
		r := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 1))

		current, done := most, 0
		leaving.scale(ctx, current) // before the first load: the Service's rules need a moment after Ready
		for done < removals {
			// Two workers carry 1,800/s: the load stays far below what is left, and every batch is in flight a third of the time.
			l := startLoad(ctx, ns, "shrinking", "300rps:30s", tierLoad{"enterprise", 1, key})
			for done < removals {
				if current <= removalLoad {
					current = most
					leaving.scale(ctx, current)
				}
				to := removalLoad + r.IntN(current-removalLoad)
				if done+current-to > removals {
					to = current - (removals - done)
				}
				if running, err := l.phase(ctx); err != nil || running != corev1.PodRunning {
					break // a removal without load proves nothing
				}
				leaving.scale(ctx, to)
				done += current - to
				current = to
			}
			l.report(ctx).expectAllServed()
		}
		named, gone := leaving.seen()
		AddReportEntry("removals", fmt.Sprintf("%d named, %d gone", len(named), len(gone)))
		Expect(gone).To(HaveLen(removals))
		Expect(gone).To(ConsistOf(named), "the workers that were named are those that went")
		Expect(wrongWorkerEvents(ctx, ns)).To(BeEmpty())
	})

	It("is noticed when another worker went instead", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, external("swapped", 1, 3))
		waitReady(ctx, ns, "swapped")
		_, err := kubectl(ctx, "", "-n", ns, "scale", "slp", "swapped", "--replicas=3")
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() int { return readyCount(workerPods(ctx, ns, "swapped")) }).WithContext(ctx).Should(Equal(3))
		// Somebody makes two workers cheaper than the operator's victim can be: whichever it names, one of these goes.
		for _, p := range workerPods(ctx, ns, "swapped")[:2] {
			out, err := kubectl(ctx, "", "-n", ns, "annotate", "pod", p.Name, corev1.PodDeletionCost+"=-5000")
			Expect(err).NotTo(HaveOccurred(), out)
		}
		_, err = kubectl(ctx, "", "-n", ns, "scale", "slp", "swapped", "--replicas=2")
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() []string { return wrongWorkerEvents(ctx, ns) }).WithContext(ctx).Should(HaveLen(1))
		By("and the mark is taken off the worker that stayed")
		Eventually(func(g Gomega) {
			for _, p := range workerPods(ctx, ns, "swapped") {
				g.Expect(p.Annotations).NotTo(HaveKeyWithValue(corev1.PodDeletionCost, deletionMark))
			}
			g.Expect(readyCount(workerPods(ctx, ns, "swapped"))).To(Equal(2))
		}).WithContext(ctx).Should(Succeed())
	})
})

var _ = Describe("a rollout under load", func() {
	It("of workers, one at a time, loses no request", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("rolled", 3, 3, ""))
		key := newTenant(ctx, ns, "acme", "enterprise")
		waitReady(ctx, ns, "rolled")
		before := podUIDs(workerPods(ctx, ns, "rolled"))
		l := startLoad(ctx, ns, "rolled", "300rps:40s", tierLoad{"enterprise", 1, key})
		Eventually(func() string { return condition(ctx, ns, "rolled", "RolloutSafe").Reason }).WithContext(ctx).Should(Equal("Headroom"))
		out, err := kubectl(ctx, "", "-n", ns, "patch", "slp", "rolled", "--type=merge", "-p", `{"spec":{"workers":{"pod":{"annotations":{"rolled":"yes"}}}}}`)
		Expect(err).NotTo(HaveOccurred(), out)
		Eventually(func(g Gomega) {
			now := workerPods(ctx, ns, "rolled")
			g.Expect(readyCount(now)).To(Equal(3))
			g.Expect(now).To(HaveLen(3))
			for uid := range podUIDs(now) {
				g.Expect(before).NotTo(HaveKey(uid))
			}
		}).WithContext(ctx).Should(Succeed())
		phase, err := l.phase(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(phase).To(Equal(corev1.PodRunning), "the load outlasts the rollout")
		l.report(ctx).expectAllServed()
	})
})

func podUIDs(pods []corev1.Pod) map[types.UID]bool {
	m := map[types.UID]bool{}
	for _, p := range pods {
		m[p.UID] = true
	}
	return m
}

// wrongWorkerEvents are the operator's events that another worker left than the one chosen.
func wrongWorkerEvents(ctx context.Context, ns string) []string {
	GinkgoHelper()
	var list eventsv1.EventList
	Expect(env.client.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
	var notes []string
	for _, e := range list.Items {
		if e.Reason == "WrongWorkerLeft" {
			notes = append(notes, e.Note)
		}
	}
	return notes
}

// leavers are the workers of a pool that were named to leave and those that went, as a watcher saw them.
type leavers struct {
	ns, pool string

	mu          sync.Mutex
	named, gone []string
}

// watchLeaving watches until the spec ends.
func watchLeaving(ctx context.Context, ns, pool string) *leavers {
	GinkgoHelper()
	l := &leavers{ns: ns, pool: pool}
	w, err := env.clientset.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=worker,inference.sluice.dev/pool=" + pool,
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				l.saw(p)
			}
		}
	}()
	return l
}

func (l *leavers) saw(p *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Annotations[corev1.PodDeletionCost] == deletionMark && !slices.Contains(l.named, p.Name) {
		l.named = append(l.named, p.Name)
	}
	if p.DeletionTimestamp != nil && !slices.Contains(l.gone, p.Name) {
		l.gone = append(l.gone, p.Name)
	}
}

func (l *leavers) seen() (named, gone []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.named), slices.Clone(l.gone)
}

// scale sets the pool's workers through /scale, as an autoscaler does, and waits until as many are Ready and
// no other is left.
func (l *leavers) scale(ctx context.Context, to int) {
	GinkgoHelper()
	out, err := kubectl(ctx, "", "-n", l.ns, "scale", "slp", l.pool, fmt.Sprintf("--replicas=%d", to))
	Expect(err).NotTo(HaveOccurred(), out)
	Eventually(func(g Gomega) {
		now := workerPods(ctx, l.ns, l.pool)
		g.Expect(now).To(HaveLen(to))
		g.Expect(readyCount(now)).To(Equal(to))
	}).WithContext(ctx).WithPolling(100 * time.Millisecond).Should(Succeed())
}
