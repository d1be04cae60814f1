package report

import (
	"math/rand/v2"
	"testing"
	"time"
)

// brute is the cheapest way to have need[i] workers Ready in step i, by trying, layer by layer, every subset
// of the gaps to bridge.
func brute(need []int, step, coldStart time.Duration) time.Duration {
	most, total := 0, time.Duration(0)
	for _, n := range need {
		most = max(most, n)
	}
	for k := 1; k <= most; k++ {
		best := time.Duration(1 << 62)
		for keep := range 1 << len(need) { // bit i: the k-th worker is held in step i
			cost, ok := time.Duration(0), true
			for i, n := range need {
				held := keep>>i&1 == 1
				if n >= k && !held {
					ok = false
					break
				}
				if held {
					cost += step
					if i > 0 && keep>>(i-1)&1 == 0 {
						cost += min(coldStart, time.Duration(i)*step)
					}
				}
			}
			if ok {
				best = min(best, cost)
			}
		}
		total += best
	}
	return total
}

func TestCheapestFleetIsCheapest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		need := make([]int, 1+r.IntN(10))
		for i := range need {
			need[i] = r.IntN(4)
		}
		coldStart := time.Duration(r.IntN(5)) * time.Second
		if got, want := cheapest(need, time.Second, coldStart), brute(need, time.Second, coldStart); got != want {
			t.Fatalf("%v with a cold start of %s: %s, want %s", need, coldStart, got, want)
		}
	}
}

func TestWriting(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := number(n); got != want {
			t.Errorf("number(%d) is %s", n, got)
		}
	}
	if got := clock(3725); got != "1:02:05" {
		t.Errorf("clock: %s", got)
	}
}
