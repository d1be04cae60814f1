package scaling

import (
	"math"
	"strings"
	"testing"
	"time"
)

// seen is an observation of n Ready workers under a load of that many percent of their capacity.
func seen(n int, percent float64) Observation {
	return Observation{
		Complete: true, Sources: 2, Offered: percent / 100 * float64(n) * carries,
		ServiceTime: 100 * time.Millisecond, Gap: 10 * time.Millisecond, Current: n, Ready: n,
	}
}

func with(o Observation, f func(*Observation)) Observation { f(&o); return o }

// TestDecide is one decision at a time: what is seen, what was remembered, what follows.
func TestDecide(t *testing.T) {
	ago := func(d time.Duration) time.Time { return epoch.Add(-d) }
	two := 2
	five, fifty := 5, 50
	tests := []struct {
		name    string
		policy  func(*Policy)
		o       Observation
		s       State
		desired int
		recom   int // where it differs
		reason  string
		message string // a part of it
	}{
		{name: "steady", o: seen(4, 70), desired: 4, reason: ReasonSteady, message: "steady: utilization 70 % for 4 ready workers"},
		{name: "above, window running", o: seen(4, 90), s: State{AboveSince: ago(41 * time.Second)}, desired: 4, reason: ReasonUpWindow, message: "held: above 80 % for 40 s of 2 min"},
		{name: "above, window over", o: seen(4, 90), s: State{AboveSince: ago(2 * time.Minute)}, desired: 5, reason: ReasonUtilizationHigh, message: "4 → 5: above 80 % for 2 min, 3300/s offered, 4 workers ready carry 3600/s"},
		{name: "just not above, window over", o: seen(4, 79), s: State{AboveSince: ago(3 * time.Minute)}, desired: 4, reason: ReasonSteady},
		{name: "backlog over the threshold, and the load asks for more", o: with(seen(4, 100), func(o *Observation) { o.Depth = 1200 }), desired: 6, reason: ReasonBacklogHigh, message: "backlog 330 ms over 300 ms (1200 waiting)"},
		{name: "backlog over the threshold once, and it does not", o: with(seen(4, 60), func(o *Observation) { o.Depth = 1200 }), desired: 4, reason: ReasonSteady, message: "4 workers are enough"},
		{name: "the same for the second scrape", o: with(seen(4, 60), func(o *Observation) { o.Depth = 1200 }), s: State{DepthScrapes: 1}, desired: 5, reason: ReasonQueuePersistent},
		{name: "depth, where the policy has one", policy: func(p *Policy) { p.BacklogThreshold, p.DepthThreshold = 0, 200 },
			o: with(seen(4, 100), func(o *Observation) { o.Depth = 201 }), desired: 6, reason: ReasonBacklogHigh, message: "201 waiting, over 200"},
		{name: "a queue of the threshold itself", policy: func(p *Policy) { p.BacklogThreshold, p.DepthThreshold = 0, 200 },
			o: with(seen(4, 79), func(o *Observation) { o.Depth = 200 }), desired: 4, reason: ReasonSteady},
		{name: "limited by max", policy: func(p *Policy) { p.Max = 5 }, o: seen(4, 200), s: State{AboveSince: ago(time.Hour)}, desired: 5, reason: ReasonUtilizationHigh, message: "limited: maxReplicas, the load asks for 11"},
		{name: "at max", policy: func(p *Policy) { p.Max = 4 }, o: seen(4, 200), s: State{AboveSince: ago(time.Hour)}, desired: 4, reason: ReasonAtMaximum, message: "limited: maxReplicas 4"},
		{name: "enough on its way", o: with(seen(4, 200), func(o *Observation) { o.Current, o.Starting = 11, 7 }), s: State{AboveSince: ago(time.Hour)}, desired: 11, reason: ReasonWorkersStarting, message: "held: 7 workers starting"},
		{name: "pods that the Deployment has not made yet are on their way", o: with(seen(4, 200), func(o *Observation) { o.Current = 11 }), s: State{AboveSince: ago(time.Hour)}, desired: 11, reason: ReasonWorkersStarting},
		{name: "not enough on its way", o: with(seen(4, 200), func(o *Observation) { o.Current, o.Starting = 6, 2 }), s: State{AboveSince: ago(time.Hour)}, desired: 11, reason: ReasonUtilizationHigh},
		{name: "below, window running", o: seen(4, 30), s: State{BelowSince: ago(3*time.Minute + 10*time.Second)}, desired: 4, reason: ReasonDownWindow, message: "held: below 50 % for 3 min of 10 min"},
		{name: "below, window over", o: seen(4, 30), s: State{BelowSince: ago(10 * time.Minute)}, desired: 3, reason: ReasonUtilizationLow, message: "4 → 3: below 50 % for 10 min"},
		{name: "below, but a removal was 9 min ago", o: seen(4, 30), s: State{BelowSince: ago(time.Hour), LastScaleDown: ago(9 * time.Minute)}, desired: 4, reason: ReasonDownWindow},
		{name: "below, but workers were added 9 min ago", o: seen(4, 30), s: State{BelowSince: ago(time.Hour), LastScaleUp: ago(9 * time.Minute)}, desired: 4, reason: ReasonDownWindow},
		{name: "below, a worker starts", o: with(seen(4, 30), func(o *Observation) { o.Current, o.Starting = 5, 1 }), s: State{BelowSince: ago(time.Hour)}, desired: 5, reason: ReasonWorkersStarting, message: "held: 1 worker starting"},
		{name: "below, a rollout runs", o: with(seen(4, 30), func(o *Observation) { o.Rolling = true }), s: State{BelowSince: ago(time.Hour)}, desired: 4, reason: ReasonWorkersRolling},
		{name: "below, one still leaves", o: with(seen(4, 30), func(o *Observation) { o.Draining = 1 }), s: State{BelowSince: ago(time.Hour)}, desired: 4, reason: ReasonWorkersDraining},
		{name: "below, data incomplete", o: with(seen(4, 30), func(o *Observation) { o.Complete = false }), s: State{BelowSince: ago(time.Hour)}, desired: 4, reason: ReasonMetricsIncomplete},
		{name: "below, at min", o: seen(2, 10), s: State{BelowSince: ago(time.Hour)}, desired: 2, reason: ReasonAtMinimum},
		{name: "nobody reports", o: with(seen(4, 0), func(o *Observation) { o.Sources, o.Complete = 0, false }), s: State{BelowSince: ago(time.Hour)}, desired: 4, reason: ReasonMetricsMissing},
		{name: "nobody reports, below min all the same", o: with(seen(1, 0), func(o *Observation) { o.Sources, o.Complete = 0, false }), desired: 2, reason: ReasonBelowMinimum},
		{name: "a new pool", o: with(seen(0, 0), func(o *Observation) { o.Sources, o.Complete = 0, false }), desired: 2, reason: ReasonBelowMinimum, message: "0 → 2: minReplicas"},
		{name: "above max", policy: func(p *Policy) { p.Max = 3 }, o: seen(5, 60), desired: 3, reason: ReasonAboveMaximum},
		{name: "no worker ready, and load", o: with(seen(0, 0), func(o *Observation) { o.Current, o.Starting, o.Offered = 2, 2, 4*carries }), desired: 6, reason: ReasonNoCapacity},
		{name: "no worker ready, enough of them on their way", o: with(seen(0, 0), func(o *Observation) { o.Current, o.Starting, o.Offered = 2, 2, carries }), desired: 2, reason: ReasonWorkersStarting},
		{name: "paused up", policy: func(p *Policy) { p.PausedUp = true }, o: seen(4, 200), s: State{AboveSince: ago(time.Hour)}, desired: 4, recom: 11, reason: ReasonPausedUp, message: "held: scaling up is paused; otherwise 4 → 11"},
		{name: "paused down", policy: func(p *Policy) { p.PausedDown = true }, o: seen(4, 30), s: State{BelowSince: ago(time.Hour)}, desired: 4, recom: 3, reason: ReasonPausedDown, message: "otherwise 4 → 3"},
		{name: "paused, and below min", policy: func(p *Policy) { p.PausedUp = true }, o: seen(1, 20), desired: 2, reason: ReasonBelowMinimum},
		{name: "observe", policy: func(p *Policy) { p.Mode = Observe }, o: seen(4, 200), s: State{AboveSince: ago(time.Hour)}, desired: 4, recom: 11, reason: ReasonUtilizationHigh, message: "observing, not changed: 4 → 11"},
		{name: "external", policy: func(p *Policy) { p.Mode, p.Replicas = External, &five }, o: seen(4, 10), desired: 5, reason: ReasonExternal, message: "4 → 5: spec.workers.replicas is 5"},
		{name: "external, down by several", policy: func(p *Policy) { p.Mode, p.Replicas = External, &two }, o: seen(8, 90), desired: 2, reason: ReasonExternal},
		{name: "external, over max", policy: func(p *Policy) { p.Mode, p.Replicas = External, &fifty }, o: seen(4, 10), desired: 16, reason: ReasonExternal, message: "limited: minReplicas 2, maxReplicas 16"},
		{name: "external without replicas", policy: func(p *Policy) { p.Mode = External }, o: seen(4, 300), s: State{AboveSince: ago(time.Hour)}, desired: 4, reason: ReasonExternal},
		{name: "external without any report", policy: func(p *Policy) { p.Mode, p.Replicas = External, &five }, o: with(seen(4, 0), func(o *Observation) { o.Sources = 0 }), desired: 5, reason: ReasonExternal},
		{name: "external, paused", policy: func(p *Policy) { p.Mode, p.Replicas, p.PausedUp = External, &five, true }, o: seen(4, 10), desired: 4, recom: 5, reason: ReasonPausedUp},
		{name: "warm workers are not for the load", policy: func(p *Policy) { p.Warm.Count = 2 }, o: seen(6, 60), s: State{AboveSince: ago(time.Hour)}, desired: 7, reason: ReasonUtilizationHigh},
		{name: "warm workers in percent", policy: func(p *Policy) { p.Warm.Percent = 50 }, o: seen(6, 60), s: State{AboveSince: ago(time.Hour)}, desired: 8, reason: ReasonUtilizationHigh}, // 5 for the load, 3 warm
		{name: "warm workers stay at no load", policy: func(p *Policy) { p.Warm.Count = 4 }, o: seen(4, 0), s: State{BelowSince: ago(time.Hour)}, desired: 4, reason: ReasonAtMinimum, message: "4 workers kept warm"},
		{name: "a far future timer does not fire", o: seen(4, 30), s: State{BelowSince: ago(time.Hour), LastScaleDown: epoch.Add(48 * time.Hour)}, desired: 4, reason: ReasonDownWindow},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := testPolicy()
			if tt.policy != nil {
				tt.policy(&p)
			}
			d, _ := Decide(epoch, p, tt.o, tt.s)
			if d.Desired != tt.desired || d.Reason != tt.reason || !strings.Contains(d.Message, tt.message) {
				t.Errorf("got %d, %s: %q\nwant %d, %s: ... %q ...", d.Desired, d.Reason, d.Message, tt.desired, tt.reason, tt.message)
			}
			want := tt.desired
			if tt.recom != 0 {
				want = tt.recom
			}
			if d.Recommended != want {
				t.Errorf("recommends %d, want %d", d.Recommended, want)
			}
		})
	}
}

