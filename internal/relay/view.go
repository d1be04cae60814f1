package relay

import (
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/wire"
)

// Snapshot is the fleet as the connected batchers report it, cut down to this gateway's share, so that a
// gateway judges its zone as one in a batcher does: its own load against its share of the capacity, and its
// share of what waits. The share is its load over that of all gateways, of which the batchers know; both
// quotients are then those of the whole fleet.
//
// Workers are seen by every batcher: the capacity is the largest that any of them sees. Queues are each
// batcher's own and are added up.
func (c *Client) Snapshot() batching.Snapshot {
	s := batching.Snapshot{Parked: int(c.parked.Load()), Lambda: c.rate(), ServiceP50: c.prior, PoisonRefused: c.poisons.refused.Load(),
		Tiers: make([]batching.TierSnapshot, len(c.tiers))}
	var depth int
	var offered, service, weight float64
	queued := make([]int, len(c.tiers))
	for _, l := range c.usable.Load().links {
		r, ok := l.reported()
		if !ok {
			continue
		}
		s.Live, s.Mu, offered = max(s.Live, r.Live), max(s.Mu, r.Mu), max(offered, r.Offered)
		depth += r.Depth
		for i := range min(len(queued), len(r.Queued)) {
			queued[i] += r.Queued[i]
		}
		n := float64(r.ServiceSamples + 1)
		service += n * float64(r.ServiceUs)
		weight += n
		s.ServiceSamples += r.ServiceSamples
	}
	if weight > 0 {
		s.ServiceP50 = time.Duration(service / weight * float64(time.Microsecond))
	}
	share := 1.0
	if s.Lambda > 0 && offered > s.Lambda {
		share = s.Lambda / offered
	}
	s.MuShare = s.Mu * share
	part := func(n int) int { return int(float64(n)*share + 0.5) }
	s.Depth = part(depth)
	switch {
	case depth == 0:
	case s.Mu > 0:
		s.Backlog = time.Duration(float64(depth) / s.Mu * float64(time.Second))
	default: // nothing drains it
		s.Backlog = time.Hour
	}
	for i := range s.Tiers {
		n := &c.counts[i]
		s.Tiers[i] = batching.TierSnapshot{
			Name: c.tiers[i].Name, Queued: part(queued[i]), Admitted: n.admitted.Load(), Refused: n.refused.Load(), Served: n.served.Load(),
			Expired: n.expired.Load(), Cancelled: n.cancelled.Load(), Failed: n.failed.Load(),
		}
	}
	return s
}

// reported is the batcher's last report, false while it has none on this connection.
func (l *link) reported() (wire.BatcherReport, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.report, l.spoke
}
