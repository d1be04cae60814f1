// Command benchoperator measures the operator: a real etcd and API server, the operator as its own process,
// and fakes for everything else that a cluster has (see kubelets and dataPlane). It prints a table and writes
// bin/bench-operator.json; docs/benchmarks.md says what each figure means. Run it by `make bench-operator`.
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

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// options are the flags.
type options struct {
	pools, big int
	steady     time.Duration
	settle     time.Duration
	out        string
	binary     string
	keep       bool
	strict     bool
}

func main() {
	// A terminal that is closed must not leave an API server behind either.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctrl.SetLogger(logr.Discard()) // the libraries'; what goes wrong is returned
	klog.SetLogger(logr.Discard())
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-operator:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("benchoperator", flag.ContinueOnError)
	fs.IntVar(&o.pools, "pools", 200, "pools")
	fs.IntVar(&o.big, "big", 1000, "pools of the second size; 0 measures only the first")
	fs.DurationVar(&o.steady, "steady", 2*time.Minute, "for how long a fleet in which nothing happens is watched")
	fs.DurationVar(&o.settle, "settle", 2*time.Minute, "how long to wait at most for the writes of a new fleet to end")
	fs.StringVar(&o.out, "o", "bin/bench-operator.json", "where the figures go")
	fs.StringVar(&o.binary, "manager", "bin/manager", "the operator to measure")
	fs.BoolVar(&o.keep, "keep", false, "keep the operators' logs")
	fs.BoolVar(&o.strict, "strict", false, "fail when a target is missed")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 || o.pools < 1 || o.big != 0 && o.big <= o.pools || o.steady <= 0 {
		return o, fmt.Errorf("want -pools of at least 1, -big 0 or more than -pools, -steady above 0 and no arguments, got %d, %d, %s and %q", o.pools, o.big, o.steady, fs.Args())
	}
	return o, nil
}

func run(ctx context.Context, o options) error {
	r := &result{DecideMicros: decideMicros()}
	say("scaling.Decide takes %.2f us", r.DecideMicros)
	dir, err := os.MkdirTemp("", "bench-operator-")
	if err != nil {
		return err
	}
	if o.keep {
		say("logs are in %s", dir)
	} else {
		defer func() { _ = os.RemoveAll(dir) }()
	}
	if err := measure(ctx, o, dir, r); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	if err := r.table(os.Stdout); err != nil {
		return err
	}
	if o.strict && len(r.Missed) > 0 {
		return fmt.Errorf("missed: %q", r.Missed)
	}
	return nil
}

// measure fills r and writes it, after each fleet. Whatever it starts has ended when it returns.
func measure(ctx context.Context, o options, dir string, r *result) error {
	say("starting etcd and kube-apiserver")
	api, err := startAPIServer(ctx, dir)
	if err != nil {
		return err
	}
	defer api.stop()
	plane := newDataPlane()
	defer plane.stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes, err := startKubelets(ctx, api, plane)
	if err != nil {
		return err
	}
	b := &bench{api: api, plane: plane, kubelets: nodes, binary: o.binary, dir: dir, settling: o.settle}
	if b.leader, err = startManager(o.binary, dir, "first", api, images("1")...); err != nil {
		return err
	}
	defer func() { b.leader.Kill() }()
	if err := b.grow(ctx, o.pools); err != nil {
		return err
	}
	if r.figures, err = b.measureFleet(ctx, o.steady); err != nil {
		return err
	}
	say("failover")
	if err := b.failover(ctx, &r.failoverFigures); err != nil {
		return fmt.Errorf("failover: %w", err)
	}
	say("upgrade")
	if r.UpgradeTemplateChanges, err = b.upgrade(ctx); err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	if r.ErrorsLogged, err = errorsLogged(dir); err != nil {
		return err
	}
	if err := r.write(o.out); err != nil || o.big == 0 {
		return err
	}
	// What was measured so far stands, whatever becomes of the larger fleet.
	if err := b.grow(ctx, o.big); err != nil {
		return err
	}
	big, err := b.measureFleet(ctx, o.steady)
	if err != nil {
		return err
	}
	r.Big = &big
	if r.ErrorsLogged, err = errorsLogged(dir); err != nil {
		return err
	}
	return r.write(o.out)
}