func TestWhoLeaves(t *testing.T) {
	workers := []Worker{
		{Name: "busy"}, {Name: "idle-long", IdleFor: 9 * time.Second}, {Name: "idle-short", IdleFor: time.Second},
		{Name: "sick", Unhealthy: true}, {Name: "pending", Pending: true}, {Name: "also-busy"},
	}
	want := []string{"pending", "sick", "idle-long", "idle-short", "also-busy", "busy"}
	p := testPolicy()
	for n := 1; n <= 4; n++ {
		p.Max = 6 - n
		d, s := Decide(epoch, p, with(seen(6, 60), func(o *Observation) { o.Workers = workers }), State{})
		if strings.Join(d.Victims, " ") != strings.Join(want[:n], " ") || s.Victim != want[0] {
			t.Errorf("%d leave: %v, victim %q; want %v", n, d.Victims, s.Victim, want[:n])
		}
	}
}

// A worker that does not serve can leave although no serving one could.
func TestAPendingWorkerLeavesWithoutCost(t *testing.T) {
	p := testPolicy()
	p.Min = 1
	o := seen(2, 45)
	o.Current, o.Failing = 3, 1
	o.Workers = []Worker{{Name: "a"}, {Name: "b"}, {Name: "never-ready", Pending: true}}
	d, _ := Decide(epoch, p, o, State{BelowSince: epoch.Add(-time.Hour), PeakOffered: o.Offered})
	if d.Desired != 2 || len(d.Victims) != 1 || d.Victims[0] != "never-ready" {
		t.Errorf("%d, %v: %s", d.Desired, d.Victims, d.Message)
	}
}

