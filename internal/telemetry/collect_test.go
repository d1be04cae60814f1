package telemetry

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// metric is the value of one of the tracer's metrics; reason is "" for one without that label.
func metric(t *testing.T, tr *Tracer, name, reason string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(tr)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && (reason == "" || m.Label[0].GetValue() == reason) {
				return m.Counter.GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, reason)
	return 0
}
