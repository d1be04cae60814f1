package sim

import (
	"time"

	"sluice.dev/sluice/internal/zone"
)

// ownEvery is how often a gateway classifies its own view while its workers stay the same.
const ownEvery = time.Second

// count notes an arrival for the gateway's own rate, which is over the last one to two seconds.
func (b *batcher) count(tier int) {
	b.offered[tier]++
	if b.w.now.Sub(b.second) >= ownEvery {
		b.look()
	}
	b.recent[0][tier]++
}

// look classifies the gateway's own view and joins it with the fleet's. Rates are those of the last full
// second.
func (b *batcher) look() {
	now := b.w.now
	snap := b.core.Snapshot(now)
	elapsed := now.Sub(b.second)
	if elapsed >= ownEvery {
		b.recent[0], b.recent[1] = b.recent[1], b.recent[0]
		for i := range b.recent[0] {
			b.recent[1][i] = uint64(float64(b.recent[1][i]) / elapsed.Seconds())
			b.recent[0][i] = 0
		}
		b.second = now
	} else if snap.Live == b.live {
		return
	}
	o := zone.Observation{Complete: true, Sources: 1, Capacity: snap.MuShare}
	for i, t := range snap.Tiers {
		o.Offered = append(o.Offered, float64(b.recent[1][i]))
		if !b.w.doc.Tiers[i].Background {
			o.Depth += t.Queued
		}
	}
	b.own, b.zones = zone.Classify(now, b.w.op.zones, o, b.zones)
	b.live = snap.Live
	b.join()
}

// join makes the gateway's percentages: the stricter of its own and the fleet's.
func (b *batcher) join() {
	admit := b.own.Admit
	if s := b.fleet(); s != nil {
		fleet := make([]float64, len(s.Tiers))
		for i, t := range s.Tiers {
			fleet[i] = t.AdmitPercent
		}
		admit = zone.Stricter(admit, fleet)
	}
	for i := range b.permille {
		b.permille[i] = 1000
		if i < len(admit) {
			b.permille[i] = int64(admit[i]*10 + 0.5)
		}
	}
}

// fleet is the zone document that holds, nil for none: one without capacity does not, for the gateway sees that
// by itself, nor one of an operator that has been silent for too long where the pool says so.
func (b *batcher) fleet() *zone.Signal {
	if b.signal == nil || b.signal.Reason == zone.ReasonNoCapacity ||
		b.w.doc.Gateway.StaleSignalOwnView && b.w.now.Sub(b.beat) > zone.StaleAfter {
		return nil
	}
	return b.signal
}

// zone is the worse of the gateway's own zone and the fleet's.
func (b *batcher) zone() zone.Name {
	if s := b.fleet(); s != nil {
		return zone.Worse(b.own.Name, s.Zone)
	}
	return b.own.Name
}

// hear takes a published zone document.
func (b *batcher) hear(s zone.Signal) {
	if b.gone {
		return
	}
	b.signal = &s
	lambda := 0.0
	for _, x := range s.Batchers {
		lambda += x.Lambda
	}
	b.core.SetFleetLambda(lambda)
	share, _ := s.Share(b.name)
	b.core.SetShare(share)
	b.join()
}

// idle says that there is hardly any interactive work.
func (b *batcher) idle() bool {
	if b.w.now.Sub(b.second) >= ownEvery {
		b.look()
	}
	snap := b.core.Snapshot(b.w.now)
	offered := 0.0
	for i := range snap.Tiers {
		if !b.w.doc.Tiers[i].Background {
			offered += float64(b.recent[1][i])
		}
	}
	return zone.Idle(b.zone(), offered, snap.MuShare)
}

// pass admits the tier's share, evenly spread.
func (b *batcher) pass(tier int) bool {
	b.debt[tier] += b.permille[tier]
	if b.debt[tier] >= 1000 {
		b.debt[tier] -= 1000
		return true
	}
	return false
}
