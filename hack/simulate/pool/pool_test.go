package pool

import (
	"strings"
	"testing"
	"time"
)

const least = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferencePool
metadata: {name: llm-v1}
spec:
  model: llm-v1
`

func TestDefaultsOfTheSchemaApply(t *testing.T) {
	s, err := Parse([]byte(least))
	if err != nil {
		t.Fatal(err)
	}
	spec := s.Pool.Spec
	if len(spec.Tiers) != 3 || spec.Tiers[1].Timeout.Duration != 2*time.Second || spec.Tiers[2].ReservedPercent != 2 {
		t.Errorf("tiers: %+v", spec.Tiers)
	}
	if spec.Batching.MaxSize != 100 || spec.Scaling.Up.Window.Duration != 2*time.Minute || spec.Workers.ColdStart.Duration != 5*time.Minute ||
		spec.Zones.Red.Backlog.Duration != 750*time.Millisecond || spec.Batchers.MinReplicas != 2 {
		t.Errorf("%+v", spec)
	}
}

func TestWhatIsGivenStays(t *testing.T) {
	s, err := Parse([]byte(least + `
  workers: {maxReplicas: 3, coldStart: 20s, warmReplicas: 10%}
  zones: {yellow: {depth: 200}, red: {depth: 500}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceTenant
metadata: {name: acme}
spec: {tier: paid, limits: {requestsPerMinute: 120}}
`))
	if err != nil {
		t.Fatal(err)
	}
	w := s.Pool.Spec.Workers
	if w.MaxReplicas != 3 || w.MinReplicas != 2 || w.ColdStart.Duration != 20*time.Second || w.WarmReplicas.StrVal != "10%" {
		t.Errorf("workers: %+v", w)
	}
	if z := s.Pool.Spec.Zones; z.Yellow.Backlog != nil || *z.Yellow.Depth != 200 {
		t.Errorf("zones: %+v", z)
	}
	if len(s.Tenants) != 1 || s.Tenants[0].Spec.Tier != "paid" {
		t.Errorf("tenants: %+v", s.Tenants)
	}
}

func TestWhatIsRefused(t *testing.T) {
	for name, doc := range map[string]string{
		"no pool":          "apiVersion: v1\nkind: ConfigMap\n",
		"two pools":        least + "---" + least,
		"a misspelt field": least + "  worker: {}\n",
		"a wrong enum":     least + "  scaling: {mode: Sometimes}\n",
		"out of range":     least + "  batching: {maxSize: 100000}\n",
		"no duration":      least + "  workers: {coldStart: soon}\n",
		"no model":         strings.Replace(least, "model: llm-v1", "batching: {}", 1),
	} {
		if _, err := Parse([]byte(doc)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
