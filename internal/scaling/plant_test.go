package scaling

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// epoch is where every trace begins.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const tick = 2 * time.Second

// testPolicy is the policy of the design's example: a worker carries 100 / 110 ms = 909/s.
func testPolicy() Policy {
	return Policy{
		Mode: Auto, Min: 2, Max: 16,
		TargetPercent: 75, AbovePercent: 80, UpWindow: 2 * time.Minute, BelowPercent: 50, DownWindow: 10 * time.Minute,
		ColdStart: 5 * time.Minute, MaxSize: 100, BacklogThreshold: 300 * time.Millisecond,
	}
}

const carries = 100 / 0.110 // c of testPolicy with the plant's S + g

// plant is a fleet in virtual time: pods that start, serve, and leave. It is what Decide's decisions act on.
type plant struct {
	now       time.Time
	policy    Policy
	state     State
	replicas  int
	pods      []plantPod
	made      int
	coldStart time.Duration // as it really is
	room      int           // pods that find a node; 0 for all
	drain     time.Duration // from being told to leave to being gone
	leaving   []time.Time   // when those that drain are gone

	offered  func(t time.Duration) float64
	queue    func(offered, mu float64) int // nil: none while the load can be carried, 400 ms of it otherwise
	observe  func(*Observation)            // spoils the observation
	noise    func() float64                // factor on the offered rate
	restarts func() bool                   // before a tick: the operator starts anew

	changes []plantChange
}

type plantPod struct {
	name    string
	created time.Time
	pending bool
}

type plantChange struct {
	at       time.Duration
	from, to int
	reason   string
	message  string
	complete bool
	starting int
	rolling  bool
}

func newPlant(p Policy, workers int) *plant {
	f := &plant{now: epoch, policy: p, coldStart: p.ColdStart, replicas: workers}
	for range workers {
		f.add()
		f.pods[len(f.pods)-1].created = epoch.Add(-24 * time.Hour)
	}
	return f
}

func (f *plant) add() {
	f.made++
	scheduled := 0
	for _, p := range f.pods {
		if !p.pending {
			scheduled++
		}
	}
	f.pods = append(f.pods, plantPod{fmt.Sprintf("w-%d", f.made), f.now, f.room > 0 && scheduled >= f.room})
}

func (f *plant) look() Observation {
	o := Observation{Complete: true, Sources: 2, ServiceTime: 100 * time.Millisecond, Gap: 10 * time.Millisecond, Current: f.replicas}
	for _, p := range f.pods {
		age := f.now.Sub(p.created)
		switch {
		case p.pending && age >= f.policy.ColdStart:
			o.Unschedulable++
		case p.pending || age < f.coldStart && age < f.policy.ColdStart:
			o.Starting++
		case age < f.coldStart:
			o.Failing++
		default:
			o.Ready++
		}
		o.Workers = append(o.Workers, Worker{Name: p.name, Pending: p.pending || age < f.coldStart})
	}
	f.leaving = slices.DeleteFunc(f.leaving, func(t time.Time) bool { return !t.After(f.now) })
	o.Draining = len(f.leaving)
	o.Offered = f.offered(f.now.Sub(epoch))
	mu := carries * float64(o.Ready)
	if f.queue != nil {
		o.Depth = f.queue(o.Offered, mu)
	} else if o.Offered > mu {
		o.Depth = int(0.4 * mu)
	}
	if f.noise != nil {
		o.Offered *= f.noise()
	}
	if f.observe != nil {
		f.observe(&o)
	}
	return o
}

// step decides once and applies the decision.
func (f *plant) step() Decision {
	if f.restarts != nil && f.restarts() {
		f.state = f.state.Resumed()
	}
	o := f.look()
	var d Decision
	d, f.state = Decide(f.now, f.policy, o, f.state)
	if d.Desired != f.replicas {
		f.changes = append(f.changes, plantChange{f.now.Sub(epoch), f.replicas, d.Desired, d.Reason, d.Message, o.Complete, o.Starting, o.Rolling})
	}
	f.replicas = d.Desired
	for len(f.pods) < f.replicas {
		f.add()
	}
	for _, v := range d.Victims {
		f.pods = slices.DeleteFunc(f.pods, func(p plantPod) bool { return p.name == v })
		f.leaving = append(f.leaving, f.now.Add(f.drain))
	}
	f.now = f.now.Add(tick)
	return d
}

func (f *plant) run(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); {
		f.step()
	}
}

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// randomTrace is a load of plateaus, ramps, steps and silences up to peak.
func randomTrace(r *rand.Rand, peak float64) func(time.Duration) float64 {
	type knot struct {
		at   time.Duration
		rate float64
		ramp bool
	}
	knots := []knot{{0, peak * r.Float64(), false}}
	for at := time.Duration(0); at < 3*time.Hour; {
		at += time.Duration(20+r.IntN(1500)) * time.Second
		rate := peak * math.Pow(r.Float64(), 2)
		if r.IntN(8) == 0 {
			rate = 0
		}
		knots = append(knots, knot{at, rate, r.IntN(2) == 0})
	}
	return func(t time.Duration) float64 {
		for i := len(knots) - 1; i >= 0; i-- {
			if t < knots[i].at {
				continue
			}
			if i+1 < len(knots) && knots[i].ramp {
				part := float64(t-knots[i].at) / float64(knots[i+1].at-knots[i].at)
				return knots[i].rate + part*(knots[i+1].rate-knots[i].rate)
			}
			return knots[i].rate
		}
		return 0
	}
}
