package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSmoke proves a running cluster. It is opt-in because it needs one: `localcluster up`, then
// LOCALCLUSTER_SMOKE=1 go test -run TestSmoke -v .
func TestSmoke(t *testing.T) {
	if os.Getenv("LOCALCLUSTER_SMOKE") == "" {
		t.Skip("set LOCALCLUSTER_SMOKE=1 with a cluster up")
	}
	root, err := repositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	s := smoke{t: t, program: filepath.Join(root, "bin", "localcluster"), kubectlPath: filepath.Join(root, "bin", "k8s", "kubectl"),
		kubeconfig: filepath.Join(root, "bin", "localcluster.kubeconfig")}
	binary := filepath.Join(t.TempDir(), "hello")
	s.command("env", "CGO_ENABLED=0", "go", "build", "-o", binary, "./testdata/hello")
	s.command(s.program, "load", "sluice.dev/localcluster-hello:smoke="+binary)
	t.Cleanup(func() { s.kubectl("delete", "namespace", smokeNamespace, "--ignore-not-found", "--wait") })
	s.kubectl("apply", "--server-side", "-f", "testdata/hello.yaml")
	s.kubectl("-n", smokeNamespace, "rollout", "status", "deployment/hello", "--timeout=120s")

	t.Run("ClusterIP and NodePort answer on the host", func(t *testing.T) {
		s := s.with(t)
		for _, target := range []string{s.service("{.spec.clusterIP}"), nodeIP + ":" + s.service("{.spec.ports[0].nodePort}")} {
			s.expect(s.command("curl", "-sS", "-m", "10", "--noproxy", "*", "http://"+target), "hello-", "GPU-")
		}
	})
	t.Run("a pod resolves and reaches a Service, itself behind it or not", func(t *testing.T) {
		s := s.with(t)
		s.expect(s.exec("lookup", "hello"), s.service("{.spec.clusterIP}"))
		for range 6 { // two endpoints: six calls miss one with a chance of 3 %
			s.expect(s.exec("get", "http://hello."+smokeNamespace+".svc.cluster.local"), "hello-")
		}
	})
	t.Run("logs", func(t *testing.T) {
		s := s.with(t)
		s.expect(s.kubectl("-n", smokeNamespace, "logs", "-l", "app=hello"), "serving as user 65532")
	})
	t.Run("port-forward", func(t *testing.T) { s.with(t).portForward() })
	t.Run("Pod Security refuses a privileged pod", func(t *testing.T) {
		s := s.with(t)
		out, err := s.output(s.kubectlPath, "--kubeconfig", s.kubeconfig, "-n", smokeNamespace, "run", "root", "--image="+pauseImage, "--privileged")
		if err == nil || !strings.Contains(out, "PodSecurity") {
			t.Errorf("got %v: %s", err, out)
		}
	})
	t.Run("a lost GPU leaves the node, and comes back", func(t *testing.T) {
		s := s.with(t)
		before := s.allocatable()
		s.command(s.program, "gpu", "lose")
		if got := s.allocatable(); got != before-1 {
			t.Errorf("allocatable %d after a loss, was %d", got, before)
		}
		s.command(s.program, "gpu", "return")
		if got := s.allocatable(); got != before {
			t.Errorf("allocatable %d after the return, was %d", got, before)
		}
	})
	t.Run("an image from a directory tree runs", func(t *testing.T) {
		s := s.with(t)
		tree := t.TempDir()
		s.command("install", "-D", binary, filepath.Join(tree, "usr", "bin", "hello"))
		s.command("chmod", "755", tree)
		s.command(s.program, "load", "--rootfs", "sluice.dev/localcluster-hello:smoke="+tree, "--entrypoint", "/usr/bin/hello")
		s.kubectl("-n", smokeNamespace, "rollout", "restart", "deployment/hello")
		s.kubectl("-n", smokeNamespace, "rollout", "status", "deployment/hello", "--timeout=120s")
	})
}

const smokeNamespace = "localcluster-smoke"

type smoke struct {
	t                                *testing.T
	program, kubectlPath, kubeconfig string
}

// with reports to a subtest.
func (s smoke) with(t *testing.T) smoke { s.t = t; return s }

func (s smoke) output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	return string(out), err
}

func (s smoke) command(name string, args ...string) string {
	s.t.Helper()
	out, err := s.output(name, args...)
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func (s smoke) kubectl(args ...string) string {
	s.t.Helper()
	return s.command(s.kubectlPath, append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
}

func (s smoke) exec(args ...string) string {
	s.t.Helper()
	return s.kubectl(append([]string{"-n", smokeNamespace, "exec", "deployment/hello", "--", "/hello"}, args...)...)
}

func (s smoke) service(path string) string {
	s.t.Helper()
	return s.kubectl("-n", smokeNamespace, "get", "service", "hello", "-o", "jsonpath="+path)
}

func (s smoke) allocatable() int {
	s.t.Helper()
	var n int
	out := s.kubectl("get", "node", nodeName, "-o", `jsonpath={.status.allocatable.nvidia\.com/gpu}`)
	if _, err := fmt.Sscan(out, &n); err != nil {
		s.t.Fatalf("allocatable %q: %v", out, err)
	}
	return n
}

func (s smoke) expect(got string, want ...string) {
	s.t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			s.t.Errorf("no %q in %q", w, got)
		}
	}
}

func (s smoke) portForward() {
	cmd := exec.Command(s.kubectlPath, "--kubeconfig", s.kubeconfig, "-n", smokeNamespace, "port-forward", "service/hello", ":80")
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	// "Forwarding from 127.0.0.1:41234 -> 8080"
	line, err := bufio.NewReader(out).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) < 3 {
		s.t.Fatalf("kubectl said %q, %v", line, err)
	}
	s.expect(s.command("curl", "-sS", "-m", "10", "--noproxy", "*", "http://"+fields[2]), "hello-")
}
