// Package sim is a discrete-event simulation of a pool: requests, batchers, GPU workers, nodes and the
// operator, in virtual time. What decides is linked, not modelled: queues, windows, feasibility and retries
// are batching.Core, zones are zone.Classify, replicas are scaling.Decide and BatcherReplicas, limits are a
// quota.Ledger. What is modelled is the world around them: arrivals, service times, cold starts, nodes, the
// delays of scrapes and watches, and failures.
package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"sluice.dev/sluice/hack/simulate/load"
	"sluice.dev/sluice/hack/simulate/pool"
	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/controller"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/workload"
	"sluice.dev/sluice/internal/zone"
)

// Delays of the world, as they were measured on the local cluster or follow from a period in the code.
const (
	// scrapeEvery is the operator's tick.
	scrapeEvery = 2 * time.Second
	// watchDelay is the time from a write to a watcher: an endpoint, the zone document.
	watchDelay = 200 * time.Millisecond
	// refuseDelay is a round trip to a worker that does not take a batch.
	refuseDelay = time.Millisecond
	// probeDelay is the time after which a batcher asks a worker that failed it how it is.
	probeDelay = 20 * time.Millisecond
)

// Options are what a simulation needs beside the pool and the load.
type Options struct {
	// ColdStart is how long a worker really takes from its node to Ready; 0 takes spec.workers.coldStart.
	ColdStart time.Duration
	// BatcherStart is the same for a batcher.
	BatcherStart time.Duration
	// Copies is what a batch takes beside the inference: both copies of its data and the network.
	Copies time.Duration
	// JitterPercent is by how much the inference time differs from batch to batch, to either side.
	JitterPercent float64
	// GPUs is how many workers find a node; 0 for all.
	GPUs int
	// Workers is the number of workers at the beginning; 0 takes minReplicas.
	Workers  int
	Seed     uint64
	Failures []Failure
	// RerouteFailsPercent is how many of the requests that a ladder hands to another pool get no answer there.
	RerouteFailsPercent float64
}

// world is the state of a simulation.
type world struct {
	opt  Options
	doc  poolspec.Pool
	cfg  batching.Config
	now  time.Time
	rng  *rand.Rand
	rec  *recorder
	load load.Load

	events events
	seq    uint64

	batchers []*batcher // alive, draining ones included
	serving  []*batcher // those that get new requests
	made     int        // batchers ever
	nodes    nodes
	op       operator

	hours   []*zone.Hours      // by tier, nil: always
	ladders []*degrade.Ladders // by tier, nil: none
	tenants [][]tenant         // by tier
	ledger  *quota.Ledger
	text    string        // inputs are cut from it
	answers []wire.Result // what a worker answers, long enough for any batch
	slow    float64       // factor on the inference time
}

// tenant is a caller with its limits.
type tenant struct {
	name   string
	limits quota.Limits
}

// epoch is the instant at which every simulation begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// FlowsPerTier is how many callers a tier has where no InferenceTenant names one.
const FlowsPerTier = 50

// Tenants is the number of callers of each tier of a pool, for load.Assign.
func Tenants(set pool.Set) []int {
	var n []int
	for _, ts := range tenantsOf(set) {
		n = append(n, len(ts))
	}
	return n
}

func tenantsOf(set pool.Set) [][]tenant {
	all := make([][]tenant, len(set.Pool.Spec.Tiers))
	for i, tier := range set.Pool.Spec.Tiers {
		for _, t := range set.Tenants {
			if t.Spec.Tier == tier.Name {
				var lim quota.Limits
				if n := t.Spec.Limits.RequestsPerMinute; n != nil {
					lim.RequestsPerMinute = *n
				}
				if n := t.Spec.Limits.TokensPerMinute; n != nil {
					lim.TokensPerMinute = *n
				}
				all[i] = append(all[i], tenant{t.Name, lim})
			}
		}
		for n := 0; len(all[i]) == 0 || n > 0 && n < FlowsPerTier; n++ {
			all[i] = append(all[i], tenant{name: fmt.Sprintf("%s-%d", tier.Name, n)})
		}
	}
	return all
}

