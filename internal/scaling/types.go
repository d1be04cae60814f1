package scaling

import "time"

// Mode says who decides the number of workers.
type Mode string

// Modes, with the words of spec.scaling.mode.
const (
	Auto     Mode = "Auto"     // Decide decides and its decision is applied
	Observe  Mode = "Observe"  // Decide decides and reports; the number of workers stays as it is
	External Mode = "External" // Policy.Replicas is obeyed, within Min and Max
)

// Warm is the number of workers kept beyond what the load needs: Count, or Percent (0-100) of the workers
// that the load needs, rounded up. Set one of the two.
type Warm struct {
	Count   int
	Percent int
}

// Policy is a pool's scaling policy. Percentages are 1-100.
type Policy struct {
	Mode     Mode
	Min, Max int  // workers, in every mode
	Replicas *int // with External: the number asked for; nil keeps the current one

	TargetPercent int // the utilization that the fleet is sized for
	AbovePercent  int // scale up when utilization stays above it for UpWindow
	UpWindow      time.Duration
	BelowPercent  int // remove a worker when utilization stays below it for DownWindow
	DownWindow    time.Duration
	PausedUp      bool
	PausedDown    bool

	ColdStart time.Duration // from a worker's creation to Ready, where normal
	MaxSize   int           // B, the largest batch

	// The queue over which workers are added at once (zones.yellow): a time, or else a number of requests.
	BacklogThreshold time.Duration
	DepthThreshold   int // used when BacklogThreshold is 0

	Warm Warm
}

// Worker is one worker pod, for the choice of who leaves. Draining ones are not listed.
type Worker struct {
	Name      string
	Pending   bool          // has no node, or has not been Ready yet
	Unhealthy bool          // a batcher has it marked unhealthy, or it lost its readiness
	IdleFor   time.Duration // since its last batch ended, as the batcher that saw it last tells; 0 while busy
}

// Observation is what is known of a pool at one instant. Rates are per second. Every time in it was
// measured by the manager's own clock.
type Observation struct {
	// Complete says that every gateway, batcher and worker that should have reported did, freshly. Partial
	// data is a lower bound of the load: it can add workers, never remove one.
	Complete bool
	// Missing names who did not report, for the message.
	Missing []string
	// Sources is the number of gateways and batchers with a fresh report. 0 means that nothing is known of
	// the load.
	Sources int

	Offered float64 // requests/s wanted: admitted + refused for capacity, first attempts only
	Depth   int     // requests waiting, all batchers

	ServiceTime time.Duration // S, measured, or the prior; > 0
	Gap         time.Duration // g, between a worker finishing and its next batch

	Current       int // the Deployment's spec.replicas
	Ready         int // Ready workers
	Starting      int // not Ready yet and within ColdStart, those without a node included
	Failing       int // have a node, not Ready for longer than ColdStart
	Unschedulable int // without a node for longer than ColdStart
	Draining      int // leaving; not part of Current
	Rolling       bool

	Workers []Worker
}

// State is what Decide remembers. The first group of fields belongs into the pool's status, so that no
// restart loses it; the zero value of every field is "not running" or "never".
type State struct {
	AboveSince    time.Time // utilization above AbovePercent since then (pauses below the line eat it up)
	BelowSince    time.Time // utilization below BelowPercent on complete data since then
	LastScaleUp   time.Time
	LastScaleDown time.Time
	LastDepthStep time.Time // last worker added because of the queue alone
	Victim        string    // worker chosen to leave by the last scale-down

	// In memory only. Losing these delays a change; losing NoRoomSince makes the next try for room earlier.
	LastTick     time.Time // last call
	DepthScrapes int       // consecutive scrapes with the queue over the threshold
	OverSince    time.Time // the load is over the capacity itself since then
	PeakSince    time.Time // PeakOffered is the highest offered rate since then, PeakBefore that of the
	PeakOffered  float64   // down window before it; together they cover one to two windows
	PeakBefore   float64
	ShortSince   time.Time // fewer pods exist than the Deployment should have, since then
	NoRoomSince  time.Time // workers were withdrawn then because no node had room
}

// Resumed returns the state for a new leader or a restarted operator: the down window is observed again
// from its beginning, every other timer goes on.
func (s State) Resumed() State {
	return State{
		AboveSince:    s.AboveSince,
		LastScaleUp:   s.LastScaleUp,
		LastScaleDown: s.LastScaleDown,
		LastDepthStep: s.LastDepthStep,
		Victim:        s.Victim,
	}
}

