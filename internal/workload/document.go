package workload

import (
	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/poolspec"
)

// How a backend takes a request's parameters, in the words of poolspec and wire.
const (
	parametersPerItem  = "item"
	parametersPerBatch = "batch"
)

// Document is what the pool's data plane is told of it. It depends on the spec alone.
func Document(pool *v1alpha1.InferencePool) poolspec.Pool {
	spec := &pool.Spec
	p := poolspec.Pool{
		Version:       poolspec.Version,
		Name:          pool.Name,
		Namespace:     pool.Namespace,
		Model:         spec.Model,
		Batching:      batchingDocument(spec.Batching),
		Gateway:       gatewayDocument(spec),
		Zones:         zonesDocument(spec.Zones),
		MaxWorkers:    int(spec.Workers.MaxReplicas),
		TargetPercent: int(spec.Scaling.TargetPercent),
	}
	for _, t := range spec.Tiers {
		p.Tiers = append(p.Tiers, poolspec.Tier{
			Name:            t.Name,
			LatencyTarget:   poolspec.Duration(t.LatencyTarget.Duration),
			Timeout:         poolspec.Duration(t.Timeout.Duration),
			Shedding:        string(t.Shedding),
			ReservedPercent: int(t.ReservedPercent),
			Background:      t.Class == v1alpha1.ClassBackground,
		})
	}
	return p
}

func batchingDocument(b v1alpha1.BatchingSpec) poolspec.Batching {
	return poolspec.Batching{
		MaxSize:          int(b.MaxSize),
		MaxWait:          poolspec.Duration(b.MaxWait.Duration),
		InferenceTime:    poolspec.Duration(b.InferenceTime.Duration),
		InferenceTimeout: poolspec.Duration(b.InferenceTimeout.Duration),
		MaxRetries:       int(deref(b.MaxRetries, 1)),
	}
}

func gatewayDocument(spec *v1alpha1.InferencePoolSpec) poolspec.Gateway {
	g := poolspec.Gateway{
		Auth:               string(spec.Gateway.Auth),
		DefaultTier:        spec.Gateway.DefaultTier,
		MaxInputBytes:      int(spec.Gateway.MaxInputBytes),
		MaxBodyBytes:       int(spec.Gateway.MaxBodyBytes),
		RejectUnsupported:  spec.Gateway.UnsupportedParameters == v1alpha1.ParametersReject,
		StaleSignalOwnView: spec.Zones.WhenStale == v1alpha1.StaleOwnView,
		// Until a worker says how its backend takes parameters; a Python function may take none.
		BackendParameterMode: parametersPerItem,
	}
	if spec.Workers.Backend.Type == v1alpha1.BackendOpenInference {
		g.BackendParameterMode = parametersPerBatch
	}
	if spec.Gateway.Auth == v1alpha1.AuthNone && g.DefaultTier == "" && len(spec.Tiers) > 0 {
		g.DefaultTier = spec.Tiers[len(spec.Tiers)-1].Name
	}
	if h := spec.Gateway.TrustedHeaders; h != nil {
		g.TrustedCIDRs, g.TenantHeader, g.TierHeader = h.FromCIDRs, h.TenantHeader, h.TierHeader
	}
	return g
}

func zonesDocument(z v1alpha1.ZonesSpec) poolspec.Zones {
	var d poolspec.Zones
	if z.Yellow.Backlog != nil && z.Red.Backlog != nil {
		d.YellowBacklog, d.RedBacklog = poolspec.Duration(z.Yellow.Backlog.Duration), poolspec.Duration(z.Red.Backlog.Duration)
	}
	d.YellowDepth, d.RedDepth = int(deref(z.Yellow.Depth, 0)), int(deref(z.Red.Depth, 0))
	return d
}
