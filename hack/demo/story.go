package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	pool = "llm-v1"

	// The load, against two workers of 455 requests/s each (50 a batch, 110 ms a cycle): calm; more than
	// there is (Yellow); more than there is even without the free tier, which is half of it (Red), until the
	// operator's workers arrive; calm again.
	schedule = "200rps:15s,1100rps:8s,2150rps:52s,150rps:80s"
)

// tenants are those of config/samples, with their share of the load.
var tenants = []struct {
	name, tier string
	weight     int
}{
	{"acme", "enterprise", 20},
	{"globex", "paid", 30},
	{"hobby", "free", 50},
}

// story tells the main job from the pool's YAML to a worker drained, and fails when a sentence of it is
// not true.
func story(ctx context.Context, c *cluster) error {
	keys, err := applyPool(ctx, c)
	if err != nil {
		return err
	}
	if err := oneRequest(ctx, c, keys["enterprise"]); err != nil {
		return err
	}
	return underLoad(ctx, c, keys)
}

// applyPool applies config/samples, gives every tenant a key and waits until the pool is Ready.
func applyPool(ctx context.Context, c *cluster) (map[string]string, error) {
	title("3. A pool: kubectl apply --server-side -f config/samples")
	if c.output(ctx, "get", "namespace", namespace) == "" {
		if err := c.kubectl(ctx, "create", "namespace", namespace); err != nil {
			return nil, err
		}
	}
	if err := c.kubectl(ctx, "label", "--overwrite", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		return nil, err
	}
	if err := c.kubectl(ctx, "-n", namespace, "apply", "--server-side", "-f", "config/samples"); err != nil {
		return nil, err
	}
	if strings.TrimSpace(c.output(ctx, "get", "nodes", "-o", `jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}`)) == "" {
		note("no node advertises nvidia.com/gpu: the simulated workers run without one here")
		if err := c.kubectl(ctx, "-n", namespace, "patch", "slp", pool, "--type=merge", "-p", `{"spec":{"workers":{"gpu":{"count":0}}}}`); err != nil {
			return nil, err
		}
	}
	keys := map[string]string{}
	for _, t := range tenants {
		key := rand.Text() + rand.Text()
		sum := sha256.Sum256([]byte(key))
		patch := fmt.Sprintf(`{"spec":{"keys":[{"sha256":%q}]}}`, hex.EncodeToString(sum[:]))
		if c.output(ctx, "-n", namespace, "patch", "inferencetenant", t.name, "--type=merge", "-p", patch) == "" {
			return nil, fmt.Errorf("could not give tenant %s a key", t.name)
		}
		keys[t.tier] = key
	}
	note("tenants acme (enterprise), globex (paid) and hobby (free) got a random key each; the API holds its hash only")
	if err := c.kubectl(ctx, "-n", namespace, "wait", "--for=condition=Ready", "inferencepools.inference.sluice.dev/"+pool, "--timeout=180s"); err != nil {
		return nil, err
	}
	return keys, c.kubectl(ctx, "-n", namespace, "get", "slp,pods,services")
}

