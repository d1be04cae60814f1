package e2e

import (
	"context"
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/tlstest"
)

// mounted is how long the kubelet may take to bring a Secret that is new or changed into a running pod.
const mounted = 150 * time.Second

var _ = Describe("a pool with TLS", func() {
	It("waits for its Secret, answers HTTPS, and serves a new certificate without a restart", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("safe", 1, 1, "  gateway: {auth: None, tls: {secretName: safe-tls}}\n"))
		Eventually(func() metav1.Condition { return condition(ctx, ns, "safe", "CertificateCurrent") }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "CertificateMissing"), HaveField("Message", ContainSubstring("safe-tls"))))
		Expect(condition(ctx, ns, "safe", "Ready").Status).To(Equal(metav1.ConditionFalse))

		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "safe-tls"}, Type: corev1.SecretTypeTLS}
		fill := func(serial int64, ends time.Time) {
			GinkgoHelper()
			crt, key, err := tlstest.Pair(serial, time.Now().Add(-time.Hour), ends)
			Expect(err).NotTo(HaveOccurred())
			secret.Data = map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key}
		}
		served := func(ends time.Time) {
			GinkgoHelper()
			Eventually(func() metav1.Condition { return condition(ctx, ns, "safe", "CertificateCurrent") }).WithContext(ctx).WithTimeout(mounted).Should(And(
				HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring(ends.UTC().Format(time.RFC3339)))))
		}
		first := time.Now().Add(1000 * time.Hour)
		fill(1, first)
		Expect(env.client.Create(ctx, secret)).To(Succeed())
		served(first)
		waitReady(ctx, ns, "safe")
		Expect(askAt(ctx, ns, "https:safe:443", "/v1/inference", "", question("safe", "hello")).Status).To(Equal(http.StatusOK))
		Expect(ask(ctx, ns, "safe", "/v1/inference", "", question("safe", "hello")).Status).NotTo(Equal(http.StatusOK), "port 80 is closed")

		before := uids(pods(ctx, ns, "safe", "batcher"))
		second := time.Now().Add(2000 * time.Hour)
		fill(2, second)
		Expect(env.client.Update(ctx, secret)).To(Succeed())
		served(second)
		Expect(askAt(ctx, ns, "https:safe:443", "/v1/inference", "", question("safe", "hello")).Status).To(Equal(http.StatusOK))
		Expect(uids(pods(ctx, ns, "safe", "batcher"))).To(Equal(before), "no pod was replaced, and no container restarted")
	})
})

// uids are the pods, with the restarts of their containers.
func uids(list []corev1.Pod) map[string]int32 {
	m := map[string]int32{}
	for _, p := range list {
		for _, c := range p.Status.ContainerStatuses {
			m[string(p.UID)] += c.RestartCount
		}
	}
	return m
}
