package fleet

import (
	"time"

	"sluice.dev/sluice/internal/wire"
)

// span is the time over which rates are taken: long enough that the noise of few requests is small, short
// enough that a spike is seen on the next tick.
const span = Interval

// settling is how far a rate moves towards its likeliest value while the scrapes' timing explains the
// difference: far enough that an error is gone after five scrapes, and so little that a timing that is off by
// 20 % moves the rate by 4.
const settling = 0.2

// series are the last two reports of one pod.
type series struct {
	last wire.Stats
	// The report was made at some time between these two, by the manager's clock.
	sent, received time.Time
	rates          rates
	rated          bool  // rates is of this start of the process
	err            error // of the last scrape, nil when it succeeded
}

// rates are what one batcher's counters grew by, per second.
type rates struct {
	tiers   map[string]float64 // offered
	offered float64
	relayed float64 // from standalone gateways
	batches float64
	items   float64
	busy    float64 // seconds of GPU time a second
}

// add takes the next report, asked for at sent. Counters that began again (another start_id) give no rate
// until the report after; a difference over less than half the interval would be mostly noise and waits for
// the next.
func (s *series) add(sent, received time.Time, next wire.Stats) {
	s.err = nil
	switch {
	case s.received.IsZero(), s.last.StartID != next.StartID:
		s.rated, s.rates = false, rates{}
	case received.Sub(s.received) < span/2:
		s.last.QueueDepth, s.last.Tiers = next.QueueDepth, mergeQueued(s.last.Tiers, next.Tiers)
		return
	default:
		s.rates = s.difference(sent, received, next)
		s.rated = true
	}
	s.last, s.sent, s.received = next, sent, received
}

// mergeQueued keeps the counters of old and takes the queues of next.
func mergeQueued(old, next []wire.TierStats) []wire.TierStats {
	merged := append([]wire.TierStats(nil), old...)
	for i := range merged {
		for _, t := range next {
			if t.Name == merged[i].Name {
				merged[i].Queued = t.Queued
			}
		}
	}
	return merged
}

// difference is the rates between the last report and the next.
func (s *series) difference(sent, received time.Time, next wire.Stats) rates {
	took := s.between(sent, received)
	last := s.last
	r := rates{
		tiers:   make(map[string]float64, len(next.Tiers)),
		relayed: took.rate(s.rates.relayed, grown(last.Relayed, next.Relayed), s.rated),
		batches: took.rate(s.rates.batches, grown(last.Batches, next.Batches), s.rated),
		items:   took.rate(s.rates.items, grown(last.Items, next.Items), s.rated),
		busy:    took.rate(s.rates.busy, grown(last.BusyMs, next.BusyMs)/1000, s.rated),
	}
	before := make(map[string]uint64, len(last.Tiers))
	for _, t := range last.Tiers {
		before[t.Name] = t.Offered
	}
	for _, t := range next.Tiers {
		was, known := s.rates.tiers[t.Name]
		v := took.rate(was, grown(before[t.Name], t.Offered), s.rated && known)
		r.tiers[t.Name] = v
		r.offered += v
	}
	return r
}

// lapse is the time between two reports, in seconds. Only the scrapes' own times are known, so it is known
// within bounds: an answer that lay 400 ms until the manager found a processor to read it makes the two
// seconds between two reports anything from 1.6 to 2.4, and a rate taken as growth over time between answers
// 20 % wrong.
type lapse struct{ shortest, likely, longest float64 }

// between is the lapse between the last report and one that was asked for at sent.
func (s *series) between(sent, received time.Time) lapse {
	middle := func(from, to time.Time) time.Time { return from.Add(to.Sub(from) / 2) }
	return lapse{
		shortest: sent.Sub(s.received).Seconds(),
		likely:   middle(sent, received).Sub(middle(s.sent, s.received)).Seconds(),
		longest:  received.Sub(s.sent).Seconds(),
	}
}

// rate is growth a second. A rate that was known, and that the growth agrees with within the bounds of the
// lapse, is kept but for a step towards the likeliest value: nothing says that it changed.
func (l lapse) rate(was, growth float64, known bool) float64 {
	likely := growth / l.likely
	if !known {
		return likely
	}
	kept := max(was, growth/l.longest)
	if l.shortest > 0 {
		kept = min(kept, growth/l.shortest)
	}
	return kept + settling*(likely-kept)
}

// grown is what a counter grew by; one that fell within a start_id is a fault of its writer and counts 0.
func grown(last, next uint64) float64 {
	if next < last {
		return 0
	}
	return float64(next - last)
}
