package zone

import (
	"math"
	"slices"
	"testing"
	"time"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const tick = 2 * time.Second

func testPolicy() Policy {
	return Policy{
		YellowBacklog: 300 * time.Millisecond, RedBacklog: 750 * time.Millisecond,
		Tiers: []Tier{
			{Name: "enterprise", Shedding: Never},
			{Name: "paid", Shedding: Throttle},
			{Name: "free", Shedding: First, ReservedPercent: 2},
		},
	}
}

// seen is an observation at a capacity of 1000/s: what each tier offers, and what waits.
func seen(depth int, offered ...float64) Observation {
	return Observation{Complete: true, Sources: 2, Offered: offered, Depth: depth, Capacity: 1000}
}

// follow classifies each observation for d, a call every tick, and returns the last decision and state.
func follow(p Policy, s State, from time.Time, d time.Duration, o Observation) (Decision, State, time.Time) {
	var dec Decision
	for end := from.Add(d); !from.After(end); from = from.Add(tick) {
		dec, s = Classify(from, p, o, s)
	}
	return dec, s, from
}

func TestEnter(t *testing.T) {
	depths := testPolicy()
	depths.YellowBacklog, depths.RedBacklog, depths.YellowDepth, depths.RedDepth = 0, 0, 200, 500
	lone := testPolicy()
	lone.Tiers = lone.Tiers[:1]
	tests := []struct {
		name   string
		p      Policy
		o      Observation
		calls  int
		want   Name
		reason string
	}{
		{"no load", testPolicy(), seen(0, 0, 0, 0), 5, Green, ReasonCalm},
		{"a backlog of 299 ms", testPolicy(), seen(299, 300, 300, 200), 5, Green, ReasonCalm},
		{"a backlog of 300 ms", testPolicy(), seen(300, 300, 300, 200), 1, Yellow, ReasonBacklogHigh},
		{"a backlog of 749 ms", testPolicy(), seen(749, 300, 300, 200), 1, Yellow, ReasonBacklogHigh},
		{"a backlog of 750 ms", testPolicy(), seen(750, 300, 300, 200), 1, Red, ReasonBacklogHigh},
		{"depth 199", depths, seen(199, 300, 300, 200), 1, Green, ReasonCalm},
		{"depth 200", depths, seen(200, 300, 300, 200), 1, Yellow, ReasonBacklogHigh},
		{"depth 500", depths, seen(500, 300, 300, 200), 1, Red, ReasonBacklogHigh},
		{"load over capacity once", testPolicy(), seen(0, 400, 400, 300), 1, Green, ReasonCalm},
		{"load over capacity twice", testPolicy(), seen(0, 400, 400, 300), 2, Yellow, ReasonOfferedOverCapacity},
		{"load at 1.02 of the capacity", testPolicy(), seen(0, 400, 400, 220), 5, Green, ReasonCalm},
		{"the upper tiers offer the capacity", testPolicy(), seen(0, 500, 500, 0), 1, Red, ReasonOfferedOverCapacity},
		{"one tier only is never above itself", lone, seen(0, 3000), 2, Yellow, ReasonOfferedOverCapacity},
		{"no worker", testPolicy(), Observation{Complete: true, Sources: 2, Offered: []float64{1, 1, 1}}, 1, Red, ReasonNoCapacity},
		{"no worker and no report", testPolicy(), Observation{}, 1, Red, ReasonNoCapacity},
		{"workers and no report", testPolicy(), Observation{Capacity: 1000}, 1, Green, ReasonMetricsMissing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var d Decision
			var s State
			for i := range tt.calls {
				d, s = Classify(epoch.Add(time.Duration(i)*tick), tt.p, tt.o, s)
			}
			if d.Name != tt.want || d.Reason != tt.reason || d.Message == "" {
				t.Errorf("%s, %s (%s), want %s, %s", d.Name, d.Reason, d.Message, tt.want, tt.reason)
			}
		})
	}
}

