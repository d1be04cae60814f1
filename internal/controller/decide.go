package controller

import (
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/scaling"
	"sluice.dev/sluice/internal/workload"
	"sluice.dev/sluice/internal/zone"
)

// copies is the prior of the time that a batch takes beside the inference: two copies of its data.
const copies = 10 * time.Millisecond

// plan is what a reconcile decided.
type plan struct {
	observation scaling.Observation
	decision    scaling.Decision
	batchers    scaling.BatcherDecision
	zone        zone.Decision
	// signal is the document that gateways should see; publish says that it differs enough to be written.
	signal   zone.Signal
	publish  bool
	settings workload.Settings
	// marked are worker pods whose deletion cost is to be set, unmarked those whose is to be taken off.
	marked, unmarked []string
	// replaced are worker pods to evict: see lostWorkers.
	replaced    []fleet.Worker
	fillPercent int
	busyPercent int

	scalingState scaling.State
	batcherState scaling.BatcherState
	zoneState    zone.State
}

// decide is pure: pool, observation and memory in, plan out.
func decide(pool *v1alpha1.InferencePool, seen *observed, m *memory, opts Options) plan {
	var p plan
	scalingState, batcherState, zoneState := m.counted(seen.load.Rounds)
	p.observation = scalingObservation(pool, seen, m.workers)
	p.decision, p.scalingState = scaling.Decide(seen.now, scalingPolicy(pool), p.observation, scalingState)

	batchers := batcherObservation(pool, seen, m.batcherCount, p.observation.Ready)
	p.fillPercent, p.busyPercent = batchers.FillPercent, batchers.BusyPercent
	p.batchers, p.batcherState = scaling.BatcherReplicas(seen.now, batcherPolicy(pool), batchers, batcherState)

	policy := zonePolicy(pool)
	p.zone, p.zoneState = zone.Classify(seen.now, policy, zoneObservation(pool, seen, p.decision.Capacity), zoneState)
	p.signal = nextSignal(pool, seen, p)
	p.publish = seen.signal.Generation == 0 || zone.ShouldPublish(seen.signal, p.signal)

	if p.decision.Desired < p.observation.Current {
		p.marked = p.decision.Victims
	}
	p.unmarked = strayMarks(seen.workers, p.marked, m.removal)
	p.replaced = lostWorkers(pool, seen.workers)
	p.settings = workload.Settings{
		BatcherImage:      image(pool.Spec.Batchers.Image, pool.Status.Batchers.Image, seen.deployment(workload.BatcherName(pool.Name)), opts.BatcherImage),
		WorkerImage:       image(pool.Spec.Workers.Image, pool.Status.Workers.Image, seen.deployment(workload.WorkerName(pool.Name)), opts.WorkerImage),
		GatewayImage:      image(pool.Spec.Gateway.Image, statusImage(pool.Status.Gateway), seen.deployment(workload.GatewayName(pool.Name)), opts.GatewayImage),
		ThroughGateways:   leadToGateways(pool, seen),
		BatcherReplicas:   int32(p.batchers.Desired),
		WorkerReplicas:    int32(p.decision.Desired),
		OperatorNamespace: opts.Namespace,
		ZoneKey:           zone.SignalKey,
	}
	return p
}

// image is what to run: what the pool says, else what was chosen once (status, or, should the status have
// been lost, what runs), else the operator's default.
func image(spec, status string, running *appsv1.Deployment, otherwise string) string {
	switch {
	case spec != "":
		return spec
	case status != "":
		return status
	case running != nil && len(running.Spec.Template.Spec.Containers) > 0:
		return running.Spec.Template.Spec.Containers[0].Image
	}
	return otherwise
}

func scalingPolicy(pool *v1alpha1.InferencePool) scaling.Policy {
	s, w := pool.Spec.Scaling, pool.Spec.Workers
	p := scaling.Policy{
		Mode: scaling.Mode(s.Mode), Min: int(w.MinReplicas), Max: int(w.MaxReplicas),
		TargetPercent: int(s.TargetPercent),
		AbovePercent:  int(s.Up.AbovePercent), UpWindow: s.Up.Window.Duration,
		BelowPercent: int(s.Down.BelowPercent), DownWindow: s.Down.Window.Duration,
		ColdStart: w.ColdStart.Duration, MaxSize: int(pool.Spec.Batching.MaxSize),
		Warm: warm(w.WarmReplicas),
	}
	for _, d := range s.Paused {
		p.PausedUp = p.PausedUp || d == v1alpha1.ScalingUp
		p.PausedDown = p.PausedDown || d == v1alpha1.ScalingDown
	}
	if w.Replicas != nil {
		n := int(*w.Replicas)
		p.Replicas = &n
	}
	if y := pool.Spec.Zones.Yellow; y.Backlog != nil {
		p.BacklogThreshold = y.Backlog.Duration
	} else if y.Depth != nil {
		p.DepthThreshold = int(*y.Depth)
	}
	return p
}

// warm reads a number or a percentage; the schema admits nothing else.
func warm(v *intstr.IntOrString) scaling.Warm {
	switch {
	case v == nil:
		return scaling.Warm{}
	case v.Type == intstr.Int:
		return scaling.Warm{Count: int(v.IntVal)}
	}
	n, _ := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	return scaling.Warm{Percent: n}
}

// serviceTime is S and g: measured, or the prior.
func serviceTime(pool *v1alpha1.InferencePool, l fleet.Load) (s, g time.Duration) {
	if l.ServiceTime > 0 {
		return l.ServiceTime, l.Gap
	}
	return pool.Spec.Batching.InferenceTime.Duration + copies, 0
}

