package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/internal/workload"
)

// kubelets play the parts of Kubernetes that a bare API server lacks: the controllers of Deployments and
// ReplicaSets, the scheduler and the kubelets. A Deployment's Pods are Running and Ready at once. They write
// only when a Deployment's replicas or generation change.
type kubelets struct {
	client client.Client
	plane  *dataPlane
	cache  cache.Cache
	queue  workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu   sync.Mutex
	pods map[types.NamespacedName][]string // names, by Deployment
	made int
}

// startKubelets works until ctx ends.
func startKubelets(ctx context.Context, s *apiServer, plane *dataPlane) (*kubelets, error) {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{workload.LabelManagedBy: workload.Product})}
	c, err := cache.New(s.config, cache.Options{Scheme: s.scheme, ByObject: map[client.Object]cache.ByObject{&appsv1.Deployment{}: ours}})
	if err != nil {
		return nil, err
	}
	k := &kubelets{
		client: s.client, plane: plane, cache: c, pods: map[types.NamespacedName][]string{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]()),
	}
	informer, err := c.GetInformer(ctx, &appsv1.Deployment{})
	if err != nil {
		return nil, err
	}
	add := func(obj any) {
		if d, ok := obj.(*appsv1.Deployment); ok {
			k.queue.Add(client.ObjectKeyFromObject(d))
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }}); err != nil {
		return nil, err
	}
	go func() {
		if err := c.Start(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "bench-operator: watch the Deployments:", err)
		}
	}()
	context.AfterFunc(ctx, k.queue.ShutDown)
	for range 8 {
		go k.work(ctx)
	}
	return k, nil
}

func (k *kubelets) work(ctx context.Context) {
	for {
		key, ended := k.queue.Get()
		if ended {
			return
		}
		err := k.sync(ctx, key)
		switch {
		case err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil:
			k.queue.Forget(key)
		default:
			fmt.Fprintln(os.Stderr, "bench-operator: play the kubelet:", err)
			k.queue.AddRateLimited(key)
		}
		k.queue.Done(key)
	}
}

// sync makes the Pods and the status of one Deployment what its spec says. The queue gives a key to one
// goroutine at a time.
func (k *kubelets) sync(ctx context.Context, key types.NamespacedName) error {
	d := &appsv1.Deployment{}
	if err := k.cache.Get(ctx, key, d); err != nil {
		return err
	}
	k.mu.Lock()
	names := k.pods[key]
	k.mu.Unlock()
	want := int(*d.Spec.Replicas)
	for len(names) < want {
		name, err := k.run(ctx, d)
		if err != nil {
			return err
		}
		names = append(names, name)
		k.keep(key, names)
	}
	for len(names) > want {
		i, err := k.leaver(ctx, key.Namespace, names)
		if err != nil {
			return err
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: names[i]}}
		if err := k.client.Delete(ctx, pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			return err
		}
		names = append(append([]string(nil), names[:i]...), names[i+1:]...)
		k.keep(key, names)
	}
	n := int32(want)
	status := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	if s := d.Status; s.ObservedGeneration == status.ObservedGeneration && s.Replicas == n && s.AvailableReplicas == n {
		return nil
	}
	return k.patchStatus(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, status)
}

func (k *kubelets) keep(key types.NamespacedName, names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods[key] = names
}

// forget drops what is known of a pool's Deployments.
func (k *kubelets) forget(pool string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range []string{workload.BatcherName(pool), workload.WorkerName(pool)} {
		delete(k.pods, types.NamespacedName{Namespace: poolNamespace, Name: name})
	}
}

// run makes one Pod and lets it serve.
func (k *kubelets) run(ctx context.Context, d *appsv1.Deployment) (string, error) {
	k.mu.Lock()
	k.made++
	n := k.made
	k.mu.Unlock()
	name := d.Name + "-" + strconv.Itoa(n)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: name, Labels: d.Spec.Template.Labels, Annotations: d.Spec.Template.Annotations},
		Spec:       *d.Spec.Template.Spec.DeepCopy(),
	}
	pod.Spec.NodeName = "node-" + strconv.Itoa(n%100)
	if err := k.client.Create(ctx, pod); err != nil {
		return "", fmt.Errorf("create a Pod: %w", err)
	}
	pool, ip := pod.Labels[workload.LabelPool], ""
	switch component := pod.Labels[workload.LabelComponent]; component {
	case workload.ComponentBatcher:
		var err error
		if ip, err = k.plane.addBatcher(pool, name, string(pod.UID)); err != nil {
			return "", err
		}
	case workload.ComponentWorker:
		ip = k.plane.addWorker(pool, name)
	default:
		return "", fmt.Errorf("pod %s is neither batcher nor worker but %q", name, component)
	}
	now := metav1.Now()
	yes := func(t corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now}
	}
	return name, k.patchStatus(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: name}}, corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, StartTime: &now,
		Conditions: []corev1.PodCondition{yes(corev1.PodScheduled), yes(corev1.PodInitialized), yes(corev1.ContainersReady), yes(corev1.PodReady)},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	})
}

func (k *kubelets) patchStatus(ctx context.Context, obj client.Object, status any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	err = k.client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of %s: %w", obj.GetName(), err)
	}
	return err
}

// leaver is the index of the Pod with the lowest deletion cost, as the ReplicaSet controller chooses.
func (k *kubelets) leaver(ctx context.Context, namespace string, names []string) (int, error) {
	lowest, at := 0, -1
	for i, name := range names {
		pod := &corev1.Pod{}
		if err := k.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod); err != nil {
			return 0, err
		}
		cost := 0
		if v, ok := pod.Annotations[corev1.PodDeletionCost]; ok {
			var err error
			if cost, err = strconv.Atoi(v); err != nil {
				return 0, err
			}
		}
		if at < 0 || cost < lowest {
			lowest, at = cost, i
		}
	}
	if at < 0 {
		return 0, errors.New("no Pod to remove")
	}
	return at, nil
}