func TestLeaveYellow(t *testing.T) {
	p := testPolicy()
	_, yellow, now := follow(p, State{}, epoch, 0, seen(300, 300, 300, 200))
	tests := []struct {
		name string
		o    Observation
		d    time.Duration
		want Name
	}{
		{"calm for less than 30 s", seen(149, 300, 300, 340), 28 * time.Second, Yellow},
		{"calm for 30 s", seen(149, 300, 300, 340), 30 * time.Second, Green},
		{"half the threshold is not calm", seen(150, 300, 300, 300), time.Hour, Yellow},
		{"95 % of the capacity is not calm", seen(0, 300, 300, 350), time.Hour, Yellow},
		{"partial data cannot say so", Observation{Sources: 1, Offered: []float64{1, 1, 1}, Capacity: 1000}, time.Hour, Yellow},
		{"no data cannot say so", Observation{Capacity: 1000}, time.Hour, Yellow},
	}
	for _, tt := range tests {
		if d, _, _ := follow(p, yellow, now, tt.d, tt.o); d.Name != tt.want {
			t.Errorf("%s: %s (%s), want %s", tt.name, d.Name, d.Message, tt.want)
		}
	}
	// An interruption starts the 30 s again.
	_, s, at := follow(p, yellow, now, 28*time.Second, seen(0, 300, 300, 300))
	_, s, at = follow(p, s, at, 0, seen(200, 300, 300, 300))
	if d, _, _ := follow(p, s, at, 28*time.Second, seen(0, 300, 300, 300)); d.Name != Yellow {
		t.Errorf("left 28 s after an interruption: %s", d.Message)
	}
}

func TestLeaveRed(t *testing.T) {
	p := testPolicy()
	_, byQueue, now := follow(p, State{}, epoch, 0, seen(800, 300, 300, 200))
	_, byLoad, _ := follow(p, State{}, epoch, 0, seen(0, 500, 500, 0))
	tests := []struct {
		name string
		s    State
		o    Observation
		d    time.Duration
		want Name
	}{
		{"calm for less than 10 s", byLoad, seen(374, 450, 450, 0), 8 * time.Second, Red},
		{"calm for 10 s: to Yellow, never to Green", byLoad, seen(0, 10, 10, 0), 10 * time.Second, Yellow},
		{"half the threshold is not calm", byQueue, seen(375, 300, 300, 0), time.Hour, Red},
		{"95 % by the upper tiers is not calm", byLoad, seen(0, 480, 480, 0), time.Hour, Red},
		{"but it is where the queue was the cause", byQueue, seen(0, 480, 480, 500), 10 * time.Second, Yellow},
	}
	for _, tt := range tests {
		if d, _, _ := follow(p, tt.s, now, tt.d, tt.o); d.Name != tt.want {
			t.Errorf("%s: %s (%s), want %s", tt.name, d.Name, d.Message, tt.want)
		}
	}
}

func TestAdmission(t *testing.T) {
	throttled := testPolicy()
	throttled.Tiers[2].Shedding = Throttle
	background := testPolicy()
	background.Tiers = append(background.Tiers, Tier{Name: "batch", Shedding: Throttle, Background: true})
	tests := []struct {
		name string
		p    Policy
		o    Observation
		zone Name
		want []float64
	}{
		{"green admits all", testPolicy(), seen(0, 300, 300, 300), Green, []float64{100, 100, 100}},
		{"yellow: the lowest gets what is left", testPolicy(), seen(0, 400, 400, 400), Yellow, []float64{100, 100, 50}},
		{"yellow: less a tenth of the queue a second", testPolicy(), seen(400, 400, 400, 400), Yellow, []float64{100, 100, 40}},
		{"yellow: its reserve stays", testPolicy(), seen(0, 490, 500, 400), Yellow, []float64{100, 98, 5}},
		{"red: First gets nothing", testPolicy(), seen(0, 500, 700, 400), Red, []float64{100, 71.4, 0}},
		{"red: Never is not cut", testPolicy(), seen(0, 2000, 500, 400), Red, []float64{100, 1, 0}},
		{"red: Throttle never reaches nothing", throttled, seen(0, 2000, 500, 400), Red, []float64{100, 1, 5}},
		{"a tier without load is not cut", testPolicy(), seen(0, 1500, 0, 400), Red, []float64{100, 100, 0}},
		{"background pauses in yellow", background, seen(310, 100, 100, 100, 5000), Yellow, []float64{100, 100, 100, 0}},
		{"background is no load", background, seen(0, 100, 100, 100, 5000), Green, []float64{100, 100, 100, 100}},
		{"no capacity", testPolicy(), Observation{Sources: 1, Complete: true, Offered: []float64{5, 5, 5}}, Red, []float64{100, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, _, _ := follow(tt.p, State{}, epoch, tick, tt.o)
			if d.Name != tt.zone || !slices.Equal(d.Admit, tt.want) {
				t.Errorf("%s %v, want %s %v", d.Name, d.Admit, tt.zone, tt.want)
			}
		})
	}
}

func TestACapacityThatFallsCountsAtOnce(t *testing.T) {
	_, s, now := follow(testPolicy(), State{}, epoch, time.Minute, seen(0, 300, 300, 200))
	o := seen(0, 300, 300, 200)
	o.Capacity = 750
	if d, _ := Classify(now.Add(10*time.Millisecond), testPolicy(), o, s); d.Name != Yellow {
		t.Errorf("80 %% of the capacity, then a quarter of it dies: %s (%s)", d.Name, d.Message)
	}
}

