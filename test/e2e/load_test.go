package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// tierLoad is one class of clients: a tier's name, its share of the load and a key.
type tierLoad struct {
	name   string
	weight int
	key    string
}

// loadReport is what the load generator saw; see hack/loadgen.
type loadReport struct {
	outcomes
	Tiers []struct {
		Name string `json:"name"`
		outcomes
		Reasons   map[string]int `json:"reasons"`
		PerSecond []struct {
			T     int     `json:"t"`
			P95Ms float64 `json:"p95_ms"`
		} `json:"per_second"`
	} `json:"tiers"`
}

type outcomes struct {
	Sent         int     `json:"sent"`
	Served       int     `json:"served"`
	Wrong        int     `json:"wrong_answers"`
	Lost         int     `json:"lost"`
	Refused      int     `json:"refused_429"`
	Unavailable  int     `json:"unavailable_503"`
	Expired      int     `json:"expired_504"`
	Other        int     `json:"other_status"`
	NoConnection int     `json:"no_connection"`
	P95Ms        float64 `json:"p95_ms"`
}

// reasons counts the answers of a tier that were not 200, as "STATUS reason".
func (r loadReport) reasons(name string) map[string]int {
	for _, t := range r.Tiers {
		if t.Name == name {
			return t.Reasons
		}
	}
	return nil
}

// share is the part of a tier's requests that was refused.
func (r loadReport) share(name string) float64 {
	GinkgoHelper()
	t := r.tier(name)
	return float64(t.Refused) / float64(t.Sent)
}

// tier returns the outcomes of one tier.
func (r loadReport) tier(name string) outcomes {
	GinkgoHelper()
	for _, t := range r.Tiers {
		if t.Name == name {
			return t.outcomes
		}
	}
	Fail("the load generator reports no tier " + name)
	return outcomes{}
}

// load is a load generator running in the cluster.
type load struct{ ns, pod string }

// startLoad starts the schedule (see hack/loadgen) against a pool's Service and returns once it runs.
func startLoad(ctx context.Context, ns, pool, schedule string, tiers ...tierLoad) load {
	GinkgoHelper()
	return startLoadOf(ctx, ns, pool, schedule, "simulated", tiers...)
}

// startLoadOf is startLoad for a function whose right output the load generator knows under a name (--expect).
func startLoadOf(ctx context.Context, ns, pool, schedule, expect string, tiers ...tierLoad) load {
	GinkgoHelper()
	var service corev1.Service
	Expect(env.client.Get(ctx, types.NamespacedName{Namespace: ns, Name: pool}, &service)).To(Succeed())
	return startLoadPod(ctx, ns, "", append([]string{"--url", "http://" + service.Spec.ClusterIP, "--model", pool, "--phase", schedule, "--expect", expect}, tierArgs(tiers)...))
}

// startTLSLoad is startLoad over TLS, which trusts the certificates of a key of the Secret trust and checks the
// Service's name.
func startTLSLoad(ctx context.Context, ns, pool, schedule, trust, key string) load {
	GinkgoHelper()
	return startLoadPod(ctx, ns, trust, []string{"--url", "https://" + serverName(ns, pool), "--ca", "/trust/" + key, "--model", pool, "--phase", schedule})
}

// serverName is the name of a pool's Service that its certificate must be valid for.
func serverName(ns, pool string) string { return pool + "." + ns + ".svc" }

func tierArgs(tiers []tierLoad) (args []string) {
	for _, t := range tiers {
		args = append(args, "--tier", fmt.Sprintf("%s=%d,key=%s", t.name, t.weight, t.key))
	}
	return args
}

// startLoadPod runs the load generator with the arguments; a Secret, if one is named, is mounted at /trust.
func startLoadPod(ctx context.Context, ns, secret string, args []string) load {
	GinkgoHelper()
	args = append(args, "--json", "-", "--quiet")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "load-", Namespace: ns},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "loadgen", Image: env.image("loadgen"), ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
				// A load generator that waits for a processor measures itself.
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m")}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), RunAsUser: ptr.To[int64](65532),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	if secret != "" {
		pod.Spec.Volumes = []corev1.Volume{{Name: "trust", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "trust", MountPath: "/trust", ReadOnly: true}}
	}
	Expect(env.client.Create(ctx, pod)).To(Succeed())
	l := load{ns, pod.Name}
	Eventually(l.phase).WithContext(ctx).ShouldNot(Equal(corev1.PodPending))
	return l
}

func (l load) phase(ctx context.Context) (corev1.PodPhase, error) {
	var pod corev1.Pod
	err := env.client.Get(ctx, types.NamespacedName{Namespace: l.ns, Name: l.pod}, &pod)
	return pod.Status.Phase, err
}

// report waits for the end of the schedule and returns what the clients saw.
func (l load) report(ctx context.Context) loadReport {
	GinkgoHelper()
	Eventually(l.phase).WithContext(ctx).WithTimeout(6 * time.Minute).Should(BeElementOf(corev1.PodSucceeded, corev1.PodFailed))
	stream, err := env.clientset.CoreV1().Pods(l.ns).GetLogs(l.pod, &corev1.PodLogOptions{}).Stream(ctx)
	Expect(err).NotTo(HaveOccurred())
	defer stream.Close()
	logs, err := io.ReadAll(stream)
	Expect(err).NotTo(HaveOccurred())
	start := strings.Index("\n"+string(logs), "\n{")
	Expect(start).To(BeNumerically(">=", 0), "no report in the load generator's log:\n%s", logs)
	var r loadReport
	Expect(json.NewDecoder(strings.NewReader(string(logs)[start:])).Decode(&r)).To(Succeed(), string(logs))
	AddReportEntry("load", fmt.Sprintf("%+v", r.outcomes))
	if r.Served < r.Sent {
		var why strings.Builder
		for _, t := range r.Tiers {
			fmt.Fprintf(&why, "%s %v\n", t.Name, t.Reasons)
		}
		AddReportEntry("not served, by tier", why.String())
	}
	return r
}

// expectNothingLost is the promise that holds whatever happens: no request without an answer, none with
// another's.
func (r loadReport) expectNothingLost() {
	GinkgoHelper()
	Expect(r.Sent).To(BeNumerically(">", 0))
	Expect(r.Wrong).To(BeZero(), "answers of others")
	Expect(r.Lost).To(BeZero(), "requests without an answer")
	Expect(r.NoConnection).To(BeZero(), "connections refused")
	Expect(r.Other).To(BeZero(), "answers of an unexpected status")
}

// expectAllServed says that what happened meanwhile cost no request. One in a hundred may be refused or late:
// on two processors that also run a control plane a batcher may wait for its turn, and then it sheds, as it should.
func (r loadReport) expectAllServed() {
	GinkgoHelper()
	r.expectNothingLost()
	Expect(r.Served).To(BeNumerically(">=", r.Sent*99/100), "%+v", r.outcomes)
}
