package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"sluice.dev/sluice/internal/telemetry"
	"sluice.dev/sluice/internal/worker"
	"sluice.dev/sluice/internal/worker/backends/oip"
	"sluice.dev/sluice/internal/worker/backends/python"
	"sluice.dev/sluice/internal/worker/backends/simulated"
)

// Values of --backend.
const (
	backendSimulated = "simulated"
	backendPython    = "python"
	backendOIP       = "oip"
)

// envWarmUpInput is the default of --warmup-input, for a pool that can set environment but no flags.
const envWarmUpInput = "SLUICE_WARMUP_INPUT"

// crashExitCode is the exit code of a simulated crash.
const crashExitCode = 2

type config struct {
	listen  string
	backend string
	grace   time.Duration
	linger  time.Duration
	// otlp is the OpenTelemetry collector, "" for none.
	otlp           string
	pod, namespace string

	options   worker.Options
	simulated simulated.Config
	python    python.Config
	oip       oip.Config
}

func parseFlags(args []string, getenv func(string) string, out io.Writer) (config, error) {
	c := config{pod: getenv("POD_NAME"), namespace: getenv("POD_NAMESPACE")}
	f := flag.NewFlagSet("gpuworker", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&c.listen, "listen", ":9000", "address of batches, state, probes and metrics")
	f.StringVar(&c.backend, "backend", backendSimulated, "what runs a batch: simulated, python or oip")
	f.DurationVar(&c.grace, "grace", 30*time.Second, "longest time from SIGTERM to the exit")
	f.DurationVar(&c.linger, "linger", 500*time.Millisecond, "how long to answer \"draining\" after the last batch before the port closes")

	f.StringVar(&c.otlp, "otlp-endpoint", "", "OpenTelemetry collector (http://HOST:4318) for the spans of batches that come with a trace; empty: none")
	f.IntVar(&c.options.MaxBatch, "max-batch", worker.DefaultMaxBatch, "largest batch, 1 to 1000")
	f.DurationVar(&c.options.BatchTimeout, "batch-timeout", worker.DefaultBatchTimeout, "when a running batch counts as hung: its backend is killed and loaded again")
	f.DurationVar(&c.options.LoadTimeout, "load-timeout", worker.DefaultLoadTimeout, "longest load with its warm-up batch")
	f.StringVar(&c.options.WarmUpInput, "warmup-input", orDefault(getenv(envWarmUpInput), worker.DefaultWarmUpInput), "input that fills the warm-up batch; the environment variable "+envWarmUpInput+" sets its default")
	f.BoolVar(&c.options.SkipWarmUp, "skip-warmup", false, "become ready without a warm-up batch")
	f.BoolVar(&c.options.PredictAPI, "predict-api", false, "also serve POST /v1/models/{model}:predict with {\"instances\": [...]}")

	f.DurationVar(&c.simulated.ServiceTime, "service-time", 100*time.Millisecond, "simulated: time of a batch")
	f.IntVar(&c.simulated.JitterPercent, "jitter-percent", 0, "simulated: spread of the service time to both sides, 0 to 100")
	f.DurationVar(&c.simulated.StartDelay, "start-delay", 0, "simulated: time of a load")
	f.IntVar(&c.simulated.FailPermille, "fail-permille", 0, "simulated: batches of a thousand that fail with an application error")
	f.IntVar(&c.simulated.CrashPermille, "crash-permille", 0, "simulated: batches of a thousand in which this process exits")
	f.IntVar(&c.simulated.HangPermille, "hang-permille", 0, "simulated: batches of a thousand that hang until --batch-timeout")

	f.StringVar(&c.python.Function, "python-function", "", "python: module:function to run")
	f.StringVar(&c.python.Interpreter, "python-interpreter", python.DefaultInterpreter, "python: interpreter, e.g. that of a virtual environment")
	f.StringVar(&c.python.Path, "python-path", "", "python: directory in which the module is looked for first")

	f.StringVar(&c.oip.URL, "oip-url", oip.DefaultURL, "oip: base address of the model server")
	f.StringVar(&c.oip.Model, "oip-model", "", "oip: name of the model")
	f.StringVar(&c.oip.Input, "oip-input", oip.DefaultInput, "oip: name of the BYTES tensor that takes the inputs")
	f.StringVar(&c.oip.Output, "oip-output", oip.DefaultOutput, "oip: name of the BYTES tensor that returns the outputs")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return c, c.check()
}

func (c config) check() error {
	switch {
	case c.options.MaxBatch < 1 || c.options.MaxBatch > 1000:
		return fmt.Errorf("--max-batch is %d, want 1 to 1000", c.options.MaxBatch)
	case c.options.BatchTimeout <= 0 || c.options.LoadTimeout <= 0 || c.grace <= 0:
		return errors.New("--batch-timeout, --load-timeout and --grace must be positive")
	case c.linger < 0:
		return errors.New("--linger must not be negative")
	}
	if c.otlp != "" {
		if err := telemetry.CheckEndpoint(c.otlp); err != nil {
			return fmt.Errorf("--otlp-endpoint: %w", err)
		}
	}
	switch c.backend {
	case backendSimulated:
		return c.simulated.Check()
	case backendPython:
		return c.python.Check()
	case backendOIP:
		return c.oip.Check()
	}
	return fmt.Errorf("--backend is %q, want %s, %s or %s", c.backend, backendSimulated, backendPython, backendOIP)
}

func (c config) newBackend(log *slog.Logger) (worker.Backend, error) {
	switch c.backend {
	case backendPython:
		c.python.Log = log
		return python.New(c.python)
	case backendOIP:
		return oip.New(c.oip)
	}
	sim := c.simulated
	sim.Crash = func() { os.Exit(crashExitCode) }
	return simulated.New(sim), nil
}

func orDefault(v, fallback string) string {
	if v == "" {
		return fallback
	}
	return v
}
