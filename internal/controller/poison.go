package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/api/v1alpha1"
)

// poisonQuiet is the shortest time between two events about poisoned inputs: those that come meanwhile are
// counted and told of together.
const poisonQuiet = time.Minute

// poisonMemory is what was told of inputs that fail the function.
type poisonMemory struct {
	counts map[string]uint64 // by the start of a batcher's process
	untold uint64
	latest string
	told   time.Time
}

// add takes the batchers' counts over. A process that is new to this operator counts from where it is when
// the operator is new too, else from nothing.
func (m *poisonMemory) add(seen *observed) {
	if len(seen.load.Batchers) == 0 {
		return
	}
	counts := make(map[string]uint64, len(seen.load.Batchers))
	for _, b := range seen.load.Batchers {
		before, known := m.counts[b.Poison.Start]
		if !known && m.counts == nil {
			before = b.Poison.Count
		}
		if n := b.Poison.Count; n > before {
			m.untold += n - before
			m.latest = b.Poison.Latest
		}
		counts[b.Poison.Start] = b.Poison.Count
	}
	if seen.load.Complete {
		m.counts = counts
		return
	}
	// One that is silent for a moment must not be counted from nothing when it speaks again.
	for start, n := range m.counts {
		if _, ok := counts[start]; !ok {
			counts[start] = n
		}
	}
	m.counts = counts
}

// checkPoison warns of inputs that were found to fail the function.
func (r *InferencePoolReconciler) checkPoison(pool *v1alpha1.InferencePool, seen *observed, m *memory) {
	p := &m.poison
	p.add(seen)
	if p.untold == 0 || seen.now.Sub(p.told) < poisonQuiet {
		return
	}
	requests := "1 request was"
	if p.untold > 1 {
		requests = fmt.Sprintf("%d requests were", p.untold)
	}
	r.event(pool, corev1.EventTypeWarning, EventPoisoned,
		"%s answered 422 because the input fails the function, each time it is tried: %s; the traceback is in the workers' logs", requests, p.latest)
	p.untold, p.told = 0, seen.now
}