// Run simulates a pool under a load.
func Run(set pool.Set, l load.Load, opt Options) (*Result, error) {
	doc := workload.Document(set.Pool)
	doc.Version = poolspec.Version
	if err := doc.Validate(); err != nil {
		return nil, err
	}
	scalingPolicy, batcherPolicy, zonePolicy := controller.Policies(set.Pool)
	if opt.ColdStart == 0 {
		opt.ColdStart = scalingPolicy.ColdStart
	}
	if opt.Workers == 0 {
		opt.Workers = scalingPolicy.Min
	}
	w := &world{
		opt: opt, doc: doc, now: epoch, load: l, slow: 1,
		cfg:     batching.FromPool(doc, ""),
		rng:     rand.New(rand.NewPCG(opt.Seed, 0x776f726c64)),
		rec:     newRecorder(set.Pool, l.Duration),
		tenants: tenantsOf(set),
		ladders: degrade.Of(doc),
		text:    strings.Repeat("0123456789abcde ", 4096), // 64 KiB
		answers: make([]wire.Result, doc.Batching.MaxSize),
	}
	w.cfg.RememberPoison = false // inputs are cuts of one text: those of one length would be taken for each other
	longest := time.Duration(0)
	for _, t := range doc.Tiers {
		longest = max(longest, t.Timeout.D())
		var h *zone.Hours
		if t.Hours != nil {
			var err error
			if h, err = zone.ParseHours(t.Hours.Schedule, t.Hours.TimeZone, t.Hours.Duration.D()); err != nil {
				return nil, err
			}
		}
		w.hours = append(w.hours, h)
	}
	w.ledger = quota.NewLedger(epoch, longest)
	for i := range w.answers {
		w.answers[i].Status = wire.StatusOK
	}
	w.nodes.w = w
	w.op = operator{w: w, scaling: scalingPolicy, batchers: batcherPolicy, zones: zonePolicy}
	if err := w.check(opt.Failures); err != nil {
		return nil, err
	}
	w.begin()
	w.run(l.Requests, epoch.Add(l.Duration))
	res := w.rec.result(w)
	res.Notes = notes(set, opt)
	return res, nil
}

// begin is a pool that has been up for long: workers and batchers are Ready, the operator looks at it.
func (w *world) begin() {
	for range w.op.batchers.Min {
		w.addBatcher().ready()
	}
	w.nodes.begin(min(max(w.opt.Workers, w.op.scaling.Min), w.op.scaling.Max))
	w.op.observe() // the counters from which the first tick's rates grow
	for _, f := range w.opt.Failures {
		w.at(epoch.Add(f.At), func() { w.fail(f) })
	}
	w.every(scrapeEvery, w.op.tick)
	w.every(w.rec.bin, func() { w.rec.close(w) })
}

// run works off arrivals, events and the batchers' wake-ups in the order of their times.
func (w *world) run(arrivals []load.Request, end time.Time) {
	for {
		next := end
		kind, who := 0, (*batcher)(nil)
		if len(w.events) > 0 && w.events[0].at.Before(next) {
			next, kind = w.events[0].at, 1
		}
		if len(arrivals) > 0 {
			if at := epoch.Add(arrivals[0].At); at.Before(next) {
				next, kind = at, 2
			}
		}
		for _, b := range w.batchers {
			if !b.wake.IsZero() && b.wake.Before(next) {
				next, kind, who = b.wake, 3, b
			}
		}
		if next.After(w.now) { // a wake-up may lie in the past
			w.now = next
		}
		switch kind {
		case 0:
			w.rec.close(w)
			return
		case 1:
			heap.Pop(&w.events).(event).do()
		case 2:
			w.arrive(arrivals[0])
			arrivals = arrivals[1:]
		case 3:
			who.pump()
		}
	}
}

// arrive is one request at the Service, which picks a batcher by chance.
func (w *world) arrive(q load.Request) {
	tier := int(q.Tier)
	if len(w.serving) == 0 {
		w.rec.refused(tier, "no_batcher")
		return
	}
	w.serving[w.rng.IntN(len(w.serving))].take(tier, w.tenants[tier][int(q.Tenant)%len(w.tenants[tier])], q)
}

// at schedules do.
func (w *world) at(t time.Time, do func()) {
	w.seq++
	heap.Push(&w.events, event{t, w.seq, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// every calls do now + d, now + 2d, ...
func (w *world) every(d time.Duration, do func()) {
	var again func()
	again = func() {
		do()
		w.after(d, again)
	}
	w.after(d, again)
}

// serviceTime draws what a batch takes: inference and copies.
func (w *world) serviceTime() time.Duration {
	f := w.slow * (1 + w.opt.JitterPercent/100*(2*w.rng.Float64()-1))
	return time.Duration(f*float64(w.doc.Batching.InferenceTime)) + w.opt.Copies
}

type event struct {
	at  time.Time
	seq uint64
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return x
}
