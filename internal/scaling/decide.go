package scaling

import "time"

// Decide says how many workers a pool should have now, and why.
func Decide(now time.Time, p Policy, o Observation, s State) (Decision, State) {
	return Decision{Desired: min(max(o.Current, p.Min), p.Max), CapacityAvailable: true}, s
}

// BatcherReplicas says how many batchers a pool should have now, and why.
func BatcherReplicas(now time.Time, p BatcherPolicy, o BatcherObservation, s BatcherState) (BatcherDecision, BatcherState) {
	return BatcherDecision{Desired: min(max(o.Current, p.Min), p.Max), FillSufficient: true}, s
}
