package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/workload"
)

// throughGateways says whether the pool's Service leads to its standalone gateways now.
func throughGateways(pool *v1alpha1.InferencePool, seen *observed) bool {
	s, ok := seen.children[childKey{workload.KindService, pool.Name}].(*corev1.Service)
	return ok && s.Spec.Selector[workload.LabelComponent] == workload.ComponentGateway
}

// leadToGateways says whether it should: from when all that were asked for are ready, so that a switch refuses
// no connection, and from then on for as long as the pool has any. Back it goes at once: the batchers serve.
func leadToGateways(pool *v1alpha1.InferencePool, seen *observed) bool {
	n := int(pool.Spec.Gateway.Replicas)
	return n > 0 && (throughGateways(pool, seen) || len(fleet.Serving(seen.gatewayPods)) >= n)
}

// removeLeftovers deletes the standalone gateways of a pool that has them no more, after the Service has been
// turned back to the batchers. Their pods drain as in a rollout.
func (r *InferencePoolReconciler) removeLeftovers(ctx context.Context, seen *observed) error {
	for _, obj := range seen.leftovers {
		err := r.Client.Delete(ctx, obj, client.PropagationPolicy(metav1.DeletePropagationBackground),
			client.Preconditions{UID: ptr.To(obj.GetUID())})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("remove what is left of the standalone gateways: %w", err)
		}
	}
	return nil
}

// gatewaysReady judges the standalone gateways; a pool without any has no such condition.
func gatewaysReady(v view) verdict {
	want := int(v.pool.Spec.Gateway.Replicas)
	if want == 0 {
		return verdict{}
	}
	if v.seen.deployment(workload.GatewayName(v.pool.Name)) == nil {
		return no(ReasonNotObserved, "the gateways' Deployment was not seen yet")
	}
	leads := "the Service leads to them"
	if !throughGateways(v.pool, v.seen) {
		leads = "the Service leads to the batchers until all are"
	}
	if v.gateways >= want {
		return yes(ReasonAllReady, "%d standalone gateways are ready", v.gateways)
	}
	if pod, reason, detail := fleet.BatcherTrouble(v.seen.gatewayPods); reason != "" {
		return no(condensed(reason), "%d of %d standalone gateways are ready, %s: pod %s: %s", v.gateways, want, leads, pod,
			explain(reason, detail, pod, v.plan.settings.GatewayImage, "gateway", ""))
	}
	if reason, why := withoutCertificate(v, v.seen.gatewayPods); reason != "" {
		return no(reason, "%d of %d standalone gateways are ready, %s: %s", v.gateways, want, leads, why)
	}
	return no(ReasonStarting, "%d of %d standalone gateways are ready, %s", v.gateways, want, leads)
}

// gatewayStatus is nil while the gateway runs inside the batchers; the image chosen once is kept only as long
// as there are gateways that run it.
func gatewayStatus(v view) *v1alpha1.GatewayStatus {
	if v.pool.Spec.Gateway.Replicas == 0 {
		return nil
	}
	return &v1alpha1.GatewayStatus{Desired: v.pool.Spec.Gateway.Replicas, Ready: int32(v.gateways), Image: v.plan.settings.GatewayImage}
}

// statusImage is the image that the status keeps.
func statusImage(s *v1alpha1.GatewayStatus) string {
	if s == nil {
		return ""
	}
	return s.Image
}
