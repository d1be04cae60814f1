package batching

import (
	"time"

	"sluice.dev/sluice/internal/wire"
)

// Snapshot is one consistent view of a batcher, for wire.Stats, metrics and the gateway's own zone.
// Counters only grow.
type Snapshot struct {
	Tiers []TierSnapshot // in the order of Config.Tiers

	Depth      int   // requests waiting
	Bytes      int64 // of their inputs
	OldestWait time.Duration
	Parked     int // waiting or in a running batch

	Lambda  float64 // requests offered to this batcher a second, over the last second
	Live    int     // M: workers idle, mine or other
	Mu      float64 // M*c, items a second
	MuShare float64 // the part of Mu that is this batcher's
	Backlog time.Duration
	// Window is the assembly window that holds now.
	Window time.Duration

	ServiceSamples uint64
	ServiceP50     time.Duration
	ServiceP99     time.Duration
	Gap            time.Duration

	Batches uint64 // sent and answered
	Items   uint64 // in those batches
	Busy    time.Duration
	Wasted  uint64 // items run whose client no longer waited
	Retries uint64 // requests requeued for a second attempt

	Poisoned      uint64 // requests answered input_failed after an attempt
	PoisonRefused uint64 // and those from memory, without one
	LatestPoison  string // why the latest of them failed

	// Workers in this batcher's order of preference.
	Workers []wire.WorkerView
	// ParamsMode is how the backend takes parameters, as the workers say.
	ParamsMode string
}

// TierSnapshot is one tier's part of a Snapshot.
type TierSnapshot struct {
	Name      string
	Admitted  uint64
	Refused   uint64 // queue_full, infeasible, no_capacity
	Served    uint64
	Expired   uint64
	Cancelled uint64
	Failed    uint64 // second_failure, input_failed, draining after admission
	Queued    int
	// Lambda is the tier's arrivals a second, admitted and refused, over the last second; Accepted only the
	// admitted ones.
	Lambda   float64
	Accepted float64
}

// Snapshot returns the state at now. It costs a few microseconds: a scrape or a tick may ask for it, not
// every request.
func (c *Core) Snapshot(now time.Time) Snapshot {
	at := c.at(now)
	all := float64(c.live) * c.perWorker()
	s := Snapshot{
		Depth: c.depth, Bytes: c.bytes, Parked: c.depth + c.running,
		Lambda: c.offered.perSecond(at), Live: c.live, Mu: all, MuShare: c.mu(at),
		Window:         time.Duration(c.window(at)),
		ServiceSamples: c.est.full.n,
		ServiceP50:     time.Duration(c.est.p50()), ServiceP99: time.Duration(c.est.p99()),
		Gap:     time.Duration(c.est.gap()),
		Batches: c.batches, Items: c.items, Busy: c.busy, Wasted: c.wasted, Retries: c.retries,
		Poisoned: c.poisons.convictions, PoisonRefused: c.poisons.refused, LatestPoison: c.poisons.latest,
		ParamsMode: c.mode,
		Tiers:      make([]TierSnapshot, len(c.tiers)),
		Workers:    make([]wire.WorkerView, 0, len(c.workers)),
	}
	for i := range c.tiers {
		t := &c.tiers[i]
		s.Tiers[i] = t.counts
		s.Tiers[i].Queued = t.queued
		s.Tiers[i].Lambda = t.offered.perSecond(at)
		s.Tiers[i].Accepted = t.accepted.perSecond(at)
		if t.waiting.head != nil {
			s.OldestWait = max(s.OldestWait, time.Duration(at-t.waiting.head.enqueued))
		}
	}
	switch {
	case c.depth == 0:
	case s.MuShare > 0:
		s.Backlog = seconds(float64(c.depth) / s.MuShare)
	default: // nothing drains it
		s.Backlog = time.Hour
	}
	for _, w := range c.workers {
		v := wire.WorkerView{Addr: w.Addr, Pod: w.Pod, State: w.state, Failures: w.failed, Message: w.message}
		if from := w.idleFrom(); from <= at { // another batcher's batch is over too, as far as is known
			v.State = wire.ViewIdle
			v.IdleMs = float64(at-from) / 1e6
		}
		s.Workers = append(s.Workers, v)
	}
	return s
}
