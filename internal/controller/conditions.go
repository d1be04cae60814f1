package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/workload"
)

// view is what conditions are judged by.
type view struct {
	pool     *v1alpha1.InferencePool
	seen     *observed
	plan     plan
	applyErr error
	batchers int // Ready ones
	gateways int // Ready standalone ones
}

// verdict is a condition without its bookkeeping.
type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

func yes(reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionTrue, reason, fmt.Sprintf(format, args...)}
}

func no(reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
}

// policies are the conditions of a pool, each a pure function; the zero verdict says that a pool has no such
// condition. Ready is judged from the others and comes
// last.
var policies = []struct {
	kind     string
	judge    func(view) verdict
	measured bool // by reports: not judged anew by a process that has none yet
}{
	{ConditionNamesAvailable, namesAvailable, false},
	{ConditionWorkersReady, workersReady, false},
	{ConditionBatchersReady, batchersReady, false},
	{ConditionGatewaysReady, gatewaysReady, false},
	{ConditionCapacityAvailable, capacityAvailable, false},
	{ConditionMetricsAvailable, metricsAvailable, true},
	{ConditionScaling, scalingCondition, true},
	{ConditionFillSufficient, fillSufficient, true},
	{ConditionRolloutSafe, rolloutSafe, true},
	{ConditionCertificateCurrent, certificateCurrent, true},
	{ConditionReroutesUsable, reroutesUsable, true},
	{ConditionColdStart, coldStartInBudget, false},
}

// judge sets all conditions of a pool; LastTransitionTime moves only when a status does.
func judge(v view, conditions *[]metav1.Condition) {
	was := meta.IsStatusConditionTrue(*conditions, ConditionReady)
	verdicts := make(map[string]verdict, len(policies))
	set := func(kind string, c verdict) {
		meta.SetStatusCondition(conditions, metav1.Condition{
			Type: kind, Status: c.status, Reason: c.reason, Message: clip(c.message), ObservedGeneration: v.pool.Generation,
			LastTransitionTime: *stamp(v.seen.now),
		})
	}
	for _, p := range policies {
		c := p.judge(v)
		if c.status == "" {
			meta.RemoveStatusCondition(conditions, p.kind)
			continue
		}
		if old := meta.FindStatusCondition(*conditions, p.kind); v.seen.awaiting && p.measured && old != nil {
			c = verdict{old.Status, old.Reason, old.Message}
		}
		verdicts[p.kind] = c
		set(p.kind, c)
	}
	set(ConditionReady, ready(v, verdicts, was))
}

// ready says that the pool answers requests. It begins once everything asked for is Ready, and then holds
// while at least one worker and one batcher are, and one gateway where the Service leads to gateways: the loss
// of one of several is no outage, and WorkersReady, BatchersReady and GatewaysReady tell of it.
func ready(v view, verdicts map[string]verdict, was bool) verdict {
	serving := v.plan.observation.Ready > 0 && v.batchers > 0 && (v.gateways > 0 || !v.plan.settings.ThroughGateways)
	for _, kind := range []string{ConditionNamesAvailable, ConditionBatchersReady, ConditionGatewaysReady, ConditionWorkersReady} {
		if c, judged := verdicts[kind]; judged && c.status != metav1.ConditionTrue && (kind == ConditionNamesAvailable || !was || !serving) {
			return no(c.reason, "%s", c.message)
		}
	}
	if v.applyErr != nil {
		return no(ReasonApplyFailed, "%s", v.applyErr)
	}
	return yes(ReasonServing, "requests to the Service %s are served", v.pool.Name)
}

func namesAvailable(v view) verdict {
	if len(v.seen.taken) == 0 {
		return yes(ReasonNamesFree, "all names are this pool's")
	}
	keys := slices.SortedFunc(maps.Keys(v.seen.taken), func(a, b childKey) int { return strings.Compare(a.String(), b.String()) })
	var all []string
	for _, k := range keys {
		all = append(all, fmt.Sprintf("%s belongs to %s", k, v.seen.taken[k]))
	}
	return no(ReasonNameTaken, "%s; it is left alone: delete it, or give this pool another name", strings.Join(all, ", "))
}

