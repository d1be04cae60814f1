package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/wire"
)

func TestSecondBatchIsBusyWithTheTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true})
		synctest.Wait()
		first := sendLater(t.Context(), s, "b1", "a", "b")
		time.Sleep(30 * time.Millisecond)
		a := send(s, "b2", "c")
		wantRefusal(t, a, 409, wire.CodeBusy, "")
		if a.problem.RetryAfterMs != 70 {
			t.Errorf("retry_after_ms = %v, want 70", a.problem.RetryAfterMs)
		}
		if st := s.State(); st.State != wire.WorkerBusy || st.FreeInMs != 70 {
			t.Errorf("state = %+v, want busy and free in 70 ms", st)
		}
		ok := <-first
		wantEcho(t, ok, "a", "b")
		if ok.ok.ServiceMs != 100 {
			t.Errorf("service_ms = %v, want 100", ok.ok.ServiceMs)
		}
		// The refused batch ran nothing, so its id may come again.
		wantEcho(t, send(s, "b2", "c"), "c")
		if st := s.State(); st.State != wire.WorkerIdle || st.Batches != 2 || st.Items != 3 || st.BusyMs != 200 {
			t.Errorf("state = %+v, want idle after 2 batches of 3 items in 200 ms", st)
		}
	})
}

func TestOverrunBatchIsAskedForLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &fakeBackend{run: func(ctx context.Context, _ *fakeInstance, b Batch) (Output, error) {
			return echoAfter(ctx, 2*time.Second, b)
		}}
		s := startWorker(t, slow, Options{SkipWarmUp: true, ServiceTime: 100 * time.Millisecond})
		synctest.Wait()
		first := sendLater(t.Context(), s, "b1", "a")
		time.Sleep(time.Second)
		if a := send(s, "b2", "c"); a.problem.RetryAfterMs != 100 {
			t.Errorf("retry_after_ms = %v after 1 s of a batch of 100 ms, want a tenth of that second", a.problem.RetryAfterMs)
		}
		<-first
		if f := slow.instance().backend; f == nil {
			t.Fatal("no instance")
		}
		<-sendLater(t.Context(), s, "b3", "d")
		second := sendLater(t.Context(), s, "b4", "d")
		time.Sleep(time.Millisecond)
		if st := s.State(); st.FreeInMs < 500 || st.FreeInMs > 2000 {
			t.Errorf("free in %v ms: the estimate does not follow the measured 2 s", st.FreeInMs)
		}
		<-second
	})
}

func TestRepeatedBatchIDRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ran atomic.Int32
		b := &fakeBackend{run: func(ctx context.Context, _ *fakeInstance, b Batch) (Output, error) {
			ran.Add(1)
			return echoAfter(ctx, time.Millisecond, b)
		}}
		s := startWorker(t, b, Options{SkipWarmUp: true})
		synctest.Wait()
		first := sendLater(t.Context(), s, "b0", "a")
		synctest.Wait()
		wantRefusal(t, send(s, "b0", "a"), 409, wire.CodeDuplicate, "b0") // while it runs: not "busy", which invites to come again
		<-first
		for i := 1; i <= rememberedBatches; i++ {
			wantRefusal(t, send(s, "b0", "a"), 409, wire.CodeDuplicate, "b0")
			if a := send(s, fmt.Sprint("b", i), "a"); a.status != 200 {
				t.Fatal(a)
			}
		}
		if n := ran.Load(); n != rememberedBatches+1 {
			t.Errorf("%d batches ran, want %d", n, rememberedBatches+1)
		}
		if a := send(s, "b0", "a"); a.status != 200 {
			t.Errorf("an id from more than %d batches ago: %v, want 200", rememberedBatches, a)
		}
		if len(s.seen.set) != rememberedBatches || len(s.seen.ring) != rememberedBatches {
			t.Errorf("%d ids remembered, want %d", len(s.seen.set), rememberedBatches)
		}
		if err := s.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Draining promises that the batch never ran; this one did.
		wantRefusal(t, send(s, "b0", "a"), 409, wire.CodeDuplicate, "b0")
	})
}

