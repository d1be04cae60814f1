package batching

import (
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// Kind says how a batch ended.
type Kind uint8

const (
	// Answered: the worker returned results.
	Answered Kind = iota
	// Refused: the batch never reached a worker that could run it (connection refused, not ready). No
	// attempt is spent; the worker is unhealthy.
	Refused
	// Busy: the worker runs another batcher's batch, for Outcome.FreeIn. No attempt is spent.
	Busy
	// Leaving: the worker is draining. No attempt is spent.
	Leaving
	// Raised: the user's function failed. The worker is healthy.
	Raised
	// Crashed: the worker took the batch and failed, was cut off, hung or answered nonsense.
	Crashed
	// TimedOut: the worker took the batch and did not answer in time.
	TimedOut
)

// Outcome is how a batch ended.
type Outcome struct {
	Kind    Kind
	Results []wire.Result // Answered: one for each ticket, in order
	FreeIn  time.Duration // Busy
	Detail  string        // for a person, when not Answered
}

// Finish reports how b ended. It answers the tickets of b or puts them back, one by one; b is the Core's
// again. It returns whether the worker is still live.
func (c *Core) Finish(now time.Time, b *Batch, o Outcome) (live bool) {
	at := c.at(now)
	w := b.worker
	if o.Kind == Answered {
		if wrong := mismatch(b, o.Results); wrong != "" {
			o = Outcome{Kind: Crashed, Detail: wrong}
		}
	}
	c.running -= len(b.Tickets)
	c.account(at)
	w.batch, w.freed = nil, -1
	elapsed := at - b.at
	switch o.Kind {
	case Answered, Raised:
		w.state, w.since, w.message = wire.ViewIdle, at, ""
		if c.interactive >= c.cfg.MaxSize && c.debt <= 0 {
			w.freed = at
		}
		c.batches++
		c.items += uint64(len(b.Tickets))
		c.busy += time.Duration(elapsed)
	case Busy:
		c.other(at, w, o.FreeIn)
		w.since = at
	case Leaving:
		w.state, w.since, w.message = wire.ViewDraining, at, o.Detail
	default:
		w.state, w.since, w.message = wire.ViewUnhealthy, at, o.Detail
	}
	switch o.Kind {
	case Answered:
		w.streak, w.common, c.proved = 0, nil, true
		c.est.add(at, elapsed, len(b.Tickets), c.cfg.MaxSize)
	case TimedOut:
		c.est.add(at, elapsed, len(b.Tickets), c.cfg.MaxSize)
		fallthrough
	case Raised, Crashed:
		w.common = c.poisons.inEach(w, b)
		w.streak++
		w.failed++
	}
	if o.Kind == Raised {
		c.holdBack(at, w)
	}
	c.workersChanged()
	alone := len(b.Tickets) == 1 || b.suspect
	doomed := 0
	c.poisons.batch++
	if o.Kind == Raised || o.Kind == Crashed || o.Kind == TimedOut {
		for _, t := range b.Tickets {
			if c.spent(at, t) {
				doomed++
			}
		}
	}
	for k, t := range b.Tickets {
		switch o.Kind {
		case Answered:
			c.answer(at, t, b, &o.Results[k])
		case Raised, Crashed, TimedOut:
			c.again(at, t, w, verdict{o.Kind, alone, doomed, o.Detail})
		default:
			c.back(t)
		}
	}
	c.recycle(b)
	return w.live()
}

const (
	holdFirst = 50 * time.Millisecond
	holdLast  = 5 * time.Second
)

// holdBack gives a worker on which the function failed several batches in a row a pause, while another
// works: one whose GPU is broken raises at once, is idle most often and would take everybody's attempts.
func (c *Core) holdBack(at int64, w *worker) {
	if w.streak < 2 {
		return
	}
	for _, x := range c.workers {
		if x != w && x.live() && x.streak == 0 {
			w.state, w.until = wire.ViewOther, at+int64(min(holdLast, holdFirst<<min(w.streak-2, 10)))
			w.message = fmt.Sprintf("held back: the function failed %d batches in a row here", w.streak)
			return
		}
	}
}

// mismatch says how results differ from what was asked: never is an answer given to another request.
func mismatch(b *Batch, results []wire.Result) string {
	if len(results) != len(b.Tickets) {
		return fmt.Sprintf("the worker returned %d results for %d requests", len(results), len(b.Tickets))
	}
	for k := range results {
		if results[k].RequestID != b.Tickets[k].ID {
			return fmt.Sprintf("result %d is for request %q, not for %q", k, results[k].RequestID, b.Tickets[k].ID)
		}
		if s := results[k].Status; s != wire.StatusOK && s != wire.StatusError {
			return fmt.Sprintf("result %d has the unknown status %q", k, s)
		}
	}
	return ""
}

// answer hands t its result. A backend that blames one item by itself has found the guilty one: that is
// input_failed without a second attempt.
func (c *Core) answer(at int64, t *Ticket, b *Batch, r *wire.Result) {
	t.attempts++
	if t.abandoned || t.deadline < at {
		c.wasted++
	}
	switch {
	case t.abandoned:
		c.finish(t, &Error{Cause: Cancelled})
	case r.Status == wire.StatusError:
		c.poisons.convict(at, t, r.Error, false, false) // it costs its own slot and nobody else's
		c.finish(t, &Error{Cause: InputFailed, Detail: r.Error})
	default:
		t.Result = Result{
			Output: r.Output, QueueWait: time.Duration(b.at - t.arrival), Service: time.Duration(at - b.at),
			BatchSize: len(b.Tickets), Attempts: t.attempts, BatchID: b.ID, Worker: b.Worker,
		}
		if r.Usage != nil {
			t.Result.Usage = *r.Usage
		}
		c.poisons.clear(t)
		c.finish(t, nil)
	}
}

// verdict is what a failed batch says of each of its requests.
type verdict struct {
	kind   Kind
	alone  bool // only this input was in it
	doomed int  // how many of it failed for good
	detail string
}

// spent says that t, whose batch has failed, has no attempt left or no time for one.
func (c *Core) spent(at int64, t *Ticket) bool {
	return t.attempts+1 > c.cfg.MaxRetries || at+c.cycle() > t.deadline
}

// again puts t back for a second attempt, by itself, if it has one left and time for it.
func (c *Core) again(at int64, t *Ticket, w *worker, v verdict) {
	spent, repeated := c.spent(at, t), v.alone && c.poisons.repeated(t)
	c.poisons.failed(at, t, spent, v.doomed)
	t.attempts++
	switch {
	case t.abandoned:
		c.wasted++
		c.finish(t, &Error{Cause: Cancelled})
	case repeated || v.alone && t.attempts > c.cfg.MaxRetries && t.attempts > 1:
		c.poisons.convict(at, t, v.detail, c.proved && slices.Contains(w.common, c.poisons.key(&t.Request)), v.kind != Raised)
		c.finish(t, &Error{Cause: InputFailed, Detail: "failed again, this time alone: " + v.detail})
	case spent:
		detail := v.detail
		if t.attempts <= c.cfg.MaxRetries {
			detail = "no time for a second attempt after: " + detail
		}
		c.finish(t, &Error{Cause: SecondFailure, Detail: detail})
	default:
		t.retry, t.avoid = true, w.Addr
		c.retries++
		c.push(t)
	}
}

// back puts t back as if it had never left.
func (c *Core) back(t *Ticket) {
	if t.abandoned {
		c.finish(t, &Error{Cause: Cancelled})
		return
	}
	c.push(t)
}
