// Command simulate replays a load through a pool in virtual time: the same batching, zone, scaling and quota
// code as the data plane and the operator run, with GPU workers, nodes and clients that are modelled. It
// says what the clients would have got, what the operator would have done and why, and what it would have
// cost.
//
//	simulate -pool pool.yaml -load steady,rate=1000 -duration 1h
//	simulate -pool pool.yaml -trace trace.csv -rate 1000 -picture run.png -csv run.csv
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"sluice.dev/sluice/hack/simulate/load"
	"sluice.dev/sluice/hack/simulate/picture"
	"sluice.dev/sluice/hack/simulate/pool"
	"sluice.dev/sluice/hack/simulate/report"
	"sluice.dev/sluice/hack/simulate/sim"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

// config is the command line.
type config struct {
	pool, trace, shape, mix string
	duration                time.Duration
	rateScale, rate         float64
	output, csv, picture    string
	price                   float64
	options                 sim.Options
}

func parse(args []string) (config, error) {
	var c config
	f := flag.NewFlagSet("simulate", flag.ContinueOnError)
	f.StringVar(&c.pool, "pool", "", "YAML `file` with one InferencePool and any InferenceTenants")
	f.StringVar(&c.trace, "trace", "", "CSV `file` with TIMESTAMP, ContextTokens, GeneratedTokens")
	f.StringVar(&c.shape, "load", "", "generator instead of a trace, one of:\n"+load.Shapes)
	f.DurationVar(&c.duration, "duration", 0, "length of a generated load (1h), or how much of a trace")
	f.Float64Var(&c.rateScale, "rate-scale", 1, "multiplies the rate: each arrival is replicated and moved by up to 5 s")
	f.Float64Var(&c.rate, "rate", 0, "the same, to this mean rate in requests/s")
	f.StringVar(&c.mix, "mix", "", "shares of the tiers such as enterprise=20,paid=30,free=50 (equal)")
	f.IntVar(&c.options.Workers, "workers", 0, "workers at the beginning (minReplicas)")
	f.IntVar(&c.options.GPUs, "gpus", 0, "workers that the cluster has room for (all)")
	f.DurationVar(&c.options.ColdStart, "cold-start", 0, "what a worker really takes to start (the pool's coldStart)")
	f.DurationVar(&c.options.BatcherStart, "batcher-start", 5*time.Second, "what a batcher takes to start")
	f.DurationVar(&c.options.Copies, "copies", 10*time.Millisecond, "what a batch takes beside the inference time")
	f.Float64Var(&c.options.JitterPercent, "jitter", 2, "percent by which the inference time differs from batch to batch")
	f.Uint64Var(&c.options.Seed, "seed", 1, "of everything that is drawn by chance")
	f.Func("fail", "failure at a given time, may be given again, one of:\n"+sim.Failures, func(s string) error {
		x, err := sim.ParseFailure(s)
		c.options.Failures = append(c.options.Failures, x)
		return err
	})
	f.Float64Var(&c.options.RerouteFailsPercent, "reroute-fails", 0, "percent of the requests handed to another pool (degrade) that get no answer there")
	f.StringVar(&c.output, "o", "text", "text or json")
	f.StringVar(&c.csv, "csv", "", "write the time series to this `file`")
	f.StringVar(&c.picture, "picture", "", "draw the run into this PNG `file`")
	f.Float64Var(&c.price, "price", 0, "of a worker-hour, to state the cost in money")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	switch {
	case f.NArg() > 0:
		return c, fmt.Errorf("unknown argument %q", f.Arg(0))
	case c.pool == "":
		return c, errors.New("-pool is missing")
	case (c.trace == "") == (c.shape == ""):
		return c, errors.New("give one of -trace and -load")
	case c.output != "text" && c.output != "json":
		return c, fmt.Errorf("-o is %q, want text or json", c.output)
	case !(c.rateScale > 0) || c.rate < 0:
		return c, errors.New("-rate-scale and -rate must be positive")
	case c.rateScale != 1 && c.rate > 0:
		return c, errors.New("give one of -rate-scale and -rate")
	case c.duration < 0 || c.options.ColdStart < 0 || c.options.BatcherStart < 0 || c.options.Copies < 0:
		return c, errors.New("durations must not be negative")
	case c.options.JitterPercent < 0 || c.options.JitterPercent >= 100:
		return c, errors.New("-jitter must be at least 0 and below 100")
	case !(c.options.RerouteFailsPercent >= 0 && c.options.RerouteFailsPercent <= 100):
		return c, errors.New("-reroute-fails must be 0 to 100")
	}
	return c, nil
}

func run(args []string, out io.Writer) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	set, err := pool.Read(c.pool)
	if err != nil {
		return err
	}
	l, err := c.load(set)
	if err != nil {
		return err
	}
	res, err := sim.Run(set, l, c.options)
	if err != nil {
		return err
	}
	s := report.Summarize(res)
	if c.csv != "" {
		if err := write(c.csv, func(w io.Writer) error { return report.CSV(w, res) }); err != nil {
			return err
		}
	}
	if c.picture != "" {
		if err := write(c.picture, func(w io.Writer) error { return picture.Draw(w, res, s) }); err != nil {
			return err
		}
	}
	if c.output == "json" {
		return s.JSON(out)
	}
	return s.Text(out, c.price)
}

// load reads or makes the requests.
func (c config) load(set pool.Set) (load.Load, error) {
	var tiers []string
	for _, t := range set.Pool.Spec.Tiers {
		tiers = append(tiers, t.Name)
	}
	mix, err := load.ParseMix(c.mix, tiers)
	if err != nil {
		return load.Load{}, err
	}
	var l load.Load
	if c.trace != "" {
		if l, err = load.ReadTrace(c.trace); err == nil {
			l = l.Cut(c.duration)
		}
	} else {
		d := c.duration
		if d == 0 {
			d = time.Hour
		}
		l, err = load.Generate(c.shape, d, c.options.Seed)
	}
	if err != nil {
		return l, err
	}
	factor := c.rateScale
	if mean := l.Mean(); c.rate > 0 && mean > 0 {
		factor = c.rate / mean
	}
	if factor != 1 {
		l = l.Scale(factor, c.options.Seed)
		l.Name += fmt.Sprintf(", rate x %s", strings.TrimSuffix(fmt.Sprintf("%.1f", factor), ".0"))
	}
	l.Assign(mix, sim.Tenants(set), c.options.Seed)
	return l, nil
}

// write makes a file with content.
func write(path string, content func(io.Writer) error) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return content(f)
}
