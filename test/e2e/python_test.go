package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// workBackend runs testdata/work.py, mounted from a ConfigMap, in the example's image.
const workBackend = `    image: ` + languageImage + `
    gpu: {count: 0}
    backend: {type: Python, python: {function: "work:batchstring", path: /work}}
    pod:
      resources: {requests: {cpu: 50m, memory: 32Mi}}
      volumes: [{name: work, configMap: work}]
      mounts: [{name: work, mountPath: /work, readOnly: true}]
`

// withWorkers is poolYAML with other lines for workers in place of the simulated backend's.
func withWorkers(pool, lines string) string {
	GinkgoHelper()
	from := strings.Index(pool, "    backend:")
	to := strings.Index(pool, "  batchers:")
	Expect(from).To(BeNumerically(">", 0))
	return pool[:from] + lines + pool[to:]
}

// configMap puts a file of testdata into a ConfigMap.
func configMap(ctx context.Context, ns, name, file string) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	Expect(err).NotTo(HaveOccurred())
	Expect(env.client.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string]string{filepath.Base(file): string(text)},
	})).To(Succeed())
}

var _ = Describe("a Python function", func() {
	It("in a team's image works as documented, and survives kills, hangs and poison under load", func(ctx context.Context) {
		pythonImages(ctx)
		ns := newNamespace(ctx)

		By("the example of docs/examples/python, as it stands")
		manifest, err := os.ReadFile(pythonExample + "/inferencepool.yaml")
		Expect(err).NotTo(HaveOccurred())
		example := strings.Replace(string(manifest), "registry.example.com/language:1", languageImage, 2)
		Expect(example).To(ContainSubstring("image: " + languageImage))
		apply(ctx, ns, example)
		configMap(ctx, ns, "work", "work.py")
		apply(ctx, ns, withWorkers(poolYAML("work", 3, 3, ""), workBackend))
		key := newTenant(ctx, ns, "acme", "enterprise")
		mallory := newTenant(ctx, ns, "mallory", "enterprise")
		waitReady(ctx, ns, "language")
		a := ask(ctx, ns, "language", "/v1/inference", "", question("language", "the cat is on the table"))
		Expect(a.Status).To(Equal(http.StatusOK), a.Raw)
		Expect(a.Body).To(HaveKeyWithValue("output", `{"language": "en", "words": 6}`))
		out, err := kubectl(ctx, "", "-n", ns, "delete", "slp", "language", "--wait=false")
		Expect(err).NotTo(HaveOccurred(), out)

		waitReady(ctx, ns, "work")
		Expect(condition(ctx, ns, "work", "ColdStartInBudget")).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring("20s"))))
		l := startLoadOf(ctx, ns, "work", "150rps:45s", "digest", tierLoad{"enterprise", 1, key})
		// One failure at a time: both batchers must see all three workers at work again. (A Pod's readiness would
		// not do: a subprocess is back before the kubelet has noticed that it was gone.)
		allWork := func() {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				g.Expect(readyCount(workerPods(ctx, ns, "work"))).To(Equal(3))
				for _, b := range pods(ctx, ns, "work", "batcher") {
					text, err := metricsOf(ctx, ns, b.Name, "8081")
					g.Expect(err).NotTo(HaveOccurred())
					working := sumOf(text, `sluice_workers{state="idle"}`) + sumOf(text, `sluice_workers{state="mine"}`) + sumOf(text, `sluice_workers{state="other"}`)
					g.Expect(working).To(Equal(3.0))
				}
			}).WithContext(ctx).Should(Succeed())
		}

		By("a pod is killed")
		victim := workerPods(ctx, ns, "work")[0]
		Expect(env.client.Delete(ctx, &victim, client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(func() error {
			return env.client.Get(ctx, client.ObjectKeyFromObject(&victim), &corev1.Pod{})
		}).WithContext(ctx).ShouldNot(Succeed())
		allWork()

		By("a subprocess is killed: only it begins anew")
		victim = workerPods(ctx, ns, "work")[0]
		killPython(ctx, ns, victim.Name)
		Eventually(workerMetric(ctx, ns, victim.Name, "sluice_worker_backend_restarts_total")).WithContext(ctx).Should(BeNumerically(">=", 1))
		allWork()

		send := func(input string) answer {
			return ask(ctx, ns, "work", "/v1/inference", mallory, question("work", input))
		}
		By("inputs that break the function get 422 and the reason, once they failed alone")
		for input, why := range map[string]string{
			"raise 1":    "ValueError: poison: raise 1",
			"segfault 1": "segmentation fault",
			"hang 1":     "did not answer within",
		} {
			var last answer
			Eventually(func() int {
				last = send(input)
				if last.Status != http.StatusUnprocessableEntity {
					// It failed in company, or there was no time for a second attempt: no proof of guilt yet.
					Expect(last.Status).To(BeElementOf(http.StatusServiceUnavailable, http.StatusGatewayTimeout), last.Raw)
				}
				return last.Status
			}).WithContext(ctx).Should(Equal(http.StatusUnprocessableEntity))
			Expect(last.Body).To(HaveKeyWithValue("reason", "input_failed"), last.Raw)
			Expect(last.Body).To(HaveKeyWithValue("detail", ContainSubstring(why)), last.Raw)
			allWork()
		}

		By("a poison sent again and again is hardly ever run")
		before, found := failures(ctx, ns), 0
		for range 100 {
			if s := send("raise 1").Status; s == http.StatusUnprocessableEntity {
				found++
			} else {
				Expect(s).To(Equal(http.StatusServiceUnavailable), "in company, at the batcher that had not seen it yet")
			}
		}
		Expect(found).To(BeNumerically(">=", 90))
		Expect(failures(ctx, ns)-before).To(BeNumerically("<=", 8), "each of two batchers finds out once")

		known, told := 0.0, 0.0
		for _, b := range pods(ctx, ns, "work", "batcher") {
			text, err := metricsOf(ctx, ns, b.Name, "8081")
			Expect(err).NotTo(HaveOccurred())
			told, known = told+sumOf(text, "sluice_poisoned_requests_total"), known+sumOf(text, "sluice_poisoned_refusals_total")
		}
		Expect(told).To(BeNumerically(">=", 3), "the metric of inputs that were found to break the function")
		Expect(known).To(BeNumerically(">=", 90), "and of those answered from memory")

		r := l.report(ctx)
		AddReportEntry("reasons", fmt.Sprint(r.reasons("enterprise")))
		r.expectNothingLost()
		Expect(r.Unavailable).To(BeNumerically("<=", 20), "three poisons and two kills: those that shared the last attempt, a few each")
		Expect(r.Served).To(BeNumerically(">=", r.Sent*99/100), "%+v", r.outcomes)

		By("an event says so, and no pod was restarted")
		Eventually(func() string {
			out, _ := kubectl(ctx, "", "-n", ns, "get", "events", "--field-selector", "reason=PoisonedInput", "-o", "jsonpath={.items[*].message}")
			return out
		}).WithContext(ctx).Should(ContainSubstring("input"))
		for _, pod := range workerPods(ctx, ns, "work") {
			Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero(), "the subprocess is started anew, never the pod")
		}
	})
})

