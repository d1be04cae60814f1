package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
)

// newNamespace makes a namespace that enforces the restricted pod security standard and goes with the spec.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "sluice-e2e-",
		Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	Expect(env.client.Create(ctx, ns)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		if CurrentSpecReport().Failed() {
			out, _ := kubectl(ctx, "", "-n", ns.Name, "get", "slp,slt,deploy,pods,events", "-o", "wide")
			AddReportEntry("namespace "+ns.Name, out)
			out, _ = kubectl(ctx, "", "-n", ns.Name, "describe", "slp")
			AddReportEntry("pools", out)
		}
		_ = env.client.Delete(ctx, ns, client.PropagationPolicy(metav1.DeletePropagationForeground))
		Eventually(func(g Gomega) { // the next spec needs this one's GPUs
			var pods corev1.PodList
			g.Expect(env.client.List(ctx, &pods, client.InNamespace(ns.Name))).To(Succeed())
			g.Expect(pods.Items).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
	})
	return ns.Name
}

// kubectl runs kubectl as a person would and returns what it printed, both streams.
func kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, env.kubectl, args...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+env.kubeconfig)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// apply applies a manifest on the server side and expects it to be accepted.
func apply(ctx context.Context, ns, manifest string) {
	GinkgoHelper()
	out, err := kubectl(ctx, manifest, "-n", ns, "apply", "--server-side", "-f", "-")
	Expect(err).NotTo(HaveOccurred(), out)
}

// poolYAML is a small, quick pool; spec lines (two spaces deep) replace or extend it.
func poolYAML(name string, workersMin, workersMax int, extra string) string {
	return fmt.Sprintf(`apiVersion: inference.sluice.dev/v1alpha1
kind: InferencePool
metadata: {name: %[1]s}
spec:
  model: %[1]s
  scaling:
    up: {window: 10s}
    down: {window: 30s}
  workers:
    minReplicas: %[2]d
    maxReplicas: %[3]d
    coldStart: 20s
    backend: {type: Simulated, simulated: {serviceTime: 100ms, startDelay: 2s}}
    pod: {resources: {requests: {cpu: 50m, memory: 16Mi}}}
  batchers:
    pod: {resources: {requests: {cpu: 200m, memory: 32Mi}}}
%[4]s`, name, workersMin, workersMax, extra)
}

// newTenant makes a tenant of a tier and returns its key.
func newTenant(ctx context.Context, ns, name, tier string) string {
	GinkgoHelper()
	key := rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(key))
	tenant := &v1alpha1.InferenceTenant{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.InferenceTenantSpec{
			Tier: tier,
			Keys: []v1alpha1.TenantKey{{SHA256: hex.EncodeToString(sum[:])}},
		},
	}
	Expect(env.client.Create(ctx, tenant)).To(Succeed())
	return key
}

func getPool(ctx context.Context, ns, name string) *v1alpha1.InferencePool {
	GinkgoHelper()
	var pool v1alpha1.InferencePool
	Expect(env.client.Get(ctx, types.NamespacedName{Namespace: ns, Name: name}, &pool)).To(Succeed())
	return &pool
}

// waitReady waits as `kubectl wait --for=condition=Ready` does.
func waitReady(ctx context.Context, ns, pool string) {
	GinkgoHelper()
	out, err := kubectl(ctx, "", "-n", ns, "wait", "--for=condition=Ready", "inferencepools.inference.sluice.dev/"+pool, "--timeout=120s")
	if err != nil {
		description, _ := kubectl(ctx, "", "-n", ns, "describe", "slp", pool)
		out += description
	}
	Expect(err).NotTo(HaveOccurred(), out)
}

// condition returns a condition of a pool, or an empty one.
func condition(ctx context.Context, ns, pool, kind string) metav1.Condition {
	GinkgoHelper()
	if c := meta.FindStatusCondition(getPool(ctx, ns, pool).Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func workerPods(ctx context.Context, ns, pool string) []corev1.Pod {
	return pods(ctx, ns, pool, "worker")
}

func pods(ctx context.Context, ns, pool, component string) []corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	Expect(env.client.List(ctx, &list, client.InNamespace(ns), client.MatchingLabels{
		"inference.sluice.dev/pool":   pool,
		"app.kubernetes.io/component": component,
	})).To(Succeed())
	return list.Items
}

// answer is what a client of a pool got.
type answer struct {
	Status int
	Header http.Header
	Body   map[string]any
	Raw    string
}

// ask sends one request to the pool's Service through the API server's proxy, which works from outside any
// cluster. The proxy keeps Authorization for itself, so the key travels in X-API-Key.
func ask(ctx context.Context, ns, pool, path, key, body string) answer {
	GinkgoHelper()
	return askAt(ctx, ns, pool+":80", path, key, body)
}

// askAt is ask at a service:port, or https:service:port, as the API server's proxy names them. It does not check
// certificates.
func askAt(ctx context.Context, ns, service, path, key, body string) answer {
	GinkgoHelper()
	url := fmt.Sprintf("%s/api/v1/namespaces/%s/services/%s/proxy%s", env.config.Host, ns, service, path)
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	resp, err := env.http.Do(req)
	Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	Expect(err).NotTo(HaveOccurred())
	a := answer{Status: resp.StatusCode, Header: resp.Header, Raw: string(raw)}
	_ = json.NewDecoder(bytes.NewReader(raw)).Decode(&a.Body)
	return a
}

// question is the body of a request for a model.
func question(model, input string) string {
	b, err := json.Marshal(map[string]any{"model": model, "input": input})
	Expect(err).NotTo(HaveOccurred())
	return string(b)
}
