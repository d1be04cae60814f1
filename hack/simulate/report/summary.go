// Package report says what a simulation showed: as text, JSON and CSV.
package report

import (
	"maps"
	"math"
	"slices"
	"time"

	"sluice.dev/sluice/hack/simulate/sim"
	"sluice.dev/sluice/internal/zone"
)

// Summary is the report, as `-o json` writes it. Durations are in milliseconds or seconds, as named.
type Summary struct {
	Pool            string  `json:"pool"`
	Load            string  `json:"load"`
	DurationSeconds float64 `json:"durationSeconds"`
	Requests        int     `json:"requests"`
	MeanPerSecond   float64 `json:"meanPerSecond"`
	PeakPerSecond   float64 `json:"peakPerSecond"` // over 10 s

	// Notes say what of the pool is not simulated, or not as it would be.
	Notes []string `json:"notes,omitempty"`

	Tiers   []Tier   `json:"tiers"`
	Workers Workers  `json:"workers"`
	Cost    Cost     `json:"workerHours"`
	Zones   Zones    `json:"zones"`
	Changes []Change `json:"changes"`
	Events  []Event  `json:"events"`
	// Holds counts the operator's ticks that changed nothing, by reason.
	Holds map[string]int `json:"holds"`
	// LostWithBatcher are requests whose batcher died while they waited.
	LostWithBatcher int `json:"lostWithBatcher"`
}

// Tier is what the clients of a tier got.
type Tier struct {
	Name    string         `json:"name"`
	Offered int            `json:"offered"` // without those beyond a quota
	Served  int            `json:"served"`
	Refused map[string]int `json:"refused"` // at once: 429, 503
	Failed  map[string]int `json:"failed"`  // after waiting: 503, 504
	// Degraded counts what the tier's ladder did, by step; a tier without a ladder has none. max_tokens and
	// parameter made served requests cheaper; reroute and answer are requests that the pool neither served nor
	// refused.
	Degraded map[string]int `json:"degraded,omitempty"`
	P50      float64        `json:"p50Ms"`
	P95      float64        `json:"p95Ms"`
	P99      float64        `json:"p99Ms"`
	// LatePercent is the part of the served that took longer than the tier's latency target.
	TargetMs    float64 `json:"latencyTargetMs"`
	LatePercent float64 `json:"latePercent"`
}

// Workers is what the fleet was.
type Workers struct {
	First              int     `json:"first"`
	Least              int     `json:"least"` // Ready
	Most               int     `json:"most"`
	Last               int     `json:"last"`
	MeanReady          float64 `json:"meanReady"`
	UtilizationPercent float64 `json:"utilizationPercent"` // offered over the capacity of the Ready workers
	BusyPercent        float64 `json:"busyPercent"`
	MeanBatch          float64 `json:"meanBatch"`
}

// Zones is how long the pool was in which zone.
type Zones struct {
	GreenPercent  float64 `json:"greenPercent"`
	YellowPercent float64 `json:"yellowPercent"`
	RedPercent    float64 `json:"redPercent"`
	Changes       int     `json:"changes"`
	Documents     int     `json:"documents"` // zone documents written
}

// Change is a change of the number of workers or batchers.
type Change struct {
	AtSeconds float64 `json:"atSeconds"`
	What      string  `json:"what"`
	From      int     `json:"from"`
	To        int     `json:"to"`
	Reason    string  `json:"reason"`
	Message   string  `json:"message"`
}

// Event is a change of zone, a failure, or the cluster having no room.
type Event struct {
	AtSeconds float64 `json:"atSeconds"`
	Kind      string  `json:"kind"`
	Text      string  `json:"text"`
}

// Summarize makes the report of a result.
func Summarize(r *sim.Result) Summary {
	s := Summary{
		Pool: r.Pool, Load: r.Load, DurationSeconds: r.Duration.Seconds(), Requests: r.Requests,
		MeanPerSecond: round(float64(r.Requests)/r.Duration.Seconds(), 1), PeakPerSecond: round(peak(r), 1),
		Notes: r.Notes, Holds: maps.Clone(r.Holds), Cost: costOf(r), LostWithBatcher: r.Lost,
	}
	s.Cost.Simulated, s.Cost.Hindsight, s.Cost.Fixed = round(s.Cost.Simulated, 3), round(s.Cost.Hindsight, 3), round(s.Cost.Fixed, 3)
	for i := range r.Tiers {
		t := &r.Tiers[i]
		ms := func(q float64) float64 { return round(t.Latency.Quantile(q).Seconds()*1000, 1) }
		var degraded map[string]int
		if t.Laddered {
			degraded = map[string]int{}
			for i, n := range t.Degraded {
				degraded[sim.Steps[i]] = n
			}
		}
		s.Tiers = append(s.Tiers, Tier{
			Degraded: degraded,
			Name:     t.Name, Offered: t.Offered, Served: t.Served, Refused: t.Refused, Failed: t.Failed,
			P50: ms(0.5), P95: ms(0.95), P99: ms(0.99),
			TargetMs: t.Target.Seconds() * 1000, LatePercent: round(100*ratio(float64(t.Late), float64(t.Served)), 3),
		})
	}
	s.Workers = workersOf(r)
	share := func(n zone.Name) float64 { return round(100*ratio(float64(r.ZoneTime[n]), float64(r.Duration)), 2) }
	s.Zones = Zones{share(zone.Green), share(zone.Yellow), share(zone.Red), r.ZoneChanges, r.Published}
	for _, c := range r.Changes {
		s.Changes = append(s.Changes, Change{c.At.Seconds(), c.What, c.From, c.To, c.Reason, c.Message})
	}
	for _, e := range r.Events {
		s.Events = append(s.Events, Event{e.At.Seconds(), e.Kind, e.Text})
	}
	return s
}

func workersOf(r *sim.Result) Workers {
	w := Workers{Least: math.MaxInt}
	var offered, capacity, ready float64
	var last time.Duration
	for i, b := range r.Bins {
		if i == 0 {
			w.First = b.Ready
		}
		w.Least, w.Most, w.Last = min(w.Least, b.Ready), max(w.Most, b.Ready), b.Ready
		d := (b.At - last).Seconds()
		last = b.At
		offered += float64(b.Offered)
		capacity += b.Capacity * d
		ready += float64(b.Ready) * d
	}
	w.MeanReady = round(ratio(ready, r.Duration.Seconds()), 2)
	w.UtilizationPercent = round(100*ratio(offered, capacity), 1)
	w.BusyPercent = round(100*ratio(r.BusyTime.Seconds(), ready), 1)
	w.MeanBatch = round(ratio(float64(r.Items), float64(r.Batches)), 1)
	return w
}

// peak is the highest offered rate over 10 s.
func peak(r *sim.Result) float64 {
	most, n := 0.0, 0
	var from time.Duration
	for _, b := range r.Bins {
		n += b.Offered
		if b.At-from >= hindsightStep {
			most = max(most, float64(n)/(b.At-from).Seconds())
			n, from = 0, b.At
		}
	}
	return most
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func round(x float64, digits int) float64 {
	f := math.Pow(10, float64(digits))
	return math.Round(x*f) / f
}

// sorted is a map's entries, the largest first.
func sorted(m map[string]int) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		if a < b {
			return -1
		}
		return 1
	})
}
