package sim

import (
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/internal/scaling"
	"sluice.dev/sluice/internal/zone"
)

// operator is observe, decide, apply, every 2 s.
type operator struct {
	w        *world
	scaling  scaling.Policy
	batchers scaling.BatcherPolicy
	zones    zone.Policy

	scalingState scaling.State
	batcherState scaling.BatcherState
	zoneState    zone.State
	signal       zone.Signal
	want         int // batchers

	blind bool // no scrape comes through
	away  bool // it does not run
}

// measured is the number of full batches from which on measured service times are believed.
const measured = 20

// scrape is what a batcher's counters were.
type scrape struct {
	at      time.Time
	offered []uint64
	batches uint64
	items   uint64
	busy    time.Duration
}

// seen is what all batchers report, as rates.
type seen struct {
	scaling  scaling.Observation
	batchers scaling.BatcherObservation
	zones    zone.Observation
	lambda   []zone.SignalBatcher
}

// tick is one reconcile.
func (op *operator) tick() {
	if op.away {
		return
	}
	w := op.w
	s := op.observe()
	d, scalingState := scaling.Decide(w.now, op.scaling, s.scaling, op.scalingState)
	bd, batcherState := scaling.BatcherReplicas(w.now, op.batchers, s.batchers, op.batcherState)
	s.zones.Capacity = d.Capacity
	zd, zoneState := zone.Classify(w.now, op.zones, s.zones, op.zoneState)
	op.scalingState, op.batcherState, op.zoneState = scalingState, batcherState, zoneState

	w.rec.decided(w.now, s.scaling, d, s.batchers.Current, bd, zd)
	if d.Desired != w.nodes.want {
		w.nodes.scale(d.Desired, d.Victims)
	} else {
		w.nodes.fill()
	}
	op.scaleBatchers(bd.Desired)
	op.publish(s, d, zd)
}

// observe scrapes the batchers.
func (op *operator) observe() seen {
	w := op.w
	tiers := len(w.doc.Tiers)
	o := seen{zones: zone.Observation{Offered: make([]float64, tiers)}}
	o.scaling.ServiceTime = w.doc.Batching.InferenceTime.D() + 10*time.Millisecond
	targets, items, batches, busy, weight := 0, 0.0, 0.0, 0.0, 0.0
	var service, gap float64
	for _, b := range w.serving {
		targets++
		if op.blind {
			o.scaling.Missing = append(o.scaling.Missing, b.name+" (no fresh report)")
			continue
		}
		b.beat = w.now
		snap := b.core.Snapshot(w.now)
		next := scrape{w.now, slices.Clone(b.offered), snap.Batches, snap.Items, snap.Busy}
		last, rated := b.seen, b.rated
		b.seen, b.rated = next, true
		o.scaling.Depth += snap.Depth
		for i, t := range snap.Tiers {
			if !w.doc.Tiers[i].Background {
				o.zones.Depth += t.Queued
			}
		}
		if !rated {
			o.scaling.Missing = append(o.scaling.Missing, b.name+" (just started)")
			continue
		}
		o.scaling.Sources++
		seconds := next.at.Sub(last.at).Seconds()
		lambda := 0.0
		for i := range next.offered {
			r := float64(next.offered[i]-last.offered[i]) / seconds
			o.zones.Offered[i] += r
			lambda += r
		}
		o.scaling.Offered += lambda
		o.lambda = append(o.lambda, zone.SignalBatcher{Pod: b.name, Lambda: lambda})
		items += float64(next.items-last.items) / seconds
		batches += float64(next.batches-last.batches) / seconds
		busy += (next.busy - last.busy).Seconds() / seconds
		if n := float64(snap.ServiceSamples); n >= measured {
			service += n * float64(snap.ServiceP50)
			gap += n * float64(snap.Gap)
			weight += n
		}
	}
	if weight > 0 {
		o.scaling.ServiceTime, o.scaling.Gap = time.Duration(service/weight), time.Duration(gap/weight)
	}
	o.scaling.Complete = o.scaling.Sources > 0 && o.scaling.Sources == targets
	w.nodes.observe(&o.scaling, op.scaling.ColdStart)
	o.zones.Sources, o.zones.Complete = o.scaling.Sources, o.scaling.Complete

	o.batchers = scaling.BatcherObservation{Complete: o.scaling.Complete, Sources: o.scaling.Sources, Offered: o.scaling.Offered, Current: max(op.want, op.batchers.Min)}
	if batches > 0 {
		o.batchers.FillPercent = int(min(100, 100*items/batches/float64(w.doc.Batching.MaxSize)))
	}
	if o.scaling.Ready > 0 {
		o.batchers.BusyPercent = int(min(100, 100*busy/float64(o.scaling.Ready)))
	}
	slices.SortFunc(o.lambda, func(a, b zone.SignalBatcher) int {
		if a.Pod < b.Pod {
			return -1
		}
		return 1
	})
	return o
}

// scaleBatchers is a write of the batchers' replicas.
func (op *operator) scaleBatchers(to int) {
	w := op.w
	op.want = to
	alive := 0
	for _, b := range w.batchers {
		if !b.leaving {
			alive++
		}
	}
	for ; alive < to; alive++ {
		b := w.addBatcher()
		w.after(w.opt.BatcherStart, b.ready)
	}
	for i := len(w.batchers) - 1; i >= 0 && alive > to; i-- {
		if b := w.batchers[i]; !b.leaving {
			b.leaving = true
			alive--
			b.leave()
		}
	}
}

// publish writes the zone document where it differs enough; the gateways hear of it a moment later.
func (op *operator) publish(s seen, d scaling.Decision, zd zone.Decision) {
	w := op.w
	next := zone.Signal{
		Version: zone.SignalVersion, Pool: w.doc.Name, Generation: op.signal.Generation + 1,
		Zone: zd.Name, Reason: zd.Reason, Since: zd.Since, ObservedAt: w.now,
		Capacity: d.Capacity, Offered: s.scaling.Offered, Workers: s.scaling.Ready, Batchers: s.lambda,
	}
	for i, t := range w.doc.Tiers {
		next.Tiers = append(next.Tiers, zone.SignalTier{Name: t.Name, AdmitPercent: zd.Admit[i]})
	}
	if op.signal.Generation > 0 && !zone.ShouldPublish(op.signal, next) {
		return
	}
	op.signal = next
	doc, err := next.Encode()
	if err != nil {
		panic(fmt.Sprintf("the operator would write a document that no gateway takes: %v", err))
	}
	w.rec.published++
	w.after(watchDelay, func() {
		got, err := zone.DecodeSignal(doc)
		if err != nil {
			panic(err)
		}
		for _, b := range w.batchers {
			b.hear(got)
		}
	})
}

// restart is a new leader: it knows what the status keeps, and begins the down window again.
func (op *operator) restart() {
	op.away = false
	op.scalingState = op.scalingState.Resumed()
	op.batcherState = scaling.BatcherState{}
	z := op.zoneState
	op.zoneState = zone.State{Name: z.Name, Reason: z.Reason, Since: z.Since, CalmSince: z.CalmSince}
}
