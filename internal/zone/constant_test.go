package zone

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// At any constant load from 0.5x to 3x of the capacity, any timeout from 0.5 to 30 s, any fleet and any noise up to
// 5 %, the zone changes at most once a minute and at least 97 % of what could be served is: points drawn by
// chance, beside the grid of TestFluidGoodputAndFlips.
func TestAnyConstantLoadKeepsGoodputAndZone(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 11))
		load := 0.5 + 2.5*r.Float64()
		f := fluid{
			mu:      []float64{60, 190, 909, 9090, 90900}[r.IntN(5)] * (1 + r.Float64()),
			timeout: 500*time.Millisecond + time.Duration(r.Float64()*29.5*float64(time.Second)),
			noise:   0.05 * r.Float64(),
			poisson: r.IntN(2) == 0,
			lag:     time.Duration(r.IntN(1000)) * time.Millisecond,
		}
		mix := [3]float64{0.05 + r.Float64(), 0.05 + r.Float64(), 0.05 + r.Float64()}
		sum := mix[0] + mix[1] + mix[2]
		for i := range f.load {
			f.load[i] = load * f.mu * mix[i] / sum
		}
		f.run(seed).check(t, "seed %d, %.2fx of %.0f/s as %.2f, timeout %s, noise %.1f %%, counted %v, lag %s", seed, load, f.mu, mix, f.timeout, f.noise*100, f.poisson, f.lag)
	}
}

// A second step 30 s after the first is answered by the zone too: what is admitted follows the new load within two
// scrapes, and nothing is left from the first.
func TestASecondStepThirtySecondsLaterIsAnsweredToo(t *testing.T) {
	p := testPolicy()
	var s State
	var d Decision
	const mu = 1000.0
	at := func(second int, factor float64) {
		o := Observation{Complete: true, Sources: 2, Capacity: mu, Offered: []float64{0.1 * factor * mu, 0.2 * factor * mu, 0.7 * factor * mu}}
		d, s = Classify(epoch.Add(time.Duration(second)*time.Second), p, o, s)
	}
	for second := 0; second < 20; second += 2 {
		at(second, 0.7)
	}
	if d.Name != Green {
		t.Fatalf("at 0.7x: %+v", d)
	}
	for second := 20; second < 50; second += 2 {
		at(second, 1.5)
	}
	first := d
	if first.Name != Yellow || first.Admit[2] >= 70 || first.Admit[0] < 100 {
		t.Fatalf("30 s of 1.5x: %+v", first)
	}
	at(50, 2.5)
	at(52, 2.5)
	if d.Name == Green || d.Admit[2] >= first.Admit[2]/1.5 || d.Admit[0] < 100 {
		t.Errorf("two scrapes of 2.5x after 1.5x: %+v, before %+v", d, first)
	}
	if admitted := d.Admit[0]*0.1*2.5 + d.Admit[1]*0.2*2.5 + d.Admit[2]*0.7*2.5; admitted < 97 || admitted > 103 {
		t.Errorf("%.0f %% of the capacity is admitted", admitted)
	}
}

// A restart of the operator at any instant: the new leader goes on in the zone and with the reason and the timers
// of the status, which keeps whole seconds, and is never more than one scrape from one that was not restarted.
func TestZoneAfterARestartAtAnyInstant(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 13))
		p := testPolicy()
		var plain, restarted State
		load, differs := 1.0, 0
		for i := range 900 {
			if r.IntN(30) == 0 {
				load = 0.3 + 2.5*r.Float64()
			}
			now := epoch.Add(time.Duration(i) * tick)
			o := Observation{Complete: true, Sources: 2, Capacity: 1000, Offered: []float64{100 * load, 300 * load, 600 * load}}
			if load > 1 {
				o.Depth = r.IntN(200)
			}
			var a, b Decision
			a, plain = Classify(now, p, o, plain)
			if r.IntN(15) == 0 {
				restarted = State{Name: restarted.Name, Reason: restarted.Reason, Since: restarted.Since.Truncate(time.Second), CalmSince: restarted.CalmSince.Truncate(time.Second)}
			}
			b, restarted = Classify(now, p, o, restarted)
			if a.Name == b.Name {
				differs = 0
			} else if differs++; differs > 8 {
				t.Fatalf("seed %d, scrape %d: %s, after restarts %s for %d scrapes", seed, i, a.Name, b.Name, differs)
			}
		}
	}
}

// A pool of 50 requests a second sees a hundred in a scrape, and a hundred is off by a tenth. That moves no zone, and a
// step of the load is still answered at once.
func TestCountingNoiseOfASmallPool(t *testing.T) {
	for _, mu := range []float64{50, 100, 200} {
		for load := 1.1; load < 1.41; load += 0.05 {
			f := fluid{mu: mu, timeout: 2 * time.Second, poisson: true, lag: 200 * time.Millisecond}
			for i := range f.load {
				f.load[i] = load * mu / 3
			}
			f.run(uint64(100*load)).check(t, "%.2fx of %.0f/s", load, mu)
		}
	}
	r := rand.New(rand.NewPCG(3, 3))
	p := testPolicy()
	for range 50 {
		var s State
		var d Decision
		for i := range 32 {
			rate := 12.0 // each of three tiers, of 50/s
			if i >= 30 {
				rate = 30
			}
			o := Observation{Complete: true, Sources: 2, Capacity: 50}
			for range p.Tiers {
				o.Offered = append(o.Offered, max(0, rate+math.Sqrt(rate/tick.Seconds())*r.NormFloat64()))
			}
			d, s = Classify(epoch.Add(time.Duration(i)*tick), p, o, s)
			if i < 30 && d.Name != Green {
				t.Fatalf("at 0.72x, scrape %d: %+v", i, d)
			}
		}
		if d.Name == Green {
			t.Errorf("two scrapes of 1.8x: %+v", d)
		}
	}
}