// oneRequest sends one request as a client would, through a port-forward so that it works from outside
// any cluster, and one with a wrong key.
func oneRequest(ctx context.Context, c *cluster, key string) error {
	title("4. One request through the pool's Service")
	forward, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := c.command(forward, "-n", namespace, "port-forward", "service/"+pool, ":80")
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line := make([]byte, 256)
	n, err := out.Read(line)
	if err != nil {
		return fmt.Errorf("kubectl port-forward: %w", err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	var port int
	if _, err := fmt.Sscanf(string(line[:n]), "Forwarding from 127.0.0.1:%d", &port); err != nil {
		return fmt.Errorf("kubectl port-forward said %q", line[:n])
	}
	for _, try := range []struct {
		what, key string
		want      int
	}{{"with acme's key", key, http.StatusOK}, {"with a wrong key", "guess", http.StatusUnauthorized}} {
		body := `{"model":"llm-v1","input":"hello, sluice"}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/v1/inference", port), strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+try.key)
		note("$ curl -H 'Authorization: Bearer …' -d '%s' http://%s/v1/inference      # %s", body, pool, try.what)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		note("%s  %s", resp.Status, bytes.TrimSpace(b))
		if resp.StatusCode != try.want {
			return fmt.Errorf("a request %s was answered %s, want %d", try.what, resp.Status, try.want)
		}
	}
	return nil
}

// underLoad runs the schedule from a pod in the cluster, tells what happens to the pool meanwhile and checks
// that what should have happened did.
func underLoad(ctx context.Context, c *cluster, keys map[string]string) error {
	title("5. Load: %s (20 %% enterprise, 30 %% paid, 50 %% free)", schedule)
	if err := startLoad(ctx, c, keys); err != nil {
		return err
	}
	note("watch it yourself: export KUBECONFIG=%s; %s -n %s get slp -w", c.kubeconfig, c.kubectlPath, namespace)
	seen, err := follow(ctx, c)
	if err != nil {
		return err
	}
	report, err := readReport(ctx, c)
	if err != nil {
		return err
	}

	title("6. What the clients saw")
	fmt.Printf("   %-12s %9s %9s %9s %8s %8s %8s %8s\n", "tier", "sent", "200", "429", "503/504", "failed", "p50 ms", "p95 ms")
	for _, t := range report.Tiers {
		fmt.Printf("   %-12s %9d %9d %9d %8d %8d %8.0f %8.0f\n", t.Name, t.Sent, t.Served, t.Refused, t.Unavailable+t.Expired, t.failed(), t.P50Ms, t.P95Ms)
	}
	title("7. Why the operator did what it did")
	_ = c.kubectl(ctx, "-n", namespace, "get", "slp", pool, "-o", `jsonpath={range .status.scaling.changes[*]}{.time}  {.from} -> {.to}  {.reason}: {.message}{"\n"}{end}`)
	_ = c.kubectl(ctx, "-n", namespace, "get", "events", "--field-selector=involvedObject.kind=InferencePool", "--sort-by=.lastTimestamp",
		"-o", "custom-columns=REASON:.reason,MESSAGE:.message")
	return verdict(seen, report)
}

// startLoad starts the load generator as a pod in the cluster.
func startLoad(ctx context.Context, c *cluster, keys map[string]string) error {
	ip := strings.TrimSpace(c.output(ctx, "-n", namespace, "get", "service", pool, "-o", "jsonpath={.spec.clusterIP}"))
	args := []string{"--url", "http://" + ip, "--model", pool, "--phase", schedule, "--json", "-", "--quiet"}
	for _, t := range tenants {
		args = append(args, "--tier", fmt.Sprintf("%s=%d,key=%s", t.tier, t.weight, keys[t.tier]))
	}
	yes, no := true, false
	pod := map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "loadgen", "namespace": namespace},
		"spec": map[string]any{
			"restartPolicy":                "Never",
			"automountServiceAccountToken": no,
			"securityContext":              map[string]any{"runAsNonRoot": yes, "seccompProfile": map[string]any{"type": "RuntimeDefault"}},
			"containers": []any{map[string]any{
				"name": "loadgen", "image": c.image("loadgen"), "imagePullPolicy": "IfNotPresent", "args": args,
				"resources": map[string]any{"requests": map[string]any{"cpu": "300m"}}, // one that waits for a processor measures itself
				"securityContext": map[string]any{
					"allowPrivilegeEscalation": no, "readOnlyRootFilesystem": yes, "runAsUser": 65532,
					"capabilities": map[string]any{"drop": []string{"ALL"}},
				},
			}},
		},
	}
	doc, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	_ = c.output(ctx, "-n", namespace, "delete", "pod", "loadgen", "--ignore-not-found", "--wait")
	cmd := c.command(ctx, "apply", "--server-side", "-f", "-")
	cmd.Stdin, cmd.Stdout = bytes.NewReader(doc), nil
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("starting the load generator: %w", err)
	}
	return c.kubectl(ctx, "-n", namespace, "wait", "--for=jsonpath={.status.phase}=Running", "pod/loadgen", "--timeout=60s")
}

// poolStatus is the part of an InferencePool's status that the story follows.
type poolStatus struct {
	Status struct {
		Zone struct {
			Name, Reason string
		} `json:"zone"`
		Queue struct {
			Depth int `json:"depth"`
		} `json:"queue"`
		Workers struct {
			Summary                            string
			Ready, Desired, Starting, Draining int
		} `json:"workers"`
		Utilization      string `json:"utilization"`
		OfferedPerSecond int    `json:"offeredPerSecond"`
		Conditions       []struct{ Type, Message string }
	} `json:"status"`
}

// observed is what happened to the pool during the load.
type observed struct {
	zones                        map[string]bool
	maxReady                     int
	redOrYellowThenGreen, shrank bool
}

// follow prints the pool's state every two seconds until the load generator is done.
func follow(ctx context.Context, c *cluster) (observed, error) {
	seen := observed{zones: map[string]bool{}}
	began, last := time.Now(), ""
	fmt.Printf("\n   %5s  %-7s %6s %8s %9s %6s   %s\n", "time", "ZONE", "QUEUE", "WORKERS", "OFFERED/s", "UTIL", "WHY")
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		var p poolStatus
		if err := json.Unmarshal([]byte(c.output(ctx, "-n", namespace, "get", "slp", pool, "-o", "json")), &p); err == nil {
			s := p.Status
			why := ""
			for _, cond := range s.Conditions {
				if cond.Type == "Scaling" {
					why = cond.Message
				}
			}
			line := fmt.Sprintf("%s %6d %8s %9d %6s   %s", colour(s.Zone.Name), s.Queue.Depth, s.Workers.Summary, s.OfferedPerSecond, s.Utilization, why)
			if line != last { // the operator writes numbers every 10 s, what matters at once
				fmt.Printf("   %4.0f s  %s\n", time.Since(began).Seconds(), line)
				last = line
			}
			seen.add(s.Zone.Name, s.Workers.Ready, s.Workers.Desired)
		}
		phase := c.output(ctx, "-n", namespace, "get", "pod", "loadgen", "-o", "jsonpath={.status.phase}")
		if phase == "Succeeded" || phase == "Failed" {
			return seen, nil
		}
		if time.Since(began) > 10*time.Minute {
			return seen, errors.New("the load generator did not end within 10 minutes")
		}
		select {
		case <-ctx.Done():
			return seen, ctx.Err()
		case <-tick.C:
		}
	}
}

func (o *observed) add(zone string, ready, desired int) {
	o.zones[zone] = true
	if (o.zones["Yellow"] || o.zones["Red"]) && zone == "Green" {
		o.redOrYellowThenGreen = true
	}
	o.maxReady = max(o.maxReady, ready)
	if desired < o.maxReady && ready < o.maxReady && o.redOrYellowThenGreen {
		o.shrank = true
	}
}

func colour(zone string) string {
	code := map[string]string{"Green": "42", "Yellow": "43", "Red": "41"}[zone]
	return fmt.Sprintf("\033[30;%sm%-7s\033[0m", code, zone)
}

// loadReport is the part of the load generator's report that the story checks.
type report struct {
	Tiers []tierReport `json:"tiers"`
}

type tierReport struct {
	Name        string  `json:"name"`
	Sent        int     `json:"sent"`
	Served      int     `json:"served"`
	Refused     int     `json:"refused_429"`
	Unavailable int     `json:"unavailable_503"`
	Expired     int     `json:"expired_504"`
	Wrong       int     `json:"wrong_answers"`
	Lost        int     `json:"lost"`
	Other       int     `json:"other_status"`
	P50Ms       float64 `json:"p50_ms"`
	P95Ms       float64 `json:"p95_ms"`
}

func (t tierReport) failed() int { return t.Wrong + t.Lost + t.Other }

// loadReport reads the JSON at the end of the load generator's log.
func readReport(ctx context.Context, c *cluster) (report, error) {
	var r report
	logs := c.output(ctx, "-n", namespace, "logs", "loadgen")
	_, doc, ok := strings.Cut("\n"+logs, "\n{\n")
	if !ok {
		return r, fmt.Errorf("the load generator left no report; its log ends:\n%s", tail(logs, 10))
	}
	err := json.NewDecoder(strings.NewReader("{\n" + doc)).Decode(&r)
	return r, err
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// verdict says which sentence of the story was not true.
func verdict(seen observed, r report) error {
	var wrong []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	for _, z := range []string{"Green", "Yellow", "Red"} {
		check(seen.zones[z], "the zone was never %s", z)
	}
	check(seen.redOrYellowThenGreen, "the zone did not turn Green again")
	check(seen.maxReady > 2, "no worker was added")
	check(seen.shrank, "no worker was removed when the load had fallen")
	for _, t := range r.Tiers {
		check(t.failed() == 0, "%s: %d wrong answers, %d lost, %d of another status", t.Name, t.Wrong, t.Lost, t.Other)
		if t.Name == "enterprise" {
			check(t.Refused <= t.Sent/100, "enterprise was refused %d times of %d", t.Refused, t.Sent)
		}
		if t.Name == "free" {
			check(t.Refused > 0, "free was never refused")
		}
	}
	if len(wrong) == 0 {
		note("scaled up to %d workers, shed free users first, lost and crossed no request, and scaled down again", seen.maxReady)
	}
	return errors.Join(wrong...)
}
