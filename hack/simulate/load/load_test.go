package load

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// rateIn is the rate of a load between two instants.
func rateIn(l Load, from, to time.Duration) float64 {
	n := 0
	for _, q := range l.Requests {
		if q.At >= from && q.At < to {
			n++
		}
	}
	return float64(n) / (to - from).Seconds()
}

func TestShapes(t *testing.T) {
	type part struct {
		from, to time.Duration
		rate     float64
	}
	tests := []struct {
		shape string
		parts []part
	}{
		{"steady,rate=200", []part{{0, time.Hour, 200}}},
		{"ramp,from=0,to=200", []part{{0, 30 * time.Minute, 50}, {30 * time.Minute, time.Hour, 150}}},
		{"ramp,from=100,to=200,at=10m,for=10m", []part{{0, 10 * time.Minute, 100}, {10 * time.Minute, 20 * time.Minute, 150}, {20 * time.Minute, time.Hour, 200}}},
		{"step,from=100,to=300,at=20m", []part{{0, 20 * time.Minute, 100}, {20 * time.Minute, time.Hour, 300}}},
		{"spike,base=100,peak=400,at=10m,for=2m", []part{{0, 10 * time.Minute, 100}, {10 * time.Minute, 12 * time.Minute, 400}, {12 * time.Minute, time.Hour, 100}}},
		{"diurnal,mean=100,swing=50,period=1h", []part{{0, time.Hour, 100}, {0, 2 * time.Minute, 50}, {29 * time.Minute, 31 * time.Minute, 150}}},
		{"steady,rate=0", []part{{0, time.Hour, 0}}},
	}
	for _, tt := range tests {
		l, err := Generate(tt.shape, time.Hour, 1)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(l.Requests, func(a, b Request) int { return int(a.At - b.At) }) {
			t.Errorf("%s: not in order", tt.shape)
		}
		for _, p := range tt.parts {
			if got := rateIn(l, p.from, p.to); math.Abs(got-p.rate) > 0.05*p.rate {
				t.Errorf("%s: %.1f/s from %s to %s, want %.1f/s", tt.shape, got, p.from, p.to, p.rate)
			}
		}
	}
}

func TestShapesThatAreRefused(t *testing.T) {
	for _, shape := range []string{"", "wave,rate=3", "steady", "steady,rate=x", "steady,rate=-1", "steady,rate=1,peak=2", "step,from=1,to=2", "spike,base=1,peak=2,at=1m,for=x", "steady,rate=Inf"} {
		if _, err := Generate(shape, time.Minute, 1); err == nil {
			t.Errorf("%q is taken", shape)
		}
	}
}

const trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n" +
	"2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.2225670,879,55\n"

func TestTrace(t *testing.T) {
	l, err := parseTrace(strings.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{At: 0, Prompt: 374, Answer: 44}, {At: 4314579 * time.Microsecond, Prompt: 396, Answer: 109}, {At: 4541977 * time.Microsecond, Prompt: 879, Answer: 55}}
	if !slices.Equal(l.Requests, want) || l.Duration != 5*time.Second {
		t.Errorf("%+v over %s", l.Requests, l.Duration)
	}
	for name, bad := range map[string]string{
		"empty":          "TIMESTAMP,ContextTokens,GeneratedTokens\n",
		"another header": "time,in,out\n2023-11-16 18:15:46.6805900,374,44\n",
		"no time":        strings.Replace(trace, "2023-11-16 18:15:50.9951690", "soon", 1),
		"no tokens":      strings.Replace(trace, "396", "-1", 1),
	} {
		if _, err := parseTrace(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestScaleKeepsTheShape(t *testing.T) {
	l, err := Generate("ramp,from=0,to=20", time.Hour, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, factor := range []float64{0.5, 1, 2.5, 50} {
		got := l.Scale(factor, 2)
		for _, at := range []time.Duration{0, 20 * time.Minute, 40 * time.Minute} {
			before, after := rateIn(l, at, at+20*time.Minute), rateIn(got, at, at+20*time.Minute)
			if math.Abs(after-factor*before) > 0.08*factor*before {
				t.Errorf("x%v at %s: %.2f/s became %.2f/s", factor, at, before, after)
			}
		}
		if n := len(got.Requests); n > 0 && (got.Requests[0].At < 0 || got.Requests[n-1].At >= l.Duration) {
			t.Errorf("x%v: outside of the trace", factor)
		}
	}
}

func TestCut(t *testing.T) {
	l, _ := Generate("steady,rate=10", time.Hour, 1)
	c := l.Cut(time.Minute)
	if c.Duration != time.Minute || len(c.Requests) == 0 || c.Requests[len(c.Requests)-1].At >= time.Minute {
		t.Errorf("%d requests over %s", len(c.Requests), c.Duration)
	}
	if len(l.Cut(0).Requests) != len(l.Requests) {
		t.Error("0 must keep everything")
	}
}

func TestMix(t *testing.T) {
	tiers := []string{"gold", "silver"}
	m, err := ParseMix("silver=3,gold=1", tiers)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := Generate("steady,rate=1000", time.Minute, 1)
	l.Assign(m, []int{1, 4}, 3)
	n := [2]int{}
	tenants := map[uint32]bool{}
	for _, q := range l.Requests {
		n[q.Tier]++
		if q.Tier == 1 {
			tenants[q.Tenant] = true
		}
	}
	if part := float64(n[0]) / float64(n[0]+n[1]); math.Abs(part-0.25) > 0.01 || len(tenants) != 4 {
		t.Errorf("%.3f of tier gold, tenants %v", part, tenants)
	}
	for _, bad := range []string{"bronze=1", "gold=x", "gold=-1", "gold=0"} {
		if _, err := ParseMix(bad, tiers); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
