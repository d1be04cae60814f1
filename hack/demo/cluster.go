package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Where the demo finds a Kubernetes.
const (
	kindExplicit = "explicit" // KUBECONFIG names it; nothing but Sluice itself is installed and removed
	kindKind     = "kind"     // made by the demo in Docker
	kindLocal    = "local"    // hack/localcluster
)

const (
	namespace       = "sluice-demo"
	systemNamespace = "sluice-system"
	kindName        = "sluice"
	localKubeconfig = "bin/localcluster.kubeconfig"
)

var binaries = []string{"manager", "batcher", "gateway", "gpuworker", "loadgen"}

type cluster struct {
	kind        string
	kubeconfig  string
	kubectlPath string
	prefix, tag string
}

// pickCluster decides where the demo runs: an explicit KUBECONFIG, else kind where Docker runs, else the
// local cluster.
func pickCluster(ctx context.Context) (*cluster, error) {
	c := &cluster{
		prefix:      envOr("IMAGE_PREFIX", "sluice.dev"),
		tag:         envOr("TAG", "dev"),
		kubectlPath: "kubectl",
	}
	local, err := filepath.Abs(localKubeconfig)
	if err != nil {
		return nil, err
	}
	switch kc := os.Getenv("KUBECONFIG"); {
	case kc != "" && kc != local:
		c.kind, c.kubeconfig = kindExplicit, kc
	case kc == "" && haveKind(ctx):
		c.kind, c.kubeconfig = kindKind, mustAbs("bin/kind.kubeconfig")
	case runtime.GOOS == "linux" && os.Geteuid() == 0 && have("apt-get"):
		c.kind, c.kubeconfig, c.kubectlPath = kindLocal, local, mustAbs("bin/k8s/kubectl")
		return c, nil
	default:
		return nil, errors.New("no Kubernetes to run on. Do one of these:\n" +
			"  - set KUBECONFIG to a cluster's configuration (its nodes must be able to pull your images: make images, push, IMAGE_PREFIX=...)\n" +
			"  - install Docker and kind\n" +
			"  - run as root on Debian or Ubuntu: the demo then builds a Kubernetes from its Go modules")
	}
	if !have("kubectl") {
		return nil, errors.New("kubectl is not on the PATH: install it (https://kubernetes.io/docs/tasks/tools/)")
	}
	return c, nil
}

func (c *cluster) describe() string {
	switch c.kind {
	case kindExplicit:
		return "yours, by KUBECONFIG=" + c.kubeconfig
	case kindKind:
		return "kind, in Docker"
	}
	return "a single node built from Kubernetes' Go modules, without Docker"
}

