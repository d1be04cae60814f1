package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// envMain makes this test binary be gpuworker itself, so that exits and signals can be seen.
const envMain = "SLUICE_TEST_BE_GPUWORKER"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is a running gpuworker.
type process struct {
	cmd *exec.Cmd
	url string
}

// start runs gpuworker and returns when it listens. Its port is taken from its log.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"--listen=127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), envMain+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var l struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "listening" {
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			return &process{cmd: cmd, url: "http://" + l.Address}
		}
		t.Log(lines.Text())
	}
	t.Fatal("gpuworker ended before it listened")
	return nil
}

// until asks for the state until it is s.
func (p *process) until(t *testing.T, s string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		resp, err := http.Get(p.url + wire.PathWorkerState)
		if err != nil {
			t.Fatal(err)
		}
		var st wire.WorkerState
		err = json.NewDecoder(resp.Body).Decode(&st)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if st.State == s {
			return
		}
	}
}

func (p *process) send(id, input string) (int, string, error) {
	body, _ := json.Marshal(wire.BatchRequest{BatchID: id, Requests: []wire.Item{{RequestID: "r", Input: input}}})
	resp, err := http.Post(p.url+wire.PathBatch, "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(answer), err
}

func (p *process) exitCode() int {
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func TestSIGTERMFinishesTheBatchAndExitsZero(t *testing.T) {
	p := start(t, "--service-time=1s", "--skip-warmup", "--linger=10ms")
	p.until(t, wire.WorkerIdle)
	type result struct {
		status int
		body   string
		err    error
	}
	first := make(chan result, 1)
	go func() {
		status, body, err := p.send("b1", "hello")
		first <- result{status, body, err}
	}()
	p.until(t, wire.WorkerBusy)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.until(t, wire.WorkerDraining)
	if resp, err := http.Get(p.url + wire.PathReadyz); err != nil || resp.StatusCode != 503 {
		t.Errorf("/readyz while draining: %v, %v", resp, err)
	}
	if status, body, err := p.send("b2", "x"); status != 503 || !strings.Contains(body, wire.CodeDraining) {
		t.Errorf("a batch while draining: %d %s %v, want 503 draining", status, body, err)
	}
	if r := <-first; r.status != 200 || !strings.Contains(r.body, `"output":"hello"`) {
		t.Errorf("the running batch: %+v", r)
	}
	if code := p.exitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestGraceEndsABatchThatDoesNot(t *testing.T) {
	p := start(t, "--service-time=1h", "--batch-timeout=2h", "--skip-warmup", "--grace=50ms")
	p.until(t, wire.WorkerIdle)
	go func() { _, _, _ = p.send("b1", "hello") }()
	p.until(t, wire.WorkerBusy)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

func TestSIGTERMWhileLoadingExitsZero(t *testing.T) {
	p := start(t, "--start-delay=1h", "--linger=0")
	p.until(t, wire.WorkerLoading)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestSimulatedCrashEndsTheProcess(t *testing.T) {
	p := start(t, "--service-time=10ms", "--crash-permille=1000")
	p.until(t, wire.WorkerIdle)
	if status, body, err := p.send("b1", "x"); err == nil {
		t.Errorf("got %d %s, want a cut connection", status, body)
	}
	if code := p.exitCode(); code != crashExitCode {
		t.Errorf("exit code %d, want %d", code, crashExitCode)
	}
}

func TestPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cmd := exec.Command(os.Args[0], "--listen="+l.Addr().String())
	cmd.Env = append(os.Environ(), envMain+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "address already in use") {
		t.Errorf("got %v: %s", err, out)
	}
}

func TestFlags(t *testing.T) {
	none := func(string) string { return "" }
	for args, want := range map[string]string{
		"--backend=cuda":                          `--backend is "cuda"`,
		"--max-batch=0":                           "--max-batch is 0",
		"--max-batch=1001":                        "--max-batch is 1001",
		"--batch-timeout=0s":                      "must be positive",
		"--grace=-1s":                             "must be positive",
		"--linger=-1s":                            "--linger",
		"--crash-permille=1001":                   "permilles",
		"--backend=python":                        "module:function",
		"--backend=python --python-function=x":    "module:function",
		"--backend=oip":                           "model's name is empty",
		"--backend=oip --oip-model=m --oip-url=x": "address",
		"stray":               `unexpected argument "stray"`,
		"--service-time=fast": "invalid value",
	} {
		if _, err := parseFlags(strings.Fields(args), none, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	for _, args := range []string{"", "--backend=python --python-function=a.b:c", "--backend=oip --oip-model=m"} {
		if _, err := parseFlags(strings.Fields(args), none, io.Discard); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := parseFlags([]string{"-h"}, none, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
	c, err := parseFlags(nil, func(k string) string { return map[string]string{envWarmUpInput: "{}"}[k] }, io.Discard)
	if err != nil || c.options.WarmUpInput != "{}" {
		t.Errorf("%s is not the default of --warmup-input: %q, %v", envWarmUpInput, c.options.WarmUpInput, err)
	}
}
