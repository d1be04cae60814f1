package workload

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

var update = flag.Bool("update", false, "rewrite testdata: every pod of every pool restarts when an operator with other templates is installed")

func ms(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Millisecond} }

// defaulted is a pool as the API server returns it when nothing but the model is set.
func defaulted() *v1alpha1.InferencePool {
	return &v1alpha1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Name: "llm", Namespace: "team", UID: "6c1"},
		Spec: v1alpha1.InferencePoolSpec{
			Model: "m",
			Tiers: []v1alpha1.Tier{
				{Name: "paid", LatencyTarget: ms(500), Timeout: ms(2000), Shedding: "Throttle", Class: "Interactive"},
				{Name: "free", LatencyTarget: ms(500), Timeout: ms(2500), Shedding: "First", ReservedPercent: 2, Class: "Interactive"},
			},
			Batching: v1alpha1.BatchingSpec{MaxSize: 100, MaxWait: ms(40), InferenceTime: ms(100), InferenceTimeout: ms(500), MaxRetries: ptr.To(int32(1))},
			Scaling:  v1alpha1.ScalingSpec{Mode: "Auto", TargetPercent: 75, Up: v1alpha1.ScaleUpSpec{AbovePercent: 80, Window: ms(120000)}, Down: v1alpha1.ScaleDownSpec{BelowPercent: 50, Window: ms(600000)}},
			Zones:    v1alpha1.ZonesSpec{Yellow: v1alpha1.ZoneThreshold{Backlog: ptr.To(ms(300))}, Red: v1alpha1.ZoneThreshold{Backlog: ptr.To(ms(750))}, WhenStale: "KeepStricter"},
			Workers: v1alpha1.WorkersSpec{MinReplicas: 2, MaxReplicas: 16, ColdStart: ms(300000), GPU: v1alpha1.GPUSpec{ResourceName: "nvidia.com/gpu", Count: ptr.To(int32(1))},
				Backend: v1alpha1.BackendSpec{Type: "Simulated"}, Rollout: v1alpha1.RolloutSpec{MaxUnavailable: 1}},
			Batchers: v1alpha1.BatchersSpec{MinReplicas: 2, MaxReplicas: 4, RequestsPerSecond: 5000},
			Gateway:  v1alpha1.GatewaySpec{Auth: "Keys", MaxInputBytes: 65536, MaxBodyBytes: 1048576, UnsupportedParameters: "Warn"},
		},
	}
}

var settings = Settings{BatcherImage: "batcher:1", WorkerImage: "worker:1", GatewayImage: "gateway:1", BatcherReplicas: 2, WorkerReplicas: 3,
	OperatorNamespace: "sluice-system", ZoneKey: "signal.json", ZoneDocument: "{}"}

func children(t *testing.T, pool *v1alpha1.InferencePool) map[string]Child {
	t.Helper()
	list, err := Children(pool, settings)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]Child{}
	for _, c := range list {
		m[string(c.Kind)+" "+c.Name] = c
	}
	return m
}

func deployment(t *testing.T, pool *v1alpha1.InferencePool, name string) *appsv1ac.DeploymentApplyConfiguration {
	t.Helper()
	return children(t, pool)["Deployment "+name].Config.(*appsv1ac.DeploymentApplyConfiguration)
}

// A newer operator must change no pod template: whoever changes these files restarts every worker and
// batcher of every fleet that upgrades.
func TestPodTemplatesAreThoseOfTheLastRelease(t *testing.T) {
	pool := defaulted()
	pool.Spec.Gateway.Replicas = 2
	for _, name := range []string{"llm-batcher", "llm-worker", "llm-gateway"} {
		got, err := yaml.Marshal(deployment(t, pool, name).Spec)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s differs from %s: see -update\n%s", name, file, got)
		}
	}
}

func TestChildrenAreTheSameEachTime(t *testing.T) {
	pool := defaulted()
	pool.Spec.Workers.Pod.Labels = map[string]string{"a": "1", "b": "2", "c": "3"}
	first, _ := Children(pool, settings)
	for range 20 {
		again, _ := Children(pool, settings)
		for i := range first {
			a, _ := json.Marshal(first[i].Config)
			b, _ := json.Marshal(again[i].Config)
			if string(a) != string(b) {
				t.Fatalf("%s %s differs:\n%s\n%s", first[i].Kind, first[i].Name, a, b)
			}
		}
	}
}

