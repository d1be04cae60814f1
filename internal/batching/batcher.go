package batching

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// Runner runs one batch at its worker and says how it ended. It must return when ctx is done, and soon
// after b.Timeout.
type Runner interface {
	Run(ctx context.Context, b *Batch) Outcome
}

// LossListener is what a Runner may implement to hear of a worker that a batch found unhealthy or leaving,
// once the Batcher knows it too. It is called without the Batcher's lock.
type LossListener interface {
	WorkerLost(addr string)
}

// Batcher is a Core that many goroutines use: a Submitter. One lock guards it, one timer serves windows
// and deadlines of all requests, and only a batch that runs has a goroutine.
type Batcher struct {
	runner Runner
	ctx    context.Context // of the running batches
	stop   context.CancelFunc
	pool   sync.Pool // of *Ticket

	mu       sync.Mutex
	core     *Core
	answered answered // under this lock: unlock hands them on
	timer    *time.Timer
	armed    time.Time     // when the timer fires, zero for not at all
	drained  chan struct{} // closed when a Drain may return; nil when nobody waits
	closed   bool
	batches  sync.WaitGroup

	poison atomic.Bool // some input is remembered: else nobody takes the lock to ask
}

// NewBatcher returns a Batcher without workers: it answers no_capacity until it has some.
func NewBatcher(cfg Config, runner Runner) *Batcher {
	b := &Batcher{runner: runner}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.core = NewCore(cfg, func(t *Ticket) { b.answered.add(t) })
	b.pool.New = func() any { return &Ticket{ready: make(chan struct{}, 1)} }
	return b
}

// answered are tickets, in order, whose submitters do not know it yet.
type answered struct{ first, last *Ticket }

func (a *answered) add(t *Ticket) {
	if a.last == nil {
		a.first = t
	} else {
		a.last.next = t
	}
	a.last = t
}

// wake tells the submitters. A ticket is its submitter's from then on.
func (a answered) wake() {
	for t := a.first; t != nil; {
		next := t.next
		t.ready <- struct{}{}
		t = next
	}
}

// release looks for what must leave, lets go of the lock, starts it, and then wakes those who were answered under
// the lock: a GPU waits for the one, and a hundred sleepers that want two processors can follow.
func (b *Batcher) release(now time.Time) {
	leaving := b.pump(now)
	told := b.unlock()
	b.start(leaving)
	told.wake()
}

func (b *Batcher) unlock() (told answered) {
	told, b.answered = b.answered, answered{}
	b.mu.Unlock()
	return told
}

// Submit implements Submitter.
func (b *Batcher) Submit(ctx context.Context, r Request) (Result, error) {
	t := b.pool.Get().(*Ticket)
	t.Request = r
	b.mu.Lock()
	now := time.Now()
	if err := b.core.Enqueue(now, t); err != nil {
		b.mu.Unlock() // nobody was answered
		t.Reset()
		b.pool.Put(t)
		return Result{}, err
	}
	b.release(now)
	select {
	case <-t.ready:
	case <-ctx.Done():
		cause := Cancelled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cause = Expired
		}
		b.mu.Lock()
		if b.core.Cancel(t, cause) { // its batch still points to it: the garbage collector gets it
			b.mu.Unlock()
			return Result{}, &Error{Cause: cause, Detail: "given up while its batch ran"}
		}
		b.release(time.Now())
		<-t.ready // there or about to be, whether it was cancelled or answered just before
	}
	result, err := t.Result, t.Err
	t.Reset()
	b.pool.Put(t)
	if err != nil {
		return Result{}, err
	}
	return result, nil
}

// Shed counts a request that the zone refused before it came here: see Core.Shed.
func (b *Batcher) Shed() {
	b.mu.Lock()
	b.core.Shed(time.Now())
	b.mu.Unlock()
}

// Poisoned answers an input that is known to fail the function, nil for every other: see Core.Poisoned.
func (b *Batcher) Poisoned(input string, params wire.Parameters) *Error {
	if !b.poison.Load() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.core.Poisoned(time.Now(), input, params)
}

// pump takes out what must leave and arms the timer for what must leave later. The lock is held. The caller
// starts what it returns, the first of a chain, once it has let go of the lock.
//
// Not under the lock: the goroutine that is started last runs next, unless the unlocking wakes somebody who waits
// for the lock and runs before it. Then the batch stood behind the hundred whose answers had just come: 2 ms and
// more for one batch in ten under overload.
func (b *Batcher) pump(now time.Time) (leaving *Batch) {
	if b.closed {
		b.core.FailAll(Draining, "this batcher has shut down")
	}
	last := &leaving
	for !b.closed {
		batch := b.core.Next(now)
		if batch == nil {
			break
		}
		b.batches.Add(1)
		*last, last = batch, &batch.next
	}
	if b.drained != nil && b.core.Parked() == 0 {
		close(b.drained)
		b.drained = nil
	}
	wake := b.core.Wake(now)
	if wake.IsZero() || b.closed {
		return leaving // a timer that is armed fires for nothing, once
	}
	if !b.armed.IsZero() && !wake.Before(b.armed) {
		return leaving // it will look again then
	}
	b.armed = wake
	if b.timer == nil {
		b.timer = time.AfterFunc(wake.Sub(now), b.tick)
	} else {
		b.timer.Reset(wake.Sub(now))
	}
	return leaving
}

