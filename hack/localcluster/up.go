package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func runUp(ctx context.Context, args []string) error {
	fs := newFlags("up", "")
	l := layoutFlags(fs)
	gpus := fs.Int("gpus", 8, "number of simulated nvidia.com/gpu devices")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	if *gpus < 0 || *gpus > maxGPUs {
		return fmt.Errorf("--gpus must be 0..%d", maxGPUs)
	}
	if err := l.resolve(); err != nil {
		return err
	}
	if err := requireHost(); err != nil {
		return err
	}
	return up(ctx, *l, *gpus)
}

// progress prints one line a step with the time since the start.
type progress struct {
	mu      sync.Mutex
	started time.Time
}

func (p *progress) step(name, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Printf("%6.1fs  %-24s %s\n", time.Since(p.started).Seconds(), name, fmt.Sprintf(format, args...))
}

func up(ctx context.Context, l layout, gpus int) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := checkOwner(l, ownerFile); err != nil {
		return err
	}
	if packages := missingPackages(); len(packages) > 0 {
		if err := installPackages(ctx, packages, func(line string) { fmt.Println(line) }); err != nil {
			return err
		}
	}
	if missing := missingBinaries(l); len(missing) > 0 {
		fmt.Printf("%d binaries are missing, building them first (about 10 minutes on 2 cores, once)\n", len(missing))
		if err := build(ctx, l, missing, false); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	list := components(l, self, findProgram("containerd"), gpus)
	if allRunning(l, list) {
		if err := apiProbe(l, "/readyz")(ctx); err == nil {
			fmt.Println("the cluster is already running (localcluster status shows it)")
			if have, err := askGPUs(l, gpuRequest{Op: "list"}); err == nil && len(have.GPUs) != gpus {
				fmt.Printf("it has %d GPUs; --gpus takes effect after localcluster down\n", len(have.GPUs))
			}
			return finish(l)
		}
	}
	p := &progress{started: time.Now()}
	if err := prepareHost(l, p); err != nil {
		return err
	}
	if err := startAll(ctx, l, list, p); err != nil {
		return fmt.Errorf("%w\nwhat did start keeps running: fix the cause and run up again, or run down", err)
	}
	if err := awaitNode(ctx, l, p); err != nil {
		return err
	}
	p.step("cluster", "up")
	return finish(l)
}

func prepareHost(l layout, p *progress) error {
	if err := checkCollisions(l); err != nil {
		return err
	}
	if err := checkPorts(l); err != nil {
		return err
	}
	if err := os.MkdirAll(l.state, 0o755); err != nil {
		return err
	}
	loadModules()
	if err := recordHost(l); err != nil {
		return err
	}
	if err := takeOwnership(l, ownerFile); err != nil {
		return err
	}
	if err := writePKI(l, time.Now()); err != nil {
		return err
	}
	if err := writeConfigs(l); err != nil {
		return err
	}
	p.step("configuration", "certificates and files in %s", l.state)
	for _, step := range []func() error{setSysctls, setUpBridge, applyNFTables, makeCgroups} {
		if err := step(); err != nil {
			return err
		}
	}
	version := "v1"
	if unifiedHierarchy() {
		version = "v2"
	}
	p.step("host", "bridge %s %s, nftables, cgroups %s", bridgeName, nodeCIDR, version)
	return nil
}

func allRunning(l layout, list []component) bool {
	return !slices.ContainsFunc(list, func(c component) bool {
		_, alive := readPID(l, c.name)
		return !alive
	})
}

// startAll starts every component as soon as those it needs are healthy, and images once containerd is.
func startAll(ctx context.Context, l layout, list []component, p *progress) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	healthy := map[string]chan struct{}{}
	for _, c := range list {
		healthy[c.name] = make(chan struct{})
	}
	var group sync.WaitGroup
	for _, c := range list {
		group.Go(func() {
			for _, need := range c.needs {
				select {
				case <-healthy[need]:
				case <-ctx.Done():
					return
				}
			}
			if err := startOne(ctx, l, c, p); err != nil {
				cancel(err)
				return
			}
			if c.name == "containerd" {
				if err := loadPauseImage(ctx, l); err != nil {
					cancel(err)
					return
				}
			}
			close(healthy[c.name])
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

func startOne(ctx context.Context, l layout, c component, p *progress) error {
	id, alive := readPID(l, c.name)
	exited := make(<-chan struct{})
	if !alive {
		var err error
		if id, exited, err = start(l, c); err != nil {
			return fmt.Errorf("starting %s: %w", c.name, err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not healthy within %s", startDeadline))
	defer cancel()
	for {
		err := c.health(ctx)
		if err == nil {
			p.step(c.name, "healthy (pid %d)", id.PID)
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("%s exited:\n%s", c.name, logTail(l, c.name))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; last answer: %w\n%s", c.name, context.Cause(ctx), err, logTail(l, c.name))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// awaitNode waits until the node takes pods and offers the GPUs that are healthy.
func awaitNode(ctx context.Context, l layout, p *progress) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	var since time.Time
	if info, err := os.Stat(l.pidFile("kubelet")); err == nil {
		since = info.ModTime().Truncate(time.Second) // a heartbeat has whole seconds
	}
	why := ""
	for {
		if why = nodeNotReady(ctx, l, since); why == "" {
			p.step("node "+nodeName, "Ready, its GPUs are offered")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s is not ready: %s\n%s", nodeName, why, logTail(l, "kubelet"))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// nodeNotReady says what is missing, or "".
func nodeNotReady(ctx context.Context, l layout, since time.Time) string {
	node, err := getNode(ctx, l)
	if err != nil {
		return err.Error()
	}
	if ready, message := node.ready(since); !ready {
		return message
	}
	reply, err := askGPUs(l, gpuRequest{Op: "list"})
	if err != nil {
		return err.Error()
	}
	want, have := countHealthy(reply.GPUs), node.Status.Allocatable[gpuResource]
	if have != strconv.Itoa(want) && (want > 0 || have != "") {
		return fmt.Sprintf("it offers %s GPUs instead of %d", orNone(have), want)
	}
	return ""
}

// finish writes the person's kubeconfig and says how to use it.
func finish(l layout) error {
	data, err := os.ReadFile(l.componentConfig("admin"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(l.kubeconfig), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(l.kubeconfig, data, 0o600); err != nil {
		return err
	}
	// Under sudo the file is for the person who called it, or kubectl would need sudo too.
	if uid, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil {
		if err := os.Chown(l.kubeconfig, uid, -1); err != nil {
			return err
		}
	}
	fmt.Printf("export KUBECONFIG=%s\n", l.kubeconfig)
	if !strings.Contains(os.Getenv("PATH"), l.binaries) {
		fmt.Printf("export PATH=%s:$PATH   # kubectl\n", l.binaries)
	}
	return nil
}
