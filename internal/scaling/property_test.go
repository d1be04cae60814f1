package scaling

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestPropertiesOverRandomTraces drives fleets through hours of random load, with noise, rollouts, reports
// that go missing and nodes that have no room, and holds every change against the rules.
func TestPropertiesOverRandomTraces(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		p := testPolicy()
		p.Min = 1 + r.IntN(3)
		p.Max = p.Min + r.IntN(30)
		p.ColdStart = time.Duration(10+r.IntN(600)) * time.Second
		p.DownWindow = time.Duration(30+r.IntN(900)) * time.Second
		p.UpWindow = time.Duration(r.IntN(300)) * time.Second
		p.Warm = []Warm{{}, {}, {Count: 2}, {Percent: 30}}[r.IntN(4)]
		f := newPlant(p, p.Min+r.IntN(p.Max-p.Min+1))
		f.coldStart = time.Duration(float64(p.ColdStart) * (0.3 + r.Float64())) // some are late
		if r.IntN(3) == 0 {
			f.room = 1 + r.IntN(p.Max)
		}
		f.offered = randomTrace(r, float64(p.Max)*carries*1.3)
		f.noise = func() float64 { return 1 + 0.05*(2*r.Float64()-1) }
		spoilt := 0
		f.observe = func(o *Observation) {
			if spoilt == 0 && r.IntN(200) == 0 {
				spoilt = 1 + r.IntN(100)
			}
			if spoilt > 0 {
				spoilt--
				switch seed % 3 {
				case 0:
					o.Complete, o.Sources, o.Offered, o.Depth = false, 0, 0, 0
				case 1:
					o.Complete = false
					o.Offered /= 2
				case 2:
					o.Rolling = true
				}
			}
		}
		var last Observation
		look := f.observe
		f.observe = func(o *Observation) { look(o); last = *o }

		lastDown := -time.Hour
		for range 3 * 1800 {
			before := f.replicas
			d := f.step()
			at := f.now.Add(-tick).Sub(epoch)
			if d.Desired < p.Min || d.Desired > p.Max {
				t.Fatalf("seed %d: %d workers, min %d, max %d", seed, d.Desired, p.Min, p.Max)
			}
			if d.Reason == "" || d.Message == "" || d.CapacityReason == "" {
				t.Fatalf("seed %d: a decision without a reason: %+v", seed, d)
			}
			if d.Desired > before && last.Sources == 0 {
				t.Fatalf("seed %d: scaled up on nothing: %+v", seed, d)
			}
			if d.Desired >= before || d.Reason == ReasonPendingRemoved {
				if d.Reason == ReasonPendingRemoved && d.Desired < last.Ready+last.Starting+last.Failing && d.Desired > p.Min {
					t.Fatalf("seed %d: withdrew a worker that has a node: %+v", seed, d)
				}
				continue
			}
			switch {
			case before-d.Desired != 1:
				t.Fatalf("seed %d at %s: %d left at once", seed, at, before-d.Desired)
			case at-lastDown < p.DownWindow:
				t.Fatalf("seed %d at %s: a second removal %s after the first, window %s", seed, at, at-lastDown, p.DownWindow)
			case !last.Complete || last.Sources == 0 || last.Rolling || last.Starting > 0 || last.Unschedulable > 0:
				t.Fatalf("seed %d at %s: removed one while %+v", seed, at, last)
			case len(d.Victims) != 1 || d.Victims[0] != f.state.Victim:
				t.Fatalf("seed %d at %s: victims %v, state %q", seed, at, d.Victims, f.state.Victim)
			}
			lastDown = at
		}
	}
}