func scalingObservation(pool *v1alpha1.InferencePool, seen *observed, current int) scaling.Observation {
	l := seen.load
	o := scaling.Observation{
		Complete: l.Complete, Missing: l.Missing, Sources: l.Sources,
		Offered: l.Offered, Depth: l.Depth,
		Current: current,
	}
	o.ServiceTime, o.Gap = serviceTime(pool, l)
	if d := seen.deployment(workload.WorkerName(pool.Name)); d != nil {
		o.Current = orLive(current, d)
		o.Rolling = rolling(d)
	}
	for _, w := range seen.workers {
		view := l.View(w)
		unhealthy := view.Unhealthy
		switch w.Phase {
		case fleet.WorkerReady:
			o.Ready++
		case fleet.WorkerPending, fleet.WorkerStarting:
			o.Starting++
		case fleet.WorkerUnschedulable:
			o.Unschedulable++
		case fleet.WorkerFailing:
			o.Failing++
			unhealthy = true
		case fleet.WorkerDraining:
			o.Draining++
			continue
		case fleet.WorkerEnded:
			continue
		}
		pending := w.Phase == fleet.WorkerPending || w.Phase == fleet.WorkerUnschedulable || w.Phase == fleet.WorkerStarting
		o.Workers = append(o.Workers, scaling.Worker{Name: w.Name, Pending: pending, Unhealthy: unhealthy, IdleFor: view.Idle})
	}
	return o
}

// orLive is the number that the operator wrote or, should its status have been lost, the one that runs.
func orLive(current int, d *appsv1.Deployment) int {
	if current > 0 {
		return current
	}
	return int(*d.Spec.Replicas)
}

// rolling says that pods of an older template exist, or that the Deployment controller has not looked at the
// newest template yet.
func rolling(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration < d.Generation || replacing(d)
}

// replacing says that pods of an older template exist.
func replacing(d *appsv1.Deployment) bool { return d.Status.Replicas > d.Status.UpdatedReplicas }

func batcherPolicy(pool *v1alpha1.InferencePool) scaling.BatcherPolicy {
	b := pool.Spec.Batchers
	return scaling.BatcherPolicy{
		Min: int(b.MinReplicas), Max: int(b.MaxReplicas), PerBatcher: float64(b.RequestsPerSecond),
		DownWindow: pool.Spec.Scaling.Down.Window.Duration,
		MaxSize:    int(pool.Spec.Batching.MaxSize), MaxWait: pool.Spec.Batching.MaxWait.Duration,
		TargetPercent: int(pool.Spec.Scaling.TargetPercent),
	}
}

func batcherObservation(pool *v1alpha1.InferencePool, seen *observed, current, ready int) scaling.BatcherObservation {
	l := seen.load
	o := scaling.BatcherObservation{Complete: l.Complete, Sources: l.Sources, Offered: l.Offered, Current: current}
	if d := seen.deployment(workload.BatcherName(pool.Name)); d != nil {
		o.Current = orLive(current, d)
		o.Rolling = rolling(d)
	}
	if l.BatchesPerSecond > 0 {
		o.FillPercent = int(min(100, 100*l.ItemsPerSecond/l.BatchesPerSecond/float64(pool.Spec.Batching.MaxSize)))
	}
	if ready > 0 {
		o.BusyPercent = int(min(100, 100*l.BusySeconds/float64(ready)))
	}
	return o
}

func zonePolicy(pool *v1alpha1.InferencePool) zone.Policy {
	d := workload.Document(pool)
	p := zone.Policy{
		YellowBacklog: d.Zones.YellowBacklog.D(), RedBacklog: d.Zones.RedBacklog.D(),
		YellowDepth: d.Zones.YellowDepth, RedDepth: d.Zones.RedDepth,
	}
	for _, t := range d.Tiers {
		p.Tiers = append(p.Tiers, zone.Tier{Name: t.Name, Shedding: zone.Shedding(t.Shedding), Background: t.Background, ReservedPercent: t.ReservedPercent})
	}
	return p
}

func zoneObservation(pool *v1alpha1.InferencePool, seen *observed, capacity float64) zone.Observation {
	l := seen.load
	o := zone.Observation{Complete: l.Complete, Sources: l.Sources, Capacity: capacity}
	for _, t := range pool.Spec.Tiers {
		o.Offered = append(o.Offered, l.ByTier[t.Name])
		if t.Class != v1alpha1.ClassBackground && t.Class != v1alpha1.ClassInternal {
			o.Depth += l.Queued[t.Name]
		}
	}
	return o
}

func nextSignal(pool *v1alpha1.InferencePool, seen *observed, p plan) zone.Signal {
	s := zone.Signal{
		Version: zone.SignalVersion, Pool: pool.Name, Generation: seen.signal.Generation + 1,
		Zone: p.zone.Name, Reason: p.zone.Reason, Since: p.zone.Since.UTC(), ObservedAt: seen.now.UTC(),
		Capacity: p.decision.Capacity, Offered: seen.load.Offered, Workers: p.observation.Ready,
	}
	for i, t := range pool.Spec.Tiers {
		s.Tiers = append(s.Tiers, zone.SignalTier{Name: t.Name, AdmitPercent: p.zone.Admit[i]})
	}
	for _, b := range seen.load.Batchers {
		s.Batchers = append(s.Batchers, zone.SignalBatcher{Pod: b.Pod, Lambda: b.Lambda})
	}
	if last := seen.signal; seen.awaiting && last.Generation > 0 {
		// A new leader knows no rates yet, and its S is the prior: the last document knows better.
		s.Offered, s.Batchers = last.Offered, last.Batchers
		if last.Workers == s.Workers {
			s.Capacity = last.Capacity
		}
	}
	return s
}