// start runs batches, each in a goroutine.
func (b *Batcher) start(batch *Batch) {
	for batch != nil {
		next := batch.unchain()
		go b.run(batch, answered{})
		batch = next
	}
}

func (b *Batcher) tick() {
	b.mu.Lock()
	b.armed = time.Time{}
	leaving := b.pump(time.Now())
	told := b.unlock()
	b.start(leaving.unchain())
	b.run(leaving, told) // a timer's function has a goroutine of its own
}

// run runs a batch, and then the one for which its end made room: the worker waits for that. Those who were told are
// woken once it is on its way.
func (b *Batcher) run(batch *Batch, told answered) {
	for batch != nil {
		if told.first != nil {
			go told.wake() // begins when this goroutine has handed the batch to its connection and waits
		}
		batch, told = b.runOne(batch)
	}
	told.wake()
}

// runOne runs a batch and returns the next one, if one can leave, and those who were answered.
func (b *Batcher) runOne(batch *Batch) (next *Batch, told answered) {
	defer b.batches.Done()
	addr := batch.Worker
	o := b.runner.Run(b.ctx, batch)
	b.mu.Lock()
	lost := !b.core.Finish(time.Now(), batch, o)
	b.poison.Store(len(b.core.poisons.entries) > 0)
	next = b.pump(time.Now()) // the time that Finish took counts as gap
	told = b.unlock()
	b.start(next.unchain())
	if lost {
		if l, ok := b.runner.(LossListener); ok {
			l.WorkerLost(addr)
		}
	}
	return next, told
}

// SetWorkers makes ids the set of workers. New ones get nothing until WorkerIdle was called for them.
func (b *Batcher) SetWorkers(ids []WorkerID) {
	b.with(func(c *Core, now time.Time) { c.SetWorkers(now, ids) })
}

// WorkerIdle reports that a worker said it is idle.
func (b *Batcher) WorkerIdle(addr string) {
	b.with(func(c *Core, now time.Time) { c.WorkerIdle(now, addr) })
}

// WorkerBusy reports that a worker said it is busy for about freeIn.
func (b *Batcher) WorkerBusy(addr string, freeIn time.Duration) {
	b.with(func(c *Core, now time.Time) { c.WorkerBusy(now, addr, freeIn) })
}

// WorkerDraining reports that a worker said it is leaving.
func (b *Batcher) WorkerDraining(addr string) {
	b.with(func(c *Core, now time.Time) { c.WorkerDraining(now, addr) })
}

// WorkerUnhealthy reports that a worker does not answer, or cannot run a batch.
func (b *Batcher) WorkerUnhealthy(addr, message string) {
	b.with(func(c *Core, now time.Time) { c.WorkerUnhealthy(now, addr, message) })
}

// SetParamsMode tells how the backend takes parameters: item, batch or none.
func (b *Batcher) SetParamsMode(mode string) {
	b.with(func(c *Core, _ time.Time) { c.SetParamsMode(mode) })
}

// SetFleetLambda tells the fleet's arrivals a second, from the zone signal; 0 is unknown.
func (b *Batcher) SetFleetLambda(perSecond float64) {
	b.with(func(c *Core, _ time.Time) { c.SetFleetLambda(perSecond) })
}

// SetShare tells this batcher's part of the fleet's arrivals, from the zone signal; 0 is unknown.
func (b *Batcher) SetShare(share float64) {
	b.with(func(c *Core, _ time.Time) { c.SetShare(share) })
}

// SetBatchers tells how many batchers are ready, this one included: the share while the fleet's arrivals
// are unknown.
func (b *Batcher) SetBatchers(ready int) {
	b.with(func(c *Core, _ time.Time) { c.SetBatchers(ready) })
}

func (b *Batcher) with(f func(*Core, time.Time)) {
	b.mu.Lock()
	f(b.core, time.Now())
	b.release(time.Now())
}

// WorkerView returns how the worker at addr looks ("" when unknown), since when, and its failures in a row.
func (b *Batcher) WorkerView(addr string) (view string, since time.Time, streak int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.core.WorkerView(time.Now(), addr)
}

// Snapshot returns one consistent view.
func (b *Batcher) Snapshot() Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.core.Snapshot(time.Now())
}

// Drain admits nothing more and returns when nothing is parked, or with ctx's error. What waits leaves
// without waiting for company. Only one Drain may run at a time.
func (b *Batcher) Drain(ctx context.Context) error {
	b.mu.Lock()
	b.core.Stop()
	drained := make(chan struct{})
	b.drained = drained
	b.release(time.Now())
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		b.mu.Lock()
		if b.drained == drained {
			b.drained = nil
		}
		b.mu.Unlock()
		return ctx.Err()
	}
}

// Close answers everything that waits with draining, aborts the running batches (whose requests are
// answered so too) and returns when their goroutines are gone.
func (b *Batcher) Close() {
	b.mu.Lock()
	b.core.Stop()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.release(time.Now())
	b.stop()
	b.batches.Wait()
}
