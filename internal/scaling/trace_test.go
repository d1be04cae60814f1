package scaling

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A step to 3x with a five-minute cold start is answered with the right number at once, and then left alone.
func TestStepIsAnsweredOnceAndRight(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.offered = func(d time.Duration) float64 {
		if d < 10*time.Minute {
			return 0.7 * 4 * carries
		}
		return 3 * 0.7 * 4 * carries
	}
	f.run(40 * time.Minute)
	// ceil(8.4 / 0.75) = 12: the queue's own share of the demand is 0.4 s of 4 workers / 300 s, too little to matter.
	if len(f.changes) != 1 || f.changes[0].to != 12 || f.changes[0].at != 10*time.Minute || f.changes[0].reason != ReasonBacklogHigh {
		t.Fatalf("changes: %+v, want one from 4 to 12 at 10 min", f.changes)
	}
}

// The same where admission keeps the queue short: what is refused is demand, seen at the second scrape.
func TestStepWithoutQueueIsAnsweredAtTheSecondScrape(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.queue = func(_, _ float64) int { return 0 }
	f.offered = func(d time.Duration) float64 {
		if d < 10*time.Minute {
			return 0.7 * 4 * carries
		}
		return 3 * 0.7 * 4 * carries
	}
	f.run(40 * time.Minute)
	if len(f.changes) != 1 || f.changes[0].to != 12 || f.changes[0].at != 10*time.Minute+tick || f.changes[0].reason != ReasonOverCapacity {
		t.Fatalf("changes: %+v, want one from 4 to 12 at the second scrape", f.changes)
	}
}

// A load that can still be carried waits for the up window.
func TestLoadBelowTheCapacityWaitsForTheUpWindow(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.offered = func(d time.Duration) float64 {
		if d < 10*time.Minute {
			return 0.7 * 4 * carries
		}
		return 0.95 * 4 * carries
	}
	f.run(40 * time.Minute)
	if len(f.changes) != 1 || f.changes[0].to != 6 || f.changes[0].at != 12*time.Minute || f.changes[0].reason != ReasonUtilizationHigh {
		t.Fatalf("changes: %+v, want one from 4 to 6 at 12 min", f.changes)
	}
}

func TestSecondStepDuringColdStartIsAnsweredToo(t *testing.T) {
	for i, queue := range []func(a, b float64) int{nil, func(_, _ float64) int { return 0 }} {
		f := newPlant(testPolicy(), 2)
		f.queue = queue
		f.offered = func(d time.Duration) float64 {
			switch {
			case d < 10*time.Minute:
				return 1.3 * carries
			case d < 10*time.Minute+30*time.Second:
				return 3.9 * carries
			}
			return 8.9 * carries
		}
		f.run(25 * time.Minute)
		if len(f.changes) != 2 || f.changes[0].to != 6 || f.changes[1].to != 12 || f.changes[1].at > 10*time.Minute+30*time.Second || f.changes[0].at > 10*time.Minute+time.Duration(i)*tick {
			t.Fatalf("changes: %+v, want 6 and then, at the second step, 12", f.changes)
		}
	}
}

// Noise of 5 % on the offered rate changes nothing, at any load at which the fleet would rest without it.
func TestNoiseChangesNothing(t *testing.T) {
	for percent := 7; percent <= 79; percent += 4 {
		for seed := range uint64(2) {
			r := rand.New(rand.NewPCG(seed, uint64(percent)))
			p := testPolicy()
			p.Max = 100
			f := newPlant(p, 20)
			f.offered = steady(float64(percent) / 100 * 20 * carries)
			f.run(4 * time.Hour) // where there is something to remove, let it go
			f.changes = nil
			rested := f.replicas
			f.noise = func() float64 { return 1 + 0.05*(2*r.Float64()-1) }
			f.run(2 * time.Hour)
			if len(f.changes) > 0 {
				t.Errorf("at %d %% of 20 workers, %d at rest: %+v", percent, rested, f.changes)
			}
		}
	}
}

