package controller

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/scaling"
)

// decisions is how many decisions were counted with a reason and an outcome.
func decisions(reason, outcome string) (n float64) {
	GinkgoHelper()
	families, err := metrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, f := range families {
		if f.GetName() != "sluice_scaling_decisions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["reason"] == reason && labels["outcome"] == outcome {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

var _ = Describe("the decision log", func() {
	It("keeps the last ten changes, tells the current decision in a condition, and counts all by reason", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Workers(2, 30).With(func(s *v1alpha1.InferencePoolSpec) {
			s.Scaling.Mode = v1alpha1.ScalingExternal
			s.Workers.Replicas = ptr.To(int32(2))
		}).Obj())
		w.reconcile("a")
		w.serving("a", 2)
		w.load(500, 0)
		w.ticks(2, "a")
		began := len(w.pool("a").Status.Scaling.Changes)
		ups, holds := decisions(scaling.ReasonExternal, "up"), decisions(scaling.ReasonExternal, "held")
		for n := int32(3); n <= 14; n++ {
			pool := w.pool("a")
			pool.Spec.Workers.Replicas = ptr.To(n)
			Expect(api.Update(ctx, pool)).To(Succeed())
			w.ticks(2, "a") // the change, and a scrape that holds it
			Expect(w.condition("a", ConditionScaling)).To(And(HaveField("Reason", scaling.ReasonExternal),
				HaveField("Message", ContainSubstring(fmt.Sprintf("spec.workers.replicas is %d", n)))))
		}
		changes := w.pool("a").Status.Scaling.Changes
		Expect(began).To(BeNumerically("<=", 1))
		Expect(changes).To(HaveLen(10), "twelve changes, the newest first")
		for i, c := range changes {
			Expect(c).To(And(HaveField("From", int32(13-i)), HaveField("To", int32(14-i)), HaveField("Reason", scaling.ReasonExternal),
				HaveField("Message", ContainSubstring("spec.workers.replicas")), HaveField("Time.Time", Not(BeZero()))))
		}
		Expect(decisions(scaling.ReasonExternal, "up") - ups).To(Equal(12.0))
		Expect(decisions(scaling.ReasonExternal, "held") - holds).To(Equal(12.0))
	})
})
