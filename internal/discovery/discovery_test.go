package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/zone"
)

// apiServer speaks as much of the Kubernetes API as four watches need, in JSON. Objects are kept by resource.
type apiServer struct {
	mu       sync.Mutex
	down     bool
	version  int
	objects  map[string]map[string]runtime.Object
	watchers map[string][]chan []byte
	history  map[string][]change // a watch begins after the version of its list
	queries  []string
}

type change struct {
	version int
	line    []byte
}

func newAPIServer(t *testing.T) (*apiServer, *rest.Config) {
	t.Helper()
	a := &apiServer{version: 1, objects: map[string]map[string]runtime.Object{}, watchers: map[string][]chan []byte{}, history: map[string][]change{}}
	s := httptest.NewServer(a)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return a, &rest.Config{Host: s.URL, QPS: -1}
}

// resourceOf is the key of a list: the resource, and for endpointslices the service.
func resourceOf(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	res := parts[len(parts)-1]
	if sel := r.URL.Query().Get("labelSelector"); sel != "" {
		res += "?" + sel
	}
	return res
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if a.down {
		a.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	res := resourceOf(r)
	a.queries = append(a.queries, r.URL.Path+"?"+r.URL.Query().Get("fieldSelector")+r.URL.Query().Get("labelSelector"))
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		a.mu.Unlock()
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: 422})
		return
	}
	if r.URL.Query().Get("watch") == "" {
		defer a.mu.Unlock()
		items := []runtime.Object{}
		for _, k := range slices.Sorted(maps.Keys(a.objects[res])) {
			items = append(items, a.objects[res][k])
		}
		kind, version := kindOf(res)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind + "List", "apiVersion": version, "metadata": map[string]any{"resourceVersion": fmt.Sprint(a.version)}, "items": items})
		return
	}
	events := make(chan []byte, 1000)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for _, c := range a.history[res] {
		if c.version > from {
			events <- c.line
		}
	}
	a.watchers[res] = append(a.watchers[res], events)
	a.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-events:
			if !ok {
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(e)
			w.(http.Flusher).Flush()
		}
	}
}

func kindOf(res string) (kind, version string) {
	switch {
	case strings.HasPrefix(res, "endpointslices"):
		return "EndpointSlice", "discovery.k8s.io/v1"
	case strings.HasPrefix(res, "configmaps"):
		return "ConfigMap", "v1"
	}
	return "InferenceTenant", "inference.sluice.dev/v1alpha1"
}

// put creates or changes an object and tells the watchers; nil deletes.
func (a *apiServer) put(res, name string, o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	if a.objects[res] == nil {
		a.objects[res] = map[string]runtime.Object{}
	}
	old, existed := a.objects[res][name]
	event := "ADDED"
	switch {
	case o == nil:
		event, o = "DELETED", old
		delete(a.objects[res], name)
	case existed:
		event = "MODIFIED"
		fallthrough
	default:
		a.objects[res][name] = o
	}
	m := o.(metav1.Object)
	m.SetName(name)
	m.SetNamespace("ns")
	m.SetResourceVersion(fmt.Sprint(a.version))
	kind, version := kindOf(res)
	raw, _ := json.Marshal(o)
	var fields map[string]any
	_ = json.Unmarshal(raw, &fields)
	fields["kind"], fields["apiVersion"] = kind, version
	line, _ := json.Marshal(map[string]any{"type": event, "object": fields})
	line = append(line, '\n')
	a.history[res] = append(a.history[res], change{a.version, line})
	for _, w := range a.watchers[res] {
		w <- line
	}
}

// stop cuts every watch and refuses every call; start answers again.
func (a *apiServer) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = true
	for res, list := range a.watchers {
		for _, w := range list {
			close(w)
		}
		a.watchers[res] = nil
	}
}

func (a *apiServer) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = false
}

func (a *apiServer) watching(res string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.watchers[res]) > 0
}

const (
	workerSlices = "endpointslices?kubernetes.io/service-name=llm-workers"
	peerSlices   = "endpointslices?kubernetes.io/service-name=llm"
)

func yes() *bool { b := true; return &b }
func no() *bool  { b := false; return &b }

func ep(ip, pod string, ready, terminating *bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: ready, Serving: ready, Terminating: terminating},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod, UID: types.UID("uid-" + pod)}}
}

func slice(family discoveryv1.AddressType, port int32, eps ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{AddressType: family, Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: eps}
}

// seen is the last of what a function was told, and a way to wait for the next.
type seen[T any] struct {
	mu    sync.Mutex
	last  T
	calls int
	next  chan struct{}
}

func newSeen[T any]() *seen[T] { return &seen[T]{next: make(chan struct{}, 1000)} }

func (s *seen[T]) tell(v T) {
	s.mu.Lock()
	s.last, s.calls = v, s.calls+1
	s.mu.Unlock()
	s.next <- struct{}{}
}

