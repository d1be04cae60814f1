package batching

import (
	"fmt"
	"testing"
	"time"
)

func backgroundConfig() Config {
	cfg := testConfig()
	cfg.Tiers = []Tier{
		{Name: "bulk", LatencyTarget: 500 * time.Millisecond, Timeout: time.Minute, Background: true},
		{Name: "live", LatencyTarget: 500 * time.Millisecond, Timeout: 2 * time.Second},
	}
	return cfg
}

// A tier with a reserved share gets it at any load of the tiers above, and they lose no more than that.
func TestTheFloorIsKeptAndNotMore(t *testing.T) {
	for _, reserved := range []float64{0, 0.02, 0.1, 0.3} {
		cfg := testConfig()
		cfg.Tiers[2].Reserved = reserved
		w := newWorld(cfg, 2, 9)
		const run = 5 * time.Second
		w.poisson(3000, run, func(int) Request { return Request{Tier: 0} }) // 1.5 times the fleet by itself
		w.poisson(2000, run, func(int) Request { return Request{Tier: 2} })
		w.run(run)
		slots := float64(w.items)
		low := float64(len(w.latency[2])) / slots
		t.Logf("reserved %.2f: the low tier got %.3f of %v items, p95 high %v", reserved, low, w.items, w.quantile(0.95))
		if low < reserved*0.95 || low > reserved+0.02 {
			t.Errorf("reserved %.2f, got %.3f", reserved, low)
		}
		for _, p := range w.problems {
			t.Error(p)
		}
	}
}

// 2 % of a batch of 20 is not nothing: it is a slot in every 2.5th batch.
func TestAFloorSmallerThanASlotAddsUp(t *testing.T) {
	cfg := testConfig()
	cfg.MaxSize = 20
	w := newWorld(cfg, 1, 4)
	const run = 30 * time.Second
	w.poisson(400, run, func(int) Request { return Request{Tier: 0} }) // twice the worker
	w.poisson(100, run, func(int) Request { return Request{Tier: 2} })
	w.run(run)
	if share := float64(len(w.latency[2])) / float64(w.items); share < 0.018 {
		t.Errorf("the low tier got %.4f of the slots, reserved is 0.02", share)
	}
}

// Flows of a tier take turns: one that sends a hundred times more delays the others by its share only.
func TestAFloodOfOneFlowDelaysOthersByItsTurnOnly(t *testing.T) {
	w := newWorld(testConfig(), 1, 2)
	const run = 5 * time.Second
	w.poisson(2000, run, func(int) Request { return Request{Flow: "flood"} })
	var quiet []*Ticket
	refused := 0
	var next func()
	next = func() {
		if x := w.submit(Request{ID: fmt.Sprint("q", len(quiet)+refused), Flow: "quiet"}); x != nil {
			quiet = append(quiet, x)
		} else {
			refused++
		}
		if w.now.Sub(w.start) < run {
			w.after(20*time.Millisecond, next)
		}
	}
	w.after(time.Second, next)
	w.run(run + time.Second)
	worst := time.Duration(0)
	for _, x := range quiet {
		if x.Err != nil {
			t.Fatalf("%s: %v", x.ID, x.Err)
		}
		worst = max(worst, x.Result.QueueWait+x.Result.Service)
	}
	t.Logf("%d of the quiet flow served, %d refused, worst %v; all %v", len(quiet), refused, worst, w.quantile(0.95))
	if refused > 0 || worst > 205*time.Millisecond { // its own batch after at most one other
		t.Errorf("the quiet flow waited %v, %d refused", worst, refused)
	}
}

// Background requests change nothing for interactive ones, at any load; and they are served.
func TestBackgroundDelaysNobodyAndFillsTheTrough(t *testing.T) {
	for _, c := range []struct {
		load    float64
		workers int
	}{{100, 2}, {1500, 4}, {3000, 4}, {900, 13}} {
		var p95 [2]time.Duration
		for i, bulk := range []float64{0, 4000} {
			w := newWorld(backgroundConfig(), c.workers, 6)
			const run = 4 * time.Second
			w.poisson(c.load, run, func(int) Request { return Request{Tier: 1} })
			if bulk > 0 {
				w.poisson(bulk, run, func(int) Request { return Request{Tier: 0} })
			}
			w.run(run + time.Second)
			live := w.latency[1]
			w.latency = w.latency[1:]
			p95[i] = w.quantile(0.95)
			if n := w.causes[1]; len(n) > 0 {
				t.Errorf("%.0f/s on %d with %.0f/s of background: %v", c.load, c.workers, bulk, n)
			}
			if bulk > 0 {
				batches := float64(w.items) / float64(w.batches)
				t.Logf("%.0f/s on %d: p95 %v without, %v with %d of background, fill %.0f", c.load, c.workers, p95[0], p95[1], w.served-len(live), batches)
				if w.served-len(live) < 400 {
					t.Errorf("only %d background requests were served", w.served-len(live))
				}
			}
			for _, p := range w.problems {
				t.Error(p)
			}
		}
		if p95[1] > p95[0]+5*time.Millisecond {
			t.Errorf("%.0f/s on %d workers: p95 %v without background, %v with", c.load, c.workers, p95[0], p95[1])
		}
	}
}