// up starts the cluster and makes the images known to it.
func (c *cluster) up(ctx context.Context) error {
	switch c.kind {
	case kindLocal:
		if err := c.show(ctx, "make", "--no-print-directory", "cluster-up"); err != nil {
			return err
		}
		if err := c.show(ctx, "make", "--no-print-directory", "cluster-load", "IMAGE_PREFIX="+c.prefix, "TAG="+c.tag); err != nil {
			return err
		}
	case kindKind:
		if out, _ := exec.CommandContext(ctx, "kind", "get", "clusters").Output(); !hasLine(string(out), kindName) {
			if err := c.show(ctx, "kind", "create", "cluster", "--name", kindName, "--kubeconfig", c.kubeconfig, "--wait", "2m"); err != nil {
				return err
			}
		}
		if err := c.show(ctx, "make", "--no-print-directory", "images", "IMAGE_PREFIX="+c.prefix, "TAG="+c.tag); err != nil {
			return err
		}
		for _, b := range binaries {
			if err := c.show(ctx, "kind", "load", "docker-image", c.image(b), "--name", kindName); err != nil {
				return err
			}
		}
		// kind's nodes have no GPU and no device plugin: advertise eight by the API, as the documentation of
		// extended resources does.
		node := strings.TrimSpace(c.output(ctx, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
		if err := c.kubectl(ctx, "patch", "node", node, "--subresource=status", "--type=merge",
			"-p", `{"status":{"capacity":{"nvidia.com/gpu":"8"}}}`); err != nil {
			return err
		}
	case kindExplicit:
		if os.Getenv("IMAGE_PREFIX") == "" {
			note("IMAGE_PREFIX is not set: the cluster's nodes must already have %s and its siblings (make images)", c.image("manager"))
		}
	}
	return c.kubectl(ctx, "get", "nodes", "-o", "custom-columns=NODE:.metadata.name,KUBERNETES:.status.nodeInfo.kubeletVersion,GPUS:.status.allocatable.nvidia\\.com/gpu")
}

// install applies config/default with this build's images and waits for the operator.
func (c *cluster) install(ctx context.Context) error {
	manifests, err := exec.CommandContext(ctx, c.kubectlPath, "kustomize", "config/default").Output()
	if err != nil {
		return fmt.Errorf("kubectl kustomize config/default: %w%s", err, stderrOf(err))
	}
	for _, b := range binaries {
		manifests = bytes.ReplaceAll(manifests, []byte("sluice.dev/"+b+":dev"), []byte(c.image(b)))
	}
	note("$ kubectl apply --server-side -k config/default")
	cmd := c.command(ctx, "apply", "--server-side", "--force-conflicts", "-f", "-")
	cmd.Stdin = bytes.NewReader(manifests)
	cmd.Stdout = nil
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl apply: %w", err)
	}
	return c.kubectl(ctx, "-n", systemNamespace, "rollout", "status", "deployment/sluice-controller-manager", "--timeout=120s")
}

// remove takes back everything that the demo made.
func (c *cluster) remove(ctx context.Context) error {
	switch c.kind {
	case kindLocal:
		return c.show(ctx, "make", "--no-print-directory", "cluster-down")
	case kindKind:
		return c.show(ctx, "kind", "delete", "cluster", "--name", kindName, "--kubeconfig", c.kubeconfig)
	}
	if err := c.kubectl(ctx, "delete", "namespace", namespace, "--ignore-not-found"); err != nil {
		return err
	}
	return c.kubectl(ctx, "delete", "--ignore-not-found", "-k", "config/default")
}

// explain prints what a person would look at when the demo failed.
func (c *cluster) explain(ctx context.Context) {
	title("What the cluster says")
	for _, args := range [][]string{
		{"-n", namespace, "get", "slp,pods", "-o", "wide"},
		{"-n", namespace, "describe", "slp"},
		{"-n", systemNamespace, "logs", "-l", "control-plane=controller-manager", "--tail=30"},
	} {
		_ = c.kubectl(context.WithoutCancel(ctx), args...)
	}
}

func (c *cluster) writeEnv(file string) error {
	kubectl, err := exec.LookPath(c.kubectlPath)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("export KUBECONFIG=%q\nexport SLUICE_KUBECTL=%q\nexport SLUICE_CLUSTER=%q\nexport IMAGE_PREFIX=%q\nexport TAG=%q\n",
		c.kubeconfig, kubectl, c.kind, c.prefix, c.tag)
	return os.WriteFile(file, []byte(text), 0o644)
}

func (c *cluster) image(name string) string { return c.prefix + "/" + name + ":" + c.tag }

func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.kubectlPath, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// kubectl runs kubectl and shows the command and what it prints.
func (c *cluster) kubectl(ctx context.Context, args ...string) error {
	note("$ kubectl %s", strings.Join(args, " "))
	if err := c.command(ctx, args...).Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// output runs kubectl quietly; an error is an empty answer.
func (c *cluster) output(ctx context.Context, args ...string) string {
	cmd := c.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = nil, nil
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

func (c *cluster) show(ctx context.Context, name string, args ...string) error {
	note("$ %s %s", name, strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

func haveKind(ctx context.Context) bool {
	return have("kind") && have("docker") && exec.CommandContext(ctx, "docker", "info").Run() == nil
}

func have(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

func hasLine(s, want string) bool {
	for line := range strings.Lines(s) {
		if strings.TrimSpace(line) == want {
			return true
		}
	}
	return false
}

func mustAbs(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		panic(err) // only when the working directory is gone
	}
	return abs
}

func envOr(key, or string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return or
}

func stderrOf(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "\n" + string(exit.Stderr)
	}
	return ""
}
