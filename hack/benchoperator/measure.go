package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/internal/workload"
	"sluice.dev/sluice/internal/zone"
)

// repeats is how often a latency is measured; the worst counts.
const repeats = 5

// jam is the queue at each batcher that makes a pool Red by itself: a backlog of a second, the threshold is
// 750 ms.
const jam = 2000

// patience bounds the wait for one reaction.
const patience = time.Minute

// measureFleet takes every figure of the fleet as it is.
func (b *bench) measureFleet(ctx context.Context, steady time.Duration) (figures, error) {
	f := figures{Pools: b.pools, SteadySeconds: steady.Seconds()}
	say("%d pools: waiting for the writes to end", b.pools)
	if err := b.settle(ctx); err != nil {
		return f, err
	}
	say("%d pools: steady for %s", b.pools, steady)
	if err := b.steady(ctx, steady, &f); err != nil {
		return f, err
	}
	say("%d pools: %.0f writes %v, %.0f MiB; new pools, queues", b.pools, f.SteadyWrites, f.SteadyBy, f.RSSMB)
	var applied, patched, red []time.Duration
	for range repeats {
		a, p, r, err := b.newAndJammed(ctx)
		if err != nil {
			return f, err
		}
		applied, patched, red = append(applied, a), append(patched, p), append(red, r)
		say("%d pools: new pool %d ms, queue to patch %d ms, Red to watcher %d ms", b.pools, a.Milliseconds(), p.Milliseconds(), r.Milliseconds())
	}
	f.NewPoolMs, f.NewPoolMedianMs = worst(applied), median(applied)
	f.QueueMs, f.QueueMedianMs = worst(patched), median(patched)
	f.RedMs, f.RedMedianMs = worst(red), median(red)
	return f, nil
}

// calm is how long nothing may have been written before a fleet counts as settled: longer than the operator
// holds back numbers, 10 s.
const calm = 14 * time.Second