func TestGracePeriodsFollowFromTheSpec(t *testing.T) {
	pool := defaulted()
	// 5 s accepting, the longest tier's 2.5 s, 5 s margin.
	if g := *deployment(t, pool, "llm-batcher").Spec.Template.Spec.TerminationGracePeriodSeconds; g != 13 {
		t.Errorf("batcher: %d s", g)
	}
	// Twice inferenceTimeout for the batch, 5 s for the answers, 5 s for the backend.
	if g := *deployment(t, pool, "llm-worker").Spec.Template.Spec.TerminationGracePeriodSeconds; g != 11 {
		t.Errorf("worker: %d s", g)
	}
	pool.Spec.Tiers[0].Timeout = ms(60000)
	pool.Spec.Batching.InferenceTimeout = ms(20000)
	if g := *deployment(t, pool, "llm-batcher").Spec.Template.Spec.TerminationGracePeriodSeconds; g != 70 {
		t.Errorf("batcher: %d s", g)
	}
	if g := *deployment(t, pool, "llm-worker").Spec.Template.Spec.TerminationGracePeriodSeconds; g != 50 {
		t.Errorf("worker: %d s", g)
	}
}

func TestNothingKillsAModelThatLoads(t *testing.T) {
	pool := defaulted()
	pool.Spec.Workers.ColdStart = ms(1800000)
	d := deployment(t, pool, "llm-worker")
	p := d.Spec.Template.Spec.Containers[0].StartupProbe
	if patience := *p.PeriodSeconds * *p.FailureThreshold; patience < 3600 {
		t.Errorf("the startup probe gives up after %d s, coldStart is 1800 s", patience)
	}
	if *d.Spec.ProgressDeadlineSeconds < 3600 {
		t.Errorf("the rollout gives up after %d s", *d.Spec.ProgressDeadlineSeconds)
	}
}

func TestARolloutOfWorkersNeedsNoSpareGPU(t *testing.T) {
	r := deployment(t, defaulted(), "llm-worker").Spec.Strategy.RollingUpdate
	if r.MaxSurge.String() != "0" || r.MaxUnavailable.String() != "1" {
		t.Errorf("surge %s, unavailable %s", r.MaxSurge, r.MaxUnavailable)
	}
	r = deployment(t, defaulted(), "llm-batcher").Spec.Strategy.RollingUpdate
	if r.MaxSurge.String() != "1" || r.MaxUnavailable.String() != "0" {
		t.Errorf("batchers: surge %s, unavailable %s", r.MaxSurge, r.MaxUnavailable)
	}
}

func TestTheDocumentIsWhatTheBatcherReads(t *testing.T) {
	args := deployment(t, defaulted(), "llm-batcher").Spec.Template.Spec.Containers[0].Args
	document, ok := strings.CutPrefix(args[0], "--pool=")
	if !ok || len(args) != 1 {
		t.Fatalf("%v", args)
	}
	p, err := poolspec.Decode(document)
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "llm" || p.Tiers[1].ReservedPercent != 2 || p.Zones.RedBacklog.D() != 750*time.Millisecond || p.MaxWorkers != 16 {
		t.Errorf("%+v", p)
	}
}

func TestWhatATierMayDoIsInTheDocument(t *testing.T) {
	pool := defaulted()
	pool.Spec.Tiers[0].Limits = &v1alpha1.TenantLimits{TokensPerMinute: ptr.To(int64(9))}
	pool.Spec.Tiers[0].Degrade = &v1alpha1.DegradeSpec{
		Yellow: []v1alpha1.DegradeStep{{MaxTokens: ptr.To(int32(64))}, {Parameter: &v1alpha1.DegradeParameter{Name: "rerank", Value: "off"}}},
		Red:    []v1alpha1.DegradeStep{{Reroute: &v1alpha1.DegradeReroute{Pool: "small", Model: "s"}}, {Answer: "later"}},
	}
	pool.Spec.Tiers[1].Class = v1alpha1.ClassInternal
	pool.Spec.Tiers[1].Hours = &v1alpha1.TierHours{Schedule: "0 22 * * *", Duration: metav1.Duration{Duration: 8 * time.Hour}, TimeZone: "UTC"}
	pool.Spec.Gateway.SharedLimits = &v1alpha1.TenantLimits{RequestsPerMinute: ptr.To(int64(11))}
	pool.Spec.Gateway.TokenEncoding = "o200k_base"
	d := Document(pool)
	wantSteps := &poolspec.Degrade{
		Yellow: []poolspec.Step{{MaxTokens: 64}, {Parameter: "rerank", Value: "off"}},
		Red:    []poolspec.Step{{Pool: "small", Model: "s"}, {Answer: "later"}},
	}
	if !reflect.DeepEqual(d.Tiers[0].Degrade, wantSteps) || d.Tiers[0].Limits.TokensPerMinute != 9 || d.Tiers[0].Limits.RequestsPerMinute != 0 {
		t.Errorf("%+v %+v", d.Tiers[0], d.Tiers[0].Degrade)
	}
	if h := d.Tiers[1].Hours; !d.Tiers[1].Background || h == nil || h.Schedule != "0 22 * * *" || h.Duration.D() != 8*time.Hour || h.TimeZone != "UTC" {
		t.Errorf("%+v", d.Tiers[1])
	}
	if d.Gateway.SharedLimits.RequestsPerMinute != 11 || d.Gateway.TokenEncoding != "o200k_base" {
		t.Errorf("%+v", d.Gateway)
	}
	d.Version = poolspec.Version
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
}

