package python

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

// systemPython is the interpreter behind python3, so that a launcher (pyenv's takes a second) runs once.
var systemPython = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(DefaultInterpreter, "-c", "import sys; print(sys.executable)").Output()
	return strings.TrimSpace(string(out)), err
})

func interpreter(t *testing.T) string {
	t.Helper()
	path, err := systemPython()
	if err != nil {
		t.Skipf("no python3 to run: %v", err)
	}
	return path
}

// logBook keeps what was logged and tells when a line came.
type logBook struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	seen chan string
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(b)
	select {
	case l.seen <- string(b):
	default:
	}
	return len(b), nil
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// wait returns when a line with text has come.
func (l *logBook) wait(t *testing.T, text string) {
	t.Helper()
	for {
		if strings.Contains(l.String(), text) {
			return
		}
		select {
		case <-l.seen:
		case <-t.Context().Done():
			t.Fatalf("%q was never logged:\n%s", text, l)
		}
	}
}

// module writes source as m.py and returns a configuration that runs m:f, and its log.
func module(t *testing.T, source string) (Config, *logBook) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "m.py"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	book := &logBook{seen: make(chan string, 1)}
	return Config{Function: "m:f", Interpreter: interpreter(t), Path: dir, Log: slog.New(slog.NewTextHandler(book, nil))}, book
}

func load(t *testing.T, c Config) *instance {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	i, err := b.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.Close() })
	return i.(*instance)
}

func run(i worker.Instance, inputs ...string) ([]string, error) {
	out, err := i.Run(context.Background(), worker.Batch{Inputs: inputs})
	return out.Outputs, err
}

func wantOutputs(t *testing.T, i worker.Instance, inputs, want []string) {
	t.Helper()
	got, err := run(i, inputs...)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d outputs, want %d", len(got), len(want))
	}
	for k := range want {
		if got[k] != want[k] {
			t.Fatalf("output %d is %.80q, want %.80q", k, got[k], want[k])
		}
	}
}

func wantError(t *testing.T, err error, code, text string) {
	t.Helper()
	var e *worker.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, text) {
		t.Fatalf("error %v, want %s with %q", err, code, text)
	}
}

func dead(i *instance) bool {
	select {
	case <-i.Done():
		return true
	default:
		return false
	}
}

func TestOutputIForInputI(t *testing.T) {
	c, _ := module(t, "def f(inputs):\n    return [s[::-1] for s in inputs]\n")
	i := load(t, c)
	wantOutputs(t, i, []string{"ab", "", "é\x00<>&\u2028", "日本😀"}, []string{"ba", "", "\u2028&><\x00é", "😀本日"})
	if i.ParamsMode() != worker.ParamsNone {
		t.Errorf("parameters %s, want none", i.ParamsMode())
	}
	if m := i.MemoryBytes(); m < 1<<20 {
		t.Errorf("memory %d bytes, want that of a Python process", m)
	}
}

func TestInputsOfOneMebibyte(t *testing.T) {
	c, _ := module(t, "def f(inputs):\n    return inputs\n")
	i := load(t, c)
	inputs := make([]string, 8)
	for k := range inputs {
		inputs[k] = strings.Repeat(string(rune('a'+k)), 1<<20)
	}
	wantOutputs(t, i, inputs, inputs)
}

func TestWhatTheFunctionPrintsGoesToTheLog(t *testing.T) {
	c, book := module(t, `
import os, subprocess, sys
print("while importing")
def f(inputs):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.write(1, b"\x00\x00\x00\x02{}")
    subprocess.run(["echo", "from a child"])
    sys.stdin.read()
    return [s.upper() for s in inputs]
`)
	i := load(t, c)
	wantOutputs(t, i, []string{"a"}, []string{"A"})
	wantOutputs(t, i, []string{"b"}, []string{"B"})
	if err := i.Close(); err != nil { // the log is whole once the process is gone
		t.Fatal(err)
	}
	for _, want := range []string{"while importing", "to stdout", "to stderr", "from a child", "stream=stderr"} {
		book.wait(t, want)
	}
}

func TestExceptionsAreApplicationErrors(t *testing.T) {
	c, book := module(t, `
import sys
class Odd(Exception):
    def __str__(self): return "surrogate \ud800 and " + "x" * 5000
def f(inputs):
    if inputs[0] == "value": raise ValueError("want a number, got é")
    if inputs[0] == "exit": sys.exit(3)
    if inputs[0] == "empty": assert False
    if inputs[0] == "odd": raise Odd()
    return inputs
`)
	i := load(t, c)
	for input, want := range map[string]string{"value": "ValueError: want a number, got é", "exit": "SystemExit: 3", "empty": "AssertionError", "odd": "Odd: surrogate ? and xxx"} {
		_, err := run(i, input)
		wantError(t, err, wire.CodeApplication, want)
		if len(err.Error()) > 2200 {
			t.Errorf("a message of %d bytes", len(err.Error()))
		}
	}
	wantOutputs(t, i, []string{"a"}, []string{"a"})
	book.wait(t, "Traceback")
	book.wait(t, "raise ValueError")
}