func TestNoCapacityEndsWithTheFirstWorker(t *testing.T) {
	none := Observation{Complete: true, Sources: 2, Offered: []float64{10, 10, 10}}
	_, s, now := follow(testPolicy(), State{}, epoch, time.Minute, none)
	d, s := Classify(now, testPolicy(), seen(0, 10, 10, 10), s)
	if d.Name != Green || !d.Changed {
		t.Errorf("%s (%s) with a capacity of 1000 and a load of 30", d.Name, d.Message)
	}
	if d, _ := Classify(now.Add(tick), testPolicy(), seen(900, 10, 10, 10), s); d.Name != Red {
		t.Errorf("%s (%s) with a backlog of 900 ms", d.Name, d.Message)
	}
}

func TestWithoutReportsZoneAndPercentagesStay(t *testing.T) {
	before, s, now := follow(testPolicy(), State{}, epoch, time.Minute, seen(0, 400, 400, 400))
	d, s, now := follow(testPolicy(), s, now, time.Hour, Observation{Capacity: 1000})
	if d.Name != Yellow || d.Reason != ReasonMetricsMissing || !slices.Equal(d.Admit, before.Admit) || !d.Since.Equal(before.Since) {
		t.Errorf("%+v, before %+v", d, before)
	}
	if d, _, _ = follow(testPolicy(), s, now, 30*time.Second, seen(0, 10, 10, 10)); d.Name != Green {
		t.Errorf("calm again for 30 s: %s", d.Message)
	}
}

// The zone outlives a restart by the four fields that the status keeps.
func TestRestartKeepsZoneAndHold(t *testing.T) {
	_, s, now := follow(testPolicy(), State{}, epoch, 0, seen(300, 300, 300, 200))
	_, s, now = follow(testPolicy(), s, now, 20*time.Second, seen(0, 300, 300, 200))
	s = State{Name: s.Name, Reason: s.Reason, Since: s.Since, CalmSince: s.CalmSince}
	if d, _, _ := follow(testPolicy(), s, now, 4*time.Second, seen(0, 300, 300, 200)); d.Name != Yellow {
		t.Errorf("left early: %s", d.Message)
	}
	if d, _, _ := follow(testPolicy(), s, now, 10*time.Second, seen(0, 300, 300, 200)); d.Name != Green {
		t.Errorf("the hold began again: %s", d.Message)
	}
}

func TestOddNumbersDoNoHarm(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -5, math.MaxFloat64} {
		for _, o := range []Observation{
			{Complete: true, Sources: 1, Offered: []float64{x, x}, Depth: -3, Capacity: 100},
			{Complete: true, Sources: 1, Offered: []float64{1, 2, 3, 4, 5}, Depth: math.MaxInt, Capacity: x},
		} {
			d, _, _ := follow(testPolicy(), State{}, epoch, 10*time.Second, o)
			if len(d.Admit) != 3 || d.Backlog < 0 {
				t.Errorf("%+v: %+v", o, d)
			}
			for _, a := range d.Admit {
				if !(a >= 0 && a <= 100) {
					t.Errorf("%+v: %v", o, d.Admit)
				}
			}
		}
	}
}

func TestWorseAndStricter(t *testing.T) {
	order := []Name{Green, Yellow, Red}
	for i, a := range order {
		for j, b := range order {
			if got := Worse(a, b); got != order[max(i, j)] {
				t.Errorf("Worse(%s, %s) is %s", a, b, got)
			}
		}
	}
	if Worse("", "Purple") != Green || Worse("", Red) != Red {
		t.Error("an unknown zone must count as Green")
	}
	if got := Stricter([]float64{100, 20}, []float64{50, 80, 7}); !slices.Equal(got, []float64{50, 20, 7}) {
		t.Errorf("Stricter: %v", got)
	}
}

// Classify writes to nothing that the caller holds.
func TestClassifyIsPure(t *testing.T) {
	_, s, now := follow(testPolicy(), State{}, epoch, time.Minute, seen(0, 400, 400, 400))
	load, admit := slices.Clone(s.Load), slices.Clone(s.Admit)
	a, _ := Classify(now, testPolicy(), seen(0, 450, 420, 410), s)
	b, _ := Classify(now, testPolicy(), seen(0, 450, 420, 410), s)
	if !slices.Equal(s.Load, load) || !slices.Equal(s.Admit, admit) || !slices.Equal(a.Admit, b.Admit) || a.Message != b.Message {
		t.Error("the state that was passed in has changed")
	}
}
