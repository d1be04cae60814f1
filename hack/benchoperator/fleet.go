package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/controller"
	"sluice.dev/sluice/internal/workload"
)

// bench is one run: an API server, one operator that leads, and the pools.
type bench struct {
	api      *apiServer
	plane    *dataPlane
	kubelets *kubelets
	binary   string
	dir      string
	leader   *manager
	pools    int // steady ones
	extra    int // pools made for one measurement, so far
	settling time.Duration
}

// creators is how many pools are created at once.
const creators = 8

// images are the flags that name the default images.
func images(tag string) []string {
	return []string{"--worker-image=example.com/gpuworker:" + tag, "--batcher-image=example.com/batcher:" + tag}
}

// grow brings the fleet to n steady pools and waits until all are served and nothing is written any more.
func (b *bench) grow(ctx context.Context, n int) error {
	began := time.Now()
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	slots := make(chan struct{}, creators)
	for i := b.pools; i < n; i++ {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			// Loads from 55 to 72 % of the capacity: no pool is to be scaled, and the numbers in their
			// statuses differ.
			rate := capacity * (0.55 + 0.17*float64(i%100)/100)
			if _, err := b.createPool(ctx, fmt.Sprintf("pool-%04d", i), rate, nil); err != nil {
				failed.Store(&err)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	b.pools = n
	if err := b.await(ctx, 15*time.Minute, fmt.Sprintf("%d pools to be served", n), b.allServe); err != nil {
		return err
	}
	say("%d pools are served after %.0f s", n, time.Since(began).Seconds())
	return nil
}

// createPool creates a pool under a load and returns it with its defaults; change may alter its spec.
func (b *bench) createPool(ctx context.Context, name string, rate float64, change func(*v1alpha1.InferencePoolSpec)) (*v1alpha1.InferencePool, error) {
	b.plane.load(name).setRate(rate)
	pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: poolNamespace, Name: name}}
	pool.Spec.Model = "m"
	pool.Spec.Workers.MinReplicas, pool.Spec.Batchers.MinReplicas = workersOf, batchersOf
	if change != nil {
		change(&pool.Spec)
	}
	if err := b.api.client.Create(ctx, pool); err != nil {
		return nil, fmt.Errorf("create pool %s: %w", name, err)
	}
	return pool, nil
}

// extraName is a name for a pool of one measurement.
func (b *bench) extraName() string {
	b.extra++
	return fmt.Sprintf("extra-%03d", b.extra)
}

// remove deletes a pool with its children, as the garbage collector would.
func (b *bench) remove(ctx context.Context, name string) error {
	pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: poolNamespace, Name: name}}
	errs := []error{b.api.client.Delete(ctx, pool)}
	for _, kind := range []client.Object{
		&appsv1.Deployment{}, &corev1.Pod{}, &corev1.Service{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{},
		&rbacv1.RoleBinding{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{},
	} {
		errs = append(errs, b.api.client.DeleteAllOf(ctx, kind, client.InNamespace(poolNamespace), client.MatchingLabels{workload.LabelPool: name}, client.GracePeriodSeconds(0)))
	}
	b.plane.remove(name)
	b.kubelets.forget(name)
	return errors.Join(errs...)
}

// allServe says whether every pool is Ready and every batcher reports.
func (b *bench) allServe(ctx context.Context) (bool, string, error) {
	var list v1alpha1.InferencePoolList
	if err := b.api.client.List(ctx, &list, client.InNamespace(poolNamespace)); err != nil {
		return false, "", err
	}
	n, why := 0, ""
	for i := range list.Items {
		if ok, reason := serves(&list.Items[i]); ok {
			n++
		} else if why == "" {
			why = fmt.Sprintf("%s: %s", list.Items[i].Name, reason)
		}
	}
	return n == len(list.Items), fmt.Sprintf("%d of %d; %s", n, len(list.Items), why), nil
}

// serves says whether a pool is Ready and every batcher reports, and what is missing.
func serves(pool *v1alpha1.InferencePool) (bool, string) {
	for _, kind := range []string{controller.ConditionReady, controller.ConditionMetricsAvailable} {
		c := meta.FindStatusCondition(pool.Status.Conditions, kind)
		if c == nil {
			return false, kind + " is not set"
		}
		if c.Status != metav1.ConditionTrue {
			return false, kind + ": " + c.Message
		}
	}
	return true, ""
}

// poolServes is allServe of one pool.
func (b *bench) poolServes(name string) func(context.Context) (bool, string, error) {
	return func(ctx context.Context) (bool, string, error) {
		pool := &v1alpha1.InferencePool{}
		if err := b.api.client.Get(ctx, client.ObjectKey{Namespace: poolNamespace, Name: name}, pool); err != nil {
			return false, "", err
		}
		ok, why := serves(pool)
		return ok, why, nil
	}
}

// await polls until done, or fails with what was last seen.
func (b *bench) await(ctx context.Context, limit time.Duration, what string, done func(context.Context) (bool, string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := ""
	for {
		ok, seen, err := done(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("waited %s for %s; last seen: %s", limit, what, last)
		case err != nil:
			return fmt.Errorf("wait for %s: %w", what, err)
		case ok:
			return nil
		}
		last = seen
		if err := b.leader.alive(); err != nil {
			return err
		}
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("waited %s for %s; last seen: %s", limit, what, last)
		}
	}
}

// children are the objects that a pool consists of, by the very code that makes them.
func children(pool *v1alpha1.InferencePool) ([]client.Object, error) {
	all, err := workload.Children(pool, workload.Settings{})
	if err != nil {
		return nil, err
	}
	apiVersions := map[workload.Kind]string{
		workload.KindDeployment: "apps/v1", workload.KindRoleBinding: "rbac.authorization.k8s.io/v1",
		workload.KindPodDisruptionBudget: "policy/v1", workload.KindNetworkPolicy: "networking.k8s.io/v1",
	}
	var objs []client.Object
	for _, c := range all {
		o := &metav1.PartialObjectMetadata{}
		o.Kind, o.APIVersion = string(c.Kind), apiVersions[c.Kind]
		if o.APIVersion == "" {
			o.APIVersion = "v1"
		}
		o.Namespace, o.Name = poolNamespace, c.Name
		objs = append(objs, o)
	}
	return objs, nil
}

// allExist says whether every object does.
func (b *bench) allExist(ctx context.Context, objs []client.Object) (bool, error) {
	for _, o := range objs {
		err := b.api.client.Get(ctx, client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// say tells of the progress.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05")+" "+format+"\n", args...)
}