// until waits for a call after which ok holds.
func (s *seen[T]) until(t *testing.T, what string, ok func(T) bool) T {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		v, calls := s.last, s.calls
		s.mu.Unlock()
		if calls > 0 && ok(v) {
			return v
		}
		select {
		case <-s.next:
		case <-timeout:
			t.Fatalf("never saw %s; last: %+v", what, v)
		}
	}
}

type watched struct {
	api     *apiServer
	workers *seen[[]Worker]
	peers   *seen[[]Peer]
	tenants *seen[[]gateway.Tenant]
	signal  *seen[zone.Signal]
	w       *Watcher
}

func watch(t *testing.T) *watched {
	t.Helper()
	api, cfg := newAPIServer(t)
	x := &watched{api: api, workers: newSeen[[]Worker](), peers: newSeen[[]Peer](), tenants: newSeen[[]gateway.Tenant](), signal: newSeen[zone.Signal]()}
	var err error
	x.w, err = New(Options{REST: cfg, Namespace: "ns", Pool: "llm", Workers: x.workers.tell, Gateways: x.peers.tell, Tenants: x.tenants.tell, Signal: x.signal.tell})
	if err != nil {
		t.Fatal(err)
	}
	x.run(t)
	return x
}

func (x *watched) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { x.w.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

func (x *watched) synced(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := x.w.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
}

// Workers that are ready and stay are told; those that are not ready, terminate, or stand twice are not.
func TestWorkers(t *testing.T) {
	x := watch(t)
	x.synced(t)
	if got := x.workers.until(t, "the empty set", func([]Worker) bool { return true }); len(got) != 0 {
		t.Errorf("%v", got)
	}
	x.api.put(workerSlices, "s1", slice(discoveryv1.AddressTypeIPv4, 9000,
		ep("10.0.0.2", "w2", yes(), nil), ep("10.0.0.1", "w1", nil, nil), ep("10.0.0.3", "w3", no(), nil), ep("10.0.0.4", "w4", yes(), yes())))
	x.api.put(workerSlices, "s2", slice(discoveryv1.AddressTypeIPv4, 9000, ep("10.0.0.2", "w2", yes(), nil)))
	x.api.put(workerSlices, "s6", slice(discoveryv1.AddressTypeIPv6, 9000, ep("fd00::1", "w1", yes(), nil), ep("fd00::5", "w5", yes(), nil)))
	want := []Worker{{"10.0.0.1:9000", "w1"}, {"10.0.0.2:9000", "w2"}, {"[fd00::5]:9000", "w5"}}
	x.workers.until(t, fmt.Sprint(want), func(got []Worker) bool { return reflect.DeepEqual(got, want) })

	x.api.put(workerSlices, "s1", slice(discoveryv1.AddressTypeIPv4, 9000, ep("10.0.0.1", "w1", yes(), yes())))
	x.api.put(workerSlices, "s2", nil)
	x.api.put(workerSlices, "s6", nil)
	x.workers.until(t, "the empty set again", func(got []Worker) bool { return len(got) == 0 })
}

func TestPeers(t *testing.T) {
	x := watch(t)
	x.api.put(peerSlices, "p", slice(discoveryv1.AddressTypeIPv4, 8080, ep("10.0.1.1", "b1", yes(), nil), ep("10.0.1.2", "b2", no(), nil)))
	x.peers.until(t, "b1", func(got []Peer) bool { return reflect.DeepEqual(got, []Peer{{"10.0.1.1", "b1"}}) })
}

func TestTenants(t *testing.T) {
	x := watch(t)
	limit := int64(120)
	hash := strings.Repeat("ab", 32)
	older := metav1.NewTime(time.Unix(1000, 0))
	newer := metav1.NewTime(time.Unix(2000, 0))
	until := metav1.NewTime(time.Unix(3000, 0))
	x.api.put("inferencetenants", "a-newer", &v1alpha1.InferenceTenant{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: newer}, Spec: v1alpha1.InferenceTenantSpec{Tier: "free"}})
	x.api.put("inferencetenants", "z-older", &v1alpha1.InferenceTenant{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: older}, Spec: v1alpha1.InferenceTenantSpec{
		Tier: "paid", Keys: []v1alpha1.TenantKey{{SHA256: hash, NotAfter: &until}, {SHA256: "nonsense"}}, Limits: v1alpha1.TenantLimits{RequestsPerMinute: &limit},
	}})
	got := x.tenants.until(t, "two tenants", func(l []gateway.Tenant) bool { return len(l) == 2 })
	if o := got[0]; o.Name != "z-older" || o.Tier != "paid" || o.Limits.RequestsPerMinute != 120 || o.Limits.TokensPerMinute != 0 ||
		len(o.Keys) != 1 || o.Keys[0].SHA256[31] != 0xab || !o.Keys[0].NotAfter.Equal(until.Time) {
		t.Errorf("%+v: the older comes first, with what its object says", o)
	}
	x.api.put("inferencetenants", "z-older", nil)
	x.tenants.until(t, "one tenant", func(l []gateway.Tenant) bool { return len(l) == 1 && l[0].Name == "a-newer" })
}