func TestWithoutKeysTheLowestTierIsTheDefault(t *testing.T) {
	pool := defaulted()
	pool.Spec.Gateway.Auth = v1alpha1.AuthNone
	if d := Document(pool).Gateway.DefaultTier; d != "free" {
		t.Errorf("%q", d)
	}
	pool.Spec.Gateway.DefaultTier = "paid"
	if d := Document(pool).Gateway.DefaultTier; d != "paid" {
		t.Errorf("%q", d)
	}
}

func TestBackendsBecomeTheWorkersFlags(t *testing.T) {
	for _, c := range []struct {
		name    string
		backend v1alpha1.BackendSpec
		want    []string
	}{
		{"simulated", v1alpha1.BackendSpec{Type: "Simulated", Simulated: &v1alpha1.SimulatedBackend{ServiceTime: ms(80), JitterPercent: 10, StartDelay: ms(2000), FailPermille: 3, CrashPermille: 4}},
			[]string{"--backend=simulated", "--service-time=80ms", "--jitter-percent=10", "--start-delay=2s", "--fail-permille=3", "--crash-permille=4"}},
		{"python", v1alpha1.BackendSpec{Type: "Python", Python: &v1alpha1.PythonBackend{Function: "app:run", Interpreter: "python3", Path: "/app"}},
			[]string{"--backend=python", "--python-function=app:run", "--python-interpreter=python3", "--python-path=/app"}},
		{"a model server", v1alpha1.BackendSpec{Type: "OpenInference", OpenInference: &v1alpha1.OpenInferenceBackend{URL: "http://127.0.0.1:8000", Model: "llm", Input: "in", Output: "out"}},
			[]string{"--backend=oip", "--oip-url=http://127.0.0.1:8000", "--oip-model=llm", "--oip-input=in", "--oip-output=out"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := defaulted()
			pool.Spec.Workers.Backend = c.backend
			args := deployment(t, pool, "llm-worker").Spec.Template.Spec.Containers[0].Args
			for _, w := range append(c.want, "--max-batch=100", "--batch-timeout=1s", "--load-timeout=10m0s") {
				if !slices.Contains(args, w) {
					t.Errorf("%v lacks %s", args, w)
				}
			}
		})
	}
}

func TestAModelServerIsASidecarAndHasTheGPU(t *testing.T) {
	pool := defaulted()
	pool.Spec.Workers.Backend = v1alpha1.BackendSpec{Type: "OpenInference", OpenInference: &v1alpha1.OpenInferenceBackend{Model: "llm", Image: "triton:1", Args: []string{"--x"}}}
	pod := deployment(t, pool, "llm-worker").Spec.Template.Spec
	if len(pod.InitContainers) != 1 {
		t.Fatalf("%d init containers", len(pod.InitContainers))
	}
	server := pod.InitContainers[0]
	if *server.RestartPolicy != corev1.ContainerRestartPolicyAlways || *server.Image != "triton:1" {
		t.Errorf("%+v", server)
	}
	if q := (*server.Resources.Limits)["nvidia.com/gpu"]; q.Value() != 1 {
		t.Errorf("the server has %s GPUs", q.String())
	}
	if pod.Containers[0].Resources != nil {
		t.Errorf("the worker beside it has resources %+v", pod.Containers[0].Resources)
	}
}

func TestNoGPUIsAskedForWithCountZero(t *testing.T) {
	pool := defaulted()
	pool.Spec.Workers.GPU.Count = ptr.To(int32(0))
	if r := deployment(t, pool, "llm-worker").Spec.Template.Spec.Containers[0].Resources; r != nil {
		t.Errorf("%+v", r)
	}
}