// The fleet that a step is answered with is not enlarged by noise while it starts.
func TestNoiseDuringColdStartAddsNothing(t *testing.T) {
	for _, above := range []int{80, 75} { // also where the line is the target itself
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 1))
			p := testPolicy()
			p.Max, p.AbovePercent = 200, above
			f := newPlant(p, 20)
			f.offered = steady(60 * carries)
			f.noise = func() float64 { return 1 + 0.05*(2*r.Float64()-1) }
			f.run(5 * time.Minute)
			if len(f.changes) != 1 {
				t.Fatalf("above %d %%, seed %d: %+v", above, seed, f.changes)
			}
		}
	}
}

// An overload that noise lifts over and drops under the line is still an overload.
func TestNoiseDoesNotHideAnOverload(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	f := newPlant(testPolicy(), 8)
	f.offered = steady(0.83 * 8 * carries)
	f.noise = func() float64 { return 1 + 0.05*(2*r.Float64()-1) }
	f.run(10 * time.Minute)
	if len(f.changes) == 0 || f.changes[0].to < 9 {
		t.Fatalf("at 83 %% with 5 %% of noise: %+v", f.changes)
	}
}

func TestScaleDownOneByOneAWindowApart(t *testing.T) {
	f := newPlant(testPolicy(), 8)
	f.offered = steady(0.5 * carries)
	f.run(2 * time.Hour)
	if f.replicas != 2 || len(f.changes) != 6 {
		t.Fatalf("%d workers after %+v", f.replicas, f.changes)
	}
	for i, c := range f.changes {
		if c.from-c.to != 1 || c.reason != ReasonUtilizationLow {
			t.Errorf("change %d: %+v", i, c)
		}
		if want := time.Duration(i+1)*10*time.Minute + time.Duration(i)*tick; c.at != want {
			t.Errorf("change %d at %s, want %s", i, c.at, want)
		}
	}
}

func TestNoRemovalThatWouldOverloadTheRest(t *testing.T) {
	p := testPolicy()
	p.Min = 1
	f := newPlant(p, 2)
	f.offered = steady(0.9 * carries) // 45 % of two, 90 % of one
	f.run(time.Hour)
	if f.replicas != 2 {
		t.Fatalf("%d workers: %+v", f.replicas, f.changes)
	}
	if d := f.step(); d.Reason != ReasonWouldOverload || !strings.HasPrefix(d.Message, "held: ") {
		t.Errorf("%s: %s", d.Reason, d.Message)
	}
	f.offered = steady(0.7 * carries)
	f.run(30 * time.Minute)
	if f.replicas != 1 {
		t.Errorf("35 %% of two is 70 %% of one, and still %d workers", f.replicas)
	}
}

// The highest rate of the window decides, not the last sample of it.
func TestRemovalIsJudgedByThePeakOfTheWindow(t *testing.T) {
	p := testPolicy()
	p.Min = 1
	f := newPlant(p, 2)
	f.offered = func(d time.Duration) float64 {
		if d == 4*time.Minute {
			return 0.85 * carries
		}
		return 0.2 * carries
	}
	f.run(11 * time.Minute)
	if len(f.changes) > 0 {
		t.Fatalf("a peak of 85 %% of one worker lies in the window: %+v", f.changes)
	}
}

// 2 → 4 → 8 → 16 in one cold start is what counting starting workers as nothing does.
func TestNoCascadeWhateverTheLoad(t *testing.T) {
	for n := 1; n <= 40; n++ {
		p := testPolicy()
		p.Max = 1000
		f := newPlant(p, 2)
		f.offered = steady(float64(n) * 0.75 * carries)
		f.run(p.ColdStart - 2*tick)
		if len(f.changes) > 1 || f.replicas > max(2, n)+1 {
			t.Errorf("load for %d workers: %+v", n, f.changes)
		}
	}
}

// A queue that the load does not explain adds one worker a cold start, after two scrapes.
func TestPersistentQueueAddsOneWorkerAColdStart(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.offered = steady(2 * carries)
	f.queue = func(_, mu float64) int { return int(0.5 * mu) }
	f.run(16 * time.Minute)
	var at []time.Duration
	for _, c := range f.changes {
		if c.to-c.from != 1 || c.reason != ReasonQueuePersistent {
			t.Errorf("change %+v", c)
		}
		at = append(at, c.at)
	}
	if len(at) != 4 || at[0] != tick || at[1]-at[0] != 5*time.Minute || at[3]-at[2] != 5*time.Minute {
		t.Errorf("steps at %v, want one at the second scrape and one each 5 min", at)
	}
}

