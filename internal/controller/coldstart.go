package controller

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
)

// coldStartInBudget compares what the newest worker took from its creation to Ready with spec.workers.coldStart,
// by which scaling plans: a budget that is too short makes workers count as lost while they load.
func coldStartInBudget(v view) verdict {
	budget := v.pool.Spec.Workers.ColdStart.Duration
	measured := measuredColdStart(v)
	switch {
	case measured == 0:
		return verdict{metav1.ConditionUnknown, ReasonNotMeasured, fmt.Sprintf("no worker has become Ready yet; the budget (spec.workers.coldStart) is %v", budget)}
	case measured > budget:
		return no(ReasonOverBudget,
			"the newest worker took %v from its creation to Ready, more than the budget (spec.workers.coldStart) of %v: raise coldStart, or make the start shorter (image on the nodes, weights on a volume, smaller warm-up); after %v a start is given up",
			measured, budget, 2*budget)
	}
	return yes(ReasonWithinBudget, "the newest worker took %v from its creation to Ready, the budget (spec.workers.coldStart) is %v", measured, budget)
}

// measuredColdStart is the newest Ready worker's, else the one that the status keeps; 0 for none.
func measuredColdStart(v view) time.Duration {
	var newest fleet.Worker
	for _, pod := range v.seen.workers {
		// A worker that lost its readiness and found it again tells nothing of a cold start: only one that
		// was Ready in time counts (the startup probe gives up after twice the budget).
		if pod.Phase == fleet.WorkerReady && pod.Created.After(newest.Created) && pod.ColdStart <= 2*v.pool.Spec.Workers.ColdStart.Duration {
			newest = pod
		}
	}
	if newest.ColdStart > 0 {
		return newest.ColdStart.Round(time.Second)
	}
	if kept := v.pool.Status.Workers.ColdStart; kept != nil {
		return kept.Duration
	}
	return 0
}

// needs says what a worker asks of a node, for people.
func needs(pool *v1alpha1.InferencePool) string {
	w := pool.Spec.Workers
	var all []string
	if n := w.GPU.Count; n == nil || *n > 0 {
		count := int32(1)
		if n != nil {
			count = *n
		}
		all = append(all, fmt.Sprintf("%d %s", count, w.GPU.ResourceName))
	}
	for _, c := range w.Pod.ResourceClaims {
		if c.ResourceClaimTemplateName != "" {
			all = append(all, fmt.Sprintf("a resource claim of the template %s", c.ResourceClaimTemplateName))
		} else {
			all = append(all, fmt.Sprintf("the resource claim %s", c.ResourceClaimName))
		}
	}
	if len(all) == 0 {
		return "no GPU, what spec.workers.pod.resources says"
	}
	return strings.Join(all, ", ")
}