// A restart of the operator at any instant changes no decision, except that a removal waits longer. The
// status keeps whole seconds.
func TestRestartAtAnyInstant(t *testing.T) {
	for seed := range uint64(40) {
		run := func(restarts func() bool) (replicas []int, ups []plantChange, downs int) {
			r := rand.New(rand.NewPCG(seed, 3))
			p := testPolicy()
			p.DownWindow = 24 * time.Hour // removals aside, both fleets must stay the same
			f := newPlant(p, 3)
			f.queue = func(_, _ float64) int { return 0 }
			f.offered = randomTrace(r, 12*carries)
			f.restarts = restarts
			for range 1800 {
				f.step()
				replicas = append(replicas, f.replicas)
			}
			return replicas, f.changes, downs
		}
		plain, ups, _ := run(nil)
		r := rand.New(rand.NewPCG(seed, 9))
		restarted, upsToo, _ := run(func() bool { return r.IntN(20) == 0 })
		if len(ups) != len(upsToo) {
			t.Fatalf("seed %d: %d changes, with restarts %d:\n%+v\n%+v", seed, len(ups), len(upsToo), ups, upsToo)
		}
		for i := range plain {
			// The up timer loses at most the backward steps of the restarted tick.
			if plain[i] != restarted[min(i+1, len(plain)-1)] && plain[i] != restarted[i] && plain[i] != restarted[max(i-1, 0)] {
				t.Fatalf("seed %d, tick %d: %d workers, with restarts %d", seed, i, plain[i], restarted[i])
			}
		}
	}
}

func TestRestartBeginsTheDownWindowAgain(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.offered = steady(0.3 * carries)
	f.run(9 * time.Minute)
	f.state = f.state.Resumed()
	f.run(9 * time.Minute)
	if len(f.changes) > 0 {
		t.Fatalf("shrunk inside the window of the new leader: %+v", f.changes)
	}
	f.run(2 * time.Minute)
	if len(f.changes) != 1 {
		t.Fatalf("changes: %+v", f.changes)
	}
}

func TestRestartKeepsTheUpWindow(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.queue = func(_, _ float64) int { return 0 }
	f.offered = steady(3.6 * carries)
	f.run(100 * time.Second)
	f.state = f.state.Resumed()
	f.run(22 * time.Second)
	if len(f.changes) != 1 {
		t.Fatalf("%d changes 2 min after the load rose, the operator restarted meanwhile", len(f.changes))
	}
}

// A clock that is set back or forward, as between two leaders, never lets two removals into one window and
// never stops scaling for longer than a window.
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{-2 * time.Hour, -time.Minute} {
		f := newPlant(testPolicy(), 8)
		f.offered = steady(0.3 * carries)
		f.run(15 * time.Minute)
		n := len(f.changes)
		f.now = f.now.Add(jump)
		f.state = f.state.Resumed()
		f.run(9 * time.Minute)
		if len(f.changes) != n {
			t.Errorf("jump %s: removed within the new leader's window", jump)
		}
		f.run(2 * time.Minute)
		if len(f.changes) != n+1 {
			t.Errorf("jump %s: nothing removed after a whole window", jump)
		}
	}
}

func TestObserveChangesNothingAndSaysWhatItWould(t *testing.T) {
	p := testPolicy()
	p.Mode = Observe
	f := newPlant(p, 4)
	f.offered = randomTrace(rand.New(rand.NewPCG(1, 1)), 20*carries)
	differs := false
	for range 3600 {
		if d := f.step(); d.Recommended != d.Desired {
			differs = true
		}
	}
	if len(f.changes) > 0 || !differs {
		t.Errorf("changes %+v, ever recommended another number: %v", f.changes, differs)
	}
}

// Decide is a function: the same arguments give the same answer, and no argument is written to.
func TestDecideIsPure(t *testing.T) {
	o := seen(6, 20)
	o.Workers = []Worker{{Name: "b"}, {Name: "a", IdleFor: time.Second}}
	s := State{BelowSince: epoch.Add(-time.Hour)}
	p := testPolicy()
	first, _ := Decide(epoch, p, o, s)
	again, _ := Decide(epoch, p, o, s)
	if first.Desired != again.Desired || first.Message != again.Message || o.Workers[0].Name != "b" {
		t.Errorf("%+v\n%+v\n%+v", first, again, o.Workers)
	}
}

// The whole window must have been seen: one incomplete scrape in it starts it again.
func TestAnIncompleteScrapeStartsTheDownWindowAgain(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.offered = steady(0.3 * carries)
	f.run(9 * time.Minute)
	f.observe = func(o *Observation) { o.Complete = false }
	f.step()
	f.observe = nil
	f.run(9 * time.Minute)
	if len(f.changes) > 0 {
		t.Fatalf("removed a worker on a window with a hole: %+v", f.changes)
	}
	f.run(2 * time.Minute)
	if len(f.changes) != 1 {
		t.Fatalf("changes: %+v", f.changes)
	}
}
