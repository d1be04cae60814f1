package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// fakeWorker is a worker over real HTTP whose answers a test scripts.
type fakeWorker struct {
	*httptest.Server
	batch func(w http.ResponseWriter, r wire.BatchRequest) // nil: echo
	state atomic.Pointer[wire.WorkerState]

	mu   sync.Mutex
	seen []wire.BatchRequest
}

func newFakeWorker(t *testing.T) *fakeWorker {
	f := &fakeWorker{}
	f.state.Store(&wire.WorkerState{State: wire.WorkerIdle, ParamsMode: batching.ParamsItem})
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PathWorkerState, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(f.state.Load())
	})
	mux.HandleFunc("POST "+wire.PathBatch, func(w http.ResponseWriter, r *http.Request) {
		var req wire.BatchRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		f.mu.Lock()
		again := slices.ContainsFunc(f.seen, func(x wire.BatchRequest) bool { return x.BatchID == req.BatchID })
		if !again {
			f.seen = append(f.seen, req)
		}
		f.mu.Unlock()
		if again {
			problem(w, http.StatusConflict, wire.Problem{Code: wire.CodeDuplicate})
			return
		}
		if f.batch != nil {
			f.batch(w, req)
			return
		}
		echo(w, req)
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeWorker) batches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen)
}

func echo(w http.ResponseWriter, req wire.BatchRequest) {
	resp := wire.BatchResponse{BatchID: req.BatchID}
	for _, it := range req.Requests {
		resp.Results = append(resp.Results, wire.Result{RequestID: it.RequestID, Output: "echo:" + it.Input, Status: wire.StatusOK})
	}
	_ = json.NewEncoder(w).Encode(resp)
}

func problem(w http.ResponseWriter, status int, p wire.Problem) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p)
}

func newEngine(t *testing.T, urls ...string) *Engine {
	e := New(Config{Batching: batching.FromPool(poolspec.Default(), "test")})
	t.Cleanup(e.Close)
	setWorkers(e, urls...)
	return e
}

func setWorkers(e *Engine, urls ...string) {
	var eps []Endpoint
	for _, u := range urls {
		eps = append(eps, Endpoint{Addr: u})
	}
	e.SetWorkers(eps)
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}

func live(e *Engine, n int) func() bool {
	return func() bool { return e.Snapshot().Live == n }
}

func causeOf(err error) batching.Cause {
	var e *batching.Error
	errors.As(err, &e)
	if e == nil {
		return ""
	}
	return e.Cause
}

func submit(e *Engine, id string) (batching.Result, error) {
	return e.Submit(context.Background(), batching.Request{ID: id, Input: id})
}

func TestARequestIsAnsweredByAWorker(t *testing.T) {
	w := newFakeWorker(t)
	e := newEngine(t, w.URL+"/")
	eventually(t, "worker is live", live(e, 1))
	r, err := submit(e, "a")
	if err != nil || r.Output != "echo:a" {
		t.Fatalf("got %+v, %v", r, err)
	}
}