func workersReady(v view) verdict {
	if v.seen.deployment(workload.WorkerName(v.pool.Name)) == nil {
		return no(ReasonNotObserved, "the workers' Deployment was not seen yet")
	}
	o, want := v.plan.observation, int(v.pool.Spec.Workers.MinReplicas)
	if w := troubled(v.seen.workers); w != nil && o.Ready < want {
		return no(condensed(w.Trouble), "%d of at least %d workers are ready: %s", o.Ready, want, advice(v, *w))
	}
	if o.Ready < want {
		return no(ReasonStarting, "%d of at least %d workers are ready, %d starting", o.Ready, want, o.Starting)
	}
	if w := troubled(v.seen.workers); w != nil {
		return yes(ReasonAllReady, "%d workers are ready, the minimum is %d; %s", o.Ready, want, advice(v, *w))
	}
	return yes(ReasonAllReady, "%d workers are ready, the minimum is %d", o.Ready, want)
}

func batchersReady(v view) verdict {
	d := v.seen.deployment(workload.BatcherName(v.pool.Name))
	if d == nil {
		return no(ReasonNotObserved, "the batchers' Deployment was not seen yet")
	}
	want := int(v.pool.Spec.Batchers.MinReplicas)
	if v.batchers >= want {
		return yes(ReasonAllReady, "%d batchers are ready, the minimum is %d", v.batchers, want)
	}
	if pod, reason, detail := fleet.BatcherTrouble(v.seen.batcherPods); reason != "" {
		return no(condensed(reason), "%d of at least %d batchers are ready: pod %s: %s", v.batchers, want, pod, explain(reason, detail, pod, v.plan.settings.BatcherImage, "batchers", ""))
	}
	if reason, why := withoutCertificate(v, v.seen.batcherPods); reason != "" {
		return no(reason, "%d of at least %d batchers are ready: %s", v.batchers, want, why)
	}
	return no(ReasonStarting, "%d of at least %d batchers are ready", v.batchers, want)
}

func capacityAvailable(v view) verdict {
	d := v.plan.decision
	for _, w := range v.seen.workers {
		if w.LostGPU != "" {
			return no(ReasonGPULost, "%s", lostGPU(v.plan, w))
		}
	}
	if !d.CapacityAvailable {
		for _, w := range v.seen.workers {
			if w.Phase == fleet.WorkerUnschedulable && w.Detail != "" {
				return no(d.CapacityReason, "%s (%s). The scheduler says: %s", d.CapacityMessage, needs(v.pool), w.Detail)
			}
		}
		return no(d.CapacityReason, "%s (%s)", d.CapacityMessage, needs(v.pool))
	}
	return yes(d.CapacityReason, "%s", d.CapacityMessage)
}

func metricsAvailable(v view) verdict {
	l := v.seen.load
	missing := func() string {
		// The first three; errors of sockets carry ephemeral ports, which would differ on every tick.
		names := l.Missing[:min(3, len(l.Missing))]
		return strings.Join(names, ", ")
	}
	switch {
	case l.Complete:
		return yes(ReasonReporting, "every ready batcher and gateway reports")
	case l.Sources == 0 && len(l.Missing) == 0:
		return no(ReasonReportsMissing, "no batcher is ready: the number of workers stays as it is")
	case l.Sources == 0:
		return no(ReasonReportsMissing, "no batcher reports, the number of workers stays as it is: %s", missing())
	}
	return no(ReasonReportsPartial, "%d batchers report, workers may be added and none removed; without a report: %s", l.Sources, missing())
}

func scalingCondition(v view) verdict {
	d := v.plan.decision
	message := d.Message
	if w := v.pool.Spec.Workers.Replicas; w != nil && v.pool.Spec.Scaling.Mode != v1alpha1.ScalingExternal {
		message += fmt.Sprintf("; spec.workers.replicas (%d) waits for scaling.mode External", *w)
	}
	return yes(d.Reason, "%s", message)
}

func fillSufficient(v view) verdict {
	b := v.plan.batchers
	if b.FillSufficient {
		return yes(b.FillReason, "%s", b.FillMessage)
	}
	return no(b.FillReason, "%s", b.FillMessage)
}

// clip keeps a message within what the schema of conditions admits.
func clip(s string) string {
	const limit = 2048
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