// settle waits until nothing is written, for b.settling at most: a fleet that never comes to rest is measured
// as it is.
func (b *bench) settle(ctx context.Context) error {
	end := time.Now().Add(b.settling)
	before, err := b.api.writes(ctx)
	if err != nil {
		return err
	}
	first, since := before, time.Now()
	for time.Since(since) < calm {
		if time.Now().After(end) {
			_, by := grown(first, before)
			say("not at rest after %s: %v", b.settling, by)
			break
		}
		after, err := b.api.writes(ctx)
		if err != nil {
			return err
		}
		if n, _ := grown(before, after); n > 0 {
			since = time.Now()
		}
		before = after
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
	return b.leader.alive()
}

// steady watches a fleet in which nothing happens.
func (b *bench) steady(ctx context.Context, length time.Duration, f *figures) error {
	before, err := b.api.writes(ctx)
	if err != nil {
		return err
	}
	cpu, err := b.leader.CPU()
	if err != nil {
		return err
	}
	reconciles, err := b.leader.reconciles(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pause(ctx, length); err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	after, err := b.api.writes(ctx)
	if err != nil {
		return err
	}
	f.SteadyWrites, f.SteadyBy = grown(before, after)
	cpuAfter, err := b.leader.CPU()
	if err != nil {
		return err
	}
	f.CPUPercent = 100 * (cpuAfter - cpu).Seconds() / seconds
	reconcilesAfter, err := b.leader.reconciles(ctx)
	if err != nil {
		return err
	}
	f.ReconcilesPerS = (reconcilesAfter - reconciles) / seconds
	f.RSSMB, err = b.leader.RSSMB()
	return err
}

// newAndJammed creates a pool, lets it serve, jams it, and removes it. It returns the times from the creation
// to the last child, from the jam to the patch of the workers' replicas, and from the answer to the first
// scrape that tells of the jam to the zone Red at a watcher.
func (b *bench) newAndJammed(ctx context.Context) (applied, patched, red time.Duration, err error) {
	name := b.extraName()
	if applied, err = b.newPool(ctx, name); err != nil {
		return
	}
	if err = b.await(ctx, 5*time.Minute, "pool "+name+" to be served", b.poolServes(name)); err != nil {
		return
	}
	// The status is written before the Deployment's second look; let it come to rest.
	if err = pause(ctx, 5*time.Second); err != nil {
		return
	}
	patched, red, err = b.jammed(ctx, name)
	if err != nil {
		return
	}
	return applied, patched, red, b.remove(ctx, name)
}

// newPool is the time from a pool's creation until all its children exist.
func (b *bench) newPool(ctx context.Context, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("pool %s does not get its children within %s", name, patience))
	defer cancel()
	// The batchers' Deployment is the last that is applied.
	deployments, err := b.watch(ctx, &appsv1.DeploymentList{}, workload.BatcherName(name))
	if err != nil {
		return 0, err
	}
	defer deployments.Stop()
	began := time.Now()
	pool, err := b.createPool(ctx, name, 0.65*capacity, nil)
	if err != nil {
		return 0, err
	}
	objs, err := children(pool)
	if err != nil {
		return 0, err
	}
	took, err := first(ctx, deployments, func(*appsv1.Deployment) bool { return true })
	if err != nil {
		return 0, err
	}
	for {
		all, err := b.allExist(ctx, objs)
		if err != nil {
			return 0, err
		}
		if all {
			return took.Sub(began), nil
		}
		took = time.Now() // another child is later than the one that was watched
	}
}

// jammed makes a queue in a pool, by twice the load that it can serve: the times until the workers' replicas grow and until a watcher of the zone
// document sees Red.
func (b *bench) jammed(ctx context.Context, name string) (patched, red time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no reaction to a queue in pool %s within %s", name, patience))
	defer cancel()
	deployments, err := b.watch(ctx, &appsv1.DeploymentList{}, workload.WorkerName(name))
	if err != nil {
		return 0, 0, err
	}
	defer deployments.Stop()
	zones, err := b.watch(ctx, &corev1.ConfigMapList{}, workload.ZoneName(name))
	if err != nil {
		return 0, 0, err
	}
	defer zones.Stop()

	load := b.plane.load(name)
	began := time.Now()
	load.setRate(2 * capacity)
	load.setJam(jam)
	type instant struct {
		at  time.Time
		err error
	}
	sawRed := make(chan instant, 1)
	go func() {
		at, err := first(ctx, zones, isRed)
		sawRed <- instant{at, err}
	}()
	grew, err := first(ctx, deployments, func(d *appsv1.Deployment) bool { return *d.Spec.Replicas > workersOf })
	if err != nil {
		return 0, 0, err
	}
	r := <-sawRed
	if r.err != nil {
		return 0, 0, r.err
	}
	told, err := load.jamSeen(ctx)
	return grew.Sub(began), r.at.Sub(told), err
}

func isRed(m *corev1.ConfigMap) bool {
	s, err := zone.DecodeSignal(m.Data[zone.SignalKey])
	return err == nil && s.Zone == zone.Red
}

// watch watches one object by name, as a gateway does.
func (b *bench) watch(ctx context.Context, list client.ObjectList, name string) (watch.Interface, error) {
	w, err := b.api.client.Watch(ctx, list, client.InNamespace(poolNamespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", name, err)
	}
	return w, nil
}

// first waits for the first event whose object is as wanted, and says when it came.
func first[T client.Object](ctx context.Context, w watch.Interface, wanted func(T) bool) (time.Time, error) {
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				return time.Time{}, fmt.Errorf("a watch ended: %w", context.Cause(ctx))
			}
			if o, ok := e.Object.(T); ok && e.Type != watch.Deleted && wanted(o) {
				return time.Now(), nil
			}
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
}

func worst(ds []time.Duration) float64 { return ms(slices.Max(ds)) }

func median(ds []time.Duration) float64 {
	ds = slices.Sorted(slices.Values(ds))
	return ms(ds[len(ds)/2])
}

func ms(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond)) / float64(time.Millisecond)
}
