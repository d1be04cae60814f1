package controller

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/wire"
)

func rerouting(tls *v1alpha1.RerouteTLS) func(*v1alpha1.InferencePoolSpec) {
	return func(s *v1alpha1.InferencePoolSpec) {
		s.Tiers = []v1alpha1.Tier{{Name: "free", Degrade: &v1alpha1.DegradeSpec{
			Red: []v1alpha1.DegradeStep{{Reroute: &v1alpha1.DegradeReroute{Pool: "b", Model: "m", TLS: tls}}}}}}
	}
}

func TestReroutesUsable(t *testing.T) {
	secret := &v1alpha1.RerouteTLS{CASecretName: "b-ca"}
	https := func(plain v1alpha1.PlainHTTP) *v1alpha1.InferencePool {
		return MakePool("b", "ns").With(func(s *v1alpha1.InferencePoolSpec) {
			s.Gateway.TLS = &v1alpha1.TLSSpec{SecretName: "b-tls", PlainHTTP: plain}
		}).Obj()
	}
	says := func(pool, problem, message string) []fleet.RerouteProblem {
		return []fleet.RerouteProblem{{Pod: "a-1", RerouteProblem: wire.RerouteProblem{Pool: pool, Problem: problem, Message: message}}}
	}
	for _, c := range []struct {
		name    string
		tls     *v1alpha1.RerouteTLS
		other   *v1alpha1.InferencePool
		reports []fleet.RerouteProblem
		status  metav1.ConditionStatus
		reason  string
		says    string
	}{
		{"fits", nil, MakePool("b", "ns").Obj(), nil, metav1.ConditionTrue, ReasonReroutesFit, "handed to b"},
		{"fits over TLS", secret, https(v1alpha1.PlainHTTPClosed), nil, metav1.ConditionTrue, ReasonReroutesFit, ""},
		{"in plain HTTP, while that is open", nil, https(v1alpha1.PlainHTTPOpen), nil, metav1.ConditionTrue, ReasonReroutesFit, ""},
		{"no such pool", nil, nil, nil, metav1.ConditionFalse, ReasonRerouteNoPool, "pool b"},
		{"another model", nil, MakePool("b", "ns").With(func(s *v1alpha1.InferencePoolSpec) { s.Model = "n" }).Obj(), nil, metav1.ConditionFalse, ReasonRerouteWrongModel, `serves "n"`},
		{"HTTPS only", nil, https(v1alpha1.PlainHTTPClosed), nil, metav1.ConditionFalse, ReasonRerouteNeedsTLS, "that may be b-tls"},
		{"no HTTPS", secret, MakePool("b", "ns").Obj(), nil, metav1.ConditionFalse, ReasonRerouteNoTLS, "plain HTTP only"},
		{"nobody to trust", secret, https(v1alpha1.PlainHTTPClosed), says("b", wire.RerouteCAMissing, "no such file"), metav1.ConditionFalse, ReasonRerouteCAMissing, "the Secret b-ca has no ca.crt"},
		{"a ca.crt that is none", secret, https(v1alpha1.PlainHTTPClosed), says("b", wire.RerouteCAInvalid, "has no certificate"), metav1.ConditionFalse, ReasonRerouteCAInvalid, "has no certificate"},
		{"is not trusted", secret, https(v1alpha1.PlainHTTPClosed), says("b", wire.RerouteFailing, "unknown authority"), metav1.ConditionFalse, ReasonRerouteFailing, "unknown authority"},
		{"of a ladder of before", nil, MakePool("b", "ns").Obj(), says("c", wire.RerouteFailing, "x"), metav1.ConditionTrue, ReasonReroutesFit, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := view{pool: MakePool("a", "ns").With(rerouting(c.tls)).Obj(), seen: &observed{others: map[string]*v1alpha1.InferencePool{"b": c.other}, load: fleet.Load{Reroutes: c.reports}}}
			got := reroutesUsable(v)
			if got.status != c.status || got.reason != c.reason || !strings.Contains(got.message, c.says) {
				t.Errorf("%+v", got)
			}
		})
	}
	if got := reroutesUsable(view{pool: MakePool("a", "ns").Obj(), seen: &observed{}}); got != (verdict{}) {
		t.Errorf("without a ladder: %+v", got)
	}
}

var _ = Describe("A pool that reroutes to another", func() {
	It("says when the other does not fit, and rolls no pod when that changes", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).With(rerouting(nil)).Obj())
		w.ticks(2, "a")
		Expect(w.condition("a", ConditionReroutesUsable)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", ReasonRerouteNoPool)))
		Expect(w.events.events).To(ContainElement(HavePrefix(EventReroute)))
		before := w.versions("a")["Deployment a-batcher"]

		w.create(MakePool("b", w.namespace).With(func(s *v1alpha1.InferencePoolSpec) { s.Gateway.TLS = &v1alpha1.TLSSpec{SecretName: "b-tls"} }).Obj())
		w.tick("a")
		Expect(w.condition("a", ConditionReroutesUsable).Reason).To(Equal(ReasonRerouteNeedsTLS))
		other := w.pool("b")
		other.Spec.Gateway.TLS.PlainHTTP = v1alpha1.PlainHTTPOpen
		Expect(api.Update(ctx, other)).To(Succeed())
		w.tick("a")
		Expect(w.condition("a", ConditionReroutesUsable).Status).To(Equal(metav1.ConditionTrue))
		Expect(w.versions("a")["Deployment a-batcher"]).To(Equal(before))

		By("over TLS: ca.crt of the Secret is mounted")
		pool := w.pool("a")
		pool.Spec.Tiers[0].Degrade.Red[0].Reroute.TLS = &v1alpha1.RerouteTLS{CASecretName: "b-tls"}
		Expect(api.Update(ctx, pool)).To(Succeed())
		w.ticks(2, "a")
		Expect(w.condition("a", ConditionReroutesUsable).Status).To(Equal(metav1.ConditionTrue))
		Expect(w.versions("a")["Deployment a-batcher"]).NotTo(Equal(before))
		settled := w.versions("a")
		w.ticks(3, "a")
		Expect(w.versions("a")).To(Equal(settled), "what is applied is what the API server keeps")
	})
})
