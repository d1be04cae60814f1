// Package worker is the GPU worker: an HTTP handler that runs one batch at a time on a backend.
//
// The worker, not its callers, is the authority on what the GPU does: a second batch is refused (409) with
// the milliseconds until the GPU is free, a batch id that was seen before is refused, and a caller that hung
// up does not make a busy GPU look idle.
//
// Life of a backend, supervised by Server.Run:
//
//	Load -> warm-up batch -> ready: batches -> (crash, hang, lost readiness) -> Close -> backoff -> Load ...
package worker

import (
	"context"
	"errors"
	"fmt"

	"sluice.dev/sluice/internal/wire"
)

// How a backend takes parameters: the values of wire.WorkerState.ParamsMode.
const (
	ParamsItem  = "item"  // each item's own
	ParamsBatch = "batch" // one set for the whole batch
	ParamsNone  = "none"  // not at all
)

// Backend makes instances of what runs batches. Load is never called concurrently.
type Backend interface {
	// Load makes the backend ready for a first batch: starts the process, loads the model, waits for the
	// server beside it. It takes as long as that takes, and returns early only with an error or when ctx
	// ends. The Server calls it again, after a backoff, whenever the last instance has died.
	Load(ctx context.Context) (Instance, error)
}

// Instance is one loaded backend. Run is never called concurrently with itself.
type Instance interface {
	// Run runs one batch and returns when the GPU is free again, never earlier. It ends by ctx only when the
	// batch took longer than it may (a hang): an instance that cannot stop a batch must then die (close
	// Done). A caller that hangs up does not end ctx: no backend here can stop a running GPU kernel, so a
	// batch that began is finished.
	//
	// An *Error says whether the user's function or the backend is at fault; ErrReset simulates the death of
	// the whole worker; any other error counts as wire.CodeBackend.
	Run(ctx context.Context, b Batch) (Output, error)
	// ParamsMode is ParamsItem, ParamsBatch or ParamsNone.
	ParamsMode() string
	// Done is closed when the instance can run no more batches.
	Done() <-chan struct{}
	// Err says why Done was closed.
	Err() error
	// Close frees everything the instance holds. It is called once, with no batch running.
	Close() error
}

// MemoryReporter is an Instance that knows its memory.
type MemoryReporter interface {
	// MemoryBytes is the resident main memory of the backend now; 0 is unknown. Safe for concurrent use.
	MemoryBytes() uint64
}

// WarmUpID is the Batch.ID of warm-up batches and checks.
const WarmUpID = "warm-up"

// Batch is what a backend runs: 1 to MaxBatch inputs.
type Batch struct {
	ID     string
	Inputs []string
	// ItemParams are each item's parameters: nil, or as long as Inputs. Read with ParamsItem.
	ItemParams []wire.Parameters
	// Params are the whole batch's parameters. Read with ParamsBatch.
	Params wire.Parameters
}

// Output is what came out of a batch: output i for input i. The Server checks the length.
type Output struct {
	Outputs []string
	// Usage is as long as Outputs, or nil: then the Server estimates it (EstimateUsage).
	Usage []wire.Usage
}

// Error is a failed batch: Code is wire.CodeApplication (the user's function raised; the instance is healthy)
// or wire.CodeBackend (the backend crashed, hung or broke the contract).
type Error struct {
	Code    string
	Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Applicationf is an error of the user's function.
func Applicationf(format string, args ...any) *Error {
	return &Error{Code: wire.CodeApplication, Message: fmt.Sprintf(format, args...)}
}

// Backendf is an error of the backend.
func Backendf(format string, args ...any) *Error {
	return &Error{Code: wire.CodeBackend, Message: fmt.Sprintf(format, args...)}
}

// ErrReset makes the Server cut the connection without an answer, as if the whole worker had died in
// mid-batch. Only a simulation returns it.
var ErrReset = errors.New("simulated crash: the connection is cut")

// BytesPerToken is the documented estimate where a backend counts no tokens.
const BytesPerToken = 4

// EstimateTokens is the estimated number of tokens of s: 4 bytes a token, rounded up.
func EstimateTokens(s string) int { return (len(s) + BytesPerToken - 1) / BytesPerToken }

// EstimateUsage is the usage reported where a backend counts no tokens.
func EstimateUsage(input, output string) wire.Usage {
	return wire.Usage{PromptTokens: EstimateTokens(input), CompletionTokens: EstimateTokens(output), Estimated: true}
}
