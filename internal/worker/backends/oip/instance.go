package oip

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"sluice.dev/sluice/internal/worker"
)

// instance is one spell of readiness of the server.
type instance struct {
	*backend
	columns bool        // the model wants [n, 1]
	running atomic.Bool // a server with one thread may not answer for its health meanwhile

	once     sync.Once
	done     chan struct{}
	err      error // set before done is closed
	closing  chan struct{}
	pollDone chan struct{}
}

// Run implements worker.Instance. The protocol has no cancellation: a batch that outlasts ctx leaves a
// server whose GPU may still be busy, so the instance dies and the next load waits for readiness.
func (i *instance) Run(ctx context.Context, b worker.Batch) (worker.Output, error) {
	i.running.Store(true)
	defer i.running.Store(false)
	out, err := i.infer(ctx, b)
	var failed *worker.Error
	if err != nil && !errors.As(err, &failed) {
		// No answer at all: refused, reset, cut short or too late.
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		i.die(err)
		return worker.Output{}, worker.Backendf("model server: %v", err)
	}
	return out, err
}

// poll gives an idle server up after pollFailures unready answers in a row.
func (i *instance) poll() {
	defer close(i.pollDone)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-i.closing:
		case <-i.done:
		}
		cancel()
	}()
	failures := 0
	for sleep(ctx, pollEvery) {
		if i.running.Load() {
			failures = 0
			continue
		}
		err := i.ready(ctx)
		if err == nil || i.running.Load() || ctx.Err() != nil {
			failures = 0
			continue
		}
		if failures++; failures >= pollFailures {
			i.die(fmt.Errorf("the model server is no longer ready: %w", err))
			return
		}
	}
}

func (i *instance) die(err error) {
	i.once.Do(func() {
		i.err = err
		close(i.done)
	})
}

// ParamsMode implements worker.Instance.
func (i *instance) ParamsMode() string { return worker.ParamsBatch }

// Done implements worker.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Err implements worker.Instance. It is valid after Done.
func (i *instance) Err() error { return i.err }

// Close implements worker.Instance.
func (i *instance) Close() error {
	close(i.closing)
	<-i.pollDone
	return nil
}
