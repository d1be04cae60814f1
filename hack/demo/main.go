// Command demo shows Sluice's main job on a real Kubernetes: a pool is applied, answers requests, is
// overloaded until the operator adds workers and free users are shed, and calms down again until a worker
// is drained and removed. It uses the cluster of KUBECONFIG, else kind where Docker runs, else the local
// cluster that hack/localcluster builds from Kubernetes' own Go modules.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	installOnly := flag.Bool("install-only", false, "bring up a cluster and install the operator, nothing else")
	keep := flag.Bool("keep", false, "leave the cluster, the operator and the pool at the end")
	down := flag.Bool("down", false, "remove what the demo left, and the cluster if the demo made it")
	envFile := flag.String("env", "", "write KUBECONFIG and SLUICE_KUBECTL for the shell into this file")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *installOnly, *keep, *down, *envFile); err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, installOnly, keep, down bool, envFile string) error {
	began := time.Now()
	c, err := pickCluster(ctx)
	if err != nil {
		return err
	}
	if down {
		return c.remove(ctx)
	}
	title("1. A Kubernetes: %s", c.describe())
	if err := c.up(ctx); err != nil {
		return err
	}
	if envFile != "" {
		if err := c.writeEnv(envFile); err != nil {
			return err
		}
	}
	title("2. The operator")
	if err := c.install(ctx); err != nil {
		return err
	}
	if installOnly {
		note("installed after %s", time.Since(began).Round(time.Second))
		return nil
	}
	if err := story(ctx, c); err != nil {
		c.explain(ctx)
		return err
	}
	if keep {
		title("Left running, as asked")
		note("export KUBECONFIG=%s; %s get slp -w        (make demo-down removes it)", c.kubeconfig, c.kubectlPath)
		return nil
	}
	title("Cleaning up")
	if err := c.remove(ctx); err != nil {
		return err
	}
	note("the whole demo took %s", time.Since(began).Round(time.Second))
	return nil
}

func title(format string, args ...any) {
	fmt.Printf("\n\033[1m== "+format+"\033[0m\n", args...)
}

func note(format string, args ...any) { fmt.Printf("   "+format+"\n", args...) }