// With nobody else there, even the only worker serves background requests.
func TestBackgroundAloneIsServedByOneWorker(t *testing.T) {
	w := newWorld(backgroundConfig(), 1, 1)
	w.poisson(500, 5*time.Second, func(int) Request { return Request{Tier: 0} })
	w.run(10 * time.Second)
	if w.served < 2300 {
		t.Errorf("%d served, %v", w.served, w.causes[0])
	}
}

// Background requests may use half of the queue: a flood of them refuses no interactive request.
func TestBackgroundDoesNotCrowdOutTheQueue(t *testing.T) {
	cfg := backgroundConfig()
	cfg.MaxDepth = 100
	w := newWorld(cfg, 1, 1)
	for range 300 {
		w.submit(Request{Tier: 0})
	}
	if w.causes[0][QueueFull] != 250 {
		t.Errorf("%v", w.causes[0])
	}
	if w.submit(Request{ID: "live", Tier: 1}) == nil {
		t.Errorf("an interactive request was refused: %v", w.causes[1])
	}
}

// An impatient client does not force batches of one on everybody: the dispatch rule sees its deadline no earlier
// than 2S after its arrival. (The client gets its 504 on time.)
func TestAnImpatientClientDoesNotBreakBatches(t *testing.T) {
	cfg := testConfig()
	cfg.MaxWait = 200 * time.Millisecond
	w := newWorld(cfg, 1, 1)
	for i := range int64(20) { // 20/s: the window is 100/0.75 - 50 = 83 ms
		w.core.wanted.add(i * 50 * testMs)
	}
	w.now = w.start.Add(time.Second)
	left := 0
	w.onBatch = func(*Batch) { left++ }
	x := w.submit(Request{ID: "impatient", Deadline: w.now.Add(130 * time.Millisecond)})
	w.settle()
	w.run(1060 * time.Millisecond) // its slack was gone after 24 ms
	if left != 0 {
		t.Errorf("a batch left for the impatient client alone")
	}
	w.run(1300 * time.Millisecond)
	if x.Err == nil || x.Err.Cause != Expired {
		t.Errorf("got %v", x.Err)
	}
}

// Requests whose parameters must agree share a batch only if they do, and no set of parameters starves.
func TestParametersPerBatch(t *testing.T) {
	cfg := testConfig()
	cfg.ParamsMode = ParamsBatch
	w := newWorld(cfg, 4, 8)
	sets := []int{16, 64, 256}
	w.onBatch = func(b *Batch) {
		for _, x := range b.Tickets {
			if *x.Params.MaxTokens != *b.Params.MaxTokens {
				w.problem("%s with %d tokens in a batch of %d", x.ID, *x.Params.MaxTokens, *b.Params.MaxTokens)
			}
		}
	}
	const run = 5 * time.Second
	w.poisson(2000, run, func(i int) Request {
		r := Request{Tier: i % 3}
		r.Params.MaxTokens = &sets[i%7%3]
		return r
	})
	w.run(run + 3*time.Second)
	t.Logf("p95 %v, %d batches of mean %.1f, causes %v", w.quantile(0.95), w.batches, float64(w.items)/float64(w.batches), w.causes)
	if w.quantile(0.95) > 300*time.Millisecond {
		t.Errorf("p95 %v", w.quantile(0.95))
	}
	for _, p := range append(w.problems, baseline(w.core)...) {
		t.Error(p)
	}
}

// Under overload there is always a full batch of what most ask for. Those with other parameters, for whom none is ever
// full, are served within their deadlines all the same, and it costs little.
func TestRareParametersDoNotStarve(t *testing.T) {
	cfg := testConfig()
	cfg.ParamsMode = ParamsBatch
	w := newWorld(cfg, 3, 5)
	rare, starved := 0, 0
	const run = 10 * time.Second
	seven := 7
	w.poisson(4000, run, func(i int) Request {
		r := Request{}
		if i%320 == 0 {
			r.Params.MaxTokens = &seven
		}
		return r
	})
	w.onDone = func(x *Ticket) {
		if x.Params.MaxTokens == nil {
			return
		}
		rare++
		if x.Err != nil {
			starved++
		}
	}
	w.run(run + 3*time.Second)
	mean := float64(w.items) / float64(w.batches)
	t.Logf("%d with other parameters were admitted, %d not served; batches of mean %.1f", rare, starved, mean)
	if rare < 30 || starved > 0 {
		t.Errorf("of %d requests with other parameters %d were admitted and not served", rare, starved)
	}
	if mean < 90 {
		t.Errorf("batches of mean %.1f", mean)
	}
	for _, p := range append(w.problems, baseline(w.core)...) {
		t.Error(p)
	}
}
