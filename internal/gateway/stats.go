package gateway

import (
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/wire"
)

// tierCounters are what the gateway itself counts of a tier; the batcher counts the rest.
type tierCounters struct {
	offered      atomic.Uint64 // first attempts that reached the zone step
	shed         atomic.Uint64
	refusedQuota atomic.Uint64
}

// count books what became of a request.
func (g *Gateway) count(x *exchange, ref *refusal, latency time.Duration) {
	if ref == nil && x.caller.tier >= 0 { // the most frequent, and the label values are known
		g.metrics.ok[x.caller.tier].Inc()
		if x.instead == "" {
			g.metrics.served(x.caller.tier, latency, x.result)
		}
		return
	}
	tier, status, reason := "unknown", 200, ReasonOK
	if x.caller.tier >= 0 {
		tier = g.pool.Tiers[x.caller.tier].Name
	}
	if ref != nil {
		status, reason = ref.answer().status, ref.reason
		if x.caller.tier >= 0 && reason.ofQuota() {
			g.tiers[x.caller.tier].refusedQuota.Add(1)
		}
	}
	g.metrics.request(tier, status, reason)
}

// Stats is what the operator scrapes. The call is the operator's heartbeat: see zone.StaleAfter.
func (g *Gateway) Stats() wire.Stats {
	now := time.Now()
	g.zone.beat(now)
	return g.stats(now)
}

func (g *Gateway) stats(now time.Time) wire.Stats {
	v := g.zone.view(now)
	snap := g.engine.Snapshot()
	s := wire.Stats{
		Version: 1, Pod: g.pod, PodUID: g.podUID, StartID: g.startID,
		QueueDepth: snap.Depth, QueueBytes: snap.Bytes, OldestWaitMs: ms(snap.OldestWait), Parked: snap.Parked,
		ServiceSamples: snap.ServiceSamples, ServiceP50Ms: ms(snap.ServiceP50), ServiceP99Ms: ms(snap.ServiceP99), GapMs: ms(snap.Gap),
		Batches: snap.Batches, Items: snap.Items, BusyMs: uint64(snap.Busy.Milliseconds()), Wasted: snap.Wasted,
		Workers: snap.Workers, Zone: string(v.zone), ZoneReason: v.reason,
		Poisoned: snap.Poisoned, PoisonRefused: snap.PoisonRefused, LatestPoison: snap.LatestPoison,
		UnknownTierTenants: g.strays.list(now), Reroutes: g.rerouter.problems(now),
	}
	if g.cert != nil {
		s.TLS = g.cert.Status()
	}
	if g.relayed != nil {
		s.Relayed = g.relayed()
	}
	if s.Workers == nil {
		s.Workers = []wire.WorkerView{}
	}
	if sig := g.zone.signal.Load(); sig != nil {
		s.SignalGeneration, s.SignalStale = sig.Generation, v.stale
	}
	for i := range g.tiers {
		var t batching.TierSnapshot
		if i < len(snap.Tiers) {
			t = snap.Tiers[i]
		}
		c := &g.tiers[i]
		s.Tiers = append(s.Tiers, wire.TierStats{
			Name: g.pool.Tiers[i].Name, Offered: c.offered.Load(), Admitted: t.Admitted,
			RefusedCapacity: t.Refused + c.shed.Load(), RefusedQuota: c.refusedQuota.Load(),
			Served: t.Served, Expired: t.Expired, Cancelled: t.Cancelled, Failed: t.Failed, Queued: t.Queued,
		})
	}
	return s
}
