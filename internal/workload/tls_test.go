package workload

import (
	"slices"
	"strings"
	"testing"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

func TestTLSOpens443AndClosesWhatThePoolDoesNotWant(t *testing.T) {
	for _, c := range []struct {
		name       string
		tls        *v1alpha1.TLSSpec
		service    []int32
		containers []int32
	}{
		{"without", nil, []int32{80}, []int32{wire.PortPublic}},
		{"with", &v1alpha1.TLSSpec{SecretName: "cert", PlainHTTP: v1alpha1.PlainHTTPClosed}, []int32{443}, []int32{wire.PortTLS}},
		{"both", &v1alpha1.TLSSpec{SecretName: "cert", PlainHTTP: v1alpha1.PlainHTTPOpen}, []int32{443, 80}, []int32{wire.PortTLS, wire.PortPublic}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := defaulted()
			pool.Spec.Gateway.TLS = c.tls
			all := children(t, pool)
			var service, target, policy, container []int32
			for _, p := range all["Service llm"].Config.(*corev1ac.ServiceApplyConfiguration).Spec.Ports {
				service, target = append(service, *p.Port), append(target, p.TargetPort.IntVal)
			}
			for _, p := range all["NetworkPolicy llm-batcher"].Config.(*networkingv1ac.NetworkPolicyApplyConfiguration).Spec.Ingress[0].Ports {
				policy = append(policy, p.Port.IntVal)
			}
			pod := deployment(t, pool, "llm-batcher").Spec.Template.Spec
			for _, p := range pod.Containers[0].Ports {
				container = append(container, *p.ContainerPort)
			}
			if !slices.Equal(service, c.service) || !slices.Equal(target, c.containers) || !slices.Equal(policy, c.containers) ||
				!slices.Equal(container, append(slices.Clone(c.containers), wire.PortInternal, wire.PortRelay)) {
				t.Errorf("Service %v to %v, NetworkPolicy %v, container %v", service, target, policy, container)
			}
			if (len(pod.Volumes) == 1) != (c.tls != nil) || (len(pod.Containers[0].VolumeMounts) == 1) != (c.tls != nil) {
				t.Fatalf("volumes %v", pod.Volumes)
			}
			d := Document(pool)
			if c.tls == nil {
				if d.Gateway.TLS != nil {
					t.Error("the document says TLS")
				}
				return
			}
			secret := pod.Volumes[0].Secret
			if *secret.SecretName != "cert" || !*secret.Optional || *pod.Containers[0].VolumeMounts[0].MountPath != d.Gateway.TLS.Directory || !*pod.Containers[0].VolumeMounts[0].ReadOnly {
				t.Errorf("%+v at %+v, the document says %+v", secret, pod.Containers[0].VolumeMounts, d.Gateway.TLS)
			}
			// A pod that waits for its certificate must not be restarted for it: only readiness may depend on that.
			if *pod.Containers[0].StartupProbe.HTTPGet.Path != wire.PathHealthz || *pod.Containers[0].ReadinessProbe.HTTPGet.Path != wire.PathReadyz {
				t.Error("the startup probe waits for the certificate")
			}
		})
	}
}

