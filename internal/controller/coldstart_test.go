package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
)

func TestColdStartIsShownAgainstItsBudget(t *testing.T) {
	created := time.Unix(1e9, 0)
	ready := func(age, coldStart time.Duration) fleet.Worker {
		return fleet.Worker{Phase: fleet.WorkerReady, Created: created.Add(-age), ColdStart: coldStart}
	}
	for name, c := range map[string]struct {
		kept    time.Duration
		workers []fleet.Worker
		status  metav1.ConditionStatus
		reason  string
		says    string
	}{
		"nothing yet":            {0, []fleet.Worker{{Phase: fleet.WorkerStarting}}, "Unknown", ReasonNotMeasured, "is 1m0s"},
		"in time":                {0, []fleet.Worker{ready(0, 42*time.Second)}, "True", ReasonWithinBudget, "took 42s"},
		"the newest counts":      {0, []fleet.Worker{ready(time.Hour, 20*time.Second), ready(0, 70*time.Second)}, "False", ReasonOverBudget, "took 1m10s"},
		"late":                   {0, []fleet.Worker{ready(0, 90*time.Second)}, "False", ReasonOverBudget, "raise coldStart"},
		"Ready again after days": {50 * time.Second, []fleet.Worker{ready(0, 48*time.Hour)}, "True", ReasonWithinBudget, "took 50s"},
		"none left":              {50 * time.Second, nil, "True", ReasonWithinBudget, "took 50s"},
	} {
		pool := &v1alpha1.InferencePool{}
		pool.Spec.Workers.ColdStart.Duration = time.Minute
		if c.kept > 0 {
			pool.Status.Workers.ColdStart = &metav1.Duration{Duration: c.kept}
		}
		got := coldStartInBudget(view{pool: pool, seen: &observed{workers: c.workers}})
		if got.status != c.status || got.reason != c.reason || !strings.Contains(got.message, c.says) {
			t.Errorf("%s: %+v, want %s %s with %q", name, got, c.status, c.reason, c.says)
		}
	}
}

func TestWhatAWorkerNeedsIsNamed(t *testing.T) {
	pool := &v1alpha1.InferencePool{}
	w := &pool.Spec.Workers
	w.GPU.ResourceName = "nvidia.com/mig-1g.10gb"
	for _, c := range []struct {
		count  *int32
		claims []v1alpha1.ResourceClaim
		want   string
	}{
		{nil, nil, "1 nvidia.com/mig-1g.10gb"},
		{ptr.To[int32](2), nil, "2 nvidia.com/mig-1g.10gb"},
		{ptr.To[int32](0), nil, "no GPU, what spec.workers.pod.resources says"},
		{ptr.To[int32](0), []v1alpha1.ResourceClaim{{ResourceClaimTemplateName: "gpu"}, {ResourceClaimName: "net"}}, "a resource claim of the template gpu, the resource claim net"},
	} {
		w.GPU.Count, w.Pod.ResourceClaims = c.count, c.claims
		if got := needs(pool); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
