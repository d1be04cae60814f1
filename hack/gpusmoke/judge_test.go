package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/worker/backends/python"
)

func line(fixed, perItem time.Duration) []sample {
	var out []sample
	for _, n := range sizes {
		out = append(out, summarize(n, []time.Duration{time.Hour, fixed + time.Duration(n)*perItem, 0}))
	}
	return out
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		fixed, perItem time.Duration
		want           bool
	}{
		{100 * time.Millisecond, 0, true},
		{100 * time.Millisecond, 400 * time.Microsecond, true},
		{100 * time.Millisecond, 600 * time.Microsecond, false},
		{0, time.Millisecond, false},
	} {
		v := judge(line(c.fixed, c.perItem))
		if d := v.fixed - c.fixed; d < -time.Microsecond || d > time.Microsecond {
			t.Errorf("fixed part %v, want %v", v.fixed, c.fixed)
		}
		if d := v.perItem - c.perItem; d < -time.Microsecond || d > time.Microsecond {
			t.Errorf("per item %v, want %v", v.perItem, c.perItem)
		}
		if v.fixedCost() != c.want || strings.Contains(v.String(), "NOT") == c.want {
			t.Errorf("%v + n x %v: %v", c.fixed, c.perItem, v)
		}
	}
}

func TestFunctionIsMeasuredAtEverySize(t *testing.T) {
	if _, err := exec.LookPath(python.DefaultInterpreter); err != nil {
		t.Skip("no python3 to run")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "m.py"), []byte("def f(inputs):\n    return inputs\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := config{python: python.Config{Function: "m:f", Path: dir}, input: "x", repeat: 1, device: deviceCPU}
	t.Setenv(deviceVariable, "") // run sets it
	if err := run(t.Context(), c, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CPU FIGURES", "On the CPU: ", "m:f loaded in", "\n     1 ", "\n   100 ", "time of a batch of n ="} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}

func TestAnUnknownDeviceIsRefused(t *testing.T) {
	err := run(t.Context(), config{python: python.Config{Function: "m:f"}, repeat: 1, device: "tpu"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), `"tpu", want gpu or cpu`) {
		t.Errorf("got %v", err)
	}
}

// The torch path itself, which no machine without a GPU runs otherwise.
func TestTheBundledFunctionRunsOnTheCPUIfAskedTo(t *testing.T) {
	interpreter := withTorch(t)
	var out bytes.Buffer
	t.Setenv(deviceVariable, "")
	c := config{python: python.Config{Function: defaultFunction, Path: ".", Interpreter: interpreter}, input: "x", repeat: 1, device: deviceCPU}
	if err := run(t.Context(), c, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CPU FIGURES", "smoke:batchstring loaded in", "\n   100 ", "On the CPU: time of a batch"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}

// Without torch, --device cpu fails and says what to do; it measures nothing else in its place.
func TestOnTheCPUWithoutTorchItSaysWhatToDo(t *testing.T) {
	interpreter, err := exec.LookPath(python.DefaultInterpreter)
	if err != nil {
		t.Skip("no python3 to run")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "torch.py"), []byte("raise ModuleNotFoundError(\"No module named 'torch'\")\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", dir)
	t.Setenv(deviceVariable, "")
	c := config{python: python.Config{Function: defaultFunction, Path: ".", Interpreter: interpreter}, repeat: 1, device: deviceCPU}
	err = run(t.Context(), c, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "pip install torch") || !strings.Contains(err.Error(), "No module named 'torch'") {
		t.Errorf("got %v", err)
	}
}

// withTorch is a Python that has torch, named by whoever wants the test to run: on two processors it takes half a minute.
func withTorch(t *testing.T) string {
	t.Helper()
	interpreter := os.Getenv("GPU_SMOKE_PYTHON")
	if interpreter == "" {
		t.Skip("GPU_SMOKE_PYTHON names no Python with torch (apt-get install python3-torch; GPU_SMOKE_PYTHON=/usr/bin/python3)")
	}
	return interpreter
}

func TestWithoutAGPUItSaysSoAndStops(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no nvidia-smi
	var out bytes.Buffer
	if err := run(t.Context(), config{python: python.Config{Function: "no_such:function"}, repeat: 1, device: deviceGPU}, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "No GPU to measure on: nvidia-smi finds none") {
		t.Errorf("got %q", out.String())
	}
}

// fakeProgram puts a program that prints output and ends with status into dir.
func fakeProgram(t *testing.T, dir, name, output string, status int) string {
	t.Helper()
	path := filepath.Join(dir, name)
	script := fmt.Sprintf("#!/bin/sh\necho %q\nexit %d\n", output, status)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWithAGPUButWithoutTorchItSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/bin:/usr/bin")
	fakeProgram(t, dir, "nvidia-smi", "GPU 0: NVIDIA H200", 0)
	for complaint, remedy := range map[string]string{
		"ModuleNotFoundError: No module named 'torch'": "pip install torch",
		"torch.cuda.is_available() is False":           "without CUDA",
		"":                                             "--interpreter",
	} {
		python3 := fakeProgram(t, dir, "python3", complaint, 1)
		var out bytes.Buffer
		c := config{python: python.Config{Function: defaultFunction, Interpreter: python3}, repeat: 1, device: deviceGPU}
		if err := run(t.Context(), c, &out); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"No GPU to measure on", complaint, remedy, "--function module:function", "Nothing was run"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q: %q is missing in %q", complaint, want, &out)
			}
		}
	}
}

// A team's own function needs no torch: it is measured where nvidia-smi names a GPU, and the GPU is named.
func TestATeamsOwnFunctionNeedsNoTorch(t *testing.T) {
	interpreter, err := exec.LookPath(python.DefaultInterpreter)
	if err != nil {
		t.Skip("no python3 to run")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	fakeProgram(t, dir, "nvidia-smi", "GPU 0: NVIDIA H200", 0)
	if err := os.WriteFile(filepath.Join(dir, "m.py"), []byte("import hashlib\ndef f(inputs):\n    return [hashlib.sha256(s.encode()).hexdigest() for s in inputs]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), config{python: python.Config{Function: "m:f", Path: dir, Interpreter: interpreter}, input: "x", repeat: 3, device: deviceGPU}, &out); err != nil {
		t.Fatal(err)
	}
	for _, n := range sizes {
		if !strings.Contains(out.String(), fmt.Sprintf("\n%6d ", n)) {
			t.Errorf("no line for a batch of %d", n)
		}
	}
	for _, want := range []string{"GPU 0: NVIDIA H200", "items/s", "main memory of the process", "fixed-cost function"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}
