// Package batching is the heart of the data plane: it holds the requests that wait, decides which may wait
// at all, and says when which of them leave together for which worker.
//
// [Core] is a pure state machine: every method takes the time, nothing in it blocks, sleeps, starts a
// goroutine or reads a clock. The simulator drives it with virtual time. [Batcher] is the thin concurrent
// shell around it: one lock, one timer, a goroutine for each batch that runs and none for a request that
// waits.
//
// The symbols of the comments: B largest batch, S service time of a batch, g gap between a worker finishing
// and its next batch, M live workers, lambda arrivals a second, c = B/(S+g) items a second of one worker,
// mu = M*c, all measured.
package batching

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// Request is one request that a client waits for.
type Request struct {
	// ID goes to the worker and is compared with what comes back. It need not be unique.
	ID string
	// Route is what names the batcher of a request that comes through a standalone gateway; empty is ID. A
	// client's Idempotency-Key brings its retries to the same batcher.
	Route string
	// Tier is the index into Config.Tiers, 0 the highest.
	Tier int
	// Flow is an opaque key (a hash of the tenant, say): inside a tier, flows take turns.
	Flow   string
	Input  string
	Params wire.Parameters
	// Arrival is when the gateway received the request; zero means now.
	Arrival time.Time
	// Trace is the caller's own and never looked at here: the Runner finds it with the request. Nil for one that
	// is not traced.
	Trace any
	// Deadline is when the client stops waiting. Zero, or later than Arrival plus the tier's timeout, means
	// Arrival plus the tier's timeout.
	Deadline time.Time
}

// Result is the answer to a Request.
type Result struct {
	Output string
	Usage  wire.Usage
	// QueueWait is the time between arrival and the start of the last attempt.
	QueueWait time.Duration
	// Service is the time that the last batch took, as the batcher saw it: backend, both copies, network.
	Service time.Duration
	// BatchSize is the number of requests that shared the batch, 1 to B.
	BatchSize int
	// Attempts is how often a worker began the request: 1, or 2 after a failure.
	Attempts int
	// BatchID and Worker name the batch and the address of its worker.
	BatchID string
	Worker  string
}

// Submitter is how the gateway hands over a request, in this process or over one HTTP hop. Submit blocks
// until the answer is there, the deadline has passed, or ctx is done; every error is an *Error. It is safe
// for concurrent use.
type Submitter interface {
	Submit(ctx context.Context, r Request) (Result, error)
}

// Cause says why a request got no answer. The strings are stable: they are the reason in answers, logs and
// metrics.
type Cause string

const (
	// QueueFull: the bound on waiting requests or bytes is reached. 429.
	QueueFull Cause = "queue_full"
	// Infeasible: the request would not be answered within its deadline or its tier's latency target. 429.
	Infeasible Cause = "infeasible"
	// NoCapacity: no worker is alive. 503.
	NoCapacity Cause = "no_capacity"
	// SecondFailure: the worker failed and no further attempt is allowed or feasible. 503.
	SecondFailure Cause = "second_failure"
	// Draining: this batcher is shutting down. 503.
	Draining Cause = "draining"
	// Expired: the deadline passed, or could not be met any more, while the request waited. 504.
	Expired Cause = "expired"
	// InputFailed: this input fails the function: it failed a second time, alone. 422.
	InputFailed Cause = "input_failed"
	// Cancelled: the client went away.
	Cancelled Cause = "cancelled"
)

// Error is why a request got no answer.
type Error struct {
	Cause Cause
	// RetryAfter is the time after which the same request would have been admitted, as far as is known;
	// zero when that has no meaning. It is neither clamped nor jittered.
	RetryAfter time.Duration
	// Detail is for a person.
	Detail string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Detail == "" {
		return string(e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Cause, e.Detail)
}

// Is makes errors.Is(err, &Error{Cause: c}) compare causes only.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Cause == e.Cause
}
