package discovery

import (
	"cmp"
	"encoding/hex"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

// What is kept of an object: its name, and what the functions below read. Managed fields and annotations are
// often larger than all the rest.

func stripNothing(o any) any { return o }

func stripMeta(m *metav1.ObjectMeta) {
	*m = metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp}
}

func stripSlice(o any) any {
	if s, ok := o.(*discoveryv1.EndpointSlice); ok {
		stripMeta(&s.ObjectMeta)
	}
	return o
}

func stripTenant(o any) any {
	if t, ok := o.(*v1alpha1.InferenceTenant); ok {
		stripMeta(&t.ObjectMeta)
		t.Status = v1alpha1.InferenceTenantStatus{}
	}
	return o
}

// endpoint is one usable address of a Service.
type endpoint struct {
	ip, pod string
	port    int
}

// endpointsOf returns the endpoints that are ready and not terminating, one per pod, sorted. A pod that has
// an address in two families, or stands in two slices while they are rewritten, is one endpoint.
func endpointsOf(list []any, defaultPort int) []endpoint {
	byPod := map[string]endpoint{}
	for _, o := range list {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		port := defaultPort
		for _, p := range s.Ports {
			if p.Port != nil {
				port = int(*p.Port)
				break
			}
		}
		for _, e := range s.Endpoints {
			c := e.Conditions
			if len(e.Addresses) == 0 || (c.Ready != nil && !*c.Ready) || (c.Serving != nil && !*c.Serving) || (c.Terminating != nil && *c.Terminating) {
				continue
			}
			x := endpoint{ip: e.Addresses[0], port: port}
			key := x.ip
			if e.TargetRef != nil {
				x.pod = e.TargetRef.Name
				key = string(e.TargetRef.UID) + "/" + x.pod
			}
			if have, seen := byPod[key]; !seen || s.AddressType == discoveryv1.AddressTypeIPv4 && !isIPv4(have.ip) {
				byPod[key] = x
			}
		}
	}
	out := make([]endpoint, 0, len(byPod))
	for _, e := range byPod {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b endpoint) int { return cmp.Or(cmp.Compare(a.pod, b.pod), cmp.Compare(a.ip, b.ip)) })
	return out
}

func isIPv4(s string) bool {
	ip := net.ParseIP(s)
	return ip != nil && ip.To4() != nil
}

func workersOf(list []any) []Worker {
	var out []Worker
	for _, e := range endpointsOf(list, wire.PortWorker) {
		out = append(out, Worker{Addr: net.JoinHostPort(e.ip, strconv.Itoa(e.port)), Pod: e.pod})
	}
	return out
}

func peersOf(list []any) []Peer {
	var out []Peer
	for _, e := range endpointsOf(list, wire.PortPublic) {
		out = append(out, Peer{IP: e.ip, Pod: e.pod})
	}
	return out
}

// tenantsOf returns the tenants, oldest first: of two with the same key the older keeps it.
func tenantsOf(list []any) []gateway.Tenant {
	objects := make([]*v1alpha1.InferenceTenant, 0, len(list))
	for _, o := range list {
		if t, ok := o.(*v1alpha1.InferenceTenant); ok {
			objects = append(objects, t)
		}
	}
	slices.SortFunc(objects, func(a, b *v1alpha1.InferenceTenant) int {
		return cmp.Or(a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	out := make([]gateway.Tenant, 0, len(objects))
	for _, o := range objects {
		t := gateway.Tenant{Name: o.Name, Tier: o.Spec.Tier, Limits: quota.Limits{
			RequestsPerMinute: valueOf(o.Spec.Limits.RequestsPerMinute), TokensPerMinute: valueOf(o.Spec.Limits.TokensPerMinute),
		}}
		for _, k := range o.Spec.Keys {
			var key gateway.Key
			sum, err := hex.DecodeString(k.SHA256)
			if err != nil || len(sum) != len(key.SHA256) {
				continue // the schema forbids it
			}
			copy(key.SHA256[:], sum)
			if k.NotAfter != nil {
				key.NotAfter = k.NotAfter.Time
			}
			t.Keys = append(t.Keys, key)
		}
		out = append(out, t)
	}
	return out
}

func valueOf(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// tellSignal passes the zone document on. One that cannot be read is left alone and said so: the last good
// one holds, and becomes stale by itself if the operator is gone.
func tellSignal(list []any, name string, o Options) {
	for _, x := range list {
		cm, ok := x.(*corev1.ConfigMap)
		if !ok || cm.Name != name {
			continue
		}
		doc, ok := cm.Data[zone.SignalKey]
		if !ok {
			continue
		}
		s, err := zone.DecodeSignal(doc)
		if err != nil {
			o.Log.Error("the zone document cannot be read; the last one holds", "configmap", name, "error", err)
			continue
		}
		o.Signal(s)
	}
}
