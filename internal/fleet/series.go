package fleet

import (
	"time"

	"sluice.dev/sluice/internal/wire"
)

// span is the time over which rates are taken: long enough that the noise of few requests is small, short
// enough that a spike is seen on the next tick.
const span = Interval

// series are the last two reports of one pod.
type series struct {
	last     wire.Stats
	received time.Time // by the manager's clock
	rates    rates
	rated    bool  // rates is of this start of the process
	err      error // of the last scrape, nil when it succeeded
}

// rates are what one batcher's counters grew by, per second.
type rates struct {
	tiers   map[string]float64 // offered
	offered float64
	batches float64
	items   float64
	busy    float64 // seconds of GPU time a second
}

// add takes the next report. Counters that began again (another start_id) give no rate until the report
// after; a difference over less than half the interval would be mostly noise and waits for the next.
func (s *series) add(received time.Time, next wire.Stats) {
	s.err = nil
	elapsed := received.Sub(s.received)
	switch {
	case s.received.IsZero(), s.last.StartID != next.StartID:
		s.rated = false
	case elapsed < span/2:
		s.last.QueueDepth, s.last.Tiers = next.QueueDepth, mergeQueued(s.last.Tiers, next.Tiers)
		return
	default:
		s.rates = difference(s.last, next, elapsed.Seconds())
		s.rated = true
	}
	s.last, s.received = next, received
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

func difference(last, next wire.Stats, seconds float64) rates {
	r := rates{
		tiers:   make(map[string]float64, len(next.Tiers)),
		batches: grown(last.Batches, next.Batches) / seconds,
		items:   grown(last.Items, next.Items) / seconds,
		busy:    grown(last.BusyMs, next.BusyMs) / 1000 / seconds,
	}
	before := make(map[string]uint64, len(last.Tiers))
	for _, t := range last.Tiers {
		before[t.Name] = t.Offered
	}
	for _, t := range next.Tiers {
		v := grown(before[t.Name], t.Offered) / seconds
		r.tiers[t.Name] = v
		r.offered += v
	}
	return r
}

// grown is what a counter grew by; one that fell within a start_id is a fault of its writer and counts 0.
func grown(last, next uint64) float64 {
	if next < last {
		return 0
	}
	return float64(next - last)
}
