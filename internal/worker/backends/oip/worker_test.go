package oip

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

// oneGPU makes the server as a real one is: one batch at a time, and a batch that was begun is finished whether
// or not its caller still waits. The input "long" takes long, every other 100 ms.
func oneGPU(m *modelServer, long time.Duration) {
	gpu := make(chan struct{}, 1) // no mutex: virtual time stands still while one is waited for
	m.instead = func(w http.ResponseWriter, _ *http.Request, inputs []string) {
		gpu <- struct{}{}
		defer func() { <-gpu }()
		if inputs[0] == "long" {
			time.Sleep(long)
		} else {
			time.Sleep(100 * time.Millisecond)
		}
		outputs := make([]string, len(inputs))
		for i := range inputs {
			outputs[i] = strings.ToUpper(inputs[i])
		}
		answerTensor(w, "b", specTensor{Name: DefaultOutput, Datatype: "BYTES", Shape: []int{len(inputs)}, Data: outputs})
	}
}

// startWorker runs a worker before the server until the test ends.
func startWorker(t *testing.T, m *modelServer, o worker.Options) *worker.Server {
	t.Helper()
	b, err := New(config(m))
	if err != nil {
		t.Fatal(err)
	}
	s := worker.New(b, o)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = s.Run(ctx); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	return s
}

func send(ctx context.Context, t *testing.T, s *worker.Server, id, input string) (int, wire.Problem) {
	t.Helper()
	body, err := json.Marshal(wire.BatchRequest{BatchID: id, Requests: []wire.Item{{RequestID: "r", Input: input}}})
	if err != nil {
		t.Error(err)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, wire.PathBatch, bytes.NewReader(body)))
	var p wire.Problem
	_ = json.Unmarshal(w.Body.Bytes(), &p)
	return w.Code, p
}

func TestACallerThatHangsUpLeavesTheServerBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelServer()
		oneGPU(m, 2*time.Second)
		s := startWorker(t, m, worker.Options{SkipWarmUp: true})
		synctest.Wait()
		ctx, hangUp := context.WithCancel(t.Context())
		go send(ctx, t, s, "b1", "long")
		time.Sleep(20 * time.Millisecond)
		hangUp()
		synctest.Wait()
		if status, p := send(t.Context(), t, s, "b2", "a"); status != 409 || p.Code != wire.CodeBusy || p.RetryAfterMs != 80 {
			t.Errorf("while the server works: %d %+v, want 409 busy for 80 ms", status, p)
		}
		if status, p := send(t.Context(), t, s, "b1", "long"); status != 409 || p.Code != wire.CodeDuplicate {
			t.Errorf("the same batch again: %d %+v, want 409 duplicate", status, p)
		}
		time.Sleep(2 * time.Second)
		if status, p := send(t.Context(), t, s, "b2", "a"); status != 200 {
			t.Errorf("once it is over: %d %+v", status, p)
		}
	})
}

// The protocol cannot cancel: after a batch that took too long the server says that it is ready while its GPU is
// not. The warm-up batch waits for the GPU in the worker's place.
func TestAfterAHangTheWorkerIsIdleOnlyWhenTheGPUIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelServer()
		const long = 20 * time.Second
		oneGPU(m, long)
		s := startWorker(t, m, worker.Options{BatchTimeout: 5 * time.Second})
		time.Sleep(time.Second)
		began := time.Now()
		if status, p := send(t.Context(), t, s, "b1", "long"); status != 502 || time.Since(began) != 5*time.Second {
			t.Fatalf("a batch of %v: %d %+v after %v, want 502 after 5 s", long, status, p, time.Since(began))
		}
		for time.Since(began) < long {
			if st := s.State(); st.State == wire.WorkerIdle {
				t.Fatalf("idle %v after a batch of %v began", time.Since(began), long)
			}
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if status, p := send(t.Context(), t, s, "b2", "a"); status != 200 {
			t.Errorf("once the GPU is free: %d %+v", status, p)
		}
	})
}
