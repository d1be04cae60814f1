package batching

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// scheduleConfig has everything at once: floors, a background tier in the middle of the list, small batches.
func scheduleConfig() Config {
	return Config{
		ID: "s", MaxSize: 8, MaxWait: 40 * time.Millisecond, InferenceTime: 90 * time.Millisecond,
		InferenceTimeout: 500 * time.Millisecond, MaxRetries: 1, Target: 0.75, ParamsMode: ParamsItem,
		MaxDepth: 64, MaxBytes: 4096,
		Tiers: []Tier{
			{Name: "high", LatencyTarget: 800 * time.Millisecond, Timeout: 2 * time.Second},
			{Name: "bulk", LatencyTarget: time.Second, Timeout: 5 * time.Second, Background: true},
			{Name: "mid", LatencyTarget: 800 * time.Millisecond, Timeout: 2 * time.Second, Reserved: 0.1},
			{Name: "low", LatencyTarget: 800 * time.Millisecond, Timeout: 2 * time.Second, Reserved: 0.05},
		},
	}
}

// replay makes a schedule of data (arrivals, cancels, failures, workers that come, go and lie, time passing),
// runs it and returns what went wrong.
func replay(data []byte) []string {
	cfg := scheduleConfig()
	w := newWorld(cfg, 2, 1)
	var tickets []*Ticket
	admitted := 0
	failures := []Outcome{}
	service := 100 * time.Millisecond
	w.service = func(int) time.Duration { return service }
	w.outcome = func(b *Batch) Outcome {
		if len(failures) == 0 {
			return Outcome{Kind: Answered}
		}
		o := failures[0]
		failures = failures[1:]
		if o.Kind == Answered { // nonsense: the answers of a rotated batch, or too few
			for i := range b.Tickets {
				o.Results = append(o.Results, wire.Result{RequestID: b.Tickets[(i+1)%len(b.Tickets)].ID, Output: "echo:x", Status: wire.StatusOK})
			}
			if len(b.Tickets) == 1 {
				o.Results = o.Results[:0:0]
				o.Kind = Crashed
			}
		}
		return o
	}
	credit := make([]float64, len(cfg.Tiers))
	w.onBatch = func(b *Batch) { w.checkOrder(b, credit) }
	w.beforeNext = func() {
		for i := range credit {
			credit[i] = w.core.tiers[i].credit
		}
	}
	pos := 0
	next := func() byte {
		if pos >= len(data) {
			return 0
		}
		pos++
		return data[pos-1]
	}
	for pos < len(data) {
		op, arg := next(), int(next())
		addr := fmt.Sprint("w", arg%5)
		switch op % 16 {
		case 0, 1, 2, 3, 4, 5:
			r := Request{ID: fmt.Sprint("r", len(tickets)), Tier: arg % 4, Flow: fmt.Sprint(arg / 4 % 3), Input: fmt.Sprint("in", len(tickets))}
			if arg&64 != 0 {
				tokens := arg / 16 % 3
				r.Params.MaxTokens = &tokens
			}
			if arg&128 != 0 {
				r.Deadline = w.now.Add(time.Duration(100+arg) * time.Millisecond)
			}
			if t := w.submit(r); t != nil {
				admitted++
				tickets = append(tickets, t)
			} else {
				tickets = append(tickets, nil)
			}
		case 6, 7:
			if n := len(tickets); n > 0 {
				if t := tickets[n-1-arg%n]; t != nil && t.state != done {
					w.core.Cancel(t, Cancelled)
				}
			}
		case 8, 9, 10:
			w.run(w.now.Add(time.Duration(arg) * time.Millisecond).Sub(w.start))
		case 11:
			failures = append(failures, Outcome{Kind: Kind(arg % 7), Detail: "scripted", FreeIn: time.Duration(arg) * time.Millisecond})
		case 12:
			w.workers(arg % 5)
		case 13:
			switch arg / 5 % 4 {
			case 0:
				w.core.WorkerIdle(w.now, addr)
			case 1:
				w.core.WorkerUnhealthy(w.now, addr, "said so")
			case 2:
				w.core.WorkerDraining(w.now, addr)
			case 3:
				w.core.WorkerBusy(w.now, addr, time.Duration(arg)*time.Millisecond)
			}
		case 14:
			w.core.SetParamsMode([]string{ParamsItem, ParamsBatch, ParamsNone}[arg%3])
		case 15:
			service = time.Duration(50+arg) * time.Millisecond
			w.core.SetFleetLambda(float64(arg))
			w.core.SetBatchers(arg % 4)
		}
		if w.core.depth > cfg.MaxDepth+3*cfg.MaxSize { // what a failed batch puts back was admitted before
			w.problem("%d waiting, the bound is %d", w.core.depth, cfg.MaxDepth)
		}
		w.settle()
	}
	// Afterwards everything works again, and everyone must have been answered.
	failures, service = nil, 100*time.Millisecond
	w.workers(3)
	w.settle()
	w.run(w.now.Sub(w.start) + 30*time.Second)
	answers := 0
	for _, t := range tickets {
		if t == nil {
			continue
		}
		switch n := t.Tag.(*call).answers; n {
		case 0:
			w.problem("%s of tier %d was lost in state %d", t.ID, t.Tier, t.state)
		default:
			answers += n
		}
	}
	if answers != admitted {
		w.problem("%d admitted, %d answers", admitted, answers)
	}
	return append(w.problems, baseline(w.core)...)
}