// killPython kills the subprocess of a worker as the kernel would for want of memory.
func killPython(ctx context.Context, ns, pod string) {
	GinkgoHelper()
	out, err := kubectl(ctx, "", "-n", ns, "exec", pod, "--", distributionPython, "-c", `
import glob, os, signal
own = os.getpid()
for path in glob.glob("/proc/[0-9]*/cmdline"):
    pid = int(path.split("/")[2])
    if pid != own and b"faulthandler" in open(path, "rb").read():
        os.kill(pid, signal.SIGKILL)
        print("killed", pid)
`)
	Expect(err).NotTo(HaveOccurred(), out)
	Expect(out).To(ContainSubstring("killed"))
}

// workerMetric reads a worker's counter or gauge, the sum over its labels.
func workerMetric(ctx context.Context, ns, pod, name string) func() (float64, error) {
	return func() (float64, error) {
		text, err := metricsOf(ctx, ns, pod, "9000")
		return sumOf(text, name), err
	}
}

// metricsOf reads the metrics of a pod through the API server.
func metricsOf(ctx context.Context, ns, pod, port string) (string, error) {
	text, err := env.clientset.CoreV1().Pods(ns).ProxyGet("http", pod, port, "metrics", nil).DoRaw(ctx)
	return string(text), err
}

