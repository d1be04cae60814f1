package batching

import (
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// At 70 % load one of four workers is killed in mid-batch and another hangs: everybody gets an answer.
func TestCrashAndHangLoseNothing(t *testing.T) {
	w := newWorld(testConfig(), 4, 11)
	w.recovery = time.Hour
	w.outcome = func(b *Batch) Outcome {
		at := w.now.Sub(w.start)
		switch {
		case b.Worker == "w0" && at > 3*time.Second:
			return Outcome{Kind: Crashed, Detail: "connection reset"}
		case b.Worker == "w1" && at > 6*time.Second:
			return Outcome{Kind: TimedOut, Detail: "no answer"}
		}
		return Outcome{Kind: Answered}
	}
	const run = 10 * time.Second
	w.poisson(0.45*4000, run, func(int) Request { return Request{} }) // 90 % of what two can carry
	w.run(run + 5*time.Second)
	s := w.core.Snapshot(w.now)
	t.Logf("served %d, causes %v, retries %d, p95 %v p99 %v", w.served, w.causes[0], s.Retries, w.quantile(0.95), w.quantile(0.99))
	if s.Retries == 0 || s.Parked != 0 || s.Live != 2 {
		t.Errorf("retries %d, parked %d, live %d", s.Retries, s.Parked, s.Live)
	}
	if n := w.causes[0][SecondFailure] + w.causes[0][InputFailed] + w.causes[0][Expired]; n != 0 {
		t.Errorf("%d requests failed that could be served: %v", n, w.causes[0])
	}
	for _, p := range w.problems {
		t.Error(p)
	}
}

// One input makes every batch that it is in fail. It takes few with it, and never again.
func TestAPoisonInputTakesFewWithIt(t *testing.T) {
	for _, kind := range []Kind{Raised, Crashed} {
		w := newWorld(testConfig(), 4, 5)
		poisoned := 0
		w.outcome = func(b *Batch) Outcome {
			for _, x := range b.Tickets {
				if x.Flow == "poison" {
					poisoned++
					return Outcome{Kind: kind, Detail: "poison"}
				}
			}
			return Outcome{Kind: Answered}
		}
		const run = 20 * time.Second
		w.poisson(2400, run, func(i int) Request {
			if i%4800 == 1000 {
				return Request{Flow: "poison"}
			}
			return Request{}
		})
		w.run(run + 5*time.Second)
		innocents := w.causes[0][SecondFailure]
		t.Logf("kind %d: served %d, causes %v, poisoned batches %d, p95 %v", kind, w.served, w.causes[0], poisoned, w.quantile(0.95))
		if poisoned > 20 {
			t.Errorf("10 poison inputs ran in %d batches, at most two each are allowed", poisoned)
		}
		// Those that fail for good are the poison itself and the second attempts that shared its last batch:
		// 60 wait, 35 batches leave in half of their slack, so two or three share one.
		if innocents+w.causes[0][InputFailed] > 10*4 {
			t.Errorf("%d second failures, %d guilty", innocents, w.causes[0][InputFailed])
		}
		for _, p := range w.problems {
			t.Error(p)
		}
	}
}

func TestGuiltIsClaimedOnlyForWhatFailedAlone(t *testing.T) {
	w := newWorld(testConfig(), 1, 1)
	last := map[*Ticket]int{} // size of its last batch
	w.outcome = func(b *Batch) Outcome {
		for _, x := range b.Tickets {
			last[x] = len(b.Tickets)
		}
		return Outcome{Kind: Raised, Detail: "ValueError"}
	}
	var all []*Ticket
	submit := func(n int, patience time.Duration) {
		for i := range n {
			all = append(all, w.submit(Request{ID: fmt.Sprint(i), Input: fmt.Sprint("input ", i), Deadline: w.now.Add(patience)}))
		}
		w.settle()
	}
	submit(10, 600*time.Millisecond) // no time to try them one by one
	w.run(2 * time.Second)
	submit(1, 2*time.Second)
	w.run(5 * time.Second)
	for _, x := range all {
		want := SecondFailure
		if last[x] == 1 {
			want = InputFailed
		}
		if x.Err == nil || x.Err.Cause != want || x.attempts != 2 {
			t.Errorf("%s got %v after %d attempts, the last in a batch of %d", x.ID, x.Err, x.attempts, last[x])
		}
	}
	if w.causes[0][InputFailed] == 0 || w.causes[0][SecondFailure] == 0 {
		t.Errorf("the schedule shows only one case: %v", w.causes[0])
	}
}

func TestNoRetriesMeansNone(t *testing.T) {
	cfg := testConfig()
	cfg.MaxRetries = 0
	w := newWorld(cfg, 2, 1)
	w.outcome = func(*Batch) Outcome { return Outcome{Kind: Crashed, Detail: "reset"} }
	a := w.submit(Request{ID: "a"})
	w.settle()
	w.run(time.Second)
	if a.Err == nil || a.Err.Cause != SecondFailure || a.attempts != 1 {
		t.Fatalf("got %v after %d attempts", a.Err, a.attempts)
	}
}

// A worker that did not run the batch gives it back: no attempt, its old place, and the rest of the pool takes it.
func TestWhatNeverRanCostsNoAttempt(t *testing.T) {
	for _, kind := range []Kind{Refused, Busy, Leaving} {
		w := newWorld(testConfig(), 2, 1)
		first := ""
		w.outcome = func(b *Batch) Outcome {
			if first == "" {
				first = b.Worker
			}
			if b.Worker == first {
				return Outcome{Kind: kind, FreeIn: 70 * time.Millisecond, Detail: "no"}
			}
			return Outcome{Kind: Answered}
		}
		a := w.submit(Request{ID: "a"})
		w.settle()
		w.run(500 * time.Millisecond)
		if a.Err != nil || a.Result.Attempts != 1 || a.Result.Worker == first {
			t.Errorf("kind %d: %v, %+v", kind, a.Err, a.Result)
		}
	}
}

func TestABackendThatBlamesOneItemFailsOnlyThatOne(t *testing.T) {
	w := newWorld(testConfig(), 1, 1)
	w.outcome = func(b *Batch) Outcome {
		o := Outcome{Kind: Answered}
		for _, x := range b.Tickets {
			r := wire.Result{RequestID: x.ID, Output: "echo:" + x.Input, Status: wire.StatusOK}
			if x.ID == "bad" {
				r = wire.Result{RequestID: x.ID, Status: wire.StatusError, Error: "not a number"}
			}
			o.Results = append(o.Results, r)
		}
		return o
	}
	w.submit(Request{ID: "first"})
	w.settle()
	bad, good := w.submit(Request{ID: "bad"}), w.submit(Request{ID: "good", Input: "x"})
	w.run(time.Second)
	if bad.Err == nil || bad.Err.Cause != InputFailed || bad.Err.Detail != "not a number" || good.Err != nil {
		t.Fatalf("bad: %v, good: %v", bad.Err, good.Err)
	}
	if s := w.core.Snapshot(w.now); s.Live != 1 {
		t.Fatalf("the worker counts as %+v", s.Workers)
	}
}

// A worker that fails everything at once is idle most often; it must not attract the traffic.
func TestAWorkerThatFailsAtOnceIsTriedLast(t *testing.T) {
	w := newWorld(testConfig(), 4, 2)
	broken := 0
	w.service = func(int) time.Duration { return 100 * time.Millisecond }
	w.outcome = func(b *Batch) Outcome {
		if b.Worker == "w2" {
			broken++
			return Outcome{Kind: Raised, Detail: "no GPU"}
		}
		return Outcome{Kind: Answered}
	}
	const run = 10 * time.Second
	w.poisson(1000, run, func(int) Request { return Request{} })
	w.run(run + 3*time.Second)
	t.Logf("%d batches on the broken worker, %d in all, causes %v", broken, w.batches, w.causes[0])
	if broken*5 > w.batches {
		t.Errorf("%d of %d batches went to the worker that fails everything", broken, w.batches)
	}
}

// Bounds are exact under a burst, in requests and in bytes.
func TestBoundsAreExact(t *testing.T) {
	cfg := testConfig()
	cfg.MaxDepth, cfg.MaxBytes = 50, 1000
	cfg.MaxSize = 10
	w := newWorld(cfg, 1, 1)
	w.core.est.prior = int64(time.Millisecond) // everything is feasible
	w.submit(Request{ID: "runs"})
	w.settle()
	admitted := 0
	for i := range 200 {
		if w.submit(Request{ID: fmt.Sprint(i)}) != nil {
			admitted++
		}
	}
	if admitted != 50 || w.causes[0][QueueFull] != 150 {
		t.Errorf("%d admitted of 200, %v, the bound is 50", admitted, w.causes[0])
	}
	w.run(time.Minute)
	w.submit(Request{ID: "runs"})
	w.settle()
	bytes := 0
	for i := range 40 {
		if w.submit(Request{ID: fmt.Sprint(i), Input: "1234567890" + "1234567890" + "1234567890" + "1234567890" + "1234567890"}) != nil {
			bytes += 50
		}
	}
	if bytes != 1000 {
		t.Errorf("%d bytes admitted, the bound is 1000", bytes)
	}
}

// Second attempts wait, spread thin, for as long as their deadlines allow. Requests with other parameters, which have
// batches of their own, must not wait with them.
func TestSecondAttemptsHoldUpNoOtherGroup(t *testing.T) {
	cfg := testConfig()
	cfg.ParamsMode = ParamsBatch
	w := newWorld(cfg, 3, 4)
	failed := 0
	w.outcome = func(b *Batch) Outcome {
		if failed == 0 && w.now.Sub(w.start) > time.Second && len(b.Tickets) > 20 {
			failed = len(b.Tickets)
			return Outcome{Kind: Raised, Detail: "ValueError"}
		}
		return Outcome{Kind: Answered}
	}
	seven, longest, retried := 7, time.Duration(0), 0
	w.onBatch = func(b *Batch) {
		for _, x := range b.Tickets {
			if x.Params.MaxTokens != nil {
				longest = max(longest, time.Duration(w.core.at(w.now)-x.enqueued))
			}
			retried += x.attempts
		}
	}
	const run = 4 * time.Second
	w.poisson(600, run, func(i int) Request {
		r := Request{}
		if i%60 == 0 {
			r.Params.MaxTokens = &seven
		}
		return r
	})
	w.run(run + 3*time.Second)
	t.Logf("%d requests failed once and %d were tried again; the others waited for at most %v", failed, retried, longest)
	if failed == 0 || retried != failed {
		t.Errorf("%d failed, %d were tried again", failed, retried)
	}
	if longest > 250*time.Millisecond { // two batches before it, and its window
		t.Errorf("a request with other parameters waited for %v", longest)
	}
	for _, p := range append(w.problems, baseline(w.core)...) {
		t.Error(p)
	}
}
