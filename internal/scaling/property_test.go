package scaling

import (
	"math"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"
)

// numbered is a message with a number in it.
var numbered = regexp.MustCompile(`\d`)

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
		f.drain = time.Duration(r.IntN(2*int(p.DownWindow.Seconds()))) * time.Second // some still leave when the next could
		f.offered = randomTrace(r, float64(p.Max)*carries*1.3)
		f.noise = func() float64 { return 1 + 0.05*(2*r.Float64()-1) }
		var spoilt spells
		f.observe = func(o *Observation) {
			if spoilt.now(r) {
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
			if d.Reason == "" || d.CapacityReason == "" || !numbered.MatchString(d.Message) && d.Reason != ReasonMetricsIncomplete {
				t.Fatalf("seed %d: a decision without a reason or without its numbers: %+v", seed, d)
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
			case !last.Complete || last.Sources == 0 || last.Rolling || last.Starting > 0 || last.Unschedulable > 0 || last.Draining > 0:
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

// The same with everything that a pool may do, decision by decision: wherever a random trace has led, a new leader
// that sees what the old one saw decides the same, except that it does not remove a worker yet, and that it waits
// for a second scrape of its own where two in a row are asked for. It never does what the old one would not have.
func TestANewLeaderDecidesTheSame(t *testing.T) {
	var removals, waits, ups int
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 21))
		p := testPolicy()
		p.Min, p.Max = 1, 2+r.IntN(30)
		p.ColdStart = time.Duration(10+r.IntN(300)) * time.Second
		p.DownWindow = time.Duration(30+r.IntN(300)) * time.Second
		f := newPlant(p, p.Min+r.IntN(p.Max-p.Min+1))
		f.coldStart = time.Duration(float64(p.ColdStart) * (0.3 + r.Float64()))
		f.offered = randomTrace(r, float64(p.Max)*carries*1.2)
		f.noise = func() float64 { return 1 + 0.05*(2*r.Float64()-1) }
		var o Observation
		f.observe = func(seen *Observation) { o = *seen }
		for range 3600 {
			at, before := f.now, f.state
			plain := f.step()
			fresh, after := Decide(at, p, o, before.Resumed())
			switch {
			case fresh.Desired == plain.Desired:
				if plain.Desired > o.Current {
					ups++
				}
			case plain.Desired < o.Current && fresh.Desired == o.Current:
				removals++
			case plain.Desired > o.Current && fresh.Desired == o.Current && (plain.Reason == ReasonOverCapacity || plain.Reason == ReasonQueuePersistent):
				waits++
				if again, _ := Decide(at.Add(tick), p, o, after); again.Desired != plain.Desired {
					t.Fatalf("seed %d at %s: %d workers (%s), a new leader a scrape later %d (%s)", seed, at.Sub(epoch), plain.Desired, plain.Message, again.Desired, again.Message)
				}
			default:
				t.Fatalf("seed %d at %s: %d → %d (%s), a new leader → %d (%s)", seed, at.Sub(epoch), o.Current, plain.Desired, plain.Message, fresh.Desired, fresh.Message)
			}
		}
	}
	if removals == 0 || waits == 0 || ups == 0 {
		t.Errorf("%d removals put off, %d second scrapes, %d scale-ups alike: the traces show too little", removals, waits, ups)
	}
}

// Any fleet, any step to 2x to 4x, a second one 30 s later, any cold start, with and without noise: each step
// is answered by one change to the number that the load needs, within two scrapes, and nothing follows until the
// workers have come.
func TestAnyStepIsAnsweredOnceAndRight(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 23))
		p := testPolicy()
		p.Max = 1000
		p.ColdStart = time.Duration(60+r.IntN(1200)) * time.Second
		n := 2 + r.IntN(40)
		f := newPlant(p, n)
		if r.IntN(2) == 0 {
			f.queue = func(_, _ float64) int { return 0 } // admission keeps it short
		}
		noise := 0.05 * float64(r.IntN(2))
		f.noise = func() float64 { return 1 + noise*(2*r.Float64()-1) }
		base := (0.55 + 0.2*r.Float64()) * float64(n) * carries
		first, second := 2+2*r.Float64(), 1.8+2*r.Float64()
		const at, later = time.Minute, 90 * time.Second
		f.offered = func(d time.Duration) float64 {
			switch {
			case d < at:
				return base
			case d < later:
				return base * first
			}
			return base * first * second
		}
		f.run(at + p.ColdStart - 2*tick)
		if len(f.changes) != 2 || f.changes[0].at > at+tick || f.changes[0].at < at || f.changes[1].at > later+tick || f.changes[1].at < later {
			t.Fatalf("seed %d: %d workers, cold start %s, x %.2f and x %.2f: %+v", seed, n, p.ColdStart, first, second, f.changes)
		}
		for i, rate := range []float64{base * first, base * first * second} {
			// A sample that is 5 % off, and the queue's own share of the demand, at most one second of the load.
			least, most := rate*(1-noise)/carries/0.75, (rate*(1+noise)+rate/p.ColdStart.Seconds())/carries/0.75
			if to := float64(f.changes[i].to); to < math.Floor(least) || to > math.Ceil(most) {
				t.Errorf("seed %d: %.0f workers for %.0f/s, want %.1f to %.1f", seed, to, rate, least, most)
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

// spells are stretches of up to a hundred scrapes in which something is wrong, one scrape in two hundred begins one.
type spells int

// now says whether the next scrape is in one.
func (s *spells) now(r *rand.Rand) bool {
	if *s == 0 && r.IntN(200) == 0 {
		*s = spells(1 + r.IntN(100))
	}
	if *s == 0 {
		return false
	}
	*s--
	return true
}
