package e2e

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	simload "sluice.dev/sluice/hack/simulate/load"
	simpool "sluice.dev/sluice/hack/simulate/pool"
	"sluice.dev/sluice/hack/simulate/sim"
	"sluice.dev/sluice/internal/zone"
)

// The spike: two workers carry 380/s, the peak asks for seven, and a worker takes 40 s to start, so that most of
// what is shed is shed while it is known that help is on its way. Five minutes, and what two processors carry.
const (
	spikePool    = "spike"
	spikeLength  = 5 * time.Minute
	spikeReal    = "200rps:60s,1000rps:150s,200rps:90s"
	spikeVirtual = "spike,base=200,peak=1000,at=60s,for=150s"
	spikeTick    = 2 * time.Second
	startDelay   = 40 * time.Second
)

var spikeMix = map[string]int{"enterprise": 20, "paid": 30, "free": 50}

func spikeYAML() string {
	y := poolYAML(spikePool, 2, 8, "  batching: {maxSize: 20}\n")
	y = strings.Replace(y, "coldStart: 20s", "coldStart: 60s", 1)
	return strings.Replace(y, "startDelay: 2s", "startDelay: "+startDelay.String(), 1)
}

// scaled is a change of the number of workers, at an offset into the load.
type scaled struct {
	at       time.Duration
	from, to int
}

// It takes six minutes of a machine for itself, so the suite leaves it out unless SIMULATOR=1.
var _ = Describe("the simulator", Serial, func() {
	It("says of a five-minute spike what the cluster does", func(ctx context.Context) {
		if os.Getenv("SIMULATOR") != "1" {
			Skip("takes six minutes: SIMULATOR=1 runs it")
		}
		ns := newNamespace(ctx)
		apply(ctx, ns, spikeYAML())
		var tiers []tierLoad
		for _, name := range []string{"enterprise", "paid", "free"} {
			tiers = append(tiers, tierLoad{name, spikeMix[name], newTenant(ctx, ns, "e2e-"+name, name)})
		}
		waitReady(ctx, ns, spikePool)
		first := podUIDs(workerPods(ctx, ns, spikePool))
		l := startLoad(ctx, ns, spikePool, spikeReal, tiers...)

		By("measuring what a worker takes to start and what a batch takes")
		var coldStart, cycle time.Duration
		Eventually(func(g Gomega) {
			added := workerPods(ctx, ns, spikePool)
			g.Expect(readyCount(added)).To(BeNumerically(">", len(first)))
			g.Expect(readyCount(added)).To(Equal(len(added)), "all that were added are Ready")
			coldStart = meanStart(added, first)
			var m corev1.ConfigMap
			g.Expect(env.client.Get(ctx, types.NamespacedName{Namespace: ns, Name: spikePool + "-zone"}, &m)).To(Succeed())
			signal, err := zone.DecodeSignal(m.Data[zone.SignalKey])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(signal.Workers).To(Equal(len(added)))
			cycle = time.Duration(float64(signal.Workers) * 20 / signal.Capacity * float64(time.Second))
		}).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Succeed())
		r := l.report(ctx)
		r.expectNothingLost()
		real := joined(realChanges(ctx, ns, l))

		By("simulating the same")
		virtual := simulateSpike(coldStart, cycle)
		AddReportEntry("measured", fmt.Sprintf("a worker starts in %s, a batch takes %s", coldStart, cycle))
		AddReportEntry("scaling", fmt.Sprintf("cluster %v\nsimulator %v", realChanges(ctx, ns, l), changesOf(virtual)))
		AddReportEntry("by tier", compareTiers(r, virtual))
		AddReportEntry("p95 in ms by second", comparePercentiles(r, virtual))

		// Two ticks, and what Kubernetes adds to the start of a pod.
		tolerance := 2*spikeTick + coldStart - startDelay
		want := joined(changesOf(virtual))
		Expect(len(real)).To(BeNumerically(">=", 3), "up, and down again: %v", real)
		for i := range min(len(real), len(want)) {
			Expect([]int{real[i].from, real[i].to}).To(Equal([]int{want[i].from, want[i].to}), "cluster %v, simulator %v", real, want)
			Expect(real[i].at).To(BeNumerically("~", want[i].at, tolerance), "change %d: cluster %v, simulator %v", i, real, want)
		}
		Expect(len(real)).To(BeNumerically("~", len(want), 1), "a change in the last seconds may be missing: %v, %v", real, want)
		shed := 0
		for _, t := range virtual.Tiers {
			shed += total(t.Refused) + total(t.Failed)
		}
		Expect(r.Refused+r.Expired).To(BeNumerically("~", shed, 0.10*float64(shed)), "shed")
	})
})

