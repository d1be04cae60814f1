package load

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParsePhases(t *testing.T) {
	got, err := ParsePhases("100rps:30s, 100-1500rps:1m,0rps:5s")
	if err != nil {
		t.Fatal(err)
	}
	want := []Phase{{100, 100, 30 * time.Second}, {100, 1500, time.Minute}, {0, 0, 5 * time.Second}}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("phase %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	for _, bad := range []string{"", "100:30s", "100rps", "100rps:", "100rps:-1s", "-5rps:1s", "NaNrps:1s", "1e9rps:1s", "a-brps:1s", "100rps:30s,,"} {
		if _, err := ParsePhases(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		} else if !strings.Contains(err.Error(), "phase") {
			t.Errorf("%q: the error %q does not name the phase", bad, err)
		}
	}
}

func drain(s Schedule) (out []Arrival) {
	for a, ok := s.Next(); ok; a, ok = s.Next() {
		out = append(out, a)
	}
	return out
}

// The number of arrivals of a Poisson process in any stretch is its mean +- 5 standard deviations, whatever
// the phases; arrivals are in order and none is due in a phase of rate 0.
func TestPoissonFollowsThePhases(t *testing.T) {
	phases := []Phase{{100, 100, 20 * time.Second}, {0, 0, 5 * time.Second}, {0, 2000, 10 * time.Second}, {2000, 0, 10 * time.Second}}
	means := []float64{2000, 0, 10000, 10000}
	counts := make([]float64, len(phases))
	for seed := range uint64(3) {
		clear(counts)
		last := time.Duration(0)
		for _, a := range drain(Poisson(phases, seed)) {
			if a.At < last {
				t.Fatalf("arrival at %v after one at %v", a.At, last)
			}
			last = a.At
			begin := time.Duration(0)
			for i, p := range phases {
				if a.At >= begin && a.At < begin+p.For {
					counts[i]++
				}
				begin += p.For
			}
		}
		for i, m := range means {
			if math.Abs(counts[i]-m) > 5*math.Sqrt(m) {
				t.Errorf("seed %d phase %d: %v arrivals, want about %v", seed, i, counts[i], m)
			}
		}
	}
}

func TestEqualSeedsGiveEqualSchedules(t *testing.T) {
	p := []Phase{{500, 500, 2 * time.Second}}
	a, b, c := drain(Poisson(p, 7)), drain(Poisson(p, 7)), drain(Poisson(p, 8))
	if len(a) != len(b) {
		t.Fatalf("%d and %d arrivals", len(a), len(b))
	}
	same := len(a) == len(c)
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("arrival %d differs", i)
		}
		same = same && a[i] == c[i]
	}
	if same {
		t.Error("another seed gave the same schedule")
	}
}

func TestTraceIsReplayedFasterAndCut(t *testing.T) {
	csv := "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.6805900,10,1\n2023-11-16 18:15:56.6805900,100000,5\n2023-11-16 18:16:56.6805900,1,5\n"
	s, err := Trace(strings.NewReader(csv), 2, 20*time.Second, 1000)
	if err != nil {
		t.Fatal(err)
	}
	want := []Arrival{{0, 1000, 44}, {time.Second, 40, 1}, {5 * time.Second, 1000, 5}}
	got := drain(s)
	if len(got) != len(want) {
		t.Fatalf("%d arrivals, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("arrival %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	for what, bad := range map[string]string{
		"no header":       "2023-11-16 18:15:46.68,374,44\n",
		"bad time":        "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,374,44\n",
		"bad tokens":      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,many,44\n",
		"goes backwards":  "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,1\n2023-11-16 18:15:45.68,1,1\n",
		"missing columns": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68\n",
	} {
		if _, err := Trace(strings.NewReader(bad), 1, 0, 1000); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

func TestHistogramQuantiles(t *testing.T) {
	h := newHistogram(totalPrecision)
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{.5: 501 * time.Millisecond, .95: 951 * time.Millisecond, .99: 991 * time.Millisecond, 1: time.Second} {
		got := h.quantile(q)
		if d := float64(got-want) / float64(want); d < 0 || d > .002 {
			t.Errorf("quantile %v is %v, want %v to %v", q, got, want, want+want/500)
		}
	}
	o := newHistogram(totalPrecision)
	o.add(time.Minute)
	h.merge(o)
	if got := h.quantile(1); got < time.Minute || got > 61*time.Second {
		t.Errorf("the largest of the merged histogram is %v", got)
	}
	for _, d := range []time.Duration{0, 1, 1023, 1024, 1025, time.Hour} {
		one := newHistogram(totalPrecision)
		one.add(d)
		if got := one.quantile(.5); got < d || float64(got) > 1.002*float64(max(d, 1)) {
			t.Errorf("%v came back as %v", d, got)
		}
	}
}
