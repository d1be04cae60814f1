package sim

import (
	"testing"
	"time"

	"sluice.dev/sluice/hack/simulate/load"
	"sluice.dev/sluice/hack/simulate/pool"
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
	if opt.BatcherStart == 0 {
		opt.BatcherStart = 5 * time.Second
	}
	opt.Seed = 1
	r, err := Run(set, l, opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSteady(t *testing.T) {
	start := time.Now()
	r := simulate(t, "", "steady,rate=1000", "", 10*time.Minute, Options{})
	t.Logf("took %s", time.Since(start))
	for _, x := range r.Tiers {
		t.Logf("%s offered %d served %d p50 %s p95 %s refused %v failed %v", x.Name, x.Offered, x.Served, x.Latency.Quantile(.5), x.Latency.Quantile(.95), x.Refused, x.Failed)
	}
	t.Logf("%+v %+v %v", r.Changes, r.Events, r.Holds)
}