// baseline says what an empty Core still holds.
func baseline(c *Core) (left []string) {
	if c.depth != 0 || c.bytes != 0 || c.running != 0 || c.interactive != 0 {
		left = append(left, fmt.Sprintf("left: depth %d, bytes %d, running %d, interactive %d", c.depth, c.bytes, c.running, c.interactive))
	}
	if len(c.groups) != 1 || len(c.full) != 0 || len(c.urgent.entries) != 0 || len(c.expiry.entries) != 0 {
		left = append(left, fmt.Sprintf("left: %d groups, %d full, %d urgent, %d expiring", len(c.groups), len(c.full), len(c.urgent.entries), len(c.expiry.entries)))
	}
	for _, g := range c.groups {
		for i := range g.tiers {
			if q := &g.tiers[i]; q.n != 0 || len(q.flows) != 0 || q.turn != nil || q.retries.head != nil {
				left = append(left, fmt.Sprintf("left: tier %d has %d in %d flows", i, q.n, len(q.flows)))
			}
		}
	}
	for _, b := range c.spare {
		for _, t := range b.Tickets[:cap(b.Tickets)] {
			if t != nil {
				return append(left, "left: a spare batch keeps a ticket alive")
			}
		}
	}
	return left
}

// checkOrder: a batch has requests of a lower tier, beyond what the floor owes it, only when no request of a
// higher tier that could have gone is left.
func (w *world) checkOrder(b *Batch, credit []float64) {
	count := make([]int, len(w.core.tiers))
	for _, t := range b.Tickets {
		count[t.Tier]++
		if t.retry && t.avoid == b.Worker && w.core.live > 1 {
			w.problem("%s is tried again where it failed", t.ID)
		}
		if want := groupKey(w.core.mode, t).parameters(); !equalParams(b.Params, want) {
			w.problem("%s shares a batch with other parameters", t.ID)
		}
	}
	g := w.core.groups[groupKey(w.core.mode, b.Tickets[0])]
	if g == nil {
		return
	}
	for k, high := range w.core.order {
		if g.tiers[high].turn == nil { // no first attempt waits (second ones are spread thin)
			continue
		}
		for _, low := range w.core.order[k+1:] {
			owed := int(min(credit[low]+w.core.tiers[low].Reserved*float64(w.core.cfg.MaxSize), float64(w.core.cfg.MaxSize)))
			if count[low] > owed {
				w.problem("tier %d got %d slots, owed %d, while tier %d waits", low, count[low], owed, high)
			}
		}
	}
}

func equalParams(a, b *wire.Parameters) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a.MaxTokens == *b.MaxTokens
}

func TestNoScheduleLosesDoublesOrMisdirectsARequest(t *testing.T) {
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 2))
		data := make([]byte, 100+rng.IntN(1500))
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		if problems := replay(data); len(problems) > 0 {
			t.Fatalf("schedule %d: %q", seed, problems)
		}
	}
}

func FuzzSchedule(f *testing.F) {
	f.Add([]byte{0, 0, 0, 4, 10, 200})                                  // two requests, time passes
	f.Add([]byte{0, 0, 8, 50, 6, 0, 8, 100})                            // cancel while running
	f.Add([]byte{11, 5, 0, 0, 0, 2, 10, 255, 11, 4, 10, 255})           // crash, then the function raises
	f.Add([]byte{12, 0, 0, 0, 12, 1, 13, 0, 0, 0, 10, 255})             // no worker, then one
	f.Add([]byte{14, 1, 0, 64, 0, 80, 0, 96, 10, 255, 14, 0, 10, 255})  // parameters per batch
	f.Add([]byte{0, 1, 0, 1, 0, 0, 8, 20, 0, 128, 8, 255})              // background, impatient
	f.Add([]byte{11, 2, 11, 3, 11, 1, 0, 0, 0, 1, 0, 2, 0, 3, 10, 255}) // busy, draining, refused
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4000 {
			return
		}
		if problems := replay(data); len(problems) > 0 {
			t.Fatalf("%q", problems)
		}
	})
}
