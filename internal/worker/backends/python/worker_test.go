package python

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

// poisonous answers each input with its process id, unless an input is one of its poisons.
const poisonous = `
import ctypes, os, time
def f(inputs):
    if "raise" in inputs: raise ValueError("poison")
    if "segfault" in inputs: ctypes.string_at(0)
    if "hang" in inputs: time.sleep(100000)
    return [str(os.getpid()) for _ in inputs]
`

func startWorker(t *testing.T, c Config, o worker.Options) *worker.Server {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s := worker.New(b, o)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = s.Run(ctx); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	return s
}

// untilIdle looks until the worker is idle again.
func untilIdle(s *worker.Server) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for s.State().State != wire.WorkerIdle {
		<-tick.C
	}
}

func send(t *testing.T, s *worker.Server, id string, inputs ...string) (int, string) {
	t.Helper()
	req := wire.BatchRequest{BatchID: id}
	for _, in := range inputs {
		req.Requests = append(req.Requests, wire.Item{RequestID: "r", Input: in})
	}
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, wire.PathBatch, bytes.NewReader(body)))
	if w.Code == http.StatusOK {
		var r wire.BatchResponse
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		return w.Code, r.Results[0].Output
	}
	return w.Code, w.Body.String()
}

func TestPoisonTakesAtMostTheSubprocessWithIt(t *testing.T) {
	c, _ := module(t, poisonous)
	s := startWorker(t, c, worker.Options{BatchTimeout: 3 * time.Second, BackoffMin: time.Millisecond})
	untilIdle(s)
	_, pid := send(t, s, "b0", "a")

	if status, body := send(t, s, "b1", "a", "raise"); status != 500 || !strings.Contains(body, "ValueError: poison") {
		t.Errorf("raise: %d %s", status, body)
	}
	if _, again := send(t, s, "b2", "a"); again != pid {
		t.Errorf("an exception changed the process from %s to %s", pid, again)
	}
	for kind, want := range map[string]string{"segfault": "segmentation fault", "hang": "longer than 3s"} {
		if status, body := send(t, s, kind, "a", kind); status != 502 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 502 with %q", kind, status, body, want)
		}
		if st := s.State().State; st != wire.WorkerFailed {
			t.Errorf("%s: the worker is %s right after its answer, want failed", kind, st)
		}
		untilIdle(s)
		_, next := send(t, s, "after "+kind, "a")
		if next == pid {
			t.Errorf("%s: still the process %s", kind, pid)
		}
		pid = next
	}
}

func TestWorkerIsReadyOnlyWhenTheFunctionWorks(t *testing.T) {
	c, _ := module(t, "def f(inputs):\n    raise RuntimeError('no GPU')\n")
	s := startWorker(t, c, worker.Options{})
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for s.State().State == wire.WorkerLoading {
		<-tick.C
	}
	if st := s.State(); st.State != wire.WorkerFailed || !strings.Contains(st.Message, "RuntimeError: no GPU") {
		t.Errorf("state %+v, want failed with the exception", st)
	}
}

// No caller can stop a function that runs: the worker is busy until it is over, whoever still listens.
func TestACallerThatHangsUpLeavesTheFunctionRunning(t *testing.T) {
	c, _ := module(t, `
def f(inputs):
    if inputs[0].startswith("/"):
        with open(inputs[0]) as gate: gate.read()
    return ["done"] * len(inputs)
`)
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startWorker(t, c, worker.Options{BatchTimeout: time.Minute})
	untilIdle(s)
	body, err := json.Marshal(wire.BatchRequest{BatchID: "b1", Requests: []wire.Item{{RequestID: "r", Input: gate}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, wire.PathBatch, bytes.NewReader(body)))
		close(over)
	}()
	w, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns once the function reads
	if err != nil {
		t.Fatal(err)
	}
	hangUp()
	status, answer := send(t, s, "b2", "a")
	var p wire.Problem
	if err := json.Unmarshal([]byte(answer), &p); err != nil || status != http.StatusConflict || p.Code != wire.CodeBusy || p.RetryAfterMs <= 0 {
		t.Errorf("while the function runs: %d %s, want 409 busy with the milliseconds left", status, answer)
	}
	if status, answer = send(t, s, "b1", gate); status != http.StatusConflict || !strings.Contains(answer, wire.CodeDuplicate) {
		t.Errorf("the same batch again: %d %s, want 409 duplicate", status, answer)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	<-over
	if status, answer = send(t, s, "b2", "a"); status != http.StatusOK || answer != "done" {
		t.Errorf("once it is over: %d %s", status, answer)
	}
	if n := s.State().Batches; n != 2 {
		t.Errorf("%d batches were finished, want 2: the abandoned one too", n)
	}
}