func simulateSpike(coldStart, cycle time.Duration) *sim.Result {
	GinkgoHelper()
	manifest := spikeYAML()
	for name := range spikeMix {
		manifest += fmt.Sprintf("---\napiVersion: inference.sluice.dev/v1alpha1\nkind: InferenceTenant\nmetadata: {name: e2e-%[1]s}\nspec: {tier: %[1]s, keys: [{sha256: %[2]q}]}\n", name, strings.Repeat("0", 64))
	}
	set, err := simpool.Parse([]byte(manifest))
	Expect(err).NotTo(HaveOccurred())
	requests, err := simload.Generate(spikeVirtual, spikeLength, 1)
	Expect(err).NotTo(HaveOccurred())
	mix, err := simload.ParseMix("enterprise=20,paid=30,free=50", []string{"enterprise", "paid", "free"})
	Expect(err).NotTo(HaveOccurred())
	requests.Assign(mix, sim.Tenants(set), 1)
	result, err := sim.Run(set, requests, sim.Options{ColdStart: coldStart, BatcherStart: 2 * time.Second, Copies: cycle - set.Pool.Spec.Batching.InferenceTime.Duration, JitterPercent: 1, Seed: 1})
	Expect(err).NotTo(HaveOccurred())
	return result
}

// meanStart is the mean time from creation to Ready of the pods that are not among the first. Single ones are
// known to a second.
func meanStart(pods []corev1.Pod, first map[types.UID]bool) time.Duration {
	var sum, n time.Duration
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && !first[p.UID] {
				sum += c.LastTransitionTime.Sub(p.CreationTimestamp.Time)
				n++
			}
		}
	}
	return sum / max(n, 1)
}

// realChanges are the changes of the pool's workers while the load ran.
func realChanges(ctx context.Context, ns string, l load) []scaled {
	GinkgoHelper()
	var pod corev1.Pod
	Expect(env.client.Get(ctx, types.NamespacedName{Namespace: ns, Name: l.pod}, &pod)).To(Succeed())
	began := pod.Status.ContainerStatuses[0].State.Terminated.StartedAt.Time
	var all []scaled
	for _, c := range getPool(ctx, ns, spikePool).Status.Scaling.Changes {
		if at := c.Time.Sub(began); at >= 0 && at < spikeLength-2*spikeTick {
			all = append([]scaled{{at, int(c.From), int(c.To)}}, all...) // newest first in the status
		}
	}
	return all
}

// joined are changes with those in one direction within two ticks taken for one. A cluster's ticks lie anywhere:
// a jump in the middle of one is seen half by this scrape and whole by the next, and answered in two steps.
func joined(changes []scaled) []scaled {
	var all []scaled
	for _, c := range changes {
		if n := len(all); n > 0 && c.at-all[n-1].at <= 2*spikeTick && (c.to > c.from) == (all[n-1].to > all[n-1].from) {
			all[n-1].to = c.to
			continue
		}
		all = append(all, c)
	}
	return all
}

func changesOf(r *sim.Result) []scaled {
	var all []scaled
	for _, c := range r.Changes {
		if c.What == "workers" && c.At < spikeLength-2*spikeTick {
			all = append(all, scaled{c.At, c.From, c.To})
		}
	}
	return all
}

func total(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

func compareTiers(r loadReport, virtual *sim.Result) string {
	var b strings.Builder
	for _, t := range virtual.Tiers {
		c := r.tier(t.Name)
		fmt.Fprintf(&b, "%s: cluster sent %d, served %d, refused %d, late %d, p95 %.0f ms %v; simulator offered %d, served %d, refused %v, failed %v, p95 %s\n",
			t.Name, c.Sent, c.Served, c.Refused, c.Expired, c.P95Ms, r.reasons(t.Name), t.Offered, t.Served, t.Refused, t.Failed, t.Latency.Quantile(0.95))
	}
	return b.String()
}

// comparePercentiles is the p95 of the worst tier, second by second around the jump of the load.
func comparePercentiles(r loadReport, virtual *sim.Result) string {
	worst := map[int]float64{}
	for _, t := range r.Tiers {
		for _, s := range t.PerSecond {
			worst[s.T] = math.Max(worst[s.T], s.P95Ms)
		}
	}
	var b strings.Builder
	for _, bin := range virtual.Bins {
		if at := int(bin.At.Seconds()) - 1; at >= 55 && at < 75 {
			fmt.Fprintf(&b, "%d s: cluster %.0f, simulator %.0f\n", at, worst[at], bin.P95.Seconds()*1000)
		}
	}
	return b.String()
}
