package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A target is one binary that build makes: its package, and the module whose version it carries.
type target struct {
	name   string
	pkg    string
	module string
}

const kubernetesModule = "k8s.io/kubernetes"

// targets are in the order that lets a test environment (etcd and the API server) start first.
var targets = []target{
	{"etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"},
	{"kube-apiserver", kubernetesModule + "/cmd/kube-apiserver", kubernetesModule},
	{"kubectl", kubernetesModule + "/cmd/kubectl", kubernetesModule},
	{"kubelet", kubernetesModule + "/cmd/kubelet", kubernetesModule},
	{"kube-controller-manager", kubernetesModule + "/cmd/kube-controller-manager", kubernetesModule},
	{"kube-scheduler", kubernetesModule + "/cmd/kube-scheduler", kubernetesModule},
	{"kube-proxy", kubernetesModule + "/cmd/kube-proxy", kubernetesModule},
	{"pause", "./pause", ""},
}

func runBuild(ctx context.Context, args []string) error {
	fs := newFlags("build", "")
	l := layoutFlags(fs)
	only := fs.String("only", "", "comma-separated names to build instead of all: "+strings.Join(targetNames(), ","))
	force := fs.Bool("force", false, "build even what is up to date")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	if err := l.resolve(); err != nil {
		return err
	}
	wanted, err := selectTargets(*only)
	if err != nil {
		return err
	}
	return build(ctx, *l, wanted, *force)
}

func targetNames() []string {
	var names []string
	for _, t := range targets {
		names = append(names, t.name)
	}
	return names
}

// selectTargets returns the named targets in build order; an empty list means all of them.
func selectTargets(only string) ([]target, error) {
	if only == "" {
		return targets, nil
	}
	names := strings.Split(only, ",")
	for _, n := range names {
		if !slices.Contains(targetNames(), n) {
			return nil, fmt.Errorf("--only: unknown binary %q, choose from %s", n, strings.Join(targetNames(), ","))
		}
	}
	var wanted []target
	for _, t := range targets {
		if slices.Contains(names, t.name) {
			wanted = append(wanted, t)
		}
	}
	return wanted, nil
}

// missingBinaries names what up needs and build has not made.
func missingBinaries(l layout) []target {
	var missing []target
	for _, t := range targets {
		if _, err := os.Stat(l.binary(t.name)); err != nil {
			missing = append(missing, t)
		}
	}
	return missing
}

func build(ctx context.Context, l layout, wanted []target, force bool) error {
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("no `go` in PATH: install Go 1.26 or newer from https://go.dev/dl and try again")
	}
	b := builder{module: filepath.Join(root, "hack", "localcluster"), layout: l}
	if err := os.MkdirAll(l.binaries, 0o755); err != nil {
		return err
	}
	started, built := time.Now(), 0
	for i, t := range wanted {
		stamp, err := b.stamp(ctx, t)
		if err != nil {
			return err
		}
		label := fmt.Sprintf("[%d/%d] %s", i+1, len(wanted), strings.TrimSpace(t.name+" "+stamp.version))
		if !force && b.upToDate(t, stamp) {
			fmt.Println(label, "is up to date")
			continue
		}
		if err := b.compile(ctx, t, stamp, label); err != nil {
			return err
		}
		built++
	}
	fmt.Printf("%d built, %d up to date, in %s: %s\n", built, len(wanted)-built, time.Since(started).Round(time.Second), l.binaries)
	return nil
}

type builder struct {
	module string
	layout layout
	goVer  string
}

// A buildStamp is what a binary depends on; it lies beside the binary and decides whether it is up to date.
type buildStamp struct {
	version string
	flags   string
	goVer   string
}

func (s buildStamp) String() string {
	return fmt.Sprintf("version %s\ngo %s\nldflags %s\n", s.version, s.goVer, s.flags)
}

func (b *builder) stamp(ctx context.Context, t target) (buildStamp, error) {
	if b.goVer == "" {
		out, err := b.goOutput(ctx, "env", "GOVERSION")
		if err != nil {
			return buildStamp{}, err
		}
		b.goVer = out
	}
	s := buildStamp{goVer: b.goVer, flags: "-s -w"}
	if t.module == "" {
		return s, nil
	}
	kubernetes, err := b.goOutput(ctx, "list", "-m", "-f", "{{.Version}}", kubernetesModule)
	if err != nil {
		return s, err
	}
	s.version = kubernetes
	if t.module != kubernetesModule {
		if s.version, err = b.goOutput(ctx, "list", "-m", "-f", "{{.Version}}", t.module); err != nil {
			return s, err
		}
	}
	s.flags = linkerFlags(kubernetes)
	return s, nil
}

// linkerFlags gives the binaries their version (without it they say v0.0.0-master, and kubectl warns of skew) and
// strips symbols, a third of their size.
func linkerFlags(kubernetes string) string {
	parts := strings.SplitN(strings.TrimPrefix(kubernetes, "v"), ".", 3)
	const v = "k8s.io/component-base/version."
	return fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", v, kubernetes, v, parts[0], v, parts[1])
}

func (b *builder) stampFile(t target) string {
	return filepath.Join(b.layout.binaries, "."+t.name+".stamp")
}

func (b *builder) upToDate(t target, s buildStamp) bool {
	if _, err := os.Stat(b.layout.binary(t.name)); err != nil {
		return false
	}
	have, err := os.ReadFile(b.stampFile(t))
	return err == nil && string(have) == s.String()
}

func (b *builder) compile(ctx context.Context, t target, s buildStamp, label string) error {
	started := time.Now()
	fmt.Println(label, "building")
	// -p is left alone and no flag differs between targets, so that all of them share one build cache.
	cmd := b.goCommand(ctx, "build", "-ldflags", s.flags, "-o", b.layout.binary(t.name), t.pkg)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	// A line every 15 s: the API server takes minutes on two cores, and a silent terminal looks like a hang.
	ticker := time.NewTicker(15 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			fmt.Printf("%s still building, %s\n", label, time.Since(started).Round(time.Second))
		case err := <-done:
			if err != nil {
				return fmt.Errorf("building %s failed: %w\n%s", t.name, err, output.String())
			}
			fmt.Printf("%s built in %s\n", label, time.Since(started).Round(time.Second))
			return os.WriteFile(b.stampFile(t), []byte(s.String()), 0o644)
		}
	}
}

func (b *builder) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.module
	// Static binaries need no C library on the node, and no C compiler here. GOWORK is off because a workspace would
	// unify the versions of this module with the operator's; VCS stamping fails where git is absent or the checkout belongs to someone else.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-buildvcs=false")
	return cmd
}

func (b *builder) goOutput(ctx context.Context, args ...string) (string, error) {
	out, err := b.goCommand(ctx, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("go %s: %s", strings.Join(args, " "), strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
