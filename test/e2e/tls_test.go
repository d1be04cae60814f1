package e2e

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/internal/tlstest"
)

// mounted is how long the kubelet may take to bring a Secret that is new or changed into a running pod.
const mounted = 150 * time.Second

// pair is a certificate that is its own root.
type pair struct {
	crt, key []byte
	ends     time.Time
}

// newPair makes a pair for a pool's Service.
func newPair(serial int64, ns, pool string) pair {
	GinkgoHelper()
	p := pair{ends: time.Now().Add(time.Duration(serial) * 1000 * time.Hour)}
	var err error
	p.crt, p.key, err = tlstest.Pair(serial, time.Now().Add(-time.Hour), p.ends, serverName(ns, pool))
	Expect(err).NotTo(HaveOccurred())
	return p
}

// secretOf is a Secret as cert-manager writes it.
func secretOf(ns, name string, p pair) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: p.crt, corev1.TLSPrivateKeyKey: p.key, "ca.crt": p.crt}}
}

// serves waits until every gateway of the pool serves the pair.
func serves(ctx context.Context, ns, pool string, p pair) {
	GinkgoHelper()
	Eventually(func() metav1.Condition { return condition(ctx, ns, pool, "CertificateCurrent") }).WithContext(ctx).WithTimeout(mounted).Should(And(
		HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring(p.ends.UTC().Format(time.RFC3339)))))
}

// waitsForSecret expects the pool to say in each of the conditions that it waits for a Secret, and for which.
func waitsForSecret(ctx context.Context, ns, pool, secret string, kinds ...string) {
	GinkgoHelper()
	for _, kind := range kinds {
		Eventually(func() metav1.Condition { return condition(ctx, ns, pool, kind) }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "CertificateMissing"), HaveField("Message", ContainSubstring(secret))), kind)
	}
}

// hurry makes the kubelet look at the Secrets of the pool's pods now, not within a minute: it does so when a pod changes.
func hurry(ctx context.Context, ns, pool string, components ...string) {
	GinkgoHelper()
	for _, c := range components {
		for _, p := range pods(ctx, ns, pool, c) {
			changed := p.DeepCopy()
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, "e2e.sluice.dev/looked", time.Now().Format(time.RFC3339Nano))
			Expect(client.IgnoreNotFound(env.client.Patch(ctx, changed, client.MergeFrom(&p)))).To(Succeed())
		}
	}
}

var _ = Describe("a pool with TLS", func() {
	It("waits for its Secret, answers HTTPS, and serves a new certificate without a restart", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("safe", 1, 1, "  gateway: {auth: None, tls: {secretName: safe-tls}}\n"))
		waitsForSecret(ctx, ns, "safe", "safe-tls", "CertificateCurrent", "BatchersReady", "Ready")

		first, second := newPair(1, ns, "safe"), newPair(2, ns, "safe")
		Expect(env.client.Create(ctx, secretOf(ns, "safe-tls", first))).To(Succeed())
		serves(ctx, ns, "safe", first)
		waitReady(ctx, ns, "safe")
		Expect(askAt(ctx, ns, "https:safe:443", "/v1/inference", "", question("safe", "hello")).Status).To(Equal(http.StatusOK))
		Expect(ask(ctx, ns, "safe", "/v1/inference", "", question("safe", "hello")).Status).NotTo(Equal(http.StatusOK), "port 80 is closed")

		before := uids(pods(ctx, ns, "safe", "batcher"))
		Expect(env.client.Update(ctx, secretOf(ns, "safe-tls", second))).To(Succeed())
		serves(ctx, ns, "safe", second)
		Expect(askAt(ctx, ns, "https:safe:443", "/v1/inference", "", question("safe", "hello")).Status).To(Equal(http.StatusOK))
		Expect(uids(pods(ctx, ns, "safe", "batcher"))).To(Equal(before), "no pod was replaced, and no container restarted")
	})

	It("has it at its standalone gateways too: the certificate is replaced under load, which loses nothing", func(ctx context.Context) {
		ns := newNamespace(ctx)
		tls := "  gateway:\n    auth: None\n    replicas: 2\n    tls: {secretName: edge-tls}\n    pod: {resources: {requests: {cpu: 50m, memory: 32Mi}}}\n"
		apply(ctx, ns, poolYAML("edge", 1, 1, tls))
		waitsForSecret(ctx, ns, "edge", "edge-tls", "BatchersReady", "GatewaysReady")

		first, second := newPair(1, ns, "edge"), newPair(2, ns, "edge")
		trust := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "trust"},
			Data: map[string][]byte{"both.crt": bytes.Join([][]byte{first.crt, second.crt}, nil), "second.crt": second.crt}}
		Expect(env.client.Create(ctx, trust)).To(Succeed())
		Expect(env.client.Create(ctx, secretOf(ns, "edge-tls", first))).To(Succeed())
		hurry(ctx, ns, "edge", "batcher", "gateway")
		serves(ctx, ns, "edge", first)
		waitReady(ctx, ns, "edge")
		Eventually(func() string { return leadsTo(ctx, ns, "edge") }).WithContext(ctx).Should(Equal("gateway"))
		Eventually(func() metav1.ConditionStatus { return condition(ctx, ns, "edge", "GatewaysReady").Status }).WithContext(ctx).Should(Equal(metav1.ConditionTrue))
		Eventually(func() int {
			return askAt(ctx, ns, "https:edge:443", "/v1/inference", "", question("edge", "hello")).Status
		}).WithContext(ctx).Should(Equal(http.StatusOK))
		Expect(ask(ctx, ns, "edge", "/v1/inference", "", question("edge", "hello")).Status).NotTo(Equal(http.StatusOK), "port 80 is closed")

		By("the certificate is replaced")
		before := uids(pods(ctx, ns, "edge", "gateway"))
		l := startTLSLoad(ctx, ns, "edge", "50-250rps:50s", "trust", "both.crt") // ever more connections
		Expect(env.client.Update(ctx, secretOf(ns, "edge-tls", second))).To(Succeed())
		hurry(ctx, ns, "edge", "batcher", "gateway")
		serves(ctx, ns, "edge", second)
		phase, err := l.phase(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(phase).To(Equal(corev1.PodRunning), "all of this happened under load")
		l.report(ctx).expectAllServed()
		Expect(uids(pods(ctx, ns, "edge", "gateway"))).To(Equal(before), "no pod was replaced, and no container restarted")
		startTLSLoad(ctx, ns, "edge", "50rps:3s", "trust", "second.crt").report(ctx).expectAllServed()

		By("port 80 is opened for clients that have not moved yet")
		apply(ctx, ns, poolYAML("edge", 1, 1, strings.Replace(tls, "edge-tls", "edge-tls, plainHTTP: Open", 1)))
		Eventually(func() int { return ask(ctx, ns, "edge", "/v1/inference", "", question("edge", "hello")).Status }).WithContext(ctx).Should(Equal(http.StatusOK))
		Expect(askAt(ctx, ns, "https:edge:443", "/v1/inference", "", question("edge", "hello")).Status).To(Equal(http.StatusOK))
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