func TestCallerThatHangsUpLeavesTheGPUBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true})
		synctest.Wait()
		ctx, hangUp := context.WithCancel(t.Context())
		gone := sendLater(ctx, s, "b1", "a")
		time.Sleep(10 * time.Millisecond)
		hangUp()
		if a := <-gone; !errors.Is(a.err, context.Canceled) {
			t.Fatal(a)
		}
		wantRefusal(t, send(s, "b2", "b"), 409, wire.CodeBusy, "")
		time.Sleep(91 * time.Millisecond)
		wantEcho(t, send(s, "b2", "b"), "b")
		if n := counter(t, s, MetricAbandoned); n != 1 {
			t.Errorf("%s = %v, want 1", MetricAbandoned, n)
		}
	})
}

func TestOneBatchAtATimeAndEachIDOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		var mu sync.Mutex
		ran := map[string]int{}
		b := &fakeBackend{run: func(ctx context.Context, _ *fakeInstance, b Batch) (Output, error) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			mu.Lock()
			ran[b.ID]++
			mu.Unlock()
			return echoAfter(ctx, time.Millisecond, b)
		}}
		s := startWorker(t, b, Options{SkipWarmUp: true, PredictAPI: true})
		synctest.Wait()
		var wg sync.WaitGroup
		for c := range 16 {
			wg.Go(func() {
				for i := range 50 {
					if c%4 == 0 {
						a := post(t.Context(), s, "/v1/models/m:predict", `{"instances":["x"]}`)
						if a.status != 200 {
							t.Errorf("predict: %v", a)
						}
						continue
					}
					id := fmt.Sprintf("%d-%d", c/2, i) // two callers try each id
					for a := send(s, id, "x"); a.problem.Code == wire.CodeBusy; a = send(s, id, "x") {
						time.Sleep(time.Duration(a.problem.RetryAfterMs * float64(time.Millisecond)))
					}
				}
			})
		}
		wg.Wait()
		if most.Load() != 1 {
			t.Errorf("%d batches ran at once", most.Load())
		}
		for id, n := range ran {
			if n != 1 {
				t.Errorf("batch %s ran %d times", id, n)
			}
		}
	})
}

func TestDrainFinishesTheBatchAndRefusesTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true})
		synctest.Wait()
		first := sendLater(t.Context(), s, "b1", "a")
		time.Sleep(10 * time.Millisecond)
		start := time.Now()
		drained := make(chan error, 1)
		go func() { drained <- s.Drain(t.Context()) }()
		synctest.Wait()
		if got := readyStatus(s); got != 503 {
			t.Errorf("/readyz = %d while draining, want 503 at once", got)
		}
		wantRefusal(t, send(s, "b2", "b"), 503, wire.CodeDraining, "")
		if st := s.State(); st.State != wire.WorkerDraining || st.FreeInMs != 90 {
			t.Errorf("state = %+v, want draining, free in 90 ms", st)
		}
		if err := <-drained; err != nil || time.Since(start) != 90*time.Millisecond {
			t.Errorf("drained after %v with %v, want 90 ms", time.Since(start), err)
		}
		wantEcho(t, <-first, "a")
		if err := s.Drain(t.Context()); err != nil {
			t.Errorf("second Drain: %v", err)
		}
	})
}

func TestDrainEndsWithItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true})
		synctest.Wait()
		first := sendLater(t.Context(), s, "b1", "a")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := s.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain = %v, want deadline exceeded", err)
		}
		<-first
	})
}

func TestWorkerThatDrainsWhileLoadingLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{load: func(int) error { time.Sleep(time.Minute); return nil }}
		s := startWorker(t, b, Options{})
		synctest.Wait()
		wantRefusal(t, send(s, "b1", "a"), 503, wire.CodeNotReady, "not loaded")
		start := time.Now()
		if err := s.Drain(t.Context()); err != nil || time.Since(start) != 0 {
			t.Errorf("Drain took %v, %v", time.Since(start), err)
		}
		wantRefusal(t, send(s, "b1", "a"), 503, wire.CodeDraining, "")
	})
}

func TestWrongLengthIsAnErrorThatNamesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{run: func(_ context.Context, _ *fakeInstance, b Batch) (Output, error) {
			return Output{Outputs: b.Inputs[1:]}, nil
		}}
		s := startWorker(t, b, Options{SkipWarmUp: true})
		synctest.Wait()
		wantRefusal(t, send(s, "b1", "a", "b", "c"), 502, wire.CodeBackend, "2 outputs came back for 3 inputs")
		if n := counter(t, s, MetricFailures, wire.CodeBackend); n != 1 {
			t.Errorf("%s = %v, want 1", MetricFailures, n)
		}
		if st := s.State(); st.State != wire.WorkerIdle || st.Batches != 0 {
			t.Errorf("state = %+v, want idle: the instance lives", st)
		}
	})
}

func TestParametersReachTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan Batch, 1)
		b := &fakeBackend{run: func(_ context.Context, _ *fakeInstance, b Batch) (Output, error) {
			got <- b
			return Output{Outputs: b.Inputs}, nil
		}}
		s := startWorker(t, b, Options{SkipWarmUp: true})
		synctest.Wait()
		post(t.Context(), s, wire.PathBatch, `{"batch_id":"b","parameters":{"temperature":0.5},"requests":[
			{"request_id":"1","input":"a"},{"request_id":"2","input":"b","parameters":{"max_tokens":7}}]}`)
		batch := <-got
		if batch.Params.Temperature == nil || *batch.Params.Temperature != 0.5 {
			t.Errorf("batch parameters = %+v", batch.Params)
		}
		if len(batch.ItemParams) != 2 || !batch.ItemParams[0].IsZero() || *batch.ItemParams[1].MaxTokens != 7 {
			t.Errorf("item parameters = %+v", batch.ItemParams)
		}
	})
}

func TestSimulatedCrashCutsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{}
		b.run = func(ctx context.Context, i *fakeInstance, batch Batch) (Output, error) {
			if batch.Inputs[0] == "crash" {
				return Output{}, i.die(ErrReset)
			}
			return echoAfter(ctx, time.Millisecond, batch)
		}
		s := startWorker(t, b, Options{})
		time.Sleep(time.Second)
		if a := send(s, "b1", "crash"); !errors.Is(a.err, syscall.ECONNRESET) {
			t.Fatalf("got %v, want a connection reset", a)
		}
		wantRefusal(t, send(s, "b2", "a"), 503, wire.CodeNotReady, "simulated crash")
		time.Sleep(time.Second)
		wantEcho(t, send(s, "b2", "a"), "a")
	})
}

func TestPredictWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true, PredictAPI: true})
		synctest.Wait()
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if a := post(t.Context(), s, "/v1/models/m:predict", `{"instances":["a"]}`); a.status != 200 {
					t.Errorf("call %d: %v", i, a)
				}
				if want := time.Duration(i+1) * 100 * time.Millisecond; time.Since(start) != want {
					t.Errorf("call %d answered after %v, want %v", i, time.Since(start), want)
				}
			})
		}
		wg.Wait()
		for body, want := range map[string]string{
			`{"instances":[1]}`: "strings", `{"instances":[]}`: "0 entries",
			`{"instances":[` + strings.Repeat(`"x",`, 100) + `"x"]}`: "101 entries",
		} {
			wantRefusal(t, post(t.Context(), s, "/v1/models/m:predict", body), 400, wire.CodeInvalid, want)
		}
		if a := post(t.Context(), s, "/v1/models/m", `{"instances":["a"]}`); a.status != 404 {
			t.Errorf("a path without :predict: %v, want 404", a)
		}
	})
}

func TestPredictIsOffByDefault(t *testing.T) {
	if a := post(t.Context(), New(&fakeBackend{}, Options{}), "/v1/models/m:predict", `{}`); a.status != 404 {
		t.Errorf("got %v, want 404", a)
	}
}