// Of the Secrets that ladders name ca.crt is mounted and nothing else, once each, where the gateway finds it.
func TestWhomToTrustIsMounted(t *testing.T) {
	pool := defaulted()
	reroute := func(to, secret, name string) []v1alpha1.DegradeStep {
		return []v1alpha1.DegradeStep{{Reroute: &v1alpha1.DegradeReroute{Pool: to, Model: "m", TLS: &v1alpha1.RerouteTLS{CASecretName: secret, ServerName: name}}}}
	}
	pool.Spec.Gateway.Replicas = 1
	pool.Spec.Tiers[0].Degrade = &v1alpha1.DegradeSpec{Yellow: reroute("b", "z-ca", ""), Red: reroute("c", "a-ca", "models.example.com")}
	pool.Spec.Tiers[1].Degrade = &v1alpha1.DegradeSpec{Red: reroute("b", "z-ca", "")}
	d := Document(pool)
	for _, name := range []string{"llm-batcher", "llm-gateway"} {
		pod := deployment(t, pool, name).Spec.Template.Spec
		if len(pod.Volumes) != 1 || len(pod.Containers[0].VolumeMounts) != 1 || !*pod.Containers[0].VolumeMounts[0].ReadOnly {
			t.Fatalf("%s: volumes %+v", name, pod.Volumes)
		}
		var files []string
		for _, s := range pod.Volumes[0].Projected.Sources {
			if len(s.Secret.Items) != 1 || *s.Secret.Items[0].Key != "ca.crt" || !*s.Secret.Optional {
				t.Errorf("%s: %+v", name, s.Secret)
			}
			files = append(files, *pod.Containers[0].VolumeMounts[0].MountPath+"/"+*s.Secret.Items[0].Path)
		}
		want := []poolspec.Trust{{CAFile: files[0], ServerName: "models.example.com"}, {CAFile: files[1], ServerName: "b." + pool.Namespace + ".svc"}}
		if len(files) != 2 || *d.Tiers[0].Degrade.Red[0].TLS != want[0] || *d.Tiers[0].Degrade.Yellow[0].TLS != want[1] || *d.Tiers[1].Degrade.Red[0].TLS != want[1] {
			t.Errorf("%s: mounted at %v, the document says %+v, %+v", name, files, d.Tiers[0].Degrade.Red[0].TLS, d.Tiers[0].Degrade.Yellow[0].TLS)
		}
	}
	pool.Spec.Tiers[0].Degrade.Red[0].Reroute.TLS, pool.Spec.Tiers[0].Degrade.Yellow[0].Reroute.TLS, pool.Spec.Tiers[1].Degrade = nil, nil, nil
	if v := deployment(t, pool, "llm-batcher").Spec.Template.Spec.Volumes; len(v) != 0 || Document(pool).Tiers[0].Degrade.Red[0].TLS != nil {
		t.Errorf("without TLS: %+v", v)
	}
}

func TestTelemetryReachesTheDataPlane(t *testing.T) {
	pool := defaulted()
	if Document(pool).Telemetry != nil {
		t.Error("telemetry without being asked")
	}
	pool.Spec.Telemetry = &v1alpha1.TelemetrySpec{
		Traces:    &v1alpha1.TracesSpec{Endpoint: "http://collector:4318", SamplePercent: ptr.To(int32(0))},
		AccessLog: &v1alpha1.AccessLogSpec{SamplePercent: ptr.To(int32(5)), LinesPerSecond: ptr.To(int32(0))}, UsageRecords: v1alpha1.UsageStdout, Tenants: v1alpha1.TenantsPseudonym,
	}
	doc, err := poolspec.Encode(Document(pool))
	if err != nil {
		t.Fatal(err)
	}
	p, err := poolspec.Decode(doc)
	if err != nil {
		t.Fatal(err)
	}
	got := p.Telemetry
	if *got.Traces != (poolspec.Traces{Endpoint: "http://collector:4318"}) || *got.AccessLog != (poolspec.AccessLog{SamplePercent: 5}) ||
		got.UsageRecords != poolspec.UsageStdout || got.Tenants != poolspec.TenantsPseudonym {
		t.Errorf("%s", doc)
	}
	args := deployment(t, pool, "llm-worker").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--otlp-endpoint=http://collector:4318") {
		t.Errorf("%v", args)
	}
	pool.Spec.Telemetry = &v1alpha1.TelemetrySpec{UsageRecords: v1alpha1.UsageOff, Tenants: v1alpha1.TenantsName}
	if doc, _ := poolspec.Encode(Document(pool)); !strings.Contains(doc, `"telemetry":{}`) {
		t.Errorf("%s", doc)
	}
}
