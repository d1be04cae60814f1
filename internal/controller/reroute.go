package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/workload"
)

// observeReroutes reads the pools that the ladders name. Nothing that the operator applies depends on them: a change
// of another pool rolls no pod of this one, it shows in a condition.
func (r *InferencePoolReconciler) observeReroutes(ctx context.Context, pool *v1alpha1.InferencePool, o *observed) error {
	for _, step := range workload.Reroutes(pool) {
		if _, known := o.others[step.Pool]; known {
			continue
		}
		other := &v1alpha1.InferencePool{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: step.Pool}, other)
		switch {
		case apierrors.IsNotFound(err):
			other = nil
		case err != nil:
			return fmt.Errorf("read the pool %s, which a ladder names: %w", step.Pool, err)
		}
		if o.others == nil {
			o.others = map[string]*v1alpha1.InferencePool{}
		}
		o.others[step.Pool] = other
	}
	return nil
}

// reroutesUsable judges whether the pools that the ladders name can take what is handed to them: first by their specs,
// then by what the gateways report. A pool whose ladders name none has no such condition.
func reroutesUsable(v view) verdict {
	steps := workload.Reroutes(v.pool)
	if len(steps) == 0 {
		return verdict{}
	}
	var names []string
	for _, step := range steps {
		if c := rerouteFits(step, v.seen.others[step.Pool]); c.status != "" {
			return c
		}
		names = append(names, step.Pool)
	}
	for _, r := range v.seen.load.Reroutes {
		for _, step := range steps {
			if step.Pool == r.Pool {
				return rerouteTrouble(step, r.Pod, r.RerouteProblem)
			}
		}
	}
	slices.Sort(names)
	return yes(ReasonReroutesFit, "requests may be handed to %s", strings.Join(slices.Compact(names), ", "))
}

// rerouteFits says what a step and the other pool's spec do not agree in; the zero verdict says that they do.
func rerouteFits(step *v1alpha1.DegradeReroute, other *v1alpha1.InferencePool) verdict {
	if other == nil {
		return no(ReasonRerouteNoPool, "a ladder reroutes to pool %s, and the namespace has no such pool: create it, or take the step out", step.Pool)
	}
	serves := other.Spec.Gateway.TLS
	switch {
	case other.Spec.Model != step.Model:
		return no(ReasonRerouteWrongModel, "a ladder reroutes to pool %s with model %q, and that serves %q: what is handed to it is answered 404", step.Pool, step.Model, other.Spec.Model)
	case step.TLS == nil && serves != nil && serves.PlainHTTP != v1alpha1.PlainHTTPOpen:
		return no(ReasonRerouteNeedsTLS, "pool %s serves HTTPS only and is asked in plain HTTP: set reroute.tls.caSecretName to the Secret whose ca.crt its certificate is signed by (that may be %s), or plainHTTP: Open there", step.Pool, serves.SecretName)
	case step.TLS != nil && serves == nil:
		return no(ReasonRerouteNoTLS, "pool %s is asked over TLS and serves plain HTTP only: take reroute.tls out, or set gateway.tls there", step.Pool)
	}
	return verdict{}
}

// rerouteTrouble is what a gateway reports, with what to do.
func rerouteTrouble(step *v1alpha1.DegradeReroute, pod string, r wire.RerouteProblem) verdict {
	if step.TLS != nil {
		secret := step.TLS.CASecretName
		switch r.Problem {
		case wire.RerouteCAMissing:
			return no(ReasonRerouteCAMissing, "pod %s cannot hand requests to pool %s: the Secret %s has no ca.crt, or is not there: put the certificates in it that the other pool's is signed by", pod, r.Pool, secret)
		case wire.RerouteCAInvalid:
			return no(ReasonRerouteCAInvalid, "pod %s cannot use ca.crt of the Secret %s for pool %s: %s", pod, secret, r.Pool, r.Message)
		}
	}
	return verdict{metav1.ConditionFalse, ReasonRerouteFailing, fmt.Sprintf("what pod %s handed to pool %s did not help: %s", pod, r.Pool, r.Message)}
}
