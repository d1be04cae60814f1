package zone

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"
)

// SignalVersion is the version of the document. A reader refuses any other.
const SignalVersion = 1

// SignalKey is the key of the document in the ConfigMap `<pool>-zone`.
const SignalKey = "signal.json"

// StaleAfter is how long the operator may be silent before a gateway takes the last document for stale.
const StaleAfter = 10 * time.Second

// Bounds of the document, the same as in its schema. A ConfigMap holds 1 MiB.
const (
	maxSignalBytes    = 256 << 10
	maxSignalTiers    = 8
	maxSignalBatchers = 256
	maxSignalName     = 253
)

// Signal is the document by which the operator tells a pool's gateways in which zone the fleet is. Its
// published schema is docs/schema/zone-signal.schema.json.
type Signal struct {
	Version    int       `json:"version"`
	Pool       string    `json:"pool"`
	Generation int64     `json:"generation"` // grows with every document written, from 1
	Zone       Name      `json:"zone"`
	Reason     string    `json:"reason"`
	Since      time.Time `json:"since"`      // when the zone was entered, by the operator's clock: for people
	ObservedAt time.Time `json:"observedAt"` // by the operator's clock: for people, never for staleness

	Capacity float64 `json:"capacity"` // mu, requests/s
	Offered  float64 `json:"offered"`  // requests/s, all tiers and gateways
	Workers  int     `json:"workers"`  // Ready

	Tiers    []SignalTier    `json:"tiers"`              // highest first
	Batchers []SignalBatcher `json:"batchers,omitempty"` // by pod; none where no batcher reports
}

// SignalTier is what is admitted of one tier.
type SignalTier struct {
	Name         string  `json:"name"`
	AdmitPercent float64 `json:"admitPercent"` // 0 to 100
}

// SignalBatcher is the arrival rate of one batcher. A batcher's share of the fleet is its Lambda over the sum of
// all in one document: a ratio that stays true while the rates grow, which a fresh own rate over an older sum
// would not.
type SignalBatcher struct {
	Pod    string  `json:"pod"`
	Lambda float64 `json:"lambda"` // requests/s offered to it
}

// Encode returns the document, after the same checks as DecodeSignal. Version is set.
func (s Signal) Encode() (string, error) {
	s.Version = SignalVersion
	if err := s.Validate(); err != nil {
		return "", err
	}
	b, err := json.Marshal(s)
	return string(b), err
}

