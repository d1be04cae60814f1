package controller

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/workload"
)

// maxCRDBytes bounds a CRD: kubectl's client-side apply writes it into an annotation of at most 256 KiB.
const maxCRDBytes = 200 << 10

// parsePool reads the spec of a pool as a person writes it.
func parsePool(namespace, name, spec string) *unstructured.Unstructured {
	GinkgoHelper()
	u := &unstructured.Unstructured{}
	doc := "apiVersion: inference.sluice.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec:\n  model: m\n" + spec
	Expect(yaml.Unmarshal([]byte(doc), &u.Object)).To(Succeed(), doc)
	return u
}

// strict is how kubectl applies: unknown fields are errors.
var strict = client.FieldValidation(metav1.FieldValidationStrict)

var _ = Describe("the API", func() {
	It("has CRDs that every tool can apply", func() {
		files, err := filepath.Glob(filepath.Join("..", "..", "config", "crd", "bases", "*.yaml"))
		Expect(err).NotTo(HaveOccurred())
		Expect(files).To(HaveLen(2))
		for _, f := range files {
			b, err := os.ReadFile(f)
			Expect(err).NotTo(HaveOccurred())
			Expect(len(b)).To(BeNumerically("<", maxCRDBytes), f)
		}
	})

	It("shows every default, and they are those of the data plane", func(ctx context.Context) {
		w := newWorld(ctx)
		u := parsePool(w.namespace, "a", "")
		Expect(api.Create(ctx, u)).To(Succeed())
		spec, _, err := unstructured.NestedMap(u.Object, "spec")
		Expect(err).NotTo(HaveOccurred())
		Expect(spec["batching"]).To(Equal(map[string]any{
			"maxSize": int64(100), "maxWait": "40ms", "inferenceTime": "100ms", "inferenceTimeout": "500ms", "maxRetries": int64(1)}))
		Expect(spec["scaling"]).To(Equal(map[string]any{
			"mode": "Auto", "targetPercent": int64(75),
			"up": map[string]any{"abovePercent": int64(80), "window": "2m"}, "down": map[string]any{"belowPercent": int64(50), "window": "10m"}}))
		Expect(spec["zones"]).To(Equal(map[string]any{
			"yellow": map[string]any{"backlog": "300ms"}, "red": map[string]any{"backlog": "750ms"}, "whenStale": "KeepStricter"}))
		Expect(spec["gateway"]).To(HaveKeyWithValue("auth", "Keys"))
		Expect(spec["workers"]).To(And(HaveKeyWithValue("minReplicas", int64(2)), HaveKeyWithValue("maxReplicas", int64(16)), HaveKeyWithValue("coldStart", "5m")))

		pool := w.pool("a")
		d := workload.Document(pool)
		Expect(d.Validate()).To(Succeed())
		standalone := poolspec.Default()
		Expect(d.Tiers).To(Equal(standalone.Tiers), "a batcher outside Kubernetes has the same defaults")
		Expect(d.Batching).To(Equal(standalone.Batching))
		Expect(d.Zones).To(Equal(standalone.Zones))
		Expect(d.MaxWorkers).To(Equal(standalone.MaxWorkers))
		Expect(d.TargetPercent).To(Equal(standalone.TargetPercent))
	})

	It("keeps a pool as a Go client writes it: what is not set is defaulted", func(ctx context.Context) {
		w := newWorld(ctx)
		pool := w.create(MakePool("a", w.namespace).Workers(3, 5).Obj())
		Expect(pool.Spec.Batching.MaxWait.Duration.String()).To(Equal("40ms"))
		Expect(pool.Spec.Workers.MinReplicas).To(Equal(int32(3)))
		Expect(pool.Spec.Workers.GPU.ResourceName).To(Equal("nvidia.com/gpu"))
	})

	It("has /scale with a selector", func(ctx context.Context) {
		w := newWorld(ctx)
		w.create(MakePool("a", w.namespace).Workers(1, 9).Mode(v1alpha1.ScalingExternal).Replicas(4).Obj())
		w.reconcile("a")
		w.pod("a", workload.ComponentWorker, "one", "node", readyPod("10.0.0.1"))
		w.tick("a")
		scale := &unstructured.Unstructured{}
		scale.SetAPIVersion("autoscaling/v1")
		scale.SetKind("Scale")
		pool := w.pool("a")
		Expect(api.SubResource("scale").Get(ctx, pool, scale)).To(Succeed())
		Expect(scale.Object["spec"]).To(HaveKeyWithValue("replicas", int64(4)))
		Expect(scale.Object["status"]).To(And(
			HaveKeyWithValue("replicas", int64(1)),
			HaveKeyWithValue("selector", "app.kubernetes.io/component=worker,inference.sluice.dev/pool=a")))
	})

	DescribeTable("refuses a pool that makes no sense, and names the field", func(ctx context.Context, spec string, want ...string) {
		w := newWorld(ctx)
		err := api.Create(ctx, parsePool(w.namespace, "bad", spec), strict)
		Expect(err).To(HaveOccurred())
		Expect(apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)).To(BeTrue(), err.Error())
		for _, part := range want {
			Expect(err.Error()).To(ContainSubstring(part))
		}
	},
		Entry(nil, "  wrokers: {}\n", `unknown field "spec.wrokers"`),
		Entry(nil, "  workers: {minReplicas: 5, maxReplicas: 2}\n", "spec.workers", "minReplicas must be at most maxReplicas"),
		Entry(nil, "  workers: {minReplicas: 0}\n", "spec.workers.minReplicas"),
		Entry(nil, "  workers: {coldStart: 3h}\n", "spec.workers", "coldStart must be between 1s and 2h"),
		Entry(nil, "  workers: {warmReplicas: 120%}\n", "spec.workers.warmReplicas", "percentage (0%-100%)"),
		Entry(nil, "  workers: {warmReplicas: -1}\n", "spec.workers.warmReplicas", "a number (0-1000)"),
		Entry(nil, "  workers: {rollout: {maxSurge: 0, maxUnavailable: 0}}\n", "spec.workers.rollout", "must not both be 0"),
		Entry(nil, "  workers: {gpu: {resourceName: gpu}}\n", "spec.workers.gpu.resourceName"),
		Entry(nil, "  workers: {backend: {type: Python}}\n", "spec.workers.backend", "python is required when type is Python"),
		Entry(nil, "  workers: {backend: {python: {function: 'm:f'}}}\n", "spec.workers.backend", "python is required when type is Python, and only then"),
		Entry(nil, "  workers: {backend: {type: OpenInference}}\n", "spec.workers.backend", "openInference is required"),
		Entry(nil, "  workers: {backend: {type: OpenInference, openInference: {model: m, url: 'http://elsewhere:1'}}}\n", "spec.workers.backend.openInference.url"),
		Entry(nil, "  workers: {backend: {type: Python, python: {function: 'm:f'}, simulated: {}}}\n", "spec.workers.backend", "simulated may only be set"),
		Entry(nil, "  workers: {backend: {type: Python, python: {function: nonsense}}}\n", "spec.workers.backend.python.function"),
		Entry(nil, "  workers: {pod: {labels: {app.kubernetes.io/name: x}}}\n", "spec.workers.pod.labels", "belong to the operator"),
		Entry(nil, "  workers: {pod: {env: [{name: A, value: x, secretKeyRef: {name: s, key: k}}]}}\n", "spec.workers.pod.env[0]", "at most one of value"),
		Entry(nil, "  workers: {pod: {volumes: [{name: v}]}}\n", "spec.workers.pod.volumes[0]", "exactly one of configMap"),
		Entry(nil, "  workers: {pod: {resourceClaims: [{name: c}]}}\n", "spec.workers.pod.resourceClaims[0]", "exactly one of resourceClaimName"),
		Entry(nil, "  batchers: {minReplicas: 5, maxReplicas: 2}\n", "spec.batchers", "minReplicas must be at most maxReplicas"),
		Entry(nil, "  zones: {yellow: {backlog: 2s}, red: {backlog: 1s}}\n", "spec.zones", "yellow.backlog must be less than red.backlog"),
		Entry(nil, "  zones: {yellow: {depth: 500}, red: {depth: 200}}\n", "spec.zones", "yellow.depth must be less than red.depth"),
		Entry(nil, "  zones: {yellow: {depth: 100}}\n", "spec.zones", "yellow and red must be of one kind"),
		Entry(nil, "  zones: {yellow: {depth: 100, backlog: 300ms}, red: {depth: 200}}\n", "spec.zones.yellow", "exactly one of backlog and depth"),
		Entry(nil, "  zones: {yellow: {backlog: 1ms}}\n", "spec.zones.yellow", "backlog must be at least 10ms"),
		Entry(nil, "  scaling: {down: {belowPercent: 85}}\n", "spec.scaling", "down.belowPercent must be below up.abovePercent"),
		Entry(nil, "  scaling: {targetPercent: 90}\n", "spec.scaling", "targetPercent must lie above"),
		Entry(nil, "  scaling: {up: {window: 2h}}\n", "spec.scaling.up", "window must be at most 1h"),
		Entry(nil, "  scaling: {down: {window: 100ms}}\n", "spec.scaling.down", "window must be between 1s and 24h"),
		Entry(nil, "  scaling: {paused: [Sideways]}\n", "spec.scaling.paused", "Up"),
		Entry(nil, "  batching: {maxWait: soon}\n", "spec.batching.maxWait"),
		Entry(nil, "  batching: {maxWait: 11s}\n", "spec.batching", "maxWait must be at most 10s"),
		Entry(nil, "  batching: {maxSize: 0}\n", "spec.batching.maxSize"),
		Entry(nil, "  batching: {maxRetries: 2}\n", "spec.batching.maxRetries"),
		Entry(nil, "  batching: {inferenceTimeout: 50ms}\n", "spec.batching", "inferenceTimeout must be longer than inferenceTime"),
		Entry(nil, "  tiers: [{name: a}, {name: a}]\n", "spec.tiers"),
		Entry(nil, "  tiers: []\n", "spec.tiers"),
		Entry(nil, "  tiers: [{name: a, reservedPercent: 30}, {name: b, reservedPercent: 30}]\n", "spec.tiers", "at most 50"),
		Entry(nil, "  tiers: [{name: a, shedding: Sometimes}]\n", "spec.tiers[0].shedding", "Never"),
		Entry(nil, "  tiers: [{name: a, latencyTarget: 3s}]\n", "spec.tiers[0]", "latencyTarget must be at most timeout"),
		Entry(nil, "  tiers: [{name: a, latencyTarget: 1ms}]\n", "spec.tiers[0]", "latencyTarget must be at least 20ms"),
		Entry(nil, "  tiers: [{name: a, timeout: 11m}]\n", "spec.tiers[0]", "timeout must be between 100ms and 10m"),
		Entry(nil, "  tiers: [{name: a, class: Internal}]\n", "spec.tiers[0]", "hours is required when class is Internal"),
		Entry(nil, "  tiers: [{name: a, hours: {schedule: '0 22 * * *'}}]\n", "spec.tiers[0]", "and only then"),
		Entry(nil, "  tiers: [{name: a, class: Internal, hours: {schedule: '0 25 * * *'}}]\n", "spec.tiers[0].hours.schedule"),
		Entry(nil, "  tiers: [{name: a, class: Internal, hours: {schedule: '99 2 * * *'}}]\n", "spec.tiers[0].hours.schedule"),
		Entry(nil, "  tiers: [{name: a, class: Internal, hours: {schedule: '0 5-3 * * *'}}]\n", "spec.tiers[0].hours", "must not go backwards"),
		Entry(nil, "  tiers: [{name: a, class: Internal, hours: {schedule: nightly}}]\n", "spec.tiers[0].hours.schedule"),
		Entry(nil, "  tiers: [{name: a, class: Internal, hours: {schedule: '0 22 * * *', duration: 30s}}]\n", "spec.tiers[0].hours", "duration must be between 1m and 24h"),
		Entry(nil, "  tiers: [{name: a, class: Internal, hours: {schedule: '0 22 * * *', timeZone: Mars/Olympus}}]\n", "spec.tiers[0].hours"),
		Entry(nil, "  tiers: [{name: a, limits: {tokensPerMinute: 0}}]\n", "spec.tiers[0].limits.tokensPerMinute"),
		Entry(nil, "  tiers: [{name: a, class: Background, degrade: {yellow: [{answer: x}]}}]\n", "spec.tiers[0]", "degrade may only be set when class is Interactive"),
		Entry(nil, "  tiers: [{name: a, degrade: {}}]\n", "spec.tiers[0].degrade"),
		Entry(nil, "  tiers: [{name: a, degrade: {yellow: [{}]}}]\n", "spec.tiers[0].degrade.yellow[0]", "exactly one of maxTokens"),
		Entry(nil, "  tiers: [{name: a, degrade: {yellow: [{maxTokens: 5, answer: x}]}}]\n", "spec.tiers[0].degrade.yellow[0]", "exactly one of maxTokens"),
		Entry(nil, "  tiers: [{name: a, degrade: {red: [{answer: x}, {maxTokens: 5}]}}]\n", "spec.tiers[0].degrade.red", "answer must be the last step"),
		Entry(nil, "  tiers: [{name: a, degrade: {red: [{maxTokens: 6}, {maxTokens: 5}]}}]\n", "spec.tiers[0].degrade.red", "each kind of step may be there once"),
		Entry(nil, "  tiers: [{name: a, degrade: {yellow: [{parameter: {name: max_tokens, value: '5'}}]}}]\n", "spec.tiers[0].degrade.yellow[0].parameter", "the client's"),
		Entry(nil, "  tiers: [{name: a, degrade: {yellow: [{reroute: {pool: b}}]}}]\n", "spec.tiers[0].degrade.yellow[0].reroute.model"),
		Entry(nil, "  tiers: [{name: a, degrade: {red: [{reroute: {pool: bad, model: m}}]}}]\n", "reroute must name another pool"),
		Entry(nil, "  gateway: {tokenEncoding: gpt2}\n", "spec.gateway.tokenEncoding"),
		Entry(nil, "  gateway: {sharedLimits: {requestsPerMinute: -1}}\n", "spec.gateway.sharedLimits.requestsPerMinute"),
		Entry(nil, "  gateway: {replicas: -1}\n", "spec.gateway.replicas"),
		Entry(nil, "  gateway: {replicas: 65}\n", "spec.gateway.replicas"),
		Entry(nil, "  gateway: {replicas: 2, pod: {labels: {app.kubernetes.io/component: x}}}\n", "spec.gateway.pod.labels", "belong to the operator"),
		Entry(nil, "  gateway: {auth: TrustedHeaders}\n", "spec.gateway", "trustedHeaders is required when auth is TrustedHeaders"),
		Entry(nil, "  gateway: {trustedHeaders: {fromCIDRs: [10.0.0.0/8]}}\n", "spec.gateway", "trustedHeaders may only be set"),
		Entry(nil, "  gateway: {auth: Keys, defaultTier: free}\n", "spec.gateway", "defaultTier may only be set when auth is None"),
		Entry(nil, "  gateway: {auth: None, defaultTier: platinum}\n", "gateway.defaultTier must be the name of one of spec.tiers"),
		Entry(nil, "  gateway: {tls: {}}\n", "spec.gateway.tls.secretName"),
		Entry(nil, "  gateway: {tls: {secretName: Not_A_Name}}\n", "spec.gateway.tls.secretName"),
		Entry(nil, "  gateway: {tls: {secretName: a, plainHTTP: Maybe}}\n", "spec.gateway.tls.plainHTTP", "Closed"),
		Entry(nil, "  telemetry: {traces: {samplePercent: 1}}\n", "spec.telemetry.traces.endpoint"),
		Entry(nil, "  telemetry: {traces: {endpoint: 'grpc://collector:4317'}}\n", "spec.telemetry.traces.endpoint"),
		Entry(nil, "  telemetry: {traces: {endpoint: 'http://user:secret@collector:4318'}}\n", "spec.telemetry.traces.endpoint"),
		Entry(nil, "  telemetry: {traces: {endpoint: 'http://c:4318', samplePercent: 101}}\n", "spec.telemetry.traces.samplePercent"),
		Entry(nil, "  telemetry: {accessLog: {samplePercent: -1}}\n", "spec.telemetry.accessLog.samplePercent"),
		Entry(nil, "  telemetry: {accessLog: {linesPerSecond: 1001}}\n", "spec.telemetry.accessLog.linesPerSecond"),
		Entry(nil, "  telemetry: {usageRecords: Kafka}\n", "spec.telemetry.usageRecords", "Stdout"),
		Entry(nil, "  telemetry: {tenants: Hidden}\n", "spec.telemetry.tenants", "Pseudonym"),
		Entry(nil, "  gateway: {maxInputBytes: 2000, maxBodyBytes: 1024}\n", "spec.gateway", "maxInputBytes must be at most maxBodyBytes"),
	)

	It("takes the examples of the documentation as they stand", func(ctx context.Context) {
		w := newWorld(ctx)
		b, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", "observed-pool.yaml"))
		Expect(err).NotTo(HaveOccurred())
		u := &unstructured.Unstructured{}
		Expect(yaml.Unmarshal(b, &u.Object)).To(Succeed())
		u.SetNamespace(w.namespace)
		Expect(api.Create(ctx, u, strict)).To(Succeed())
		Expect(workload.Document(w.pool("llm-observed")).Validate()).To(Succeed())
	})

	DescribeTable("refuses a name that children cannot have", func(ctx context.Context, name, want string) {
		w := newWorld(ctx)
		err := api.Create(ctx, parsePool(w.namespace, name, ""))
		Expect(err).To(MatchError(ContainSubstring(want)))
	},
		Entry("too long", strings.Repeat("a", 41), "at most 40 characters"),
		Entry("no DNS-1035 label", "1st", "DNS-1035"),
	)

	It("refuses a tenant whose key is no hash", func(ctx context.Context) {
		w := newWorld(ctx)
		t := &v1alpha1.InferenceTenant{
			ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: w.namespace},
			Spec:       v1alpha1.InferenceTenantSpec{Tier: "free", Keys: []v1alpha1.TenantKey{{SHA256: "the key itself"}}},
		}
		Expect(api.Create(ctx, t)).To(MatchError(ContainSubstring("spec.keys[0].sha256")))
		t.Spec.Keys = nil
		t.Spec.Limits.RequestsPerMinute = ptr.To(int64(0))
		Expect(api.Create(ctx, t)).To(MatchError(ContainSubstring("spec.limits.requestsPerMinute")))
	})

	It("accepts a pool that uses every field, and its children too", func(ctx context.Context) {
		w := newWorld(ctx)
		Expect(api.Create(ctx, parsePool(w.namespace, "full", fullSpec), strict)).To(Succeed())
		w.ticks(2, "full")
		before := w.versions("full")
		w.ticks(3, "full")
		Expect(w.versions("full")).To(Equal(before), "each field is applied as the API server keeps it")
		Expect(api.Create(ctx, parsePool(w.namespace, "served", servedSpec), strict)).To(Succeed())
		w.ticks(2, "served")
		before = w.versions("served")
		w.ticks(3, "served")
		Expect(w.versions("served")).To(Equal(before))
	})

	It("keeps a pod of every pool within the restricted pod security standard", func(ctx context.Context) {
		w := newWorld(ctx)
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
		Expect(api.Patch(ctx, ns, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)))).To(Succeed())
		Expect(api.Create(ctx, parsePool(w.namespace, "full", fullSpec))).To(Succeed())
		Expect(api.Create(ctx, parsePool(w.namespace, "served", servedSpec))).To(Succeed())
		w.reconcile("full")
		w.reconcile("served")
		for _, name := range []string{"full-batcher", "full-worker", "served-batcher", "served-worker"} {
			template := w.everything()["Deployment "+name].(*appsv1.Deployment).Spec.Template
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace}, Spec: template.Spec}
			pod.Spec.ServiceAccountName = ""
			pod.Spec.AutomountServiceAccountToken = ptr.To(false)
			pod.Spec.PriorityClassName, pod.Spec.RuntimeClassName = "", nil
			Expect(api.Create(ctx, pod, &client.CreateOptions{DryRun: []string{metav1.DryRunAll}})).To(Succeed(), name)
		}
	})
})