func doc(t *testing.T, generation int64) *corev1.ConfigMap {
	t.Helper()
	s, err := zone.Signal{Pool: "llm", Generation: generation, Zone: zone.Yellow, Reason: zone.ReasonBacklogHigh, Since: time.Unix(1, 0), ObservedAt: time.Unix(2, 0),
		Tiers: []zone.SignalTier{{Name: "free", AdmitPercent: 40}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.ConfigMap{Data: map[string]string{zone.SignalKey: s}}
}

// A document that cannot be read leaves the last one in force.
func TestSignal(t *testing.T) {
	x := watch(t)
	x.synced(t)
	x.api.put("configmaps", "llm-zone", doc(t, 3))
	s := x.signal.until(t, "generation 3", func(s zone.Signal) bool { return s.Generation == 3 })
	if s.Zone != zone.Yellow || s.Tiers[0].AdmitPercent != 40 {
		t.Errorf("%+v", s)
	}
	x.api.put("configmaps", "llm-zone", &corev1.ConfigMap{Data: map[string]string{zone.SignalKey: `{"version":99}`}})
	x.api.put("configmaps", "llm-zone", &corev1.ConfigMap{})
	x.api.put("configmaps", "llm-zone", doc(t, 4))
	x.signal.until(t, "generation 4", func(s zone.Signal) bool { return s.Generation == 4 })
	x.signal.mu.Lock()
	defer x.signal.mu.Unlock()
	if x.signal.calls != 2 {
		t.Errorf("%d documents were told, want the 2 good ones", x.signal.calls)
	}
}

// The API server goes away and comes back with other objects: everything stays as it was, then it is as it is.
func TestAPIServerOutage(t *testing.T) {
	x := watch(t)
	x.api.put(workerSlices, "s1", slice(discoveryv1.AddressTypeIPv4, 9000, ep("10.0.0.1", "w1", yes(), nil)))
	one := func(addr string) func([]Worker) bool {
		return func(got []Worker) bool { return len(got) == 1 && got[0].Addr == addr }
	}
	x.workers.until(t, "w1", one("10.0.0.1:9000"))
	for !x.api.watching(workerSlices) { // so that stop has a watch to cut
		time.Sleep(time.Millisecond)
	}
	x.api.stop()
	x.workers.mu.Lock()
	calls := x.workers.calls
	x.workers.mu.Unlock()
	x.api.put(workerSlices, "s1", slice(discoveryv1.AddressTypeIPv4, 9000, ep("10.0.0.9", "w9", yes(), nil)))
	x.api.start()
	x.workers.until(t, "w9", one("10.0.0.9:9000"))
	x.workers.mu.Lock()
	defer x.workers.mu.Unlock()
	if x.workers.calls != calls+1 {
		t.Errorf("told %d times about one change over an outage", x.workers.calls-calls)
	}
}

// Not ready before everything was read once.
func TestNotSyncedWithoutAPIServer(t *testing.T) {
	_, cfg := newAPIServer(t)
	cfg.Host = "http://127.0.0.1:1"
	w, err := New(Options{REST: cfg, Namespace: "ns", Pool: "llm", Workers: func([]Worker) { t.Error("told something") }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	go w.Run(ctx)
	if err := w.WaitSynced(ctx); err == nil || !strings.Contains(err.Error(), "endpointslices") {
		t.Errorf("%v", err)
	}
}

// Nothing is listed but what the pool needs: one ConfigMap by name, two Services' slices by label.
func TestOnlyWhatIsNeededIsWatched(t *testing.T) {
	x := watch(t)
	x.synced(t)
	x.api.mu.Lock()
	defer x.api.mu.Unlock()
	for _, q := range x.api.queries {
		switch q {
		case "/api/v1/namespaces/ns/configmaps?metadata.name=llm-zone",
			"/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices?kubernetes.io/service-name=llm",
			"/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices?kubernetes.io/service-name=llm-workers",
			"/apis/inference.sluice.dev/v1alpha1/namespaces/ns/inferencetenants?":
		default:
			t.Errorf("asked for %s", q)
		}
	}
}

// Of an object only what is used is kept in memory.
func TestStrip(t *testing.T) {
	s := slice(discoveryv1.AddressTypeIPv4, 1)
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	s.Annotations = map[string]string{"a": strings.Repeat("x", 1<<10)}
	stripSlice(s)
	tn := &v1alpha1.InferenceTenant{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Status: v1alpha1.InferenceTenantStatus{Conditions: []metav1.Condition{{}}}}
	stripTenant(tn)
	if s.ManagedFields != nil || s.Annotations != nil || tn.Labels != nil || tn.Status.Conditions != nil {
		t.Errorf("%+v %+v", s.ObjectMeta, tn)
	}
}
