package batching

import (
	"time"

	"sluice.dev/sluice/internal/poolspec"
)

// How a backend takes parameters, as wire.WorkerState.ParamsMode says it.
const (
	ParamsItem  = "item"  // each item its own
	ParamsBatch = "batch" // one set for a batch: only requests whose parameters agree share one
	ParamsNone  = "none"  // not at all
)

// Tier is one class of service, as the engine needs it.
type Tier struct {
	Name string
	// LatencyTarget is the longest latency that may be predicted for a request that is admitted.
	LatencyTarget time.Duration
	// Timeout bounds every deadline of the tier.
	Timeout time.Duration
	// Reserved is the share of all slots that the tier gets when it has requests waiting, 0 to 0.5.
	Reserved float64
	// Background requests fill slots that interactive tiers leave free, whatever their place in the list;
	// no latency target holds for them, only their deadline.
	Background bool
}

// Config is what a Core is made for. It does not change.
type Config struct {
	// ID names this batcher: it begins every batch id, so it must differ between batchers and between two
	// starts of one, and it decides the order in which this batcher prefers workers.
	ID    string
	Tiers []Tier
	// MaxSize is B, 1 to 1000.
	MaxSize int
	// MaxWait bounds the assembly window.
	MaxWait time.Duration
	// InferenceTime is the prior of S, without copies, until 20 batches were measured.
	InferenceTime time.Duration
	// InferenceTimeout bounds a batch: min(InferenceTimeout, 3 x p99 of S).
	InferenceTimeout time.Duration
	// MaxRetries is how often a request whose batch failed is tried again, 0 or 1.
	MaxRetries int
	// Target is the utilization the window aims at, in (0, 1].
	Target float64
	// RememberPoison makes an input that was found to fail the function be answered from memory for a while
	// (see poison.go). Off for a simulation whose inputs are all alike.
	RememberPoison bool
	// ParamsMode is the mode until a worker was asked.
	ParamsMode string
	// MaxDepth and MaxBytes bound what waits, exactly. Zero means derived (see FromPool).
	MaxDepth int
	MaxBytes int64
}

const (
	// copies is the prior of what a batch takes over inferenceTime: two copies of 5 ms.
	copies = 10 * time.Millisecond
	// priorGap is g until it was measured.
	priorGap = time.Millisecond
	// margin is what the dispatch rule keeps between a batch's expected end and a deadline.
	margin = 5 * time.Millisecond
	// depthLimit bounds a derived MaxDepth: ten seconds of the design load (10,000/s).
	depthLimit = 100_000
	// bytesLimit bounds a derived MaxBytes: what a batcher's memory request leaves for payloads.
	bytesLimit = 256 << 20
)

// FromPool returns the configuration for a pool. id must be unique among the batchers of the pool and
// between two starts of one.
//
// MaxDepth is derived from the largest useful wait: (longest interactive timeout - S - g - margin) * mu of
// the largest fleet: a request behind more than that could not be answered in time.
func FromPool(p poolspec.Pool, id string) Config {
	c := Config{
		ID:               id,
		MaxSize:          p.Batching.MaxSize,
		MaxWait:          p.Batching.MaxWait.D(),
		InferenceTime:    p.Batching.InferenceTime.D(),
		InferenceTimeout: p.Batching.InferenceTimeout.D(),
		MaxRetries:       p.Batching.MaxRetries,
		RememberPoison:   true,
		Target:           float64(p.TargetPercent) / 100,
		ParamsMode:       p.Gateway.BackendParameterMode,
	}
	longest := time.Duration(0)
	for _, t := range p.Tiers {
		c.Tiers = append(c.Tiers, Tier{
			Name: t.Name, LatencyTarget: t.LatencyTarget.D(), Timeout: t.Timeout.D(),
			Reserved: float64(t.ReservedPercent) / 100, Background: t.Background,
		})
		longest = max(longest, t.Timeout.D())
	}
	s := c.InferenceTime + copies + priorGap
	mu := float64(max(p.MaxWorkers, 1)) * float64(c.MaxSize) / s.Seconds()
	wait := max(longest-s-margin, s)
	c.MaxDepth = min(depthLimit, max(2*c.MaxSize, int(wait.Seconds()*mu)))
	c.MaxBytes = min(bytesLimit, int64(c.MaxDepth)*int64(max(p.Gateway.MaxInputBytes, 1<<10)))
	return c
}
