package zone

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// fluid is a pool as a fluid: three tiers pour into queues, the fleet drains mu of it a second, strictly by
// tier. It admits what the last published signal says, refuses what would miss its deadline, and is seen
// through a scrape every 2 s with noise on it.
type fluid struct {
	load    [3]float64 // requests/s
	mu      float64
	timeout time.Duration // what a request may wait and still count
	noise   float64       // on the rates that are seen, +-
	poisson bool          // beside it: arrivals are counted, and a count of n is off by its root
	lag     time.Duration // of the signal
}

type fluidResult struct {
	goodput   float64  // of what could be served
	most      int      // most changes of zone in any 60 s, the first minute left out
	changes   []string // after the first minute, with their reasons
	published int
}

// run is 20 minutes in steps of 20 ms; the first minute does not count.
func (f fluid) run(seed uint64) fluidResult {
	const step = 20 * time.Millisecond
	r := rand.New(rand.NewPCG(seed, 5))
	p := testPolicy()
	var s State
	var published, active Signal
	var activeAt time.Time
	admit := []float64{100, 100, 100}
	var queue [3]float64
	var offered [3]float64 // since the last scrape
	res := fluidResult{}
	served := 0.0
	var recent []time.Duration
	service := 110 * time.Millisecond
	for at := time.Duration(0); at < 20*time.Minute; at += step {
		now := epoch.Add(at)
		if at%tick == 0 && at > 0 {
			o := Observation{Complete: true, Sources: 2, Capacity: f.mu}
			for i := range offered {
				rate := offered[i] / tick.Seconds() * (1 + f.noise*(2*r.Float64()-1))
				if f.poisson {
					rate = max(0, rate+math.Sqrt(rate/tick.Seconds())*r.NormFloat64())
				}
				o.Offered = append(o.Offered, rate)
				o.Depth += int(queue[i])
				offered[i] = 0
			}
			var d Decision
			was := s.Name
			d, s = Classify(now, p, o, s)
			if was != "" && d.Changed && at > time.Minute {
				res.changes = append(res.changes, fmt.Sprintf("%s %s → %s %s", at, was, d.Name, d.Reason))
				recent = append(recent, at)
				for at-recent[0] >= time.Minute {
					recent = recent[1:]
				}
				res.most = max(res.most, len(recent))
			}
			next := Signal{Version: 1, Pool: "p", Generation: published.Generation + 1, Zone: d.Name, Reason: d.Reason, Since: d.Since, ObservedAt: now, Capacity: f.mu}
			for i, t := range p.Tiers {
				next.Tiers = append(next.Tiers, SignalTier{t.Name, d.Admit[i]})
			}
			if ShouldPublish(published, next) {
				published = next
				activeAt = now.Add(f.lag)
				res.published++
			}
		}
		if active.Generation != published.Generation && !now.Before(activeAt) {
			active = published
			for i, t := range active.Tiers {
				admit[i] = t.AdmitPercent
			}
		}
		ahead := 0.0
		room := f.mu * step.Seconds()
		for i := range queue {
			in := f.load[i] * step.Seconds()
			offered[i] += in
			in *= admit[i] / 100
			ahead += queue[i]
			// Feasibility: what would wait longer than its time left less a batch is refused.
			if ahead/f.mu > (f.timeout - service).Seconds() {
				in = 0
			}
			queue[i] += in
			out := min(queue[i], room)
			queue[i] -= out
			room -= out
			if at >= time.Minute {
				served += out
			}
		}
	}
	could := min(f.load[0]+f.load[1]+f.load[2], f.mu) * (19 * time.Minute).Seconds()
	res.goodput = served / could
	return res
}

// check holds a result against what is promised at a constant load: the zone changes at most once in any minute, and
// at least 97 % of what could be served is.
func (res fluidResult) check(t *testing.T, format string, args ...any) {
	t.Helper()
	if res.goodput < 0.97 || res.most > 1 {
		t.Errorf(format+": goodput %.1f %%, at most %d changes in a minute: %v", append(args, res.goodput*100, res.most, res.changes)...)
	}
}

// At any constant load from 0.5x to 3x of the capacity, any mix of tiers and any timeout the zone changes at
// most once in any minute, and at least 97 % of what could be served is.
func TestFluidGoodputAndFlips(t *testing.T) {
	mixes := map[string][3]float64{"equal": {1, 1, 1}, "mostly free": {0.1, 0.2, 0.7}, "mostly paid": {0.1, 0.8, 0.1}, "enterprise": {0.8, 0.1, 0.1}}
	for name, mix := range mixes {
		sum := mix[0] + mix[1] + mix[2]
		for _, timeout := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second} {
			for load := 0.5; load <= 3.001; load += 0.1 {
				for _, noise := range []float64{0, 0.05} {
					f := fluid{mu: 9090, timeout: timeout, noise: noise, lag: 200 * time.Millisecond}
					for i := range f.load {
						f.load[i] = load * f.mu * mix[i] / sum
					}
					res := f.run(uint64(load * 100))
					res.check(t, "%s at %.2fx, timeout %s, noise %.0f %%", name, load, timeout, noise*100)
					if res.published > 20*6*3/2 { // one each 10 s, and half as many again
						t.Errorf("%s at %.2fx, timeout %s, noise %.0f %%: %d documents written in 20 min", name, load, timeout, noise*100, res.published)
					}
				}
			}
		}
	}
}
