package sim

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/hack/simulate/load"
	"sluice.dev/sluice/hack/simulate/pool"
	"sluice.dev/sluice/internal/zone"
)

const head = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferencePool
metadata: {name: llm-v1}
spec:
  model: llm-v1
`

// simulate runs a pool (the lines of spec beyond the model) under a shape.
func simulate(t *testing.T, spec, shape, mix string, d time.Duration, opt Options) *Result {
	t.Helper()
	set, err := pool.Parse([]byte(head + spec))
	if err != nil {
		t.Fatal(err)
	}
	l, err := load.Generate(shape, d, 1)
	if err != nil {
		t.Fatal(err)
	}
	var tiers []string
	for _, x := range set.Pool.Spec.Tiers {
		tiers = append(tiers, x.Name)
	}
	m, err := load.ParseMix(mix, tiers)
	if err != nil {
		t.Fatal(err)
	}
	l.Assign(m, Tenants(set), 1)
	if opt.Copies == 0 {
		opt.Copies = 10 * time.Millisecond
	}
	opt.BatcherStart, opt.Seed = 5*time.Second, 1
	r, err := Run(set, l, opt)
	if err != nil {
		t.Fatal(err)
	}
	balance(t, r)
	return r
}

// balance checks that every request ended in exactly one way or is under way at the end.
func balance(t *testing.T, r *Result) {
	t.Helper()
	ended := r.Lost
	for _, x := range r.Tiers {
		ended += x.Served + x.Degraded.Instead()
		for _, m := range []map[string]int{x.Refused, x.Failed} {
			for _, n := range m {
				ended += n
			}
		}
	}
	if ended+r.Open != r.Requests {
		t.Errorf("%d requests ended and %d are under way of %d", ended, r.Open, r.Requests)
	}
}

func count(m map[string]int) int {
	n := 0
	for _, x := range m {
		n += x
	}
	return n
}

func workerChanges(r *Result) []Change {
	var cs []Change
	for _, c := range r.Changes {
		if c.What == "workers" {
			cs = append(cs, c)
		}
	}
	return cs
}

func TestSteadyLoadIsServedAndNothingChanges(t *testing.T) {
	r := simulate(t, "", "steady,rate=1000", "", 3*time.Minute, Options{})
	if len(r.Changes) > 0 || len(r.Events) > 0 {
		t.Errorf("%+v %+v", r.Changes, r.Events)
	}
	for _, x := range r.Tiers {
		if p95 := x.Latency.Quantile(0.95); count(x.Refused)+count(x.Failed) > 0 || p95 < 100*time.Millisecond || p95 > 300*time.Millisecond {
			t.Errorf("%s: refused %v, failed %v, p95 %s", x.Name, x.Refused, x.Failed, p95)
		}
	}
}

func TestSameSeedSameRun(t *testing.T) {
	run := func() *Result {
		return simulate(t, "  workers: {coldStart: 30s}", "spike,base=500,peak=3000,at=1m,for=1m", "", 3*time.Minute, Options{JitterPercent: 5, Failures: []Failure{{Kind: "worker", At: 2 * time.Minute, N: 1}}})
	}
	if a, b := run(), run(); !reflect.DeepEqual(a, b) {
		t.Error("two runs of one seed differ")
	}
}

// A step to 3x is answered by one change, and until the workers have started the lowest tiers carry the cut.
func TestStep(t *testing.T) {
	r := simulate(t, "  workers: {coldStart: 2m}", "step,from=1200,to=3600,at=1m", "enterprise=1,paid=1,free=4", 6*time.Minute, Options{})
	cs := workerChanges(r)
	if len(cs) != 1 || cs[0].To < 5 || cs[0].To > 6 || cs[0].At < time.Minute || cs[0].At > time.Minute+10*time.Second {
		t.Errorf("changes: %+v", cs)
	}
	ent, paid, free := r.Tiers[0], r.Tiers[1], r.Tiers[2]
	if count(ent.Refused)+count(ent.Failed) > 0 || count(paid.Refused) > paid.Offered/100 {
		t.Errorf("enterprise refused %v, paid %v", ent.Refused, paid.Refused)
	}
	// Two minutes of 3600/s on 1818/s.
	if cut := count(free.Refused) + count(free.Failed); cut < 200_000 || cut > 240_000 {
		t.Errorf("free: %v %v", free.Refused, free.Failed)
	}
	for _, x := range r.Tiers {
		if p95 := x.Latency.Quantile(0.95); p95 > x.Target {
			t.Errorf("%s: p95 %s under overload", x.Name, p95)
		}
	}
	if r.ZoneTime[zone.Yellow] == 0 {
		t.Errorf("zones: %v", r.ZoneTime)
	}
}

func TestAllWorkersLost(t *testing.T) {
	r := simulate(t, "  workers: {coldStart: 20s}", "steady,rate=500", "", 2*time.Minute, Options{Failures: []Failure{{Kind: "worker", At: 30 * time.Second, N: 2}}})
	refused := 0
	for _, x := range r.Tiers {
		refused += x.Refused["no_capacity"]
	}
	if refused < 9000 || refused > 11000 {
		t.Errorf("%d refused for no_capacity in 20 s of 500/s without a worker", refused)
	}
	if last := r.Bins[len(r.Bins)-1]; last.Ready < 2 || last.Served < 400 || last.Zone != zone.Green {
		t.Errorf("at the end: %+v", last)
	}
}

func TestNoRoom(t *testing.T) {
	r := simulate(t, "  workers: {coldStart: 30s}", "steady,rate=5000", "", 3*time.Minute, Options{GPUs: 3})
	most := 0
	for _, b := range r.Bins {
		most = max(most, b.Ready)
	}
	var texts []string
	for _, e := range r.Events {
		texts = append(texts, e.Kind+" "+e.Text)
	}
	if most != 3 || !strings.Contains(strings.Join(texts, "\n"), "found no node within coldStart 30 s") {
		t.Errorf("at most %d ready; %q", most, texts)
	}
}

func TestQuota(t *testing.T) {
	r := simulate(t, `  tiers: [{name: paid}]
