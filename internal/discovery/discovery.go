// Package discovery tells a pool's data plane, from the Kubernetes API, who its workers, batchers and gateways
// are, who may call, and in which zone the fleet is.
//
// It watches up to five things of one namespace, each by name or label so that no other object is ever held, and
// keeps of each object only what is needed. While the API server is away everything stays as it was last
// seen. Its rights are get, list and watch of endpointslices, configmaps and inferencetenants.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/zone"
)

// Worker is one GPU worker that takes batches.
type Worker struct {
	Addr string // IP:port
	Pod  string
}

// Peer is one ready batcher or gateway of the pool, this one among them once it is ready.
type Peer struct {
	IP  string
	Pod string
}

// Options say what to watch and whom to tell. A nil function means that the thing is not watched. Each
// function is called from one goroutine of its own, with the whole set each time, first when the first list
// has arrived.
type Options struct {
	REST      *rest.Config
	Namespace string
	Pool      string
	Log       *slog.Logger

	Workers func([]Worker)
	// Batchers are those who hold queues, Gateways those who answer clients: the standalone gateways where the
	// pool has some, else the batchers.
	Batchers func([]Peer)
	Gateways func([]Peer)
	Tenants  func([]gateway.Tenant)
	Signal   func(zone.Signal)
}

// settleTime is how long events are gathered before the next call of a function: a rollout of a hundred pods
// is not a hundred calls. The first event after a pause is passed on at once.
const settleTime = 20 * time.Millisecond

// backoff is how a watch is tried again while the API server is away. Its longest pause is short since a
// revoked key must not live on for half a minute after a restart of the API server.
var backoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 5, Cap: 2 * time.Second}

// Watcher watches. Make it with New.
type Watcher struct {
	feeds []*feed
}

// New returns a Watcher; Run starts it.
func New(o Options) (*Watcher, error) {
	if o.Namespace == "" || o.Pool == "" {
		return nil, errors.New("discovery: namespace and pool must be known (POD_NAMESPACE, --pool)")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	client := func(gv schema.GroupVersion, contentType string) (rest.Interface, error) {
		c := rest.CopyConfig(o.REST)
		c.GroupVersion, c.NegotiatedSerializer = &gv, codecs
		c.APIPath, c.ContentType, c.AcceptContentTypes = "/apis", contentType, contentType+",application/json"
		if gv.Group == "" {
			c.APIPath = "/api"
		}
		c.UserAgent = "sluice-data-plane"
		return rest.RESTClientFor(c)
	}

	w := &Watcher{}
	watch := func(gv schema.GroupVersion, contentType, resource string, kind runtime.Object, narrow func(*metav1.ListOptions), strip func(any) any, tell func([]any)) error {
		c, err := client(gv, contentType)
		if err != nil {
			return fmt.Errorf("discovery: %s: %w", resource, err)
		}
		lw := cache.NewFilteredListWatchFromClient(c, resource, o.Namespace, narrow)
		w.feeds = append(w.feeds, newFeed(resource, lw, kind, strip, tell))
		return nil
	}
	const protobuf, json = runtime.ContentTypeProtobuf, runtime.ContentTypeJSON
	slices := func(service string, tell func([]any)) error {
		return watch(discoveryv1.SchemeGroupVersion, protobuf, "endpointslices", &discoveryv1.EndpointSlice{}, func(l *metav1.ListOptions) {
			l.LabelSelector = discoveryv1.LabelServiceName + "=" + service
		}, stripSlice, tell)
	}
	var errs []error
	if o.Workers != nil {
		errs = append(errs, slices(o.Pool+"-workers", func(list []any) { o.Workers(workersOf(list)) }))
	}
	if o.Batchers != nil {
		errs = append(errs, slices(o.Pool+"-batchers", func(list []any) { o.Batchers(peersOf(list)) }))
	}
	if o.Gateways != nil {
		errs = append(errs, slices(o.Pool, func(list []any) { o.Gateways(peersOf(list)) }))
	}
	if o.Tenants != nil {
		errs = append(errs, watch(v1alpha1.GroupVersion, json, "inferencetenants", &v1alpha1.InferenceTenant{}, func(*metav1.ListOptions) {}, stripTenant,
			func(list []any) { o.Tenants(tenantsOf(list)) }))
	}
	if o.Signal != nil {
		name := o.Pool + "-zone"
		errs = append(errs, watch(corev1.SchemeGroupVersion, protobuf, "configmaps", &corev1.ConfigMap{}, func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		}, stripNothing, func(list []any) { tellSignal(list, name, o) }))
	}
	return w, errors.Join(errs...)
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, f := range w.feeds {
		wg.Go(func() { f.reflector.RunWithContext(ctx) })
		wg.Go(func() { f.deliver(ctx) })
	}
	wg.Wait()
}

// WaitSynced returns nil when every function was called with a first whole list, or ctx's error.
func (w *Watcher) WaitSynced(ctx context.Context) error {
	for _, f := range w.feeds {
		select {
		case <-f.told:
		case <-ctx.Done():
			return fmt.Errorf("discovery: %s not read yet: %w", f.name, ctx.Err())
		}
	}
	return nil
}

// feed is one watch: a reflector writes into a store, a goroutine tells the whole store after each change.
type feed struct {
	name      string
	reflector *cache.Reflector
	store     cache.Store
	tell      func([]any)
	changed   chan struct{} // of capacity 1: something changed since the last delivery
	told      chan struct{} // closed after the first delivery
}

func newFeed(resource string, lw cache.ListerWatcher, kind runtime.Object, strip func(any) any, tell func([]any)) *feed {
	f := &feed{
		name: resource, store: cache.NewStore(cache.MetaNamespaceKeyFunc), tell: tell,
		changed: make(chan struct{}, 1), told: make(chan struct{}),
	}
	b := backoff
	f.reflector = cache.NewReflectorWithOptions(lw, kind, &telling{Store: f.store, strip: strip, feed: f}, cache.ReflectorOptions{Name: "sluice/" + resource, Backoff: &b})
	return f
}

func (f *feed) deliver(ctx context.Context) {
	first := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
		}
		f.tell(f.store.List())
		if first {
			close(f.told)
			first = false
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settleTime):
		}
	}
}

// telling is the store that the reflector writes to. Events before the first whole list cannot come.
type telling struct {
	cache.Store
	strip func(any) any
	feed  *feed
}

func (t *telling) changed(err error) error {
	if err == nil {
		select {
		case t.feed.changed <- struct{}{}:
		default:
		}
	}
	return err
}

// Add implements cache.ReflectorStore.
func (t *telling) Add(obj any) error { return t.changed(t.Store.Add(t.strip(obj))) }

// Update implements cache.ReflectorStore.
func (t *telling) Update(obj any) error { return t.changed(t.Store.Update(t.strip(obj))) }

// Delete implements cache.ReflectorStore.
func (t *telling) Delete(obj any) error { return t.changed(t.Store.Delete(obj)) }

// Replace implements cache.ReflectorStore.
func (t *telling) Replace(list []any, version string) error {
	for i := range list {
		list[i] = t.strip(list[i])
	}
	return t.changed(t.Store.Replace(list, version))
}
