package controller

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
	"sluice.dev/sluice/internal/wire"
)

var _ = Describe("A pool with TLS", func() {
	It("is served on 443 from the Secret, says how its certificate is, and goes back to 80", func(ctx context.Context) {
		w := newWorld(ctx)
		pool := w.create(MakePool("a", w.namespace).With(func(s *v1alpha1.InferencePoolSpec) {
			s.Gateway.TLS = &v1alpha1.TLSSpec{SecretName: "cert"}
		}).Obj())
		Expect(pool.Spec.Gateway.TLS.PlainHTTP).To(Equal(v1alpha1.PlainHTTPClosed), "the default is shown")
		w.reconcile("a")
		ports := func() (all []int32) {
			s := &corev1.Service{}
			Expect(api.Get(ctx, w.key("a"), s)).To(Succeed())
			for _, p := range s.Spec.Ports {
				all = append(all, p.Port)
			}
			return all
		}
		Expect(ports()).To(Equal([]int32{443}))
		d := &appsv1.Deployment{}
		Expect(api.Get(ctx, w.key("a-batcher"), d)).To(Succeed())
		Expect(d.Spec.Template.Spec.Volumes).To(ContainElement(HaveField("VolumeSource.Secret.SecretName", "cert")))

		By("whose Secret is not there")
		report := func(s wire.TLSStatus) {
			w.reports.load.Certificates = []fleet.Certificate{{Pod: "a-b0", TLSStatus: s}}
			w.ticks(2, "a")
		}
		report(wire.TLSStatus{Problem: wire.TLSMissing, Message: "no such file"})
		Expect(w.condition("a", ConditionCertificateCurrent)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", ReasonCertificateMissing)))
		Expect(w.events.events).To(ContainElement(HavePrefix(EventCertificate)))

		By("and then is")
		now := w.now
		report(wire.TLSStatus{NotBefore: now.Add(-time.Hour).Unix(), NotAfter: now.Add(2000 * time.Hour).Unix()})
		Expect(w.condition("a", ConditionCertificateCurrent)).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", ReasonCertificateServed)))

		By("which keeps 80 open for a while")
		pool = w.pool("a")
		pool.Spec.Gateway.TLS.PlainHTTP = v1alpha1.PlainHTTPOpen
		Expect(api.Update(ctx, pool)).To(Succeed())
		w.ticks(2, "a")
		Expect(ports()).To(Equal([]int32{443, 80}))

		By("and goes back")
		pool = w.pool("a")
		pool.Spec.Gateway.TLS = nil
		Expect(api.Update(ctx, pool)).To(Succeed())
		w.reports.load.Certificates = nil
		w.ticks(2, "a")
		Expect(ports()).To(Equal([]int32{80}))
		Expect(api.Get(ctx, w.key("a-batcher"), d)).To(Succeed())
		Expect(d.Spec.Template.Spec.Volumes).NotTo(ContainElement(HaveField("VolumeSource.Secret", Not(BeNil()))))
		Expect(meta.FindStatusCondition(w.pool("a").Status.Conditions, ConditionCertificateCurrent)).To(BeNil())
	})
})
