// Command gpusmoke measures the service time of a Python function against the batch size, through the very
// backend that a GPU worker runs it with, and says whether it is a fixed-cost function: one whose batch takes
// about the same time whatever its size. That is what the whole design of batching for throughput rests on.
//
//	go run ./hack/gpusmoke                                        a small torch model on this machine's GPU
//	go run ./hack/gpusmoke --function app:batchstring --path .    a team's own function
//
// Where no GPU is, it says so and stops with exit code 0. --device cpu (or GPU_SMOKE_DEVICE=cpu) measures on the
// processor all the same: that tries the whole path, and says nothing of what a GPU would take.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"sluice.dev/sluice/internal/worker"
	"sluice.dev/sluice/internal/worker/backends/python"
)

// The torch function beside this program.
const (
	defaultFunction = "smoke:batchstring"
	defaultPath     = "hack/gpusmoke"
)

// What to measure on. The bundled function reads the variable too.
const (
	deviceVariable = "GPU_SMOKE_DEVICE"
	deviceGPU      = "gpu"
	deviceCPU      = "cpu"
)

type config struct {
	python  python.Config
	input   string
	repeat  int
	device  string // deviceGPU or deviceCPU
	verbose bool
}

func main() {
	var c config
	flag.StringVar(&c.python.Function, "function", defaultFunction, "module:function to measure")
	flag.StringVar(&c.python.Path, "path", "", "directory of the module (default: the working directory; "+defaultPath+" for "+defaultFunction+")")
	flag.StringVar(&c.python.Interpreter, "interpreter", python.DefaultInterpreter, "Python to run it with")
	flag.StringVar(&c.input, "input", strings.Repeat("The quick brown fox jumps over the lazy dog. ", 5), "text of every input")
	flag.IntVar(&c.repeat, "repeat", 7, "batches of each size; the median counts")
	flag.StringVar(&c.device, "device", orElse(os.Getenv(deviceVariable), deviceGPU), "gpu, or cpu to measure on the processor, $"+deviceVariable)
	flag.BoolVar(&c.verbose, "v", false, "show what the function prints")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpusmoke:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c config, out io.Writer) error {
	if c.repeat < 1 {
		return fmt.Errorf("--repeat is %d, want at least 1", c.repeat)
	}
	if c.device != deviceGPU && c.device != deviceCPU {
		return fmt.Errorf("--device is %q, want %s or %s", c.device, deviceGPU, deviceCPU)
	}
	bundled := c.python.Function == defaultFunction
	if bundled && c.python.Path == "" {
		c.python.Path = defaultPath
	}
	if abs, err := filepath.Abs(c.python.Path); err == nil {
		c.python.Path = abs
	}
	if c.device == deviceCPU {
		// The subprocess inherits it: where a GPU is too, the bundled function leaves it alone.
		if err := os.Setenv(deviceVariable, deviceCPU); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "CPU FIGURES: measured on the %d processors of this machine, not on a GPU. A GPU's times and their shape differ.\n", runtime.NumCPU())
	} else {
		gpu, why := findGPU(ctx, c.python.Interpreter, bundled)
		if why != "" {
			_, _ = fmt.Fprintf(out, "No GPU to measure on: %s. Nothing was run (--device cpu, or %s=cpu, runs it on the processor).\n", why, deviceVariable)
			return nil
		}
		_, _ = fmt.Fprintln(out, gpu)
	}
	c.python.Log = slog.New(slog.DiscardHandler)
	if c.verbose {
		c.python.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	backend, err := python.New(c.python)
	if err != nil {
		return err
	}
	start := time.Now()
	instance, err := backend.Load(ctx)
	if err != nil {
		if bundled {
			err = fmt.Errorf("%w; %s", err, remedy(err.Error()))
		}
		return err
	}
	defer func() { _ = instance.Close() }()
	_, _ = fmt.Fprintf(out, "%s loaded in %v\n\n", c.python.Function, time.Since(start).Round(time.Millisecond))
	samples, err := measure(ctx, instance, c, out)
	if err != nil {
		return err
	}
	if m, ok := instance.(worker.MemoryReporter); ok {
		_, _ = fmt.Fprintf(out, "\nmain memory of the process: %d MiB\n", m.MemoryBytes()>>20)
	}
	result := judge(samples).String()
	if c.device == deviceCPU {
		result = "On the CPU: " + result
	}
	_, _ = fmt.Fprintln(out, "\n"+result)
	return nil
}

// findGPU names the GPU, or says why there is none. The bundled function needs torch to see it too.
func findGPU(ctx context.Context, interpreter string, needsTorch bool) (gpu, why string) {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "-L").Output()
	if err != nil {
		return "", "nvidia-smi finds none (" + reason(err) + ")"
	}
	gpu = strings.TrimSpace(string(out))
	if !needsTorch {
		return gpu, ""
	}
	probe := exec.CommandContext(ctx, interpreter, "-c", "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 'torch.cuda.is_available() is False')")
	if msg, err := probe.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(msg)), "\n")
		why := orElse(lines[len(lines)-1], reason(err))
		return "", fmt.Sprintf("%s can't use it: %s; %s", interpreter, why, remedy(why))
	}
	return gpu, ""
}

// remedy says what to do when the bundled function can't have the GPU.
func remedy(why string) string {
	const own = "or measure your own function: --function module:function --path DIR"
	switch {
	case strings.Contains(why, "No module named"):
		return "install torch for that Python (pip install torch), name one that has it with --interpreter, " + own
	case strings.Contains(why, "is_available"):
		return "its torch was built without CUDA, or for a newer driver: install the build for your CUDA version, " + own
	}
	return "name a Python 3 with torch by --interpreter, " + own
}

func reason(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return strings.TrimSpace(string(exit.Stderr))
	}
	return err.Error()
}

func orElse(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// measure runs each size c.repeat times, largest first so that what is allocated or compiled for the largest
// batch is paid before anything is timed, and prints a line for each.
func measure(ctx context.Context, i worker.Instance, c config, out io.Writer) ([]sample, error) {
	batch := func(n int) (time.Duration, error) {
		b := worker.Batch{ID: fmt.Sprint("size-", n), Inputs: make([]string, n)}
		for k := range b.Inputs {
			b.Inputs[k] = c.input
		}
		start := time.Now()
		o, err := i.Run(ctx, b)
		if err == nil && len(o.Outputs) != n {
			err = fmt.Errorf("%d outputs for %d inputs", len(o.Outputs), n)
		}
		return time.Since(start), err
	}
	for _, n := range []int{sizes[len(sizes)-1], sizes[len(sizes)-1], 1, 1} {
		if _, err := batch(n); err != nil {
			return nil, err
		}
	}
	_, _ = fmt.Fprintf(out, "%6s %12s %12s %12s %12s\n", "batch", "median ms", "min ms", "max ms", "items/s")
	var samples []sample
	for _, n := range sizes {
		times := make([]time.Duration, c.repeat)
		for k := range times {
			var err error
			if times[k], err = batch(n); err != nil {
				return nil, err
			}
		}
		s := summarize(n, times)
		samples = append(samples, s)
		_, _ = fmt.Fprintf(out, "%6d %12.2f %12.2f %12.2f %12.0f\n", n, ms(s.median), ms(s.low), ms(s.high), float64(n)/s.median.Seconds())
	}
	return samples, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
