package scaling

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func testBatchers() BatcherPolicy {
	return BatcherPolicy{Min: 2, Max: 8, PerBatcher: 2500, DownWindow: 10 * time.Minute, MaxSize: 100, MaxWait: 40 * time.Millisecond, TargetPercent: 75}
}

// follow runs the batcher rule over a load and returns the numbers it passed through.
func follow(p BatcherPolicy, current int, d time.Duration, rate func(time.Duration) float64, spoil func(*BatcherObservation)) []int {
	var s BatcherState
	numbers := []int{current}
	for at := time.Duration(0); at < d; at += tick {
		o := BatcherObservation{Complete: true, Sources: current, Offered: rate(at), Current: current}
		if spoil != nil {
			spoil(&o)
		}
		var dec BatcherDecision
		dec, s = BatcherReplicas(epoch.Add(at), p, o, s)
		if dec.Desired != current {
			current = dec.Desired
			numbers = append(numbers, current)
		}
	}
	return numbers
}

func same(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestBatchersFollowTheRate(t *testing.T) {
	tests := []struct {
		name string
		rate func(time.Duration) float64
		want []int
	}{
		{"launch load", steady(1000), []int{2}},
		{"design load", steady(10000), []int{2, 4}},
		{"a step up is one step", func(d time.Duration) float64 {
			if d < time.Minute {
				return 1000
			}
			return 17000
		}, []int{2, 7}},
		{"more than max", steady(1e6), []int{2, 8}},
		{"down one at a time", func(d time.Duration) float64 {
			if d < time.Minute {
				return 10000
			}
			return 100
		}, []int{2, 4, 3, 2}},
		{"a spike of one scrape adds none", func(d time.Duration) float64 {
			if d == time.Minute {
				return 20000
			}
			return 1000
		}, []int{2}},
	}
	for _, tt := range tests {
		if got := follow(testBatchers(), 2, time.Hour, tt.rate, nil); !same(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestBatchersDoNotFlapOnNoise(t *testing.T) {
	for rate := 4000.0; rate < 21000; rate += 500 {
		r := rand.New(rand.NewPCG(uint64(rate), 1))
		rested := follow(testBatchers(), 8, 3*time.Hour, steady(rate), nil)
		n := rested[len(rested)-1]
		if got := follow(testBatchers(), n, 5*time.Hour, func(time.Duration) float64 { return rate * (1 + 0.05*(2*r.Float64()-1)) }, nil); len(got) > 1 {
			t.Errorf("at %.0f/s: %v", rate, got)
		}
	}
}

func TestBatchersNeverLeaveOnPartialDataOrInARollout(t *testing.T) {
	for _, spoil := range []func(*BatcherObservation){
		func(o *BatcherObservation) { o.Complete = false },
		func(o *BatcherObservation) { o.Complete, o.Sources = false, 0 },
		func(o *BatcherObservation) { o.Rolling = true },
	} {
		if got := follow(testBatchers(), 6, 3*time.Hour, steady(10), spoil); len(got) > 1 {
			t.Errorf("%v", got)
		}
	}
}

// Over random loads, with noise, rollouts and reports that go missing: never below min or above max, one fewer at
// a time and a window apart, never fewer on partial data or in a rollout, and never more than the measured rate
// asks for, or has asked for two scrapes before.
func TestBatcherPropertiesOverRandomTraces(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 29))
		p := testBatchers()
		p.Min = 1 + r.IntN(3)
		p.Max = p.Min + r.IntN(20)
		p.PerBatcher = 200 + 8000*r.Float64()
		p.DownWindow = time.Duration(30+r.IntN(900)) * time.Second
		rate := randomTrace(r, float64(p.Max)*p.PerBatcher*1.3)
		current := p.Min + r.IntN(p.Max-p.Min+1)
		var s BatcherState
		var spoilt spells
		lastDown := -time.Hour
		for at := time.Duration(0); at < 3*time.Hour; at += tick {
			o := BatcherObservation{Complete: true, Sources: current, Offered: rate(at) * (1 + 0.05*(2*r.Float64()-1)), Current: current}
			if spoilt.now(r) {
				switch seed % 3 {
				case 0:
					o.Complete, o.Sources, o.Offered = false, 0, 0
				case 1:
					o.Complete = false
				case 2:
					o.Rolling = true
				}
			}
			var d BatcherDecision
			d, s = BatcherReplicas(epoch.Add(at), p, o, s)
			switch {
			case d.Desired < p.Min || d.Desired > p.Max || d.Reason == "" || !numbered.MatchString(d.Message):
				t.Fatalf("seed %d at %s: min %d, max %d: %+v", seed, at, p.Min, p.Max, d)
			case d.Desired > current && float64(d.Desired-1)*p.PerBatcher >= o.Offered:
				t.Fatalf("seed %d at %s: %d batchers of %.0f/s for %.0f/s", seed, at, d.Desired, p.PerBatcher, o.Offered)
			case d.Desired < current && (d.Desired != current-1 || at-lastDown < p.DownWindow || !o.Complete || o.Rolling || float64(d.Desired)*p.PerBatcher < o.Offered):
				t.Fatalf("seed %d at %s: from %d to %d at %.0f/s, %s after the last, window %s, %+v", seed, at, current, d.Desired, o.Offered, at-lastDown, p.DownWindow, o)
			}
			if d.Desired < current {
				lastDown = at
			}
			current = d.Desired
		}
	}
}

func TestFillWarning(t *testing.T) {
	tests := []struct {
		name string
		o    BatcherObservation
		ok   bool
	}{
		{"4 at 10k/s can fill", BatcherObservation{Sources: 4, Offered: 10000, Current: 4, BusyPercent: 90, FillPercent: 60}, true},
		{"8 at 10k/s cannot, and workers are busy with half-empty batches", BatcherObservation{Sources: 8, Offered: 10000, Current: 8, BusyPercent: 90, FillPercent: 50}, false},
		{"8 at 10k/s cannot, and it costs nothing", BatcherObservation{Sources: 8, Offered: 10000, Current: 8, BusyPercent: 60, FillPercent: 50}, true},
		{"one batcher always can", BatcherObservation{Sources: 1, Offered: 5, Current: 1, BusyPercent: 99, FillPercent: 1}, true},
		{"nobody reports", BatcherObservation{Offered: 10000, Current: 8, BusyPercent: 90, FillPercent: 50}, true},
	}
	for _, tt := range tests {
		d, _ := BatcherReplicas(epoch, testBatchers(), tt.o, BatcherState{})
		if d.FillSufficient != tt.ok || d.FillReason == "" || !tt.ok && !strings.Contains(d.FillMessage, "only 4 can fill batches of 100 within 40 ms") {
			t.Errorf("%s: %v %s %q", tt.name, d.FillSufficient, d.FillReason, d.FillMessage)
		}
	}
}