func TestARefusedConnectionCostsNoAttempt(t *testing.T) {
	dead, alive := newFakeWorker(t), newFakeWorker(t)
	e := newEngine(t, dead.URL, alive.URL)
	eventually(t, "both live", live(e, 2))
	dead.Close() // the engine does not know yet
	// A kept connection that dies while the batch is written to it is another case: see below.
	e.client.transport.(*http.Transport).CloseIdleConnections()
	for i := range 10 {
		r, err := submit(e, fmt.Sprint(i))
		if err != nil || r.Attempts != 1 || r.Output != "echo:"+fmt.Sprint(i) {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
	eventually(t, "the dead one is noticed", live(e, 1))
}

func TestADrainingBusyOrLoadingWorkerCostsNoAttempt(t *testing.T) {
	for _, p := range []struct {
		status int
		wire.Problem
	}{
		{http.StatusServiceUnavailable, wire.Problem{Code: wire.CodeDraining}},
		{http.StatusServiceUnavailable, wire.Problem{Code: wire.CodeNotReady}},
		{http.StatusConflict, wire.Problem{Code: wire.CodeBusy, RetryAfterMs: 50}},
	} {
		t.Run(p.Code, func(t *testing.T) {
			refusing, alive := newFakeWorker(t), newFakeWorker(t)
			refusing.batch = func(w http.ResponseWriter, _ wire.BatchRequest) { problem(w, p.status, p.Problem) }
			e := newEngine(t, refusing.URL, alive.URL)
			eventually(t, "both live", live(e, 2))
			for i := range 10 {
				r, err := submit(e, fmt.Sprint(i))
				if err != nil || r.Attempts != 1 {
					t.Fatalf("got %+v, %v", r, err)
				}
			}
		})
	}
}

func TestACutConnectionIsRetriedOnAnotherWorkerOnce(t *testing.T) {
	cutting, alive := newFakeWorker(t), newFakeWorker(t)
	cutting.batch = func(w http.ResponseWriter, _ wire.BatchRequest) {
		cutting.state.Store(&wire.WorkerState{State: wire.WorkerFailed})
		panic(http.ErrAbortHandler)
	}
	e := newEngine(t, cutting.URL, alive.URL)
	eventually(t, "both live", live(e, 2))
	retried := 0
	for i := range 10 {
		r, err := submit(e, fmt.Sprint(i))
		if err != nil {
			t.Fatalf("got %+v, %v", r, err)
		}
		if r.Attempts == 2 {
			retried++
		}
	}
	if want := cutting.batches(); retried != want || want > 1 {
		t.Fatalf("%d requests retried, the cutting worker got %d batches", retried, want)
	}
	cutting.batch = nil
	cutting.state.Store(&wire.WorkerState{State: wire.WorkerIdle})
	eventually(t, "it is used again once it says idle", live(e, 2))
}

func TestAnswersThatDoNotMatchAreAnError(t *testing.T) {
	for name, batch := range map[string]func(w http.ResponseWriter, r wire.BatchRequest){
		"too few": func(w http.ResponseWriter, r wire.BatchRequest) {
			_ = json.NewEncoder(w).Encode(wire.BatchResponse{BatchID: r.BatchID})
		},
		"another request's": func(w http.ResponseWriter, r wire.BatchRequest) {
			_ = json.NewEncoder(w).Encode(wire.BatchResponse{BatchID: r.BatchID, Results: []wire.Result{{RequestID: "other", Output: "secret", Status: "ok"}}})
		},
		"another batch's": func(w http.ResponseWriter, r wire.BatchRequest) {
			_ = json.NewEncoder(w).Encode(wire.BatchResponse{BatchID: "x", Results: []wire.Result{{RequestID: r.Requests[0].RequestID, Output: "secret", Status: "ok"}}})
		},
		"no status": func(w http.ResponseWriter, r wire.BatchRequest) {
			_ = json.NewEncoder(w).Encode(wire.BatchResponse{BatchID: r.BatchID, Results: []wire.Result{{RequestID: r.Requests[0].RequestID}}})
		},
		"not JSON": func(w http.ResponseWriter, _ wire.BatchRequest) { _, _ = io.WriteString(w, "<html>") },
		"null":     func(w http.ResponseWriter, _ wire.BatchRequest) { _, _ = io.WriteString(w, "null") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFakeWorker(t)
			w.batch = batch
			e := newEngine(t, w.URL)
			eventually(t, "live", live(e, 1))
			r, err := submit(e, "a")
			// One worker: the second attempt fails alone.
			if c := causeOf(err); c != batching.InputFailed {
				t.Fatalf("got %+v, %v", r, err)
			}
			if w.batches() != 2 {
				t.Fatalf("%d attempts", w.batches())
			}
		})
	}
}

// A worker that is cut off in mid-batch and then refuses, because the batch crashed its backend, does not get
// the attempt back: else a poison input would go round for ever.
func TestARefusalAfterACutDoesNotGiveTheAttemptBack(t *testing.T) {
	w := newFakeWorker(t)
	var calls atomic.Int64
	w.batch = func(rw http.ResponseWriter, r wire.BatchRequest) {
		n := calls.Add(1)
		if n == 1 {
			echo(rw, r) // the connection is kept
			return
		}
		w.mu.Lock()
		w.seen = nil // its memory is gone, as after a restart
		w.mu.Unlock()
		if n%2 == 0 {
			panic(http.ErrAbortHandler)
		}
		problem(rw, http.StatusServiceUnavailable, wire.Problem{Code: wire.CodeNotReady})
	}
	e := newEngine(t, w.URL)
	eventually(t, "live", live(e, 1))
	if _, err := submit(e, "good"); err != nil {
		t.Fatal(err)
	}
	if r, err := submit(e, "poison"); causeOf(err) != batching.InputFailed && causeOf(err) != batching.SecondFailure {
		t.Fatalf("got %+v, %v", r, err)
	}
	if n := calls.Load(); n > 6 {
		t.Fatalf("the poison was sent %d times", n-1)
	}
}

func TestAKeptConnectionThatTheWorkerClosedFailsNothing(t *testing.T) {
	w := newFakeWorker(t)
	e := newEngine(t, w.URL)
	eventually(t, "live", live(e, 1))
	for i := range 50 {
		if r, err := submit(e, fmt.Sprint(i)); err != nil || r.Attempts != 1 {
			t.Fatalf("request %d: %+v, %v", i, r, err)
		}
		w.CloseClientConnections()
	}
}

func TestAnAddressThatAnswersNothingCostsNoAttempt(t *testing.T) {
	// A listener that never accepts answers the TCP handshake but no request: its probe never succeeds, so
	// it never gets a batch.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	w := newFakeWorker(t)
	e := newEngine(t, "http://"+l.Addr().String(), w.URL)
	eventually(t, "one live", live(e, 1))
	for i := range 5 {
		if r, err := submit(e, fmt.Sprint(i)); err != nil || r.Attempts != 1 {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
}

func TestWorkersComeAndGo(t *testing.T) {
	a, b := newFakeWorker(t), newFakeWorker(t)
	e := newEngine(t, a.URL)
	eventually(t, "a", live(e, 1))
	setWorkers(e, b.URL)
	eventually(t, "b", live(e, 1))
	if r, err := submit(e, "x"); err != nil || "http://"+r.Worker != b.URL {
		t.Fatalf("got %+v, %v", r, err)
	}
	setWorkers(e)
	if _, err := submit(e, "y"); causeOf(err) != batching.NoCapacity {
		t.Fatalf("got %v", err)
	}
}

func TestParametersTravelAsTheBackendTakesThem(t *testing.T) {
	seven := 7
	for mode, want := range map[string][2]bool{ // of the batch, of the item
		batching.ParamsItem: {false, true}, batching.ParamsBatch: {true, false}, batching.ParamsNone: {false, false},
	} {
		t.Run(mode, func(t *testing.T) {
			w := newFakeWorker(t)
			w.state.Store(&wire.WorkerState{State: wire.WorkerIdle, ParamsMode: mode})
			e := newEngine(t, w.URL)
			eventually(t, "live", live(e, 1))
			_, err := e.Submit(context.Background(), batching.Request{ID: "a", Params: wire.Parameters{MaxTokens: &seven}})
			if err != nil {
				t.Fatal(err)
			}
			got := [2]bool{w.seen[0].Parameters != nil, w.seen[0].Requests[0].Parameters != nil}
			if got != want {
				t.Fatalf("batch and item parameters %v, want %v", got, want)
			}
		})
	}
}
