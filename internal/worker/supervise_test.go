package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/wire"
)

func TestReadyOnlyAfterAFullWarmUpBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		warm := make(chan Batch, 1)
		b := &fakeBackend{
			load: func(int) error { time.Sleep(10 * time.Second); return nil },
			run: func(ctx context.Context, _ *fakeInstance, b Batch) (Output, error) {
				warm <- b
				return echoAfter(ctx, 20*time.Second, b)
			},
		}
		s := startWorker(t, b, Options{MaxBatch: 7, WarmUpInput: "hello"})
		time.Sleep(29 * time.Second)
		if readyStatus(s) != 503 || s.State().State != wire.WorkerLoading {
			t.Errorf("ready before the warm-up has ended: %+v", s.State())
		}
		wantRefusal(t, send(s, "b1", "a"), 503, wire.CodeNotReady, "")
		if w := <-warm; len(w.Inputs) != 7 || w.Inputs[6] != "hello" {
			t.Errorf("warm-up batch = %q, want 7 x hello", w.Inputs)
		}
		time.Sleep(time.Second + time.Millisecond)
		if readyStatus(s) != 200 || s.State().State != wire.WorkerIdle {
			t.Errorf("not ready after the warm-up: %+v", s.State())
		}
		if n := counter(t, s, MetricLoadSeconds); n != 30 {
			t.Errorf("%s = %v, want 30", MetricLoadSeconds, n)
		}
		if st := s.State(); st.Batches != 0 {
			t.Errorf("the warm-up counts as %d batches", st.Batches)
		}
	})
}

func TestFailedWarmUpIsNotReadyAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{run: func(context.Context, *fakeInstance, Batch) (Output, error) {
			return Output{}, Applicationf("ValueError: want JSON")
		}}
		s := startWorker(t, b, Options{})
		time.Sleep(time.Minute)
		if readyStatus(s) != 503 || !strings.Contains(s.State().Message, "ValueError: want JSON") {
			t.Errorf("state = %+v, want failed with the reason", s.State())
		}
		if b.closes() == 0 || b.closes() > len(b.loadTimes()) {
			t.Errorf("%d of %d instances closed", b.closes(), len(b.loadTimes()))
		}
	})
}

func TestLoadsBackOffExponentially(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{load: func(n int) error {
			if n < 6 {
				return errors.New("no such module")
			}
			return nil
		}}
		s := startWorker(t, b, Options{SkipWarmUp: true, BackoffMin: time.Second, BackoffMax: 4 * time.Second})
		start := time.Now()
		time.Sleep(time.Minute)
		want := []time.Duration{0, 1, 3, 7, 11, 15}
		if len(b.loadTimes()) != len(want) {
			t.Fatalf("%d loads, want %d", len(b.loadTimes()), len(want))
		}
		for i, at := range b.loadTimes() {
			if at.Sub(start) != want[i]*time.Second {
				t.Errorf("load %d after %v, want %v s", i, at.Sub(start), int(want[i]))
			}
		}
		if readyStatus(s) != 200 {
			t.Errorf("not ready after a good load: %+v", s.State())
		}
	})
}

func TestBackoffBeginsAnewAfterAGoodBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{}
		s := startWorker(t, b, Options{SkipWarmUp: true, BackoffMin: time.Second, BackoffMax: time.Minute})
		restart := func() time.Duration {
			synctest.Wait()
			died := time.Now()
			_ = b.instance().die(errors.New("gone"))
			for synctest.Wait(); readyStatus(s) != 200; synctest.Wait() {
				time.Sleep(100 * time.Millisecond)
			}
			return time.Since(died)
		}
		for i, want := range []time.Duration{1, 2, 4} {
			if got := restart(); got != want*time.Second {
				t.Errorf("restart %d took %v, want %v s", i, got, int(want))
			}
		}
		wantEcho(t, send(s, "b1", "a"), "a")
		if got := restart(); got != time.Second {
			t.Errorf("restart after a good batch took %v, want 1s", got)
		}
		if n := counter(t, s, MetricRestarts); n != 4 || b.closes() != 4 {
			t.Errorf("%v restarts, %d instances closed, want 4 and 4", n, b.closes())
		}
	})
}

func TestHungBatchIsGivenUpAndTheBackendRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{}
		b.run = func(ctx context.Context, i *fakeInstance, batch Batch) (Output, error) {
			if batch.Inputs[0] == "hang" {
				<-ctx.Done()
				return Output{}, i.die(context.Cause(ctx))
			}
			return echoAfter(ctx, time.Millisecond, batch)
		}
		s := startWorker(t, b, Options{BatchTimeout: 2 * time.Second})
		time.Sleep(time.Second)
		start := time.Now()
		wantRefusal(t, send(s, "b1", "hang"), 502, wire.CodeBackend, "longer than 2s")
		if time.Since(start) != 2*time.Second {
			t.Errorf("given up after %v, want 2s", time.Since(start))
		}
		wantRefusal(t, send(s, "b2", "a"), 503, wire.CodeNotReady, "hung")
		if s.State().State != wire.WorkerFailed {
			t.Errorf("state = %+v, want failed", s.State())
		}
		time.Sleep(time.Second)
		wantEcho(t, send(s, "b2", "a"), "a")
	})
}

func TestLoadThatNeverEndsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{run: func(ctx context.Context, _ *fakeInstance, _ Batch) (Output, error) {
			<-ctx.Done()
			return Output{}, context.Cause(ctx)
		}}
		s := startWorker(t, b, Options{LoadTimeout: time.Minute})
		time.Sleep(time.Minute + time.Second/100)
		if st := s.State(); st.State != wire.WorkerFailed || !strings.Contains(st.Message, "longer than 1m0s") {
			t.Errorf("state = %+v, want failed by the load timeout", st)
		}
	})
}

// A process can be broken for good while it still answers.
func TestInstanceThatFailsEveryBatchIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{}
		broken := false
		b.run = func(ctx context.Context, _ *fakeInstance, batch Batch) (Output, error) {
			broken = (broken && len(b.loadTimes()) == 1) || batch.Inputs[0] == "assert"
			if broken {
				return Output{}, Applicationf("RuntimeError: CUDA error: device-side assert triggered")
			}
			return echoAfter(ctx, time.Millisecond, batch)
		}
		s := startWorker(t, b, Options{})
		time.Sleep(time.Second)
		wantRefusal(t, send(s, "b1", "assert"), 500, wire.CodeApplication, "CUDA")
		wantRefusal(t, send(s, "b2", "a"), 500, wire.CodeApplication, "CUDA")
		wantRefusal(t, send(s, "b3", "a"), 500, wire.CodeApplication, "CUDA")
		time.Sleep(time.Second)
		wantEcho(t, send(s, "b4", "a"), "a")
		if len(b.loadTimes()) != 2 {
			t.Errorf("%d loads, want 2", len(b.loadTimes()))
		}
	})
}

func TestBadInputsAloneDoNotRestartTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{}
		b.run = func(ctx context.Context, _ *fakeInstance, batch Batch) (Output, error) {
			if batch.Inputs[0] == "bad" {
				return Output{}, Applicationf("ValueError")
			}
			return echoAfter(ctx, 100*time.Millisecond, batch)
		}
		s := startWorker(t, b, Options{})
		time.Sleep(time.Second)
		for i := range 10 * suspectAfter {
			wantRefusal(t, send(s, "bad"+string(rune('A'+i)), "bad"), 500, wire.CodeApplication, "ValueError")
			time.Sleep(time.Second)
		}
		wantEcho(t, send(s, "b", "a"), "a")
		if len(b.loadTimes()) != 1 {
			t.Errorf("%d loads, want 1: the checks between succeeded", len(b.loadTimes()))
		}
		if n := counter(t, s, MetricFailures, wire.CodeApplication); n != 10*suspectAfter {
			t.Errorf("%s = %v, want %d", MetricFailures, n, 10*suspectAfter)
		}
	})
}

func TestASuccessBetweenFailuresClearsTheSuspicion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		b := &fakeBackend{run: func(_ context.Context, _ *fakeInstance, batch Batch) (Output, error) {
			if batch.ID == WarmUpID {
				checks++
			}
			if batch.Inputs[0] == "bad" {
				return Output{}, Applicationf("ValueError")
			}
			return Output{Outputs: batch.Inputs}, nil
		}}
		s := startWorker(t, b, Options{})
		synctest.Wait()
		for _, in := range []string{"bad", "bad", "good", "bad", "bad", "good", "bad"} {
			send(s, fmt.Sprint(time.Now().UnixNano()), in)
			time.Sleep(time.Millisecond)
		}
		if checks != 1 {
			t.Errorf("%d warm-up batches, want only the one of the load", checks)
		}
	})
}

// Between the death of an idle instance and the moment that Run sees it.
func TestNoBatchIsSentToADeadInstance(t *testing.T) {
	b := &fakeBackend{run: func(context.Context, *fakeInstance, Batch) (Output, error) {
		return Output{}, errors.New("sent to a dead instance")
	}}
	s := New(b, Options{})
	inst, _ := b.Load(t.Context())
	s.setReady(inst)
	_ = b.instance().die(errors.New("gone"))
	wantRefusal(t, send(s, "b1", "a"), 503, wire.CodeNotReady, "died")
	if readyStatus(s) != 503 {
		t.Error("ready with a dead instance")
	}
}

func TestDrainedWorkerChecksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{}
		ran := 0
		b.run = func(context.Context, *fakeInstance, Batch) (Output, error) {
			ran++
			return Output{}, Applicationf("ValueError")
		}
		s := startWorker(t, b, Options{SkipWarmUp: true})
		synctest.Wait()
		for _, id := range []string{"1", "2"} {
			send(s, id, "a")
		}
		if err := s.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.opt.SkipWarmUp = false // a check would run
		s.suspect <- struct{}{}
		synctest.Wait()
		if ran != 2 {
			t.Errorf("%d batches ran, want the two before the drain", ran)
		}
	})
}

func TestStopWaitsForTheBatchAndClosesTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{}
		s := New(b, Options{SkipWarmUp: true})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { _ = s.Run(ctx); close(ended) }()
		synctest.Wait()
		first := sendLater(t.Context(), s, "b1", "a")
		time.Sleep(time.Millisecond)
		stop()
		wantEcho(t, <-first, "a")
		<-ended
		if b.closes() != 1 || b.spoilt {
			t.Errorf("closed %d times, with a batch running: %v; want once, after it", b.closes(), b.spoilt)
		}
	})
}

func TestMetricsOfAGoodBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true})
		synctest.Wait()
		send(s, "b1", "a", "b")
		for name, want := range map[string]float64{
			MetricBatches: 1, MetricItems: 2, MetricBusySeconds: 0.1, MetricBatchDuration: 1, MetricMemory: 4096, MetricReady: 1,
		} {
			if got := counter(t, s, name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
		}
	})
}