---
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceTenant
metadata: {name: acme}
spec: {tier: paid, limits: {requestsPerMinute: 120}}
`, "steady,rate=10", "", 5*time.Minute, Options{})
	x := r.Tiers[0]
	if x.Served < 700 || x.Served > 721 || x.Refused["quota_requests"] < 2000 {
		t.Errorf("%d served in 5 min with 120/min and a burst of 120, refused %v", x.Served, x.Refused)
	}
	if x.Offered > x.Served+5 {
		t.Errorf("offered %d: what is beyond a quota is not demand", x.Offered)
	}
}

// An Internal tier is served in its hours, and outside them only while the pool is idle. A run begins at midnight UTC.
func TestInternalTierHasHours(t *testing.T) {
	run := func(schedule, rate string) *TierResult {
		r := simulate(t, "  tiers: [{name: paid}, {name: eval, class: Internal, hours: {schedule: '"+schedule+"', duration: 1h}}]",
			"steady,rate="+rate, "paid=50,eval=50", 2*time.Minute, Options{})
		if n := count(r.Tiers[0].Refused); n > 0 {
			t.Errorf("%d interactive requests were refused", n)
		}
		return &r.Tiers[1]
	}
	if x := run("0 0 * * *", "1000"); count(x.Refused) > 0 || x.Served == 0 {
		t.Errorf("in its hours: served %d, refused %v", x.Served, x.Refused)
	}
	if x := run("0 5 * * *", "1000"); x.Refused["outside_hours"] < 50_000 || x.Served > x.Refused["outside_hours"]/50 {
		t.Errorf("outside its hours, the pool busy: served %d, refused %v", x.Served, x.Refused)
	}
	if x := run("0 5 * * *", "20"); x.Refused["outside_hours"] > 50 || x.Served < 1000 {
		t.Errorf("outside its hours, the pool idle: served %d, refused %v", x.Served, x.Refused)
	}
}

// Tenants share the pool's budget in fair parts in the simulator as they do at a gateway.
func TestSharedLimits(t *testing.T) {
	r := simulate(t, "  gateway: {sharedLimits: {requestsPerMinute: 12000}}", "steady,rate=400", "", 3*time.Minute, Options{})
	refused, served := 0, 0
	for _, x := range r.Tiers {
		refused += x.Refused["shared_quota_requests"]
		served += x.Served
	}
	if most := 12_000 * 4; served > most || served < most*9/10 || refused < 20_000 {
		t.Errorf("served %d and refused %d of 72,000 under 12,000 a minute", served, refused)
	}
}

func TestFailures(t *testing.T) {
	tests := []struct {
		f     string
		check func(*Result) bool
	}{
		{"batcher,at=1m", func(r *Result) bool { return r.Lost > 0 && r.Lost < 1000 }},
		{"metrics,at=1m,for=1m", func(r *Result) bool { return r.Holds["MetricsMissing"] >= 29 }},
		{"operator,at=1m,for=1m", func(r *Result) bool { return r.Holds["Steady"]+r.Holds["AtMinimum"] < 65 }},
		{"slow,at=1m,for=30s,factor=2", func(r *Result) bool {
			return r.Tiers[0].Latency.Quantile(0.99) > 220*time.Millisecond
		}},
	}
	for _, tt := range tests {
		f, err := ParseFailure(tt.f)
		if err != nil {
			t.Fatal(err)
		}
		r := simulate(t, "", "steady,rate=800", "", 3*time.Minute, Options{Failures: []Failure{f}})
		if !tt.check(r) {
			t.Errorf("%s: lost %d, holds %v, p99 %s", tt.f, r.Lost, r.Holds, r.Tiers[0].Latency.Quantile(0.99))
		}
		if len(r.Events) == 0 || r.Events[0].Kind != "failure" {
			t.Errorf("%s: events %+v", tt.f, r.Events)
		}
		if last := r.Bins[len(r.Bins)-1]; last.Served < 700 {
			t.Errorf("%s: not recovered, %+v", tt.f, last)
		}
	}
}

func TestFailuresThatAreRefused(t *testing.T) {
	for _, s := range []string{"", "fire,at=1m", "worker", "worker,n=1", "worker,at=x", "worker,at=1m,n=0", "metrics,at=1m", "slow,at=1m,for=1m,factor=0", "worker,at=1m,for=1m"} {
		if _, err := ParseFailure(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestHistogram(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
	for i := 1; i <= 1000; i++ {
		h.Add(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.95: 950 * time.Millisecond, 1: time.Second} {
		if got := h.Quantile(q); got < want-2*time.Millisecond || got > want+2*time.Millisecond {
			t.Errorf("quantile %v is %s, want %s", q, got, want)
		}
	}
}
