package batching

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// testConfig is the default pool: B 100, S 100 ms, enterprise, paid, free (2 % reserved).
func testConfig() Config {
	c := FromPool(poolspec.Default(), "b0")
	c.InferenceTime = 100*time.Millisecond - copies
	return c
}

// fleet runs batches in virtual time: service after the batch left, echoing "echo:"+input, or what fail says.
type fleet struct {
	service time.Duration
	fail    func(b *Batch) *Outcome // nil for an answer

	mu      sync.Mutex
	running map[string]bool
	sizes   []int
	ran     map[string]int // attempts by request id
}

func newFleet(service time.Duration) *fleet {
	return &fleet{service: service, running: map[string]bool{}, ran: map[string]int{}}
}

func (f *fleet) Run(ctx context.Context, b *Batch) Outcome {
	f.mu.Lock()
	if f.running[b.Worker] {
		panic("two batches at once on " + b.Worker)
	}
	f.running[b.Worker] = true
	f.sizes = append(f.sizes, len(b.Tickets))
	f.mu.Unlock()
	o := Outcome{Kind: Answered}
	if f.fail != nil {
		if x := f.fail(b); x != nil {
			o = *x
		}
	}
	if o.Kind != Refused && o.Kind != Busy && o.Kind != Leaving {
		d := f.service
		if o.Kind == TimedOut {
			d = b.Timeout
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			o = Outcome{Kind: Crashed, Detail: "aborted"}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.running, b.Worker)
	for _, t := range b.Tickets {
		if o.Kind != Refused && o.Kind != Busy && o.Kind != Leaving {
			f.ran[t.ID]++
		}
		if o.Kind == Answered && o.Results == nil || len(o.Results) > 0 && len(o.Results) < len(b.Tickets) {
			o.Results = append(o.Results, wire.Result{RequestID: t.ID, Output: "echo:" + t.Input, Status: wire.StatusOK})
		}
	}
	return o
}

// withWorkers makes n idle workers.
func withWorkers(b *Batcher, n int) {
	var ids []WorkerID
	for i := range n {
		ids = append(ids, WorkerID{Addr: fmt.Sprintf("w%d", i)})
	}
	b.SetWorkers(ids)
	for _, id := range ids {
		b.WorkerIdle(id.Addr)
	}
}

func causeOf(err error) Cause {
	var e *Error
	if errors.As(err, &e) {
		return e.Cause
	}
	return ""
}

func TestALonelyRequestIsNotHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(100 * time.Millisecond)
		b := NewBatcher(testConfig(), f)
		defer b.Close()
		withWorkers(b, 13)
		start := time.Now()
		r, err := b.Submit(t.Context(), Request{ID: "a", Input: "x"})
		if err != nil || r.Output != "echo:x" || r.BatchSize != 1 || r.Attempts != 1 {
			t.Fatalf("got %+v, %v", r, err)
		}
		if d := time.Since(start); d != 100*time.Millisecond {
			t.Fatalf("took %v, want the service time alone", d)
		}
	})
}

// Whoever was answered is woken after the next batch has left, not when that one is back.
func TestAnswersDoNotWaitForTheNextBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(100 * time.Millisecond)
		c := testConfig()
		c.MaxSize = 2
		b := NewBatcher(c, f)
		defer b.Close()
		withWorkers(b, 1)
		start := time.Now()
		var took [6]time.Duration
		var wg sync.WaitGroup
		for i := range took {
			wg.Go(func() {
				if _, err := b.Submit(t.Context(), Request{ID: fmt.Sprint(i), Input: "x"}); err != nil {
					t.Error(err)
				}
				took[i] = time.Since(start)
			})
		}
		wg.Wait()
		slices.Sort(took[:])
		for i, d := range took { // the first leaves alone, as it finds the worker idle
			if want := time.Duration((i+1)/2+1) * 100 * time.Millisecond; d != want {
				t.Errorf("answer %d came after %v, its batch after %v", i, d, want)
			}
		}
	})
}

func TestRequestsWaitingForAWorkerShareTheNextBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(100 * time.Millisecond)
		b := NewBatcher(testConfig(), f)
		defer b.Close()
		withWorkers(b, 1)
		var wg sync.WaitGroup
		for i := range 250 {
			wg.Go(func() {
				id := fmt.Sprint("r", i)
				r, err := b.Submit(t.Context(), Request{ID: id, Input: id})
				if err != nil || r.Output != "echo:"+id {
					t.Errorf("%s got %+v, %v", id, r, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		total := 0
		for _, n := range f.sizes {
			total += n
			if n > 100 {
				t.Fatalf("batch of %d", n)
			}
		}
		if total != 250 || len(f.sizes) > 4 {
			t.Fatalf("batches %v", f.sizes)
		}
	})
}

func TestNoWorkerIsNoCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBatcher(testConfig(), newFleet(time.Second))
		defer b.Close()
		if _, err := b.Submit(t.Context(), Request{ID: "a"}); causeOf(err) != NoCapacity {
			t.Fatalf("got %v", err)
		}
	})
}

// goroutines returns how many goroutines are in a Batcher's code. (The runtime starts some of its own when it likes.)
func goroutines(t *testing.T) int {
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
		t.Fatal(err)
	}
	n := 0
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, "batching.(*Batcher)") {
			n++
		}
	}
	return n
}

