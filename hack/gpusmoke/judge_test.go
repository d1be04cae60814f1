package main

import (
	"bytes"
	"fmt"
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
	c := config{python: python.Config{Function: "m:f", Path: dir}, input: "x", repeat: 1, anyDevice: true}
	if err := run(t.Context(), c, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"m:f loaded in", "\n     1 ", "\n   100 ", "time of a batch of n ="} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}

func TestWithoutAGPUItSaysSoAndStops(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no nvidia-smi
	var out bytes.Buffer
	if err := run(t.Context(), config{python: python.Config{Function: "no_such:function"}, repeat: 1}, &out); err != nil {
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
		c := config{python: python.Config{Function: defaultFunction, Interpreter: python3}, repeat: 1}
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
	if err := run(t.Context(), config{python: python.Config{Function: "m:f", Path: dir, Interpreter: interpreter}, input: "x", repeat: 3}, &out); err != nil {
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
