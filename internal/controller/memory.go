package controller

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/scaling"
	"sluice.dev/sluice/internal/zone"
)

// memory is what is remembered of one pool between two reconciles.
type memory struct {
	uid types.UID
	// resumed says that the pool's status has what another process knew.
	resumed  bool
	scaling  scaling.State
	batchers scaling.BatcherState
	zone     zone.State
	// rounds is the scrape that the states have counted: a second look at the same one counts nothing.
	rounds uint64
	// workers and batcherCount are the replicas that the operator last wrote, 0 for none. It is the one writer
	// of them: what a Deployment says instead is drift.
	workers, batcherCount int
	// written is when the status was last written.
	written time.Time
	// verified says of each child which version was found to be as it should be.
	verified map[childKey]verified
	removal  *removal
	poison   poisonMemory
	// rolling says that the workers were being rolled at the last look.
	rolling bool
}

type verified struct {
	resourceVersion string
	digest          [32]byte
}

// resume is the memory of a pool that this process has not seen yet: what its status keeps. The down
// window begins anew: nobody watched the load meanwhile.
func resume(pool *v1alpha1.InferencePool) *memory {
	s, z := pool.Status.Scaling, pool.Status.Zone
	state := scaling.State{
		AboveSince:    instant(s.AboveSince),
		BelowSince:    instant(s.BelowSince),
		LastScaleUp:   instant(s.LastScaleUp),
		LastScaleDown: instant(s.LastScaleDown),
		LastDepthStep: instant(s.LastDepthStep),
		Victim:        s.Victim,
	}
	return &memory{
		uid:     pool.UID,
		resumed: pool.Status.ObservedGeneration > 0,
		scaling: state.Resumed(),
		workers: int(pool.Status.Workers.Desired), batcherCount: int(pool.Status.Batchers.Desired),
		zone:     zone.State{Name: zone.Name(z.Name), Reason: z.Reason, Since: instant(z.Since), CalmSince: instant(z.CalmSince)},
		verified: map[childKey]verified{},
	}
}

// keep takes the states over once the decision was applied and reported.
func (m *memory) keep(p plan, seen *observed) {
	m.scaling, m.batchers, m.zone = p.scalingState, p.batcherState, p.zoneState
	m.rounds = seen.load.Rounds
	if len(seen.taken) == 0 {
		m.workers, m.batcherCount = p.decision.Desired, p.batchers.Desired
	}
}

// counted takes one count back from every counter of scrapes when this scrape was counted before: a Pod
// event between two scrapes must not turn one scrape into two.
func (m *memory) counted(rounds uint64) (scaling.State, scaling.BatcherState, zone.State) {
	s, b, z := m.scaling, m.batchers, m.zone
	if rounds == m.rounds {
		s.DepthScrapes = max(0, s.DepthScrapes-1)
		b.AboveTicks = max(0, b.AboveTicks-1)
		z.OverTicks = max(0, z.OverTicks-1)
	}
	return s, b, z
}

func instant(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// stamp is an instant for the status, which keeps whole seconds; nil for none.
func stamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	m := metav1.NewTime(t.Truncate(time.Second))
	return &m
}