func TestMassCancelReturnsToBaseline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(100 * time.Millisecond)
		b := NewBatcher(testConfig(), f)
		defer b.Close()
		withWorkers(b, 13)
		base := goroutines(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 4000 {
			wg.Go(func() {
				_, err := b.Submit(ctx, Request{ID: fmt.Sprint(i), Input: "some input", Tier: i % 3})
				if c := causeOf(err); c != Cancelled && c != Infeasible && err != nil {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		s := b.Snapshot()
		if s.Depth != 0 || s.Bytes != 0 {
			t.Fatalf("depth %d, bytes %d after everybody left", s.Depth, s.Bytes)
		}
		time.Sleep(time.Second) // virtual: the running batches end
		synctest.Wait()
		if s := b.Snapshot(); s.Parked != 0 {
			t.Fatalf("parked %d", s.Parked)
		}
		if n := goroutines(t); n > base {
			t.Fatalf("%d goroutines, %d before", n, base)
		}
	})
}

func TestAnExpiredRequestIsAnsweredOnTimeWhileEveryWorkerIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		f := newFleet(100 * time.Millisecond)
		b := NewBatcher(cfg, f)
		defer b.Close()
		withWorkers(b, 1)
		f.fail = func(*Batch) *Outcome { return &Outcome{Kind: TimedOut, Detail: "hangs"} } // 500 ms
		go func() { _, _ = b.Submit(context.Background(), Request{ID: "hangs"}) }()
		synctest.Wait()
		start := time.Now()
		_, err := b.Submit(t.Context(), Request{ID: "a", Deadline: start.Add(250 * time.Millisecond)})
		if d := time.Since(start); causeOf(err) != Expired || d != 250*time.Millisecond {
			t.Fatalf("%v after %v", err, d)
		}
	})
}

func TestACancelledRequestLeavesAtOnceAndItsSlotGoesToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.MaxSize = 1
		f := newFleet(100 * time.Millisecond)
		b := NewBatcher(cfg, f)
		defer b.Close()
		withWorkers(b, 1)
		go func() { _, _ = b.Submit(context.Background(), Request{ID: "runs"}) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := b.Submit(ctx, Request{ID: "cancelled"})
			gone <- err
		}()
		synctest.Wait()
		next := make(chan Result, 1)
		start := time.Now()
		go func() {
			r, _ := b.Submit(context.Background(), Request{ID: "next"})
			next <- r
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; causeOf(err) != Cancelled || time.Since(start) != 0 {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		if r := <-next; r.QueueWait != 100*time.Millisecond || f.ran["cancelled"] != 0 {
			t.Fatalf("%+v, the cancelled ran %d times", r, f.ran["cancelled"])
		}
	})
}

func TestACancelWhileTheBatchRunsReturnsAtOnceAndCountsAsWaste(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBatcher(testConfig(), newFleet(100*time.Millisecond))
		defer b.Close()
		withWorkers(b, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := b.Submit(ctx, Request{ID: "a"})
		if causeOf(err) != Expired || time.Since(start) != 30*time.Millisecond {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		time.Sleep(time.Second)
		if s := b.Snapshot(); s.Wasted != 1 || s.Parked != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

func TestDrainServesWhatIsParkedAndAdmitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBatcher(testConfig(), newFleet(100*time.Millisecond))
		defer b.Close()
		withWorkers(b, 1)
		var wg sync.WaitGroup
		for i := range 150 {
			wg.Go(func() {
				if _, err := b.Submit(context.Background(), Request{ID: fmt.Sprint(i)}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- b.Drain(context.Background()) }()
		synctest.Wait()
		if _, err := b.Submit(t.Context(), Request{ID: "late"}); causeOf(err) != Draining {
			t.Fatalf("got %v", err)
		}
		wg.Wait()
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		if err := b.Drain(t.Context()); err != nil { // nothing parked: at once
			t.Fatal(err)
		}
	})
}

func TestDrainGivesUpWithItsContextAndCloseAnswersTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBatcher(testConfig(), newFleet(450*time.Millisecond))
		withWorkers(b, 1)
		errs := make(chan error, 3)
		for i := range 3 {
			go func() {
				_, err := b.Submit(context.Background(), Request{ID: fmt.Sprint(i)})
				errs <- err
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := b.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("drain: %v", err)
		}
		b.Close()
		for range 3 {
			if err := <-errs; causeOf(err) != Draining {
				t.Fatalf("got %v", err)
			}
		}
	})
}

func TestAnotherBatchersBatchIsWaitedForAndNotPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(100 * time.Millisecond)
		calls := 0
		f.fail = func(*Batch) *Outcome {
			if calls++; calls == 1 {
				return &Outcome{Kind: Busy, FreeIn: 60 * time.Millisecond}
			}
			return nil
		}
		b := NewBatcher(testConfig(), f)
		defer b.Close()
		withWorkers(b, 1)
		start := time.Now()
		r, err := b.Submit(t.Context(), Request{ID: "a"})
		if err != nil || r.Attempts != 1 || calls != 2 || time.Since(start) != 160*time.Millisecond {
			t.Fatalf("%+v, %v, %d calls, %v", r, err, calls, time.Since(start))
		}
	})
}