// Decision is what to do and why.
type Decision struct {
	Desired     int // the number to write into the Deployment: always within Min and Max
	Recommended int // what Auto would write; differs from Desired only with Observe, External and paused

	Reason  string // one of the Reason constants
	Message string // the numbers behind it, for people

	// Victims are the workers to mark as first to go, in order, when Desired is below Current.
	Victims []string

	// Utilization is offered over capacity (slots, not busy time): 0.75 is 75 %. -1 where it is not known:
	// no data, or no Ready worker.
	Utilization float64
	// Capacity is mu, in requests/s: that of the Ready workers.
	Capacity float64
	// Backlog is the time the Ready workers need for what waits. With none Ready and something waiting it
	// is MaxBacklog.
	Backlog time.Duration

	// CapacityAvailable is false when the cluster has no room for workers that the pool asks for.
	CapacityAvailable bool
	CapacityReason    string
	CapacityMessage   string
}

// MaxBacklog stands for "never": a queue in front of no worker.
const MaxBacklog = time.Hour

// Reasons of a change.
const (
	ReasonUtilizationHigh = "UtilizationHigh" // above AbovePercent for UpWindow
	ReasonBacklogHigh     = "BacklogHigh"     // the queue is over its threshold, and the load asks for more workers
	ReasonOverCapacity    = "OverCapacity"    // more is offered than the Ready workers carry: some of it is refused
	ReasonQueuePersistent = "QueuePersistent" // the queue stays although the load asks for no more: one worker more
	ReasonUtilizationLow  = "UtilizationLow"  // below BelowPercent for DownWindow: one worker leaves
	ReasonNoCapacity      = "NoCapacity"      // no worker is Ready, and there is load
	ReasonBelowMinimum    = "BelowMinimum"
	ReasonAboveMaximum    = "AboveMaximum"
	ReasonExternal        = "External"       // spec.workers.replicas
	ReasonPendingRemoved  = "PendingRemoved" // workers that found no node within ColdStart are withdrawn
)

// Reasons of holding the number as it is.
const (
	ReasonSteady            = "Steady"
	ReasonUpWindow          = "UpWindow"          // above the line, the window is not over
	ReasonDownWindow        = "DownWindow"        // below the line, the window is not over
	ReasonWorkersStarting   = "WorkersStarting"   // enough workers are on their way, or one is and nothing may leave
	ReasonWorkersRolling    = "WorkersRolling"    // a rollout runs: nothing may leave
	ReasonWorkersDraining   = "WorkersDraining"   // a worker is still leaving: no other may
	ReasonWorkersFailing    = "WorkersFailing"    // none becomes Ready: more of the same would not either
	ReasonWouldOverload     = "WouldOverload"     // one worker less would be above AbovePercent
	ReasonAtMaximum         = "AtMaximum"         // maxReplicas
	ReasonAtMinimum         = "AtMinimum"         // minReplicas
	ReasonNoRoom            = "NoRoom"            // the cluster has no node for another worker
	ReasonMetricsMissing    = "MetricsMissing"    // nobody reports
	ReasonMetricsIncomplete = "MetricsIncomplete" // somebody does not: nothing may leave
	ReasonPausedUp          = "PausedUp"
	ReasonPausedDown        = "PausedDown"
)

// BatcherPolicy is how a pool's batchers are scaled.
type BatcherPolicy struct {
	Min, Max      int
	PerBatcher    float64       // requests/s that one batcher carries; <= 0 takes DefaultPerBatcher
	DownWindow    time.Duration // a batcher leaves when it was not needed for this long
	MaxSize       int           // B
	MaxWait       time.Duration // W, the longest assembly window
	TargetPercent int
}

// BatcherObservation is what is known of the batchers. Rates are per second.
type BatcherObservation struct {
	Complete bool
	Sources  int     // batchers with a fresh report
	Offered  float64 // requests/s, all batchers
	Current  int     // the Deployment's spec.replicas
	Rolling  bool
	// FillPercent is the mean fill of the batches, BusyPercent the part of the time in which workers run.
	FillPercent, BusyPercent int
}

// BatcherState is what BatcherReplicas remembers. It need not survive a restart: that only delays a
// removal.
type BatcherState struct {
	AboveTicks int
	BelowSince time.Time
}

// BatcherDecision is the number of batchers and why.
type BatcherDecision struct {
	Desired int
	Reason  string
	Message string
	// FillSufficient is false when there are so many batchers that each fills its batches too slowly.
	FillSufficient bool
	FillReason     string
	FillMessage    string
}