func TestUnschedulableWorkersAreWithdrawnAndNotAnsweredWithMore(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.room = 5
	f.offered = steady(8 * carries)
	most := 0
	for f.now.Before(epoch.Add(30 * time.Minute)) {
		d := f.step()
		most = max(most, d.Desired)
		if at := f.now.Sub(epoch) - tick; at >= 5*time.Minute && at < 10*time.Minute {
			if d.CapacityAvailable || d.CapacityReason == "" || d.CapacityMessage == "" {
				t.Fatalf("at %s CapacityAvailable is %v (%s)", at, d.CapacityAvailable, d.CapacityMessage)
			}
			if d.Desired != 5 {
				t.Fatalf("at %s: %d desired (%s), want 5: the pending ones are withdrawn", at, d.Desired, d.Message)
			}
		}
	}
	if most != 11 { // ceil(8 / 0.75)
		t.Errorf("at most %d workers, want 11", most)
	}
	for _, c := range f.changes {
		if c.to < c.from && c.reason != ReasonPendingRemoved {
			t.Errorf("change %+v", c)
		}
	}
	if n := len(f.changes); n > 6 {
		t.Errorf("%d changes in 30 min: %+v", n, f.changes)
	}
	// A node comes: the next try finds it.
	f.room = 0
	f.run(15 * time.Minute)
	if f.replicas != 11 {
		t.Errorf("%d workers after the cluster grew", f.replicas)
	}
}

// Workers that never become ready (a broken image) are not answered with more of the same.
func TestFailingWorkersAreNotMultiplied(t *testing.T) {
	f := newPlant(testPolicy(), 0)
	f.coldStart = 24 * time.Hour
	f.offered = steady(1.2 * carries)
	f.run(time.Hour)
	if f.replicas != 2 {
		t.Errorf("%d workers, none of them ready: %+v", f.replicas, f.changes)
	}
	if d := f.step(); d.Reason != ReasonWorkersFailing {
		t.Errorf("%s: %s", d.Reason, d.Message)
	}
}

func TestAllMetricsGoneChangesNothing(t *testing.T) {
	for _, rate := range []float64{0, 5 * carries, 30 * carries} {
		f := newPlant(testPolicy(), 6)
		f.offered = steady(rate)
		f.observe = func(o *Observation) {
			o.Complete, o.Sources, o.Offered, o.Depth, o.Missing = false, 0, 0, 0, []string{"llm-batcher-1", "llm-batcher-2"}
		}
		f.run(3 * time.Hour)
		if len(f.changes) > 0 {
			t.Fatalf("%+v", f.changes)
		}
		d := f.step()
		if d.Reason != ReasonMetricsMissing || !strings.Contains(d.Message, "llm-batcher-1, llm-batcher-2") {
			t.Errorf("%s: %s", d.Reason, d.Message)
		}
		if d.Utilization != -1 {
			t.Errorf("utilization %v of unknown load, want -1", d.Utilization)
		}
	}
}

func TestPartialDataScalesUpOnly(t *testing.T) {
	f := newPlant(testPolicy(), 4)
	f.observe = func(o *Observation) { o.Complete = false; o.Missing = []string{"llm-batcher-2"} }
	f.offered = steady(0.1 * carries)
	f.run(3 * time.Hour)
	if len(f.changes) > 0 {
		t.Fatalf("scaled down on partial data: %+v", f.changes)
	}
	if d := f.step(); d.Reason != ReasonMetricsIncomplete || !strings.Contains(d.Message, "llm-batcher-2") {
		t.Errorf("%s: %s", d.Reason, d.Message)
	}
	f.offered = steady(5.9 * carries)
	f.run(5 * time.Minute)
	if f.replicas != 8 {
		t.Errorf("%d workers on partial data that asks for 8", f.replicas)
	}
}
