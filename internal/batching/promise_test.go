package batching

import (
	"fmt"
	"testing"
	"time"
)

func TestAStepOfTheRateIsBelievedAtOnceAndAFallIsNot(t *testing.T) {
	var r rate
	at := int64(0)
	arrive := func(perSecond float64, length time.Duration) {
		for end := at + int64(length); at < end; at += int64(1e9 / perSecond) {
			r.add(at)
		}
	}
	arrive(300, 2*time.Second)
	if got := r.rising(at); got > 310 {
		t.Errorf("a steady 300/s looks like %.0f/s", got)
	}
	arrive(2000, 150*time.Millisecond)
	if slow, got := r.perSecond(at), r.rising(at); slow > 700 || got < 1800 || got > 2050 {
		t.Errorf("150 ms after a step to 2000/s: %.0f/s, over the second %.0f/s", got, slow)
	}
	arrive(2000, time.Second)
	arrive(300, 200*time.Millisecond)
	if got := r.rising(at); got < 1500 {
		t.Errorf("200 ms after a fall: %.0f/s; what came a moment ago may come again", got)
	}

	var burst rate
	at = int64(5 * time.Second)
	for range 50 {
		burst.add(at)
	}
	if got := burst.rising(at); got > 1000 {
		t.Errorf("50 at one moment look like %.0f/s", got)
	}
}

// When the load jumps to 1.5x what four workers can do, what the lowest tier is promised must hold: it is behind
// others who have only begun to come, and each of its fifty tenants is passed by what comes for the others. (No zone
// here, which would shed: everything that passes stands just below the line. 5 % come late, 21 % did when the wait
// was a mean of the last second.)
func TestALowTierIsServedInTimeWhenTheLoadJumps(t *testing.T) {
	const run, jumpAt = 6 * time.Second, 2 * time.Second
	served, late := 0, 0
	for seed := range uint64(4) {
		w := newWorld(testConfig(), 4, seed)
		request := func(int) Request {
			switch x := w.rng.Float64(); {
			case x < .2:
				return Request{Tier: 0}
			case x < .5:
				return Request{Tier: 1}
			}
			return Request{Tier: 2, Flow: fmt.Sprint(w.rng.IntN(50))}
		}
		w.poisson(1500, jumpAt, request)
		w.run(jumpAt)
		w.start = w.start.Add(-time.Hour) // ids of its own
		w.poisson(6000, time.Hour+run, request)
		w.run(time.Hour + run + 3*time.Second)
		for _, d := range w.latency[2] {
			served++
			if d > 500*time.Millisecond {
				late++
			}
		}
		for _, p := range w.problems {
			t.Error(p)
		}
	}
	t.Logf("served %d, late %d: %.2f %%", served, late, 100*float64(late)/float64(served))
	if served < 10000 || float64(late) > .08*float64(served) {
		t.Errorf("of %d served, %d came after the latency target", served, late)
	}
}
