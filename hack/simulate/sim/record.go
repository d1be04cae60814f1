package sim

import (
	"slices"
	"time"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/scaling"
	"sluice.dev/sluice/internal/zone"
)

// Result is what a simulation recorded.
type Result struct {
	Pool     string
	Load     string
	Duration time.Duration
	Requests int
	Tiers    []TierResult
	Bins     []Bin
	BinSize  time.Duration
	Changes  []Change
	Events   []Event
	Holds    map[string]int // ticks by the reason of holding
	Lost     int            // requests that a dying batcher held
	Open     int            // requests that waited or ran when the simulation ended

	GPUTime     time.Duration // held by workers, from their node on
	Batches     int
	Items       int
	BusyTime    time.Duration
	PerWorker   float64 // c with the service time that was simulated, requests/s
	ColdStart   time.Duration
	Target      float64 // utilization
	Min, Max    int
	ZoneChanges int
	ZoneTime    map[zone.Name]time.Duration
	Published   int // zone documents

	// Notes say what of the pool is not simulated, or not as it would be.
	Notes []string
}

// TierResult is one tier's.
type TierResult struct {
	Name    string
	Offered int // wanted served: not those beyond a quota
	Served  int
	Late    int            // served after the tier's latency target
	Refused map[string]int // by reason, before anything was queued
	Failed  map[string]int // by reason, after
	// Degraded is what the tier's ladder did: the steps that made a request cheaper are of served ones, those
	// that answered it instead are of ones that the pool neither served nor refused.
	Degraded StepCounts
	Laddered bool // the tier has a ladder
	Target   time.Duration
	Latency  Histogram
}

// Bin is one step of the time series. Counts are of the bin, the rest is at its end.
type Bin struct {
	At                             time.Duration // its end
	Offered, Served, Shed, Instead int           // Instead: answered by another pool or with a static answer
	ByTier                         []BinTier
	P50, P95                       time.Duration // of those served in it
	Depth                          int
	Zone                           zone.Name
	Ready, Starting, Pending, Gone int // workers; Gone are draining
	Batchers                       int
	Capacity                       float64 // requests/s of the Ready workers
}

// BinTier is one tier's part of a Bin.
type BinTier struct {
	Offered, Served, Shed int
	Degraded              StepCounts
}

// Change is one change of the number of workers or batchers.
type Change struct {
	At       time.Duration
	What     string // workers or batchers
	From, To int
	Reason   string
	Message  string
}

// Event is something else that happened: a change of zone, a failure, a condition.
type Event struct {
	At   time.Duration
	Kind string // zone, failure or capacity
	Text string
}

// recorder collects a Result.
type recorder struct {
	res       Result
	bin       time.Duration
	current   Bin
	latencies []int32 // of the current bin, in 0.1 ms
	gpuTime   time.Duration
	lost      int
	published int

	zone      zone.Name
	zoneSince time.Time
	roomy     bool
}

func newRecorder(p *v1alpha1.InferencePool, d time.Duration) *recorder {
	r := &recorder{bin: time.Second, zone: zone.Green, zoneSince: epoch, roomy: true}
	for d/r.bin > 7200 {
		r.bin *= 2
	}
	for _, t := range p.Spec.Tiers {
		r.res.Tiers = append(r.res.Tiers, TierResult{Name: t.Name, Target: t.LatencyTarget.Duration, Refused: map[string]int{}, Failed: map[string]int{}, Laddered: t.Degrade != nil})
	}
	r.res.Pool = p.Name
	r.res.Holds = map[string]int{}
	r.res.ZoneTime = map[zone.Name]time.Duration{}
	r.current.ByTier = make([]BinTier, len(r.res.Tiers))
	return r
}

func (r *recorder) offer(tier int) {
	r.res.Tiers[tier].Offered++
	r.current.Offered++
	r.current.ByTier[tier].Offered++
}

func (r *recorder) refused(tier int, reason string) {
	r.res.Tiers[tier].Refused[reason]++
	r.current.Shed++
	r.current.ByTier[tier].Shed++
}

func (r *recorder) failed(tier int, reason string) {
	r.res.Tiers[tier].Failed[reason]++
	r.current.Shed++
	r.current.ByTier[tier].Shed++
}

func (r *recorder) served(tier int, d time.Duration) {
	t := &r.res.Tiers[tier]
	t.Served++
	if d > t.Target {
		t.Late++
	}
	t.Latency.Add(d)
	r.current.Served++
	r.current.ByTier[tier].Served++
	r.latencies = append(r.latencies, int32(d/(100*time.Microsecond)))
}

