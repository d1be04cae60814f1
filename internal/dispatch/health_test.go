package dispatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// scripted is a transport of workers in this process, for virtual time.
type scripted struct {
	mu     sync.Mutex
	state  map[string]string        // by host; "" refuses connections
	batch  map[string]time.Duration // service time; negative hangs
	cut    map[string]bool          // resets the connection after half the service time
	probes map[string]int
	ran    map[string]int
}

func newScripted(hosts ...string) *scripted {
	s := &scripted{state: map[string]string{}, batch: map[string]time.Duration{}, cut: map[string]bool{}, probes: map[string]int{}, ran: map[string]int{}}
	for _, h := range hosts {
		s.state[h], s.batch[h] = wire.WorkerIdle, 100*time.Millisecond
	}
	return s
}

func (s *scripted) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	host := r.URL.Host
	s.mu.Lock()
	state, service, cut := s.state[host], s.batch[host], s.cut[host]
	if r.URL.Path == wire.PathWorkerState {
		s.probes[host]++
	} else {
		s.ran[host]++
	}
	s.mu.Unlock()
	if state == "" {
		return nil, syscall.ECONNREFUSED
	}
	if r.URL.Path == wire.PathWorkerState {
		return answer(r, wire.WorkerState{State: state})
	}
	var req wire.BatchRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		return nil, err
	}
	if service < 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if cut {
		time.Sleep(service / 2)
		return nil, fmt.Errorf("read: %w", syscall.ECONNRESET)
	}
	select {
	case <-time.After(service):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	resp := wire.BatchResponse{BatchID: req.BatchID}
	for _, it := range req.Requests {
		resp.Results = append(resp.Results, wire.Result{RequestID: it.RequestID, Output: it.Input, Status: wire.StatusOK})
	}
	return answer(r, resp)
}

func answer(r *http.Request, v any) (*http.Response, error) {
	b, err := json.Marshal(v)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(b)), ContentLength: int64(len(b)), Request: r}, err
}

func virtual(t *testing.T, hosts ...string) (*Engine, *scripted) {
	s := newScripted(hosts...)
	e := New(Config{Batching: batching.FromPool(poolspec.Default(), "test"), Transport: s})
	var eps []Endpoint
	for _, h := range hosts {
		eps = append(eps, Endpoint{Addr: h})
	}
	e.SetWorkers(eps)
	synctest.Wait()
	return e, s
}

func TestAHungWorkerIsGivenUpAndAskedUntilItIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := virtual(t, "a", "b")
		defer e.Close()
		r, err := submit(e, "which")
		if err != nil {
			t.Fatal(err)
		}
		first := r.Worker
		s.set(func() { s.batch[first], s.state[first] = -1, wire.WorkerBusy })
		start := time.Now()
		r, err = submit(e, "x")
		if err != nil || r.Attempts != 2 || r.Worker == first {
			t.Fatalf("%+v, %v", r, err)
		}
		if d := time.Since(start); d > 500*time.Millisecond+100*time.Millisecond+50*time.Millisecond {
			t.Fatalf("took %v", d)
		}
		if e.Snapshot().Live != 1 {
			t.Fatalf("%+v", e.Snapshot().Workers)
		}
		time.Sleep(time.Minute) // it still says busy: that is our batch
		if e.Snapshot().Live != 1 {
			t.Fatal("a worker that hangs on our batch counts as live")
		}
		before := s.probes[first]
		if before > 100 {
			t.Fatalf("%d questions in a minute", before)
		}
		s.set(func() { s.batch[first], s.state[first] = 100*time.Millisecond, wire.WorkerIdle })
		time.Sleep(1300 * time.Millisecond)
		if e.Snapshot().Live != 2 {
			t.Fatal("it said idle and is not used")
		}
	})
}

func TestAResetIsFeltAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := virtual(t, "a", "b")
		defer e.Close()
		s.set(func() { s.cut["a"], s.cut["b"] = true, true })
		done := make(chan error, 1)
		go func() {
			_, err := submit(e, "x")
			done <- err
		}()
		synctest.Wait()
		s.set(func() { s.state["a"], s.state["b"] = "", "" }) // both processes are gone for now
		time.Sleep(60 * time.Millisecond)                     // 50 ms until the cut, 10 ms to feel it
		synctest.Wait()
		if n := e.Snapshot().Live; n > 1 {
			t.Fatalf("%d workers count as live", n)
		}
		s.set(func() {
			s.cut["a"], s.cut["b"], s.state["a"], s.state["b"] = false, false, wire.WorkerIdle, wire.WorkerIdle
		})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestAnIdleWorkerThatDiesIsNoticedWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := virtual(t, "a", "b", "c")
		defer e.Close()
		if n := e.Snapshot().Live; n != 3 {
			t.Fatalf("%d live", n)
		}
		s.set(func() { s.state["b"] = "" })
		time.Sleep(time.Second)
		if n := e.Snapshot().Live; n != 2 {
			t.Fatalf("%d live a second later", n)
		}
		s.set(func() { s.state["b"], s.state["c"] = wire.WorkerIdle, wire.WorkerDraining })
		time.Sleep(1500 * time.Millisecond)
		if n := e.Snapshot().Live; n != 2 {
			t.Fatalf("%d live after one came back and one drains", n)
		}
	})
}

func TestALoadingWorkerIsNotUsedUntilItIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted("a")
		s.state["a"] = wire.WorkerLoading
		e := New(Config{Batching: batching.FromPool(poolspec.Default(), "test"), Transport: s})
		defer e.Close()
		e.SetWorkers([]Endpoint{{Addr: "a"}})
		time.Sleep(time.Minute)
		if _, err := submit(e, "x"); causeOf(err) != batching.NoCapacity {
			t.Fatalf("%v", err)
		}
		if s.probes["a"] > 120 {
			t.Fatalf("asked %d times in a minute", s.probes["a"])
		}
		s.set(func() { s.state["a"] = wire.WorkerIdle })
		time.Sleep(1300 * time.Millisecond)
		if _, err := submit(e, "x"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble fails when a goroutine is left
		e, s := virtual(t, "a", "b")
		s.set(func() { s.batch["a"], s.batch["b"] = -1, -1 })
		errs := make(chan error, 5)
		for i := range 5 {
			go func() {
				_, err := submit(e, fmt.Sprint(i))
				errs <- err
			}()
		}
		synctest.Wait()
		e.Close()
		for range 5 {
			var be *batching.Error
			if err := <-errs; !errors.As(err, &be) || be.Cause != batching.Draining {
				t.Errorf("got %v", err)
			}
		}
	})
}

// A pause of this process makes every batch time out, again and again if it is long: workers that say they are
// idle have failed many batches then. With nobody else alive they must be used as soon as they say so, however
// long one that fails every batch would be left alone beside healthy ones.
func TestWhenAllWorkersFailedTheyAreUsedAsSoonAsTheySayIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := virtual(t, "a", "b")
		defer e.Close()
		s.set(func() { s.batch["a"], s.batch["b"] = -1, -1 })
		for range 8 { // each takes both workers down once more
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() { _, _ = submit(e, fmt.Sprint(i)) })
			}
			wg.Wait()
			time.Sleep(10 * time.Second)
		}
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { _, _ = submit(e, fmt.Sprint(i)) })
		}
		wg.Wait() // both timed out
		s.set(func() { s.batch["a"], s.batch["b"] = 100*time.Millisecond, 100*time.Millisecond })
		time.Sleep(60 * time.Millisecond)
		if n := e.Snapshot().Live; n != 2 {
			t.Errorf("%d of 2 workers that say they are idle are live 60 ms after both failed", n)
		}
	})
}
