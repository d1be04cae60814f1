package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var _ = Describe("bad input", func() {
	DescribeTable("a pool that makes no sense is refused by a message that names the field",
		func(ctx context.Context, spec string, want ...string) {
			ns := newNamespace(ctx)
			manifest := "apiVersion: inference.sluice.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: bad}\nspec:\n  model: m\n" + spec
			out, err := kubectl(ctx, manifest, "-n", ns, "apply", "--server-side", "-f", "-")
			Expect(err).To(HaveOccurred(), out)
			for _, w := range want {
				Expect(out).To(ContainSubstring(w))
			}
		},
		Entry("an unknown field", "  wrokers: {}\n", "wrokers"),
		Entry("a minimum over the maximum", "  workers: {minReplicas: 5, maxReplicas: 2}\n", "spec.workers", "minReplicas must be at most maxReplicas"),
		Entry("Yellow over Red", "  zones: {yellow: {backlog: 2s}, red: {backlog: 1s}}\n", "spec.zones", "yellow.backlog must be less than red.backlog"),
		Entry("down over up", "  scaling: {down: {belowPercent: 85}}\n", "spec.scaling", "down.belowPercent must be below up.abovePercent"),
		Entry("a duration that is none", "  batching: {maxWait: soon}\n", "spec.batching.maxWait"),
		Entry("two tiers of one name", "  tiers: [{name: a}, {name: a}]\n", "spec.tiers"),
		Entry("more reserved than half", "  tiers: [{name: a, reservedPercent: 30}, {name: b, reservedPercent: 30}]\n", "at most 50"),
		Entry("an unknown shedding policy", "  tiers: [{name: a, shedding: Sometimes}]\n", "spec.tiers", "Never"),
	)

	It("a request that cannot be served gets its own clear answer", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("small", 1, 2, "  gateway: {auth: Keys, maxInputBytes: 2048, maxBodyBytes: 8192}\n"))
		waitReady(ctx, ns, "small")
		key := newTenant(ctx, ns, "acme", "enterprise")
		stranger := newTenant(ctx, ns, "stranger", "platinum")
		Eventually(func() int {
			return ask(ctx, ns, "small", "/v1/inference", key, question("small", "hello")).Status
		}).WithContext(ctx).Should(Equal(http.StatusOK), "a new key works within seconds")

		for _, bad := range []struct {
			name, key, body string
			status          int
			reason          string
		}{
			{"no key", "", question("small", "x"), 401, ""},
			{"a wrong key", "nobody-has-this-key", question("small", "x"), 401, ""},
			{"a tier that the pool lacks", stranger, question("small", "x"), 403, "tier"},
			{"an unknown model", key, question("other", "x"), 404, "model"},
			{"no JSON", key, "{", 400, ""},
			{"an unknown field", key, `{"model":"small","input":"x","colour":"red"}`, 400, ""},
			{"an empty input", key, question("small", ""), 400, "input"},
			{"too long an input", key, question("small", strings.Repeat("x", 3000)), 413, ""},
			{"too long a body", key, question("small", strings.Repeat("x", 9000)), 413, ""},
		} {
			By(bad.name)
			a := ask(ctx, ns, "small", "/v1/inference", bad.key, bad.body)
			Expect(a.Status).To(Equal(bad.status), a.Raw)
			Expect(a.Header.Get("Content-Type")).To(ContainSubstring("application/problem+json"))
			Expect(a.Body).To(HaveKeyWithValue("reason", ContainSubstring(bad.reason)), a.Raw)
			Expect(a.Body).To(HaveKey("detail"))
		}
		Expect(ask(ctx, ns, "small", "/v1/inference", key, question("small", "still here")).Status).To(Equal(http.StatusOK))

		By("the tenant without a tier carries a condition")
		Eventually(func() string {
			out, _ := kubectl(ctx, "", "-n", ns, "get", "slt", "stranger", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].status} {.status.conditions[?(@.type=="Accepted")].message}`)
			return out
		}).WithContext(ctx).Should(And(HavePrefix("False"), ContainSubstring("platinum")))

		By("a revoked key stops working")
		_, err := kubectl(ctx, "", "-n", ns, "patch", "slt", "acme", "--type=merge", "-p", `{"spec":{"keys":[]}}`)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() int {
			return ask(ctx, ns, "small", "/v1/inference", key, question("small", "x")).Status
		}).WithContext(ctx).WithTimeout(5 * time.Second).Should(Equal(http.StatusUnauthorized))
	})

	It("a worker image that cannot be pulled is a condition that says what to do", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, strings.Replace(poolYAML("nopull", 1, 1, ""), "  workers:\n", "  workers:\n    image: registry.invalid/no/such:image\n", 1))
		Eventually(func() metav1.Condition { return condition(ctx, ns, "nopull", "WorkersReady") }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse),
			HaveField("Message", ContainSubstring("registry.invalid/no/such:image")),
		))
		Expect(condition(ctx, ns, "nopull", "Ready").Status).To(Equal(metav1.ConditionFalse))
	})

	It("a pool whose GPUs cannot be scheduled is a condition, and does not ask for more", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, strings.Replace(poolYAML("nogpu", 1, 4, ""), "  workers:\n", "  workers:\n    gpu: {resourceName: example.com/tpu}\n", 1))
		Eventually(func() metav1.Condition { return condition(ctx, ns, "nogpu", "CapacityAvailable") }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse),
			HaveField("Message", ContainSubstring("example.com/tpu")),
		))
		Expect(workerPods(ctx, ns, "nogpu")).To(HaveLen(1))
	})

	It("a pool whose workers claim a device by DRA gets its pods, and a condition that names the claim while no driver offers one", func(ctx context.Context) {
		ns := newNamespace(ctx)
		class := "sluice-e2e-" + ns[len(ns)-5:]
		DeferCleanup(func(ctx context.Context) {
			_, _ = kubectl(ctx, "", "delete", "deviceclass", class, "--ignore-not-found")
		})
		apply(ctx, ns, fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %[1]s}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: %[1]s}}]}}}
`, class))
		pool := strings.Replace(poolYAML("claims", 1, 2, ""), "    pod: {resources", "    gpu: {count: 0}\n    pod: {resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}], resources", 1)
		apply(ctx, ns, strings.Replace(pool, "coldStart: 20s", "coldStart: 5s", 1))
		Eventually(func() []corev1.Pod { return workerPods(ctx, ns, "claims") }).WithContext(ctx).Should(HaveLen(1))
		pod := workerPods(ctx, ns, "claims")[0]
		Expect(pod.Spec.ResourceClaims).To(HaveLen(1))
		Expect(pod.Spec.Containers[0].Resources.Claims).To(HaveLen(1))
		Eventually(func() string {
			out, _ := kubectl(ctx, "", "-n", ns, "get", "resourceclaims", "-o", "jsonpath={.items[*].metadata.ownerReferences[0].name}")
			return out
		}).WithContext(ctx).Should(Equal(pod.Name), "the claim of the template was made for the pod")
		Eventually(func() metav1.Condition { return condition(ctx, ns, "claims", "CapacityAvailable") }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse),
			HaveField("Message", ContainSubstring("a resource claim of the template gpu")),
			HaveField("Message", ContainSubstring("cannot allocate all claims")),
		))
	})

	It("two pools that claim one name: the second says so and leaves the first alone", func(ctx context.Context) {
		ns := newNamespace(ctx)
		apply(ctx, ns, poolYAML("llm", 1, 1, ""))
		waitReady(ctx, ns, "llm")
		apply(ctx, ns, poolYAML("llm-workers", 1, 1, "")) // its Service is llm's headless one
		Eventually(func() metav1.Condition { return condition(ctx, ns, "llm-workers", "NamesAvailable") }).WithContext(ctx).Should(And(
			HaveField("Status", metav1.ConditionFalse),
			HaveField("Message", ContainSubstring("llm-workers")),
		))
		Expect(condition(ctx, ns, "llm", "Ready").Status).To(Equal(metav1.ConditionTrue))
	})
})