func TestTheUsersVariablesCannotReplaceTheOperators(t *testing.T) {
	pool := defaulted()
	pool.Spec.Batchers.Pod.Env = []v1alpha1.EnvVar{{Name: "POD_NAME", Value: "x"}, {Name: "MINE", Value: "y"}}
	env := deployment(t, pool, "llm-batcher").Spec.Template.Spec.Containers[0].Env
	seen := map[string]int{}
	for _, e := range env {
		seen[*e.Name]++
		if *e.Name == "POD_NAME" && e.ValueFrom == nil {
			t.Error("POD_NAME is the user's")
		}
	}
	if seen["POD_NAME"] != 1 || seen["MINE"] != 1 {
		t.Errorf("%v", seen)
	}
}

func TestOnlyThePoolsBatchersAndTheOperatorReachAWorker(t *testing.T) {
	np := children(t, defaulted())["NetworkPolicy llm-worker"].Config.(*networkingv1ac.NetworkPolicyApplyConfiguration)
	if len(np.Spec.Ingress) != 1 || len(np.Spec.Ingress[0].From) != 3 {
		t.Fatalf("%+v", np.Spec)
	}
	for _, from := range np.Spec.Ingress[0].From {
		switch {
		case from.NamespaceSelector == nil:
			if from.PodSelector.MatchLabels[LabelPool] != "llm" || from.PodSelector.MatchLabels[LabelComponent] != ComponentBatcher {
				t.Errorf("pods of the namespace: %v", from.PodSelector.MatchLabels)
			}
		case from.PodSelector != nil:
			if from.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] != "sluice-system" {
				t.Errorf("operator: %v", from.NamespaceSelector.MatchLabels)
			}
		default:
			if from.NamespaceSelector.MatchLabels[LabelMetricsReader] != "true" {
				t.Errorf("metrics readers: %v", from.NamespaceSelector.MatchLabels)
			}
		}
	}
}

// Who reaches the relay port chooses tiers: only the pool's standalone gateways do, whether it has some or not.
func TestOnlyThePoolsGatewaysReachTheRelayPort(t *testing.T) {
	for _, replicas := range []int32{0, 2} {
		pool := defaulted()
		pool.Spec.Gateway.Replicas = replicas
		np := children(t, pool)["NetworkPolicy llm-batcher"].Config.(*networkingv1ac.NetworkPolicyApplyConfiguration)
		open := 0
		for _, rule := range np.Spec.Ingress {
			if len(rule.Ports) == 0 {
				t.Error("a rule opens every port")
			}
			for _, p := range rule.Ports {
				if p.Port.IntVal != wire.PortRelay {
					continue
				}
				open++
				if len(rule.From) != 1 || rule.From[0].NamespaceSelector != nil || rule.From[0].PodSelector.MatchLabels[LabelComponent] != ComponentGateway ||
					rule.From[0].PodSelector.MatchLabels[LabelPool] != "llm" {
					t.Errorf("%+v", rule.From)
				}
			}
		}
		if open != 1 {
			t.Errorf("%d rules for the relay port", open)
		}
	}
}

// A switch to gateways and back changes no batcher: its Deployment, its network policy and the headless Service
// stay as they are.
func TestGatewaysChangeNoBatcher(t *testing.T) {
	without, with := children(t, defaulted()), defaulted()
	with.Spec.Gateway.Replicas = 2
	with.Spec.Gateway.Pod.Labels = map[string]string{"team": "edge"}
	all := children(t, with)
	for name, c := range without {
		a, _ := json.Marshal(c.Config)
		b, _ := json.Marshal(all[name].Config)
		if string(a) != string(b) {
			t.Errorf("%s differs:\n%s\n%s", name, a, b)
		}
	}
	if len(all) != len(without)+3 {
		t.Errorf("%d children, %d without gateways", len(all), len(without))
	}
	d := deployment(t, with, "llm-gateway").Spec
	if *d.Replicas != 2 || *d.Template.Spec.Containers[0].Image != "gateway:1" || d.Template.Labels["team"] != "edge" || d.Template.Labels[LabelComponent] != ComponentGateway ||
		d.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels[LabelComponent] != ComponentGateway {
		t.Errorf("%+v", d)
	}
}

func TestTheServiceLeadsWhereItIsTold(t *testing.T) {
	for through, want := range map[bool]string{false: ComponentBatcher, true: ComponentGateway} {
		s := settings
		s.ThroughGateways = through
		if got := publicService(defaulted(), s).Spec.Selector[LabelComponent]; got != want {
			t.Errorf("through gateways %v: to %s", through, got)
		}
	}
}
