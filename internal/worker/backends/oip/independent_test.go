package oip

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

// pythonServer starts testdata/server.py, a server that shares no code with this package, and returns a
// configuration for it.
func pythonServer(t *testing.T, args ...string) Config {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3 to run the server with")
	}
	cmd := exec.Command("python3", append([]string{"testdata/server.py"}, args...)...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v\n%s", err, &complaints)
	}
	return Config{URL: "http://127.0.0.1:" + strings.TrimSpace(port), Model: "upper", Input: DefaultInput, Output: DefaultOutput}
}

func TestAnIndependentServerUnderstandsEveryBatch(t *testing.T) {
	for _, args := range [][]string{nil, {"--columns"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			i := load(t, pythonServer(t, args...))
			odd := []string{"a", "", "é<>&\u2028\x00\"\\", "日本語 text", "😀", "[1,2]", "null"}
			out, err := i.Run(t.Context(), worker.Batch{ID: "b-1", Inputs: odd})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Join(out.Outputs, "|"), "A||é<>&\u2028\x00\"\\|日本語 TEXT|😀|[1,2]|NULL"; got != want {
				t.Errorf("outputs %q, want %q", got, want)
			}

			large := make([]string, 1000) // the largest batch of a pool, 4 MiB
			for k := range large {
				large[k] = fmt.Sprintf("input %d %s", k, strings.Repeat("x", 4<<10))
			}
			if out, err = i.Run(t.Context(), worker.Batch{ID: "b-2", Inputs: large}); err != nil {
				t.Fatal(err)
			}
			for k, o := range out.Outputs {
				if o != strings.ToUpper(large[k]) {
					t.Fatalf("output %d is %.40q", k, o)
				}
			}

			n, temperature := 2, 0.5
			out, err = i.Run(t.Context(), worker.Batch{ID: "b-3", Inputs: []string{"abcd"}, Params: wire.Parameters{MaxTokens: &n, Temperature: &temperature}})
			if err != nil || out.Outputs[0] != "AB" {
				t.Errorf("with max_tokens 2: %q, %v", out.Outputs, err)
			}
		})
	}
}

func TestAnIndependentServersErrorsAreTold(t *testing.T) {
	c := pythonServer(t)
	i := load(t, c)
	_, err := i.Run(t.Context(), worker.Batch{ID: "b-1", Inputs: []string{"fine", "raise it"}})
	wantError(t, err, wire.CodeApplication, "the model server answers 500: ValueError: cannot do raise it")
	if dead(i) {
		t.Error("the server was given up for an exception of the model")
	}
	_, err = i.Run(t.Context(), worker.Batch{ID: "b-2", Inputs: []string{"exit"}})
	wantError(t, err, wire.CodeBackend, "model server")
	if !dead(i) {
		t.Error("a server that ended in mid-batch was not given up")
	}
}

func TestLoadWaitsForAnIndependentServersModel(t *testing.T) {
	c := pythonServer(t, "--load-seconds", "0.5")
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.(*backend).ready(t.Context()); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("ready before the model is: %v", err)
	}
	i := load(t, c)
	if _, err := i.Run(t.Context(), worker.Batch{ID: "b", Inputs: []string{"a"}}); err != nil {
		t.Errorf("the first batch after the load: %v", err)
	}
}
