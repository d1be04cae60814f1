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