// DecodeSignal reads a document and checks it: an unknown version or field, data after the document, or a
// zone, percentage or rate out of range is an error. A gateway that gets one keeps what it had.
func DecodeSignal(doc string) (Signal, error) {
	if len(doc) > maxSignalBytes {
		return Signal{}, fmt.Errorf("zone signal: %d bytes, at most %d", len(doc), maxSignalBytes)
	}
	// The version first: a document of another version has fields that are unknown here, and "update the
	// gateways" says more than "unknown field".
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal([]byte(doc), &head); err != nil {
		return Signal{}, fmt.Errorf("zone signal: %w", err)
	}
	if head.Version != SignalVersion {
		return Signal{}, versionError(head.Version)
	}
	var s Signal
	dec := json.NewDecoder(bytes.NewReader([]byte(doc)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return Signal{}, fmt.Errorf("zone signal: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Signal{}, fmt.Errorf("zone signal: something follows the document")
	}
	if err := s.Validate(); err != nil {
		return Signal{}, err
	}
	return s, nil
}

func versionError(v int) error {
	return fmt.Errorf("zone signal: version %d, this binary reads version %d: use images of one release", v, SignalVersion)
}

// Validate says what is wrong with a document, naming the field.
func (s Signal) Validate() error {
	bad := func(format string, args ...any) error { return fmt.Errorf("zone signal: "+format, args...) }
	switch {
	case s.Version != SignalVersion:
		return versionError(s.Version)
	case s.Pool == "" || len(s.Pool) > maxSignalName:
		return bad("pool must have 1 to %d characters", maxSignalName)
	case s.Generation < 1:
		return bad("generation is %d, want at least 1", s.Generation)
	case s.Zone != Green && s.Zone != Yellow && s.Zone != Red:
		return bad("zone is %q, want Green, Yellow or Red", s.Zone)
	case s.Reason == "" || len(s.Reason) > 64:
		return bad("reason must have 1 to 64 characters")
	case s.Since.IsZero() || s.ObservedAt.IsZero():
		return bad("since and observedAt must be set")
	case !rateOK(s.Capacity) || !rateOK(s.Offered):
		return bad("capacity %v and offered %v must be numbers from 0", s.Capacity, s.Offered)
	case s.Workers < 0:
		return bad("workers is %d", s.Workers)
	case len(s.Tiers) < 1 || len(s.Tiers) > maxSignalTiers:
		return bad("%d tiers, want 1 to %d", len(s.Tiers), maxSignalTiers)
	case len(s.Batchers) > maxSignalBatchers:
		return bad("%d batchers, at most %d", len(s.Batchers), maxSignalBatchers)
	}
	seen := make(map[string]bool, len(s.Tiers)+len(s.Batchers))
	for i, t := range s.Tiers {
		if t.Name == "" || len(t.Name) > 32 || seen["t/"+t.Name] {
			return bad("tiers[%d].name %q is empty, too long or stands twice", i, t.Name)
		}
		seen["t/"+t.Name] = true
		if !(t.AdmitPercent >= 0 && t.AdmitPercent <= 100) {
			return bad("tiers[%d].admitPercent is %v, want 0 to 100", i, t.AdmitPercent)
		}
	}
	for i, b := range s.Batchers {
		if b.Pod == "" || len(b.Pod) > maxSignalName || seen["b/"+b.Pod] {
			return bad("batchers[%d].pod %q is empty, too long or stands twice", i, b.Pod)
		}
		seen["b/"+b.Pod] = true
		if !rateOK(b.Lambda) {
			return bad("batchers[%d].lambda is %v, want a number from 0", i, b.Lambda)
		}
	}
	return nil
}

func rateOK(r float64) bool { return r >= 0 && !math.IsInf(r, 1) }

// How much must change for a document to be written anew.
const (
	publishCapacity = 0.05 // of the capacity
	publishPercent  = 5.0  // points of a tier's percentage

	// While load is shed, a smaller difference that has stood for settleAfter is written too: at 3x the
	// load, 5 points of one tier are 15 % of the capacity.
	settleAfter    = 10 * time.Second
	settleCapacity = 0.02
	settlePercent  = 1.0

	// Batchers divide their own rate by the fleet's: with an old one they take a growing load for a growing
	// share of it, and count on workers that the others use too.
	publishOffered = 0.10 // of the capacity
	offeredNoise   = 0.20 // of the load itself

	// A batcher's share of the arrivals matters once batches can be filled at all, and is noise below.
	shareChange = 0.10
	shareLoad   = 0.05 // of the capacity
)

// ShouldPublish says whether next differs enough from last, the document written last (its zero value for
// none): another zone, reason for having no capacity, set of tiers or set of batchers, the capacity by 5 %, a
// percentage by 5 points, the load by a fifth that is also 10 % of the capacity; at most every 10 s also a
// batcher's share of the arrivals by 10 points, and outside Green the capacity by 2 % or a percentage by one
// point. Noise of a steady Green pool is none of these: it writes nothing.
func ShouldPublish(last, next Signal) bool {
	if last.Version != next.Version && last.Version != SignalVersion ||
		last.Zone != next.Zone || last.Pool != next.Pool ||
		(last.Reason == ReasonNoCapacity) != (next.Reason == ReasonNoCapacity) ||
		len(last.Tiers) != len(next.Tiers) || len(last.Batchers) != len(next.Batchers) {
		return true
	}
	capacity, percent := publishCapacity, publishPercent
	settled := next.ObservedAt.Sub(last.ObservedAt) >= settleAfter
	if settled && next.Zone != Green {
		capacity, percent = settleCapacity, settlePercent
	}
	if math.Abs(next.Capacity-last.Capacity) > capacity*last.Capacity {
		return true
	}
	if math.Abs(next.Offered-last.Offered) > max(publishOffered*next.Capacity, offeredNoise*last.Offered) {
		return true
	}
	for i, t := range next.Tiers {
		if t.Name != last.Tiers[i].Name || math.Abs(t.AdmitPercent-last.Tiers[i].AdmitPercent) >= percent {
			return true
		}
	}
	was, is := shares(last.Batchers), shares(next.Batchers)
	busy := next.Offered > shareLoad*next.Capacity
	for i, b := range next.Batchers {
		if b.Pod != last.Batchers[i].Pod || settled && busy && math.Abs(is[i]-was[i]) >= shareChange {
			return true
		}
	}
	return false
}

// Share is the part of the fleet's arrivals that goes to pod, 0 to 1. False where the document does not know.
func (s Signal) Share(pod string) (float64, bool) {
	parts := shares(s.Batchers)
	for i, b := range s.Batchers {
		if b.Pod == pod {
			return parts[i], parts[i] > 0
		}
	}
	return 0, false
}

func shares(bs []SignalBatcher) []float64 {
	sum := 0.0
	for _, b := range bs {
		sum += b.Lambda
	}
	out := make([]float64, len(bs))
	for i, b := range bs {
		if sum > 0 {
			out[i] = b.Lambda / sum
		}
	}
	return out
}
