package main

import (
	"bytes"
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
