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