// degraded notes the steps that a ladder took for a request that got an answer.
func (r *recorder) degraded(tier int, taken []degrade.Taken) {
	for _, t := range taken {
		i := slices.Index(Steps[:], t.Step)
		r.res.Tiers[tier].Degraded[i]++
		r.current.ByTier[tier].Degraded[i]++
		if t.Step == degrade.StepReroute || t.Step == degrade.StepAnswer {
			r.current.Instead++
		}
	}
}

func (r *recorder) batch(items int, d time.Duration) {
	r.res.Batches++
	r.res.Items += items
	r.res.BusyTime += d
}

// close ends the current bin.
func (r *recorder) close(w *world) {
	b := &r.current
	b.At = w.now.Sub(epoch)
	if len(r.res.Bins) > 0 && r.res.Bins[len(r.res.Bins)-1].At == b.At {
		return // the end falls on the end of a bin
	}
	slices.Sort(r.latencies)
	if n := len(r.latencies); n > 0 {
		b.P50 = time.Duration(r.latencies[(n-1)/2]) * 100 * time.Microsecond
		b.P95 = time.Duration(r.latencies[(n-1)*95/100]) * 100 * time.Microsecond
	}
	r.latencies = r.latencies[:0]
	for _, x := range w.batchers {
		b.Depth += x.core.Snapshot(w.now).Depth
	}
	b.Zone = r.zone
	for _, x := range w.nodes.workers {
		switch x.phase {
		case ready:
			b.Ready++
		case starting:
			b.Starting++
		case pending:
			b.Pending++
		case draining:
			b.Gone++
		}
	}
	b.Batchers = len(w.serving)
	b.Capacity = float64(b.Ready) * w.perWorker()
	r.res.Bins = append(r.res.Bins, *b)
	r.current = Bin{ByTier: make([]BinTier, len(r.res.Tiers))}
}

// perWorker is c with the service time that is simulated.
func (w *world) perWorker() float64 {
	return scaling.PerWorker(w.doc.Batching.MaxSize, w.doc.Batching.InferenceTime.D()+w.opt.Copies, 0)
}

// decided notes a tick of the operator.
func (r *recorder) decided(now time.Time, o scaling.Observation, d scaling.Decision, batchers int, bd scaling.BatcherDecision, zd zone.Decision) {
	at := now.Sub(epoch)
	if d.Desired != o.Current {
		r.res.Changes = append(r.res.Changes, Change{at, "workers", o.Current, d.Desired, d.Reason, d.Message})
	} else {
		r.res.Holds[d.Reason]++
	}
	if d.CapacityAvailable != r.roomy {
		r.roomy = d.CapacityAvailable
		r.event(now, "capacity", d.CapacityMessage)
	}
	if bd.Desired != batchers {
		r.res.Changes = append(r.res.Changes, Change{at, "batchers", batchers, bd.Desired, bd.Reason, bd.Message})
	}
	if zd.Name != r.zone {
		r.res.ZoneTime[r.zone] += now.Sub(r.zoneSince)
		r.event(now, "zone", string(r.zone)+" → "+string(zd.Name)+": "+zd.Reason+", "+zd.Message)
		r.zone, r.zoneSince = zd.Name, now
		r.res.ZoneChanges++
	}
}

func (r *recorder) event(now time.Time, kind, text string) {
	r.res.Events = append(r.res.Events, Event{now.Sub(epoch), kind, text})
}

func (r *recorder) result(w *world) *Result {
	for _, x := range w.nodes.workers {
		if !x.placed.IsZero() {
			r.gpuTime += w.now.Sub(x.placed)
		}
	}
	r.res.ZoneTime[r.zone] += w.now.Sub(r.zoneSince)
	for _, b := range w.batchers {
		r.res.Open += b.core.Parked()
	}
	res := &r.res
	res.Load, res.Duration, res.Requests = w.load.Name, w.load.Duration, len(w.load.Requests)
	res.BinSize, res.GPUTime, res.Lost, res.Published = r.bin, r.gpuTime, r.lost, r.published
	res.PerWorker, res.ColdStart = w.perWorker(), w.opt.ColdStart
	res.Target, res.Min, res.Max = float64(w.op.scaling.TargetPercent)/100, w.op.scaling.Min, w.op.scaling.Max
	return res
}
