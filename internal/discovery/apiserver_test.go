package discovery

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/zone"
)

// The same against a real API server: its encodings, its selectors, its way to start a watch.
func TestAgainstARealAPIServer(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS names no directory with etcd and kube-apiserver: run `make test`, which finds or builds them")
	}
	env := &envtest.Environment{
		CRDDirectoryPaths: []string{filepath.Join("..", "..", "config", "crd", "bases")}, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: 3 * time.Minute,
	}
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Stop() })
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const ns = "default"
	meta := func(name, service string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Name: name, Namespace: ns}
		if service != "" {
			m.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		}
		return m
	}
	workers := slice(discoveryv1.AddressTypeIPv4, 9000, ep("10.0.0.1", "w1", yes(), nil))
	workers.ObjectMeta = meta("llm-workers-1", "llm-workers")
	must(api.Create(t.Context(), workers)) // one is there before, the rest comes while it watches

	x := &watched{workers: newSeen[[]Worker](), peers: newSeen[[]Peer](), tenants: newSeen[[]gateway.Tenant](), signal: newSeen[zone.Signal]()}
	x.w, err = New(Options{REST: cfg, Namespace: ns, Pool: "llm", Workers: x.workers.tell, Gateways: x.peers.tell, Tenants: x.tenants.tell, Signal: x.signal.tell})
	must(err)
	x.run(t)
	x.synced(t)
	x.workers.until(t, "w1", func(w []Worker) bool { return reflect.DeepEqual(w, []Worker{{"10.0.0.1:9000", "w1"}}) })

	peers := slice(discoveryv1.AddressTypeIPv4, 8080, ep("10.0.1.1", "b1", yes(), nil))
	peers.ObjectMeta = meta("llm-1", "llm")
	must(api.Create(t.Context(), peers))
	x.peers.until(t, "b1", func(p []Peer) bool { return reflect.DeepEqual(p, []Peer{{"10.0.1.1", "b1"}}) })

	tenant := &v1alpha1.InferenceTenant{ObjectMeta: meta("acme", ""), Spec: v1alpha1.InferenceTenantSpec{Tier: "paid",
		Keys: []v1alpha1.TenantKey{{SHA256: "abababababababababababababababababababababababababababababababab"}}}}
	must(api.Create(t.Context(), tenant))
	x.tenants.until(t, "acme", func(l []gateway.Tenant) bool { return len(l) == 1 && len(l[0].Keys) == 1 })
	tenant.Spec.Keys = nil
	must(api.Update(t.Context(), tenant))
	x.tenants.until(t, "acme without a key", func(l []gateway.Tenant) bool { return len(l) == 1 && len(l[0].Keys) == 0 })

	other := &corev1.ConfigMap{ObjectMeta: meta("another", ""), Data: map[string]string{zone.SignalKey: "{}"}}
	must(api.Create(t.Context(), other))
	cm := doc(t, 5)
	cm.ObjectMeta = meta("llm-zone", "")
	must(api.Create(t.Context(), cm))
	x.signal.until(t, "generation 5", func(s zone.Signal) bool { return s.Generation == 5 && s.Zone == zone.Yellow })

	must(api.Delete(t.Context(), workers))
	x.workers.until(t, "no worker", func(w []Worker) bool { return len(w) == 0 })
}
