package sim

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/hack/simulate/pool"
)

// notes say what of a pool is not simulated, or not as the pool says, so that nobody takes the run for more than
// it is. Fields that change nothing of load, queues and decisions (images, pods, TLS, keys, telemetry) are left out.
func notes(set pool.Set, opt Options) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	spec := &set.Pool.Spec
	if n := spec.Gateway.Replicas; n > 0 {
		say("gateway.replicas is %d: the gateways are simulated inside the batchers; the hop between them is not simulated", n)
	}
	for _, t := range spec.Tiers {
		if other := reroutesTo(t.Degrade); other != "" {
			say("tier %s hands requests to pool %s: they leave the simulation, and %g %% of them are taken to be answered there", t.Name, other, 100-opt.RerouteFailsPercent)
		}
	}
	for _, t := range set.Tenants {
		if !slices.ContainsFunc(spec.Tiers, func(x v1alpha1.Tier) bool { return x.Name == t.Spec.Tier }) {
			say("tenant %s is of tier %s, which the pool does not have: it sends nothing", t.Name, t.Spec.Tier)
		}
	}
	switch b := spec.Workers.Backend; {
	case b.Type == v1alpha1.BackendOpenInference:
		say("workers.backend takes one set of parameters a batch: the clients' own are taken to agree")
	case b.Simulated != nil:
		if s := b.Simulated.ServiceTime.Duration; s != spec.Batching.InferenceTime.Duration {
			say("workers.backend.simulated.serviceTime is %s: a batch is simulated to take batching.inferenceTime, %s", s, spec.Batching.InferenceTime.Duration)
		}
		if b.Simulated.FailPermille+b.Simulated.CrashPermille > 0 {
			say("workers.backend.simulated: batches that fail or crash by chance are not simulated, -fail worker is")
		}
	}
	return out
}

// reroutesTo is the pool to which a ladder hands requests, "" for none.
func reroutesTo(d *v1alpha1.DegradeSpec) string {
	if d == nil {
		return ""
	}
	for _, s := range slices.Concat(d.Yellow, d.Red) {
		if s.Reroute != nil {
			return s.Reroute.Pool
		}
	}
	return ""
}
