package main

import (
	"math"
	"testing"
	"time"
)

// The design page simulated this window (S 100, B 100, g 1, Poisson, one batcher). The closed form must agree
// with the simulation to 2 ms, or the limit printed beside a figure is worth nothing.
func TestLimitAgreesWithTheSimulationOfTheDesign(t *testing.T) {
	for _, c := range []struct {
		rate, workers float64
		p95           time.Duration
	}{
		{5, 13, 101 * time.Millisecond},
		{500, 4, 132 * time.Millisecond},
		{900, 13, 110 * time.Millisecond},
		{5000, 13, 111 * time.Millisecond},
		{10000, 13, 110 * time.Millisecond},
	} {
		if got := limit(.95, c.rate, c.workers); (got - c.p95).Abs() > 2*time.Millisecond {
			t.Errorf("%v/s on %v workers: limit p95 %v, simulated %v", c.rate, c.workers, got, c.p95)
		}
	}
}

func TestEntitledGoesByTierAfterFloors(t *testing.T) {
	got := entitled(1000, []float64{300, 450, 750}, []float64{0, 0, .02})
	for i, want := range []float64{300, 450, 250} {
		if math.Abs(got[i]-want) > .1 {
			t.Errorf("tier %d: %.1f/s, want %.1f", i, got[i], want)
		}
	}
	// Higher tiers alone exceed the capacity: Red, the lowest gets nothing, though the floor stays its own.
	got = entitled(1000, []float64{600, 600, 500}, []float64{0, 0, .1})
	for i, want := range []float64{600, 300, 0} {
		if math.Abs(got[i]-want) > .1 {
			t.Errorf("tier %d: %.1f/s, want %.1f", i, got[i], want)
		}
	}
}
