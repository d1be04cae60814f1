// Package zone says when load is shed and how much of each tier is admitted: Green admits everything that
// is feasible, Yellow sheds in proportion from the lowest tier up, Red refuses the tiers with shedding
// First. Classify is pure; Signal is the document by which the operator tells the gateways.
package zone

import "time"

// Name is the name of a zone.
type Name string

// Zones, in the words of status.zone.name.
const (
	Green  Name = "Green"
	Yellow Name = "Yellow"
	Red    Name = "Red"
)

// Shedding is what happens to a tier when the fleet is too small, in the words of spec.tiers[].shedding.
type Shedding string

// Shedding policies.
const (
	Never    Shedding = "Never"    // admitted in every zone
	Throttle Shedding = "Throttle" // what the higher tiers leave, never nothing
	First    Shedding = "First"    // what is left in Yellow, nothing in Red
)

// Reasons of a zone.
const (
	ReasonCalm                = "Calm"
	ReasonBacklogHigh         = "BacklogHigh"         // the queue
	ReasonOfferedOverCapacity = "OfferedOverCapacity" // the load, or for Red that of the tiers above the lowest
	ReasonRecovering          = "Recovering"          // the cause is gone, the hold is not over
	ReasonNoCapacity          = "NoCapacity"          // no worker serves: every request is answered 503
	ReasonMetricsMissing      = "MetricsMissing"      // nobody reports: zone and percentages stay as they were
)

// Tier is one tier, as far as zones are concerned.
type Tier struct {
	Name            string
	Shedding        Shedding
	Background      bool // pauses in Yellow and Red
	ReservedPercent int  // share of the capacity that is its own, 0-50
}

// Policy is a pool's zones: thresholds of one kind, the other is zero.
type Policy struct {
	YellowBacklog, RedBacklog time.Duration
	YellowDepth, RedDepth     int
	Tiers                     []Tier // highest first, 1 to 8
}

// Observation is what is known of the load at one instant. The operator passes the fleet's; a gateway
// passes its own: its rates, its queue and its share of the capacity that it sees alive.
type Observation struct {
	// Complete says that everybody reported. Partial data can enter a worse zone, never leave one.
	Complete bool
	// Sources is the number of reports. 0 means that nothing is known of the load.
	Sources int

	Offered  []float64 // requests/s wanted, by tier in the policy's order: admitted + refused for capacity
	Depth    int       // requests waiting, those of Background tiers left out: they have no latency to lose
	Capacity float64   // mu: requests/s that the Ready workers serve; 0 when there is none
}

// State is what Classify remembers. Name, Reason, Since and CalmSince belong into the pool's status. The zero
// value is a pool just begun.
type State struct {
	Name      Name
	Reason    string
	Since     time.Time // when the zone was entered
	CalmSince time.Time // since when the conditions to leave have held; zero while they do not

	// In memory only; a restart measures them again.
	OverTicks int             // consecutive calls with the load over the capacity
	LastTick  time.Time       // last call
	Capacity  float64         // at the last call
	Load      []float64       // smoothed offered rates, by tier
	LoadFor   []time.Duration // how long each was averaged over, a minute at most
	Admit     []float64       // last percentages, by tier
	AdmitAt   time.Time       // when they were last computed anew
}

// Decision is the zone and what it admits.
type Decision struct {
	Name    Name
	Reason  string
	Message string // the numbers behind it, for people
	Since   time.Time
	Changed bool // the name differs from the state's

	// Admit is the percentage of each tier's requests that is admitted, 0 to 100 in steps of 0.1, in the
	// policy's order.
	Admit []float64
	// Backlog is the time the capacity needs for what waits.
	Backlog time.Duration
}

// Worse returns the worse of two zones: Red before Yellow before Green. An unknown or empty name is Green.
func Worse(a, b Name) Name {
	if rank(b) > rank(a) {
		return b
	}
	if rank(a) == 0 {
		return Green
	}
	return a
}

func rank(n Name) int {
	switch n {
	case Red:
		return 2
	case Yellow:
		return 1
	}
	return 0
}
