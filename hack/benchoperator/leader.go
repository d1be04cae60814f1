package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/workload"
)

// The failover is timed so that a new leader that went on with the old one's down window would remove a
// worker soon after it got the Lease: the load falls, the leader is killed 20 s later, its Lease lapses 15 s
// after its last renewal, and the window of 30 s is over by then.
const (
	downWindow  = 30 * time.Second
	killAfter   = 20 * time.Second
	leaseLapses = 2 * time.Minute // at the latest
)

const leaseName = "sluice-controller-manager"

// failover kills the leader while another operator stands by. One pool's load has just fallen, another's
// grows while nobody leads.
func (b *bench) failover(ctx context.Context, f *failoverFigures) error {
	standby, err := startManager(b.binary, b.dir, "standby", b.api, images("1")...)
	if err != nil {
		return err
	}
	killed := b.leader
	defer func() {
		if b.leader == killed { // an error before the change of leader
			standby.Kill()
		}
	}()
	shrinking, growing := b.extraName(), b.extraName()
	three := func(s *v1alpha1.InferencePoolSpec) {
		s.Workers.MinReplicas = workersOf + 1
		s.Scaling.Down.Window = metav1.Duration{Duration: downWindow}
	}
	if _, err := b.createPool(ctx, shrinking, capacity, three); err != nil {
		return err
	}
	if _, err := b.createPool(ctx, growing, 0.65*capacity, nil); err != nil {
		return err
	}
	for _, name := range []string{shrinking, growing} {
		if err := b.await(ctx, 5*time.Minute, "pool "+name+" to be served", b.poolServes(name)); err != nil {
			return err
		}
	}
	// From now on one worker fewer would be allowed, and the load (67 % of three) does not ask for it.
	pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: poolNamespace, Name: shrinking}}
	lower := fmt.Appendf(nil, `{"spec":{"workers":{"minReplicas":%d}}}`, workersOf)
	if err := b.api.client.Patch(ctx, pool, client.RawPatch(types.MergePatchType, lower)); err != nil {
		return err
	}
	if err := pause(ctx, downWindow/2); err != nil {
		return err
	}
	b.plane.load(shrinking).setRate(0.2 * capacity)
	if err := pause(ctx, killAfter); err != nil {
		return err
	}
	return b.changeOfLeader(ctx, standby, shrinking, growing, f)
}

// changeOfLeader kills the leader and measures what the standby does.
func (b *bench) changeOfLeader(ctx context.Context, standby *manager, shrinking, growing string, f *failoverFigures) error {
	leases, err := b.api.client.Watch(ctx, &coordinationv1.LeaseList{}, client.InNamespace(operatorNamespace), client.MatchingFields{"metadata.name": leaseName})
	if err != nil {
		return err
	}
	defer leases.Stop()
	shrinks, err := b.watch(ctx, &appsv1.DeploymentList{}, workload.WorkerName(shrinking))
	if err != nil {
		return err
	}
	defer shrinks.Stop()
	grows, err := b.watch(ctx, &appsv1.DeploymentList{}, workload.WorkerName(growing))
	if err != nil {
		return err
	}
	defer grows.Stop()
	lease := &coordinationv1.Lease{}
	if err := b.api.client.Get(ctx, client.ObjectKey{Namespace: operatorNamespace, Name: leaseName}, lease); err != nil {
		return err
	}
	old := *lease.Spec.HolderIdentity

	killedAt := time.Now()
	b.leader.Kill()
	b.leader = standby
	load := b.plane.load(growing)
	load.setRate(3 * capacity)
	load.setJam(jam)

	// Watches of both pools are read at the same time: a removal must be noticed whenever it comes.
	shrunk := make(chan time.Time, 1)
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if at, err := first(watched, shrinks, func(d *appsv1.Deployment) bool { return *d.Spec.Replicas <= workersOf }); err == nil {
			shrunk <- at
		}
	}()
	acquired, err := within(ctx, leaseLapses, leases, "another operator to take the Lease", func(l *coordinationv1.Lease) bool {
		return l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "" && *l.Spec.HolderIdentity != old
	})
	if err != nil {
		return err
	}
	f.KillToLeaseMs = ms(acquired.Sub(killedAt))
	decided, err := within(ctx, patience, grows, "the new leader's first decision", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas > workersOf })
	if err != nil {
		return err
	}
	f.FirstDecisionMs = ms(decided.Sub(acquired))
	say("failover: Lease after %.1f s, first decision %.0f ms later", f.KillToLeaseMs/1000, f.FirstDecisionMs)

	// The removal must come, or the scenario proves nothing, and not before a whole window.
	select {
	case at := <-shrunk:
		f.ScaleDownAfterS = at.Sub(acquired).Seconds()
		if at.Before(acquired.Add(downWindow)) {
			f.ScaleDownInsideWindow = 1
		}
	case <-time.After(2*downWindow + patience):
		return fmt.Errorf("the new leader removed no worker within %s", 2*downWindow+patience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	say("failover: scale-down %.1f s after the Lease, the window is %s", f.ScaleDownAfterS, downWindow)
	for _, name := range []string{shrinking, growing} {
		if err := b.remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// within is first with a limit.
func within[T client.Object](ctx context.Context, limit time.Duration, w watch.Interface, what string, wanted func(T) bool) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("waited %s for %s", limit, what))
	defer cancel()
	return first(ctx, w, wanted)
}

// upgrade replaces the operator by one with other default images and counts the Deployments that change:
// those of existing pools must keep the images that they were created with.
func (b *bench) upgrade(ctx context.Context) (changed int, err error) {
	before, err := b.generations(ctx)
	if err != nil {
		return 0, err
	}
	b.leader.Stop(leaveWithin)
	upgraded, err := startManager(b.binary, b.dir, "upgraded", b.api, images("2")...)
	if err != nil {
		return 0, err
	}
	b.leader = upgraded
	// Every pool was reconciled several times once the count is four times their number.
	err = b.await(ctx, 5*time.Minute, "the new operator to have seen every pool", func(ctx context.Context) (bool, string, error) {
		n, err := b.leader.reconciles(ctx)
		if err != nil && b.leader.alive() == nil {
			return false, err.Error(), nil // it does not serve metrics yet
		}
		return n >= float64(4*b.pools), fmt.Sprintf("%.0f reconciles", n), err
	})
	if err != nil {
		return 0, err
	}
	after, err := b.generations(ctx)
	if err != nil {
		return 0, err
	}
	for name, g := range after {
		if before[name] != g {
			changed++
		}
	}
	return changed, nil
}

func (b *bench) generations(ctx context.Context) (map[string]int64, error) {
	var list appsv1.DeploymentList
	if err := b.api.client.List(ctx, &list, client.InNamespace(poolNamespace)); err != nil {
		return nil, err
	}
	by := map[string]int64{}
	for i := range list.Items {
		by[list.Items[i].Name] = list.Items[i].Generation
	}
	return by, nil
}