// sumOf adds up the samples of a metric in the text format; with labels, of that one alone.
func sumOf(text, name string) float64 {
	sum := 0.0
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndex(rest, " ")+1:], &v); err == nil {
			sum += v
		}
	}
	return sum
}

// failures is how many batches failed on the pool's workers so far.
func failures(ctx context.Context, ns string) float64 {
	GinkgoHelper()
	sum := 0.0
	for _, pod := range workerPods(ctx, ns, "work") {
		v, err := workerMetric(ctx, ns, pod.Name, "sluice_worker_failures_total")()
		Expect(err).NotTo(HaveOccurred())
		sum += v
	}
	return sum
}

// serverBackend runs the model server of the OIP backend's own tests beside the worker, as a sidecar.
const serverBackend = `    gpu: {count: 0}
    backend:
      type: OpenInference
      openInference: {model: upper, image: ` + modelServerImage + `, args: [/model/server.py, --port, "8000", --columns, --load-seconds, "3"]}
    pod:
      resources: {requests: {cpu: 50m, memory: 32Mi}}
      volumes: [{name: model, configMap: model}]
      mounts: [{name: model, mountPath: /model, readOnly: true}]
`

var _ = Describe("a model server beside the worker", func() {
	It("is started first, waited for, and serves; when it dies only it begins anew, and others serve meanwhile", func(ctx context.Context) {
		pythonImages(ctx)
		ns := newNamespace(ctx)
		// The server runs with a writable root, as the images of model servers need it.
		configMap(ctx, ns, "model", "../../../internal/worker/backends/oip/testdata/server.py")
		apply(ctx, ns, withWorkers(poolYAML("upper", 3, 3, ""), serverBackend))
		key := newTenant(ctx, ns, "acme", "enterprise")
		waitReady(ctx, ns, "upper")
		l := startLoadOf(ctx, ns, "upper", "60rps:20s", "upper", tierLoad{"enterprise", 1, key})
		// The first attempt of the input ends one server, the second another: of three, one goes on.
		Eventually(func() int {
			return ask(ctx, ns, "upper", "/v1/inference", key, question("upper", "exit")).Status
		}).WithContext(ctx).Should(BeElementOf(http.StatusServiceUnavailable, http.StatusUnprocessableEntity))
		began := time.Now()
		serving := func() int {
			n := 0
			for _, pod := range workerPods(ctx, ns, "upper") {
				if ready, err := workerMetric(ctx, ns, pod.Name, "sluice_worker_ready")(); err == nil && ready == 1 {
					n++
				}
			}
			return n
		}
		Expect(serving()).To(BeNumerically(">=", 1))
		Eventually(serving).WithContext(ctx).Should(Equal(3))
		AddReportEntry("servers back", fmt.Sprintf("%.1f s after they ended, of which 3 s are their load", time.Since(began).Seconds()))
		Eventually(func() (n int32) {
			for _, pod := range workerPods(ctx, ns, "upper") {
				Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero(), "the worker waits for its server")
				n += pod.Status.InitContainerStatuses[0].RestartCount
			}
			return n
		}).WithContext(ctx).Should(BeNumerically(">=", 1), "the kubelet starts the server again")
		r := l.report(ctx)
		AddReportEntry("reasons", fmt.Sprint(r.reasons("enterprise")))
		r.expectNothingLost()
		Expect(r.Unavailable).To(BeNumerically("<=", 20), "those that shared both attempts of the input: %v", r.reasons("enterprise"))
		Expect(r.Served).To(BeNumerically(">=", r.Sent*97/100), "%+v", r.outcomes)
		waitReady(ctx, ns, "upper")
	})
})
