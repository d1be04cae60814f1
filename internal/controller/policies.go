package controller

import (
	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/scaling"
	"sluice.dev/sluice/internal/zone"
)

// Policies are the rules that a pool's spec states, as the operator reads it. The simulator asks here, so that
// it cannot read a spec in another way.
func Policies(pool *v1alpha1.InferencePool) (scaling.Policy, scaling.BatcherPolicy, zone.Policy) {
	return scalingPolicy(pool), batcherPolicy(pool), zonePolicy(pool)
}