// fullSpec sets every field of a pool that a Python backend may have.
const fullSpec = `  tiers:
  - name: gold
    latencyTarget: 300ms
    timeout: 1500ms
    shedding: Never
    reservedPercent: 5
    class: Interactive
    limits: {requestsPerMinute: 6000, tokensPerMinute: 1000000}
    degrade:
      yellow: [{maxTokens: 256}, {parameter: {name: rerank, value: "false"}}]
      red: [{maxTokens: 64}, {reroute: {pool: small, model: small-v1}}, {answer: "Please come back in a minute."}]
  - {name: eval, latencyTarget: 5s, timeout: 1m, shedding: First, class: Internal, hours: {schedule: "0 22 * * 1-5", duration: 8h, timeZone: Europe/Berlin}}
  - {name: batch, latencyTarget: 5s, timeout: 1m, shedding: First, class: Background}
  batching: {maxSize: 64, maxWait: 1.5s, inferenceTime: 200ms, inferenceTimeout: 2s, maxRetries: 0}
  scaling: {mode: Auto, targetPercent: 70, up: {abovePercent: 85, window: 30s}, down: {belowPercent: 40, window: 1h}, paused: [Down]}
  zones: {yellow: {depth: 200}, red: {depth: 500}, whenStale: OwnView}
  workers:
    image: user/python:3
    replicas: 3
    minReplicas: 1
    maxReplicas: 8
    warmReplicas: 20%
    coldStart: 90s
    gpu: {resourceName: nvidia.com/mig-1g.10gb, count: 2}
    backend: {type: Python, python: {function: "app:run", interpreter: /opt/venv/bin/python, path: /app}}
    rollout: {maxSurge: 1, maxUnavailable: 0}
    pod:
      labels: {team: a}
      annotations: {note: b}
      nodeSelector: {gpu: h100}
      tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}, {key: lost, operator: Equal, value: x, effect: NoExecute, tolerationSeconds: 60}]
      resources: {requests: {cpu: 1000m, memory: 1024Mi}, limits: {memory: 2Gi}}
      env: [{name: B, value: x}, {name: A, configMapKeyRef: {name: c, key: k}}, {name: S, secretKeyRef: {name: s, key: k}}, {name: EMPTY}]
      volumes: [{name: w, persistentVolumeClaim: weights}, {name: c, configMap: c}, {name: s, secret: s}, {name: shm, emptyDir: {inMemory: true, sizeLimit: 1024Mi}}]
      mounts: [{name: w, mountPath: /weights, readOnly: true, subPath: v1}, {name: shm, mountPath: /dev/shm}]
      runtimeClassName: nvidia
      priorityClassName: gpu
      imagePullSecrets: [regcred]
      serviceAccountName: workload
      resourceClaims: [{name: g, resourceClaimTemplateName: gpu}]
  batchers:
    image: mirror/batcher:1
    minReplicas: 3
    maxReplicas: 6
    requestsPerSecond: 2000
    pod: {resources: {requests: {cpu: "0.5"}}}
  gateway:
    auth: TrustedHeaders
    trustedHeaders: {fromCIDRs: [10.0.0.0/8], tenantHeader: X-Tenant, tierHeader: X-Tier}
    maxInputBytes: 1000
    maxBodyBytes: 4000
    unsupportedParameters: Reject
    sharedLimits: {requestsPerMinute: 12000, tokensPerMinute: 2000000}
    tokenEncoding: o200k_base
`

// servedSpec has a model server beside the worker.
const servedSpec = `  workers:
    gpu: {count: 1}
    backend: {type: OpenInference, openInference: {model: llm, image: triton:1, args: [--model-repository=/models], input: text, output: answer, url: "http://127.0.0.1:8000"}}
    pod:
      volumes: [{name: m, persistentVolumeClaim: models}]
      mounts: [{name: m, mountPath: /models}]
`
