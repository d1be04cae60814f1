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
		Telemetry:     telemetryDocument(spec.Telemetry),
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
			Background:      t.Class == v1alpha1.ClassBackground || t.Class == v1alpha1.ClassInternal,
			Hours:           hoursDocument(t.Hours),
			Limits:          limitsDocument(t.Limits),
			Degrade:         degradeDocument(pool.Namespace, t.Degrade),
		})
	}
	return p
}

func hoursDocument(h *v1alpha1.TierHours) *poolspec.Hours {
	if h == nil {
		return nil
	}
	return &poolspec.Hours{Schedule: h.Schedule, Duration: poolspec.Duration(h.Duration.Duration), TimeZone: h.TimeZone}
}

func limitsDocument(l *v1alpha1.TenantLimits) poolspec.Limits {
	if l == nil {
		return poolspec.Limits{}
	}
	return poolspec.Limits{RequestsPerMinute: deref(l.RequestsPerMinute, 0), TokensPerMinute: deref(l.TokensPerMinute, 0)}
}

func degradeDocument(namespace string, d *v1alpha1.DegradeSpec) *poolspec.Degrade {
	if d == nil {
		return nil
	}
	return &poolspec.Degrade{Yellow: ladder(namespace, d.Yellow), Red: ladder(namespace, d.Red)}
}

func ladder(namespace string, steps []v1alpha1.DegradeStep) (out []poolspec.Step) {
	for _, s := range steps {
		x := poolspec.Step{MaxTokens: int(deref(s.MaxTokens, 0)), Answer: s.Answer}
		if s.Parameter != nil {
			x.Parameter, x.Value = s.Parameter.Name, s.Parameter.Value
		}
		if s.Reroute != nil {
			x.Pool, x.Model, x.TLS = s.Reroute.Pool, s.Reroute.Model, trustDocument(namespace, s.Reroute)
		}
		out = append(out, x)
	}
	return out
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
		SharedLimits:       limitsDocument(spec.Gateway.SharedLimits),
		TokenEncoding:      string(spec.Gateway.TokenEncoding),
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
	if t := spec.Gateway.TLS; t != nil {
		g.TLS = &poolspec.TLS{Directory: tlsDirectory, Plaintext: t.PlainHTTP == v1alpha1.PlainHTTPOpen}
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

func telemetryDocument(t *v1alpha1.TelemetrySpec) *poolspec.Telemetry {
	if t == nil {
		return nil
	}
	d := &poolspec.Telemetry{}
	if x := t.Traces; x != nil {
		d.Traces = &poolspec.Traces{Endpoint: x.Endpoint, SamplePercent: int(deref(x.SamplePercent, 1))}
	}
	if x := t.AccessLog; x != nil {
		d.AccessLog = &poolspec.AccessLog{SamplePercent: int(deref(x.SamplePercent, 100)), LinesPerSecond: int(deref(x.LinesPerSecond, 10))}
	}
	if t.UsageRecords == v1alpha1.UsageStdout {
		d.UsageRecords = poolspec.UsageStdout
	}
	if t.Tenants == v1alpha1.TenantsPseudonym {
		d.Tenants = poolspec.TenantsPseudonym
	}
	return d
}