func TestNothingDividesByZero(t *testing.T) {
	for _, o := range []Observation{
		{}, {Sources: 1, Complete: true}, {Sources: 1, Complete: true, Offered: 100, Depth: 7},
		{Sources: 1, Complete: true, Offered: 100, Ready: 3, Current: 3},
		{Sources: 1, Offered: math.Inf(1), ServiceTime: time.Second, Ready: 1, Current: 1},
		{Sources: 1, Offered: math.NaN(), ServiceTime: time.Second, Ready: 1, Current: 1},
		{Sources: 1, Offered: math.MaxFloat64, ServiceTime: time.Second, Depth: math.MaxInt, Current: 1},
	} {
		for _, warm := range []Warm{{}, {Count: 5}, {Percent: 100}} {
			p := testPolicy()
			p.Warm = warm
			s := State{AboveSince: epoch.Add(-time.Hour), BelowSince: epoch.Add(-time.Hour)}
			d, _ := Decide(epoch, p, o, s)
			if d.Desired < p.Min || d.Desired > p.Max || math.IsNaN(d.Utilization) || d.Backlog < 0 || d.Backlog > MaxBacklog || strings.Contains(d.Message, "Inf") || strings.Contains(d.Message, "NaN") {
				t.Errorf("%+v: %+v", o, d)
			}
			d, _ = Decide(epoch, Policy{}, o, s)
			if d.Desired != 0 {
				t.Errorf("an empty policy: %+v", d)
			}
		}
	}
}

func TestCapacityIsSlotsNotBusyTime(t *testing.T) {
	d, _ := Decide(epoch, testPolicy(), seen(10, 40), State{})
	if math.Abs(d.Capacity-9090.9) > 1 || math.Abs(d.Utilization-0.4) > 1e-9 {
		t.Errorf("capacity %.1f, utilization %.3f; want 10 · 100 / 110 ms and 0.4", d.Capacity, d.Utilization)
	}
}

func BenchmarkDecide(b *testing.B) {
	p := testPolicy()
	for _, bm := range []struct {
		name string
		o    Observation
	}{{"steady", seen(10, 70)}, {"above", seen(10, 90)}, {"step", seen(10, 150)}, {"below", seen(10, 30)}} {
		b.Run(bm.name, func(b *testing.B) {
			s := State{AboveSince: epoch.Add(-time.Hour), BelowSince: epoch.Add(-time.Hour), LastTick: epoch}
			b.ReportAllocs()
			for b.Loop() {
				Decide(epoch, p, bm.o, s)
			}
		})
	}
}
