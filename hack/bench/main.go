// Command bench measures the data plane against the limit that physics sets: a real batcher process, simulated
// GPU workers, and an open-loop load generator on one machine. It prints a table and writes bin/bench.json.
// docs/benchmarks.md says what each figure means and where each limit comes from.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	// The benchmark starts itself for the parts that must not share its process.
	switch {
	case len(args) == 3 && args[0] == "workers":
		stop := context.AfterFunc(ctx, func() { os.Exit(0) }) // nothing to drain
		defer stop()
		return serveWorkers(ctx, strings.Split(args[1], ","), args[2])
	case len(args) == 2 && (args[0] == "bare" || args[0] == "parked"):
		l, err := net.Listen("tcp", args[1])
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = l.Close() })
		defer stop()
		if err := serveBare(l, args[0] == "parked"); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := fs.String("scenario", "", "run only these, separated by commas")
	runs := fs.Int("runs", 1, "runs of each scenario; the figures are medians")
	long := fs.Bool("long", false, "also run the scenarios that are not of the data plane's limits (standalone gateways, quota), and the soak")
	soak := fs.Duration("soak", 10*time.Minute, "length of the soak")
	out := fs.String("o", "bin/bench.json", "where the figures go")
	batcher := fs.String("batcher", "", "batcher to measure; default: built from ./cmd/batcher")
	gateway := fs.String("gateway", "", "standalone gateway to measure; default: built from ./cmd/gateway")
	gpuworker := fs.String("gpuworker", "", "worker for crash and churn; default: built from ./cmd/gpuworker")
	profile := fs.String("cpu-profile", "", "let the batcher write a CPU profile of its life to this file (of the last run)")
	seed := fs.Uint64("seed", 1, "seed of the arrivals; the n-th run uses seed+n")
	realtime := fs.Bool("realtime", true, "give the simulated workers real-time priority, as they stand for other machines (not where each is a process)")
	strict := fs.Bool("strict", false, "fail when a target is missed")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *runs < 1 || fs.NArg() > 0 {
		return fmt.Errorf("want -runs of at least 1 and no arguments, got %d and %q", *runs, fs.Args())
	}
	if !*long && !slices.Contains(strings.Split(*only, ","), "soak") {
		*soak = 0
	}
	chosen, err := choose(scenarios(*soak), *only, *long)
	if err != nil {
		return err
	}
	bin, err := build(ctx, *batcher, *gateway, *gpuworker)
	if err != nil {
		return err
	}
	bin.realtime = *realtime
	results, names := map[string]*result{}, []string{}
	fl := &floors{bin: bin, runs: *runs, seed: *seed, known: map[float64][2]float64{}}
	var failed []error
	for _, s := range withCompared(chosen, scenarios(*soak)) {
		fmt.Fprintf(os.Stderr, "%s: %s\n", s.name, s.about)
		r, err := runScenario(ctx, s, bin, *runs, *seed, *profile, fl, results[s.against])
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failed = append(failed, fmt.Errorf("%s: %w", s.name, err))
			continue // the others are still worth knowing
		}
		results[s.name] = r
		names = append(names, s.name)
	}
	if err := writeTable(os.Stdout, names, results); err != nil {
		return err
	}
	if err := writeJSON(*out, results); err != nil {
		return err
	}
	for _, r := range results {
		if r.Wrong > 0 || *strict && len(r.Missed) > 0 {
			failed = append(failed, errors.New("an answer was wrong or a target was missed: see the table"))
			break
		}
	}
	return errors.Join(failed...)
}

// withCompared puts before each scenario the one that it is compared with, unless that runs earlier anyway.
func withCompared(chosen, all []scenario) []scenario {
	var out []scenario
	has := func(name string) bool {
		return slices.ContainsFunc(out, func(s scenario) bool { return s.name == name })
	}
	for _, s := range chosen {
		for _, base := range all {
			if base.name == s.against && !has(base.name) {
				out = append(out, base)
			}
		}
		if !has(s.name) {
			out = append(out, s)
		}
	}
	return out
}

// runScenario runs a scenario several times. base is the result of the scenario that it is compared with, or nil.
func runScenario(ctx context.Context, s scenario, bin binaries, runs int, seed uint64, profile string, fl *floors, base *result) (*result, error) {
	var rs []*result
	for i := range runs {
		one := func() (*result, error) { return measure(ctx, s, bin, seed+uint64(i), profile) }
		if slices.ContainsFunc(s.targets, func(b bound) bool { return b.figure == cpuOverFloor }) {
			measured := one
			one = func() (*result, error) { return fl.around(ctx, s.rate, seed+uint64(i), measured) }
		}
		r, err := one()
		if err != nil {
			return nil, err
		}
		rs = append(rs, r)
	}
	r := median(rs)
	if s.rate >= leastFloorRate && !s.soak {
		if err := fl.compare(ctx, r, s.rate); err != nil {
			return nil, err
		}
	}
	if base != nil {
		r.Derived["p95_over_"+s.against+"_ms"] = round(r.P95Ms-base.P95Ms, 2)
	}
	r.Missed = missed(r, s.targets)
	return r, nil
}

// choose returns the scenarios that are named, or all but those that want to be named; with long, all.
func choose(all []scenario, only string, long bool) ([]scenario, error) {
	if only == "" {
		return slices.DeleteFunc(slices.Clone(all), func(s scenario) bool { return s.named && !long }), nil
	}
	var names []string
	for _, s := range all {
		names = append(names, s.name)
	}
	var out []scenario
	for n := range strings.SplitSeq(only, ",") {
		i := slices.Index(names, n)
		if i < 0 {
			return nil, fmt.Errorf("no scenario %q: there are %s", n, strings.Join(names, ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

// build makes the programs under test from this tree, unless they are given.
func build(ctx context.Context, batcher, gateway, gpuworker string) (binaries, error) {
	self, err := os.Executable()
	if err != nil {
		return binaries{}, err
	}
	b := binaries{self: self, batcher: batcher, gateway: gateway, gpuworker: gpuworker}
	for _, p := range []struct {
		path *string
		name string
	}{{&b.batcher, "batcher"}, {&b.gateway, "gateway"}, {&b.gpuworker, "gpuworker"}} {
		if *p.path != "" {
			continue
		}
		*p.path = filepath.Join("bin", "bench-"+p.name)
		cmd := exec.CommandContext(ctx, "go", "build", "-o", *p.path, "./cmd/"+p.name)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return b, fmt.Errorf("build cmd/%s (run this from the repository's root): %w", p.name, err)
		}
	}
	return b, nil
}

// writeJSON adds the results to those that the file has of other scenarios.
func writeJSON(path string, results map[string]*result) error {
	doc := struct {
		Scenarios map[string]*result `json:"scenarios"`
	}{map[string]*result{}}
	if old, err := os.ReadFile(path); err == nil {
		_ = json.Unmarshal(old, &doc) // an unreadable file is replaced
	}
	if doc.Scenarios == nil {
		doc.Scenarios = map[string]*result{}
	}
	for n, r := range results {
		doc.Scenarios[n] = r
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