func TestUnusableOutputsAreNamed(t *testing.T) {
	c, _ := module(t, `
def f(inputs):
    n = len(inputs)
    kind = inputs[0]
    if kind == "mutate":
        inputs.clear()
        return []
    return {"short": ["a"], "long": ["a"] * (n + 1), "int": ["a", 7], "none": None, "dict": {"a": 1, "b": 2}, "str": "ab",
            "generator": (s for s in inputs), "bytes": [b"a", b"b"], "surrogate": ["a", "\ud800"]}[kind]
`)
	i := load(t, c)
	for kind, want := range map[string]string{
		"short": "returned 1 outputs for 2 inputs", "long": "returned 3 outputs for 2 inputs", "int": "output 1 is int, want str",
		"none": "returned NoneType, want a list of 2 strings", "dict": "returned dict", "str": "returned str", "generator": "returned generator",
		"bytes": "output 0 is bytes", "surrogate": "output 1 is no valid text", "mutate": "returned 0 outputs for 2 inputs",
	} {
		_, err := run(i, kind, "b")
		wantError(t, err, wire.CodeBackend, want)
	}
	if dead(i) {
		t.Error("the process was given up for a bad output")
	}
}

func TestParameters(t *testing.T) {
	n, temperature := 5, 0.5
	batch := worker.Batch{Inputs: []string{"a", "b"}, ItemParams: []wire.Parameters{{MaxTokens: &n, Temperature: &temperature}, {}}}
	given := "{'max_tokens': 5, 'temperature': 0.5}"
	for source, want := range map[string]struct{ mode, first string }{
		"def f(inputs, p): return [str(x) for x in p]":                              {worker.ParamsItem, given},
		"def f(inputs, parameters=None): return [str(x) for x in parameters]":       {worker.ParamsItem, given},
		"def f(inputs, *, params): return [str(x) for x in params]":                 {worker.ParamsItem, given},
		"def f(inputs, size=3, params=None): return [str(size)+str(params[0])]*2":   {worker.ParamsItem, "3" + given},
		"class F:\n  def __call__(self, i, p): return [str(x) for x in p]\nf = F()": {worker.ParamsItem, given},
		"async def f(inputs, p): return [str(x) for x in p]":                        {worker.ParamsItem, given},
		"def f(inputs, batch_size=32): return [str(batch_size)]*len(inputs)":        {worker.ParamsNone, "32"},
		"def f(inputs, *args, **kw): return [str((args, kw))]*len(inputs)":          {worker.ParamsNone, "((), {})"},
		"f = sorted": {worker.ParamsNone, "a"},
	} {
		t.Run(source, func(t *testing.T) {
			c, _ := module(t, source+"\n")
			i := load(t, c)
			if i.ParamsMode() != want.mode {
				t.Errorf("mode %s, want %s", i.ParamsMode(), want.mode)
			}
			out, err := i.Run(t.Context(), batch)
			if err != nil || out.Outputs[0] != want.first {
				t.Errorf("got %q, %v, want %q first", out.Outputs, err, want.first)
			}
			if _, err := run(i, "a", "b"); err != nil { // no parameters at all
				t.Error(err)
			}
		})
	}
}

// A parameter that the pool sets is one of the function's like any other.
func TestTheSwitchOfThePool(t *testing.T) {
	n := 5
	c, _ := module(t, "def f(inputs, p): return [str(x) for x in p]\n")
	out, err := load(t, c).Run(t.Context(), worker.Batch{Inputs: []string{"a", "b", "c"}, ItemParams: []wire.Parameters{
		{MaxTokens: &n, Switch: &wire.Switch{Name: "rerank", Value: "false"}}, {}, {Switch: &wire.Switch{Name: "depth", Value: "low"}}}})
	want := []string{"{'max_tokens': 5, 'rerank': False}", "{}", "{'depth': 'low'}"}
	if err != nil || !slices.Equal(out.Outputs, want) {
		t.Errorf("%q, %v, want %q", out.Outputs, err, want)
	}
}

func TestLoadSaysWhyItFailed(t *testing.T) {
	for source, want := range map[string]string{
		"import no_such_thing":         "ModuleNotFoundError: No module named 'no_such_thing'",
		"def g(): pass":                "has no attribute 'f'",
		"f = 7":                        "m:f is int, want a function",
		"def f(:":                      "SyntaxError",
		"import os; os._exit(9)":       "exit status 9",
		"raise SystemExit('no model')": "SystemExit: no model",
	} {
		t.Run(source, func(t *testing.T) {
			c, _ := module(t, source+"\n")
			b, _ := New(c)
			if _, err := b.Load(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
	t.Run("no interpreter", func(t *testing.T) {
		b, _ := New(Config{Function: "m:f", Interpreter: "/no/such/python"})
		if _, err := b.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/python") {
			t.Errorf("got %v, want the interpreter's name", err)
		}
	})
	for _, name := range []string{"", "f", "m:", ":f", "m:f:g", "m:f; x", "../m:f"} {
		if _, err := New(Config{Function: name}); err == nil {
			t.Errorf("function %q passes", name)
		}
	}
}

func TestVirtualEnvironment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "venv")
	if out, err := exec.Command(interpreter(t), "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Skipf("no venv module: %v: %s", err, out)
	}
	packages, err := filepath.Glob(filepath.Join(dir, "lib", "python*", "site-packages"))
	if err != nil || len(packages) != 1 {
		t.Fatal(packages, err)
	}
	if err := os.WriteFile(filepath.Join(packages[0], "installed.py"), []byte("NAME = 'from the venv'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := module(t, "import installed\ndef f(inputs):\n    return [installed.NAME for _ in inputs]\n")
	c.Interpreter = filepath.Join(dir, "bin", "python")
	wantOutputs(t, load(t, c), []string{"a"}, []string{"from the venv"})
}
