package controller

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/workload"
)

func TestCertificateCurrent(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	// cert is a certificate that began and ends so long from now.
	cert := func(pod string, from, to time.Duration) fleet.Certificate {
		return fleet.Certificate{Pod: pod, TLSStatus: wire.TLSStatus{NotBefore: now.Add(from).Unix(), NotAfter: now.Add(to).Unix()}}
	}
	broken := func(c fleet.Certificate, problem, message string) fleet.Certificate {
		c.Problem, c.Message = problem, message
		return c
	}
	none := fleet.Certificate{Pod: "a-2"}
	for _, c := range []struct {
		name    string
		reports []fleet.Certificate
		status  metav1.ConditionStatus
		reason  string
		says    string
	}{
		{"nobody reports", nil, metav1.ConditionUnknown, ReasonNotObserved, ""},
		{"good for long", []fleet.Certificate{cert("a-1", -30*day, 60*day)}, metav1.ConditionTrue, ReasonCertificateServed, "2026-04-30T12:00:00Z"},
		{"no Secret", []fleet.Certificate{cert("a-1", -day, 60*day), broken(none, wire.TLSMissing, "no such file")}, metav1.ConditionFalse, ReasonCertificateMissing, "pod a-2 waits for the Secret cert"},
		{"an unusable Secret", []fleet.Certificate{broken(none, wire.TLSInvalid, "key does not match")}, metav1.ConditionFalse, ReasonCertificateInvalid, "key does not match"},
		{"an unusable new one", []fleet.Certificate{broken(cert("a-1", -day, 60*day), wire.TLSInvalid, "key does not match")}, metav1.ConditionFalse, ReasonCertificateInvalid, "serves the certificate that it had, until 2026-04-30"},
		{"seven days left of ninety", []fleet.Certificate{cert("a-1", -83*day, 7*day)}, metav1.ConditionTrue, ReasonCertificateServed, ""},
		{"less than that", []fleet.Certificate{cert("a-0", -day, 60*day), cert("a-1", -83*day, 7*day-time.Hour)}, metav1.ConditionFalse, ReasonCertificateEndsSoon, "2026-03-08T11:00:00Z"},
		{"eight hours left of a day: renewal is due now", []fleet.Certificate{cert("a-1", -16*time.Hour, 8*time.Hour)}, metav1.ConditionTrue, ReasonCertificateServed, ""},
		{"two hours left of a day", []fleet.Certificate{cert("a-1", -22*time.Hour, 2*time.Hour)}, metav1.ConditionFalse, ReasonCertificateEndsSoon, ""},
		{"over", []fleet.Certificate{cert("a-1", -90*day, 0)}, metav1.ConditionFalse, ReasonCertificateExpired, "clients that check it are refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := view{pool: &v1alpha1.InferencePool{}, seen: &observed{now: now, load: fleet.Load{Certificates: c.reports}}}
			v.pool.Spec.Gateway.TLS = &v1alpha1.TLSSpec{SecretName: "cert"}
			got := certificateCurrent(v)
			if got.status != c.status || got.reason != c.reason || !strings.Contains(got.message, c.says) {
				t.Errorf("%+v", got)
			}
			v.pool.Spec.Gateway.TLS = nil
			if got := certificateCurrent(v); got != (verdict{}) {
				t.Errorf("without TLS: %+v", got)
			}
		})
	}
}

// Batchers and gateways that are not ready for want of a certificate say so, and what to do; others do not.
func TestConditionsNameTheSecretThatIsWaitedFor(t *testing.T) {
	missing := fleet.Certificate{Pod: "a-1", TLSStatus: wire.TLSStatus{Problem: wire.TLSMissing, Message: "no such file"}}
	good := fleet.Certificate{Pod: "a-1", TLSStatus: wire.TLSStatus{NotAfter: 1}}
	invalid := fleet.Certificate{Pod: "a-1", TLSStatus: wire.TLSStatus{Problem: wire.TLSInvalid, Message: "key does not match"}}
	for _, c := range []struct {
		name   string
		report fleet.Certificate
		reason string
		says   []string
	}{
		{"missing", missing, ReasonCertificateMissing, []string{"0 of", "pod a-1", "the Secret cert", "kubectl create secret tls cert", "the namespace ns"}},
		{"unusable", invalid, ReasonCertificateInvalid, []string{"0 of", "pod a-1", "key does not match"}},
		{"there", good, ReasonStarting, []string{"0 of"}},
		{"another component's", fleet.Certificate{Pod: "b-1", TLSStatus: missing.TLSStatus}, ReasonStarting, []string{"0 of"}},
	} {
		pool := MakePool("a", "ns").With(func(s *v1alpha1.InferencePoolSpec) {
			s.Gateway.TLS, s.Gateway.Replicas, s.Batchers.MinReplicas = &v1alpha1.TLSSpec{SecretName: "cert"}, 2, 2
		}).Obj()
		pod := []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a-1"}}}
		v := view{pool: pool, seen: &observed{load: fleet.Load{Certificates: []fleet.Certificate{c.report}}, children: map[childKey]client.Object{
			{workload.KindDeployment, "a-batcher"}: &appsv1.Deployment{}, {workload.KindDeployment, "a-gateway"}: &appsv1.Deployment{}}}}
		for kind, judge := range map[string]func() verdict{
			ConditionBatchersReady: func() verdict { v.seen.batcherPods, v.seen.gatewayPods = pod, nil; return batchersReady(v) },
			ConditionGatewaysReady: func() verdict { v.seen.batcherPods, v.seen.gatewayPods = nil, pod; return gatewaysReady(v) },
		} {
			got := judge()
			if got.status != metav1.ConditionFalse || got.reason != c.reason {
				t.Errorf("%s, %s: %+v", c.name, kind, got)
			}
			for _, want := range c.says {
				if !strings.Contains(got.message, want) {
					t.Errorf("%s, %s: %q does not say %q", c.name, kind, got.message, want)
				}
			}
		}
	}
}
