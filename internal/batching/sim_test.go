package batching

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// world drives a Core in virtual time: events in order, workers that take service(batch) and answer. It
// checks at every step what must always hold.
type world struct {
	core    *Core
	rng     *rand.Rand
	now     time.Time
	start   time.Time
	events  events
	seq     int
	service func(n int) time.Duration
	outcome func(b *Batch) Outcome // its Results are filled in when Answered

	wake     time.Time
	spin     int // wake-ups in a row that were due at once
	busy     time.Duration
	batches  int
	items    int
	latency  [][]time.Duration // of the served, by tier
	causes   []map[Cause]int
	served   int
	late     int // run, but ended after the deadline
	problems []string
	onBatch  func(*Batch)
	onDone   func(*Ticket)

	beforeNext func()
	on         map[*worker]bool // runs a batch
	recovery   time.Duration    // until a failed worker says idle
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func newWorld(cfg Config, workers int, seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), start: time.Unix(1e9, 0),
		service:  func(int) time.Duration { return 100 * time.Millisecond },
		outcome:  func(*Batch) Outcome { return Outcome{Kind: Answered} },
		recovery: 20 * time.Millisecond,
		latency:  make([][]time.Duration, len(cfg.Tiers)), causes: make([]map[Cause]int, len(cfg.Tiers)),
	}
	w.now, w.on = w.start, map[*worker]bool{}
	for i := range w.causes {
		w.causes[i] = map[Cause]int{}
	}
	w.core = NewCore(cfg, w.answered)
	w.workers(workers)
	return w
}

func (w *world) workers(n int) {
	var ids []WorkerID
	for i := range n {
		ids = append(ids, WorkerID{Addr: fmt.Sprint("w", i)})
	}
	w.core.SetWorkers(w.now, ids)
	for _, id := range ids {
		w.core.WorkerIdle(w.now, id.Addr)
	}
}

func (w *world) at(t time.Time, do func()) {
	w.seq++
	heap.Push(&w.events, event{t, w.seq, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// run works off events until the time is end, or nothing is left.
func (w *world) run(end time.Duration) {
	stop := w.start.Add(end)
	for len(w.events) > 0 && !w.events[0].at.After(stop) {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
		w.settle()
	}
	w.now = stop
}

// settle starts what must leave and makes sure of the next wake-up.
func (w *world) settle() {
	for {
		if w.beforeNext != nil {
			w.beforeNext()
		}
		b := w.core.Next(w.now)
		if b == nil {
			break
		}
		w.launch(b)
	}
	wake := w.core.Wake(w.now)
	if wake.IsZero() {
		return
	}
	if wake.Before(w.now) {
		wake = w.now
	}
	if w.wake.After(w.now) && !wake.Before(w.wake) {
		return
	}
	if !wake.Equal(w.now) {
		w.spin = 0
	} else if w.spin++; w.spin > 10_000 {
		panic("the core asks to be woken at the same instant without end")
	}
	w.wake = wake
	w.at(wake, func() {})
}

func (w *world) launch(b *Batch) {
	if len(b.Tickets) == 0 || len(b.Tickets) > w.core.cfg.MaxSize {
		w.problem("batch of %d", len(b.Tickets))
	}
	at := b.worker
	if w.on[at] {
		w.problem("two batches at once on %s", b.Worker)
	}
	w.on[at] = true
	if w.onBatch != nil {
		w.onBatch(b)
	}
	limit := w.core.est.p50() + w.core.est.gap()
	for _, t := range b.Tickets {
		if t.abandoned {
			w.problem("%s runs after its cancel", t.ID)
		}
		if t.deadline < w.core.at(w.now)+limit {
			w.problem("%s runs though it cannot finish", t.ID)
		}
		if t.attempts > w.core.cfg.MaxRetries {
			w.problem("%s runs a %dth time", t.ID, t.attempts+1)
		}
	}
	started := w.now
	o := w.outcome(b)
	d := w.service(len(b.Tickets))
	switch o.Kind {
	case Refused, Busy, Leaving:
		d = time.Millisecond
	case TimedOut:
		d = b.Timeout
	}
	w.after(d, func() {
		switch o.Kind {
		case Answered:
			w.batches++
			w.items += len(b.Tickets)
			w.busy += w.now.Sub(started)
			if o.Results == nil {
				for _, t := range b.Tickets {
					o.Results = append(o.Results, wire.Result{RequestID: t.ID, Output: "echo:" + t.Input, Status: wire.StatusOK})
				}
			}
			for _, t := range b.Tickets {
				if t.abandoned || t.deadline < w.core.at(w.now) {
					w.late++
				}
			}
		}
		addr := b.Worker
		delete(w.on, at)
		if !w.core.Finish(w.now, b, o) {
			w.after(w.recovery, func() { w.core.WorkerIdle(w.now, addr) })
		}
	})
}

func (w *world) problem(format string, args ...any) {
	if len(w.problems) < 20 {
		w.problems = append(w.problems, w.now.Sub(w.start).String()+": "+fmt.Sprintf(format, args...))
	}
}

// call is the Tag of a ticket: what the test expects of it.
type call struct {
	answers int
	sent    time.Time
}

// submit enqueues a request now and returns its ticket, nil when it was refused.
func (w *world) submit(r Request) *Ticket {
	t := &Ticket{Request: r, Tag: &call{sent: w.now}}
	if err := w.core.Enqueue(w.now, t); err != nil {
		w.causes[r.Tier][err.Cause]++
		return nil
	}
	return t
}

func (w *world) answered(t *Ticket) {
	c := t.Tag.(*call)
	if c.answers++; c.answers > 1 {
		w.problem("%s answered %d times", t.ID, c.answers)
	}
	if w.onDone != nil {
		w.onDone(t)
	}
	if t.Err != nil {
		w.causes[t.Tier][t.Err.Cause]++
		if t.Err.Cause == Expired && w.core.at(w.now) > t.deadline {
			w.problem("%s expired %v late", t.ID, time.Duration(w.core.at(w.now)-t.deadline))
		}
		return
	}
	if t.Result.Output != "echo:"+t.Input {
		w.problem("%s got the answer %q", t.ID, t.Result.Output)
	}
	w.served++
	w.latency[t.Tier] = append(w.latency[t.Tier], w.now.Sub(c.sent))
}

// poisson makes arrivals of perSecond with request(i) until the time is end.
func (w *world) poisson(perSecond float64, end time.Duration, request func(i int) Request) {
	i := 0
	var next func()
	next = func() {
		if w.now.Sub(w.start) >= end {
			return
		}
		r := request(i)
		r.ID = fmt.Sprint(r.Tier, "-", i)
		r.Input = r.ID
		i++
		w.submit(r)
		w.after(time.Duration(w.rng.ExpFloat64()/perSecond*1e9), next)
	}
	w.after(time.Duration(w.rng.ExpFloat64()/perSecond*1e9), next)
}

// quantile returns the q-quantile of the served latencies of all tiers.
func (w *world) quantile(q float64) time.Duration {
	var all []time.Duration
	for _, l := range w.latency {
		all = append(all, l...)
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[int(q*float64(len(all)-1))]
}
