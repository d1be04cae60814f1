package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/telemetry"
	"sluice.dev/sluice/internal/wire"
)

const (
	// maxResponse bounds what is read from a worker: 1,000 outputs of 64 KiB.
	maxResponse = 64 << 20
	// staleWithin is how soon a kept connection that is dead shows it: a round trip, and much room.
	staleWithin = 250 * time.Millisecond
	// itemOverhead is what an item takes in JSON beside its input.
	itemOverhead = 96
)

// client speaks the internal API to workers.
type client struct {
	transport http.RoundTripper
	// traced says that the transport reports when it has a connection (httptrace), as net/http's does.
	traced bool
}

func newClient(t http.RoundTripper) *client {
	_, traced := t.(*http.Transport)
	return &client{transport: t, traced: traced}
}

// run sends b to its worker and says how it ended.
func (c *client) run(ctx context.Context, b *batching.Batch) batching.Outcome {
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	body, err := encode(b)
	if err != nil { // only a NaN among the parameters can do that; the gateway refuses it
		return batching.Outcome{Kind: batching.Raised, Detail: "the batch cannot be encoded: " + err.Error()}
	}
	start := time.Now()
	o, stale := c.send(ctx, b, body)
	if !stale || time.Since(start) > staleWithin {
		return o
	}
	// The worker may have closed the kept connection while the batch was on its way. Sending it once more to
	// the same worker is safe: one that saw the batch id answers duplicate. But only a worker that ran the
	// batch now, or is busy with another, proves that the first sending did not run: what crashed it may be
	// why it refuses.
	if again, _ := c.send(ctx, b, body); again.Kind == batching.Answered || again.Kind == batching.Busy || again.Kind == batching.Raised {
		return again
	}
	return o
}

// send sends b once. stale says that the batch may never have arrived, because the connection was a kept one.
func (c *client) send(ctx context.Context, b *batching.Batch, body *bytes.Buffer) (o batching.Outcome, stale bool) {
	status, data, err := c.call(ctx, http.MethodPost, b.Worker, wire.PathBatch, body)
	if err != nil {
		o := failed(ctx, err)
		return o, o.Kind == batching.Crashed && onKept(err)
	}
	return outcome(b, status, data), false
}

// outcome reads an answer.
func outcome(b *batching.Batch, status int, data []byte) batching.Outcome {
	if status == http.StatusOK {
		return answered(b, data)
	}
	var p wire.Problem
	if json.Unmarshal(data, &p) != nil || p.Code == "" {
		return batching.Outcome{Kind: batching.Crashed, Detail: fmt.Sprintf("worker %s answered %d without a problem", b.Worker, status)}
	}
	return refused(p)
}

// encode returns the body for b. It is not from a pool: the transport may read it for a while after an
// early answer.
func encode(b *batching.Batch) (*bytes.Buffer, error) {
	r := wire.BatchRequest{BatchID: b.ID, Parameters: b.Params, Requests: make([]wire.Item, len(b.Tickets))}
	size := itemOverhead
	for i, t := range b.Tickets {
		r.Requests[i] = wire.Item{RequestID: t.ID, Input: t.Input}
		if b.PerItem && !t.Params.IsZero() {
			r.Requests[i].Parameters = &t.Params
		}
		size += itemOverhead + len(t.Input) + len(t.Input)/8
	}
	buf := bytes.NewBuffer(make([]byte, 0, size))
	return buf, wire.AppendBatch(buf, &r)
}

// sendError is an error of the transport, with what is known about how far the request came.
type sendError struct {
	error
	connected bool
	reused    bool // the connection had carried a request before
}

func (e *sendError) Unwrap() error { return e.error }

func (c *client) call(ctx context.Context, method, addr, path string, body *bytes.Buffer) (int, []byte, error) {
	var connected, reused atomic.Bool
	connected.Store(!c.traced)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { connected.Store(true); reused.Store(i.Reused) },
	})
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body.Bytes()) // NewRequest gives it a GetBody: net/http can begin again
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, reader)
	if err != nil {
		return 0, nil, &sendError{error: err}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	telemetry.Inject(ctx, req.Header)
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return 0, nil, &sendError{err, connected.Load(), reused.Load()}
	}
	defer func() { _ = resp.Body.Close() }()
	var data bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= maxResponse {
		data.Grow(int(n) + bytes.MinRead)
	}
	n, err := data.ReadFrom(io.LimitReader(resp.Body, maxResponse+1))
	if err == nil && n > maxResponse {
		err = fmt.Errorf("the answer is larger than %d bytes", maxResponse)
	}
	if err != nil {
		return 0, nil, &sendError{error: err, connected: true}
	}
	return resp.StatusCode, data.Bytes(), nil
}

// onKept says whether err may be that of a kept connection that the worker had closed: not one byte of an
// answer came.
func onKept(err error) bool {
	var e *sendError
	return errors.As(err, &e) && e.reused
}

// failed is the outcome of a call that got no answer.
func failed(ctx context.Context, err error) batching.Outcome {
	connected := true
	var e *sendError
	if errors.As(err, &e) {
		connected = e.connected
	}
	switch {
	case neverSent(err, connected):
		return batching.Outcome{Kind: batching.Refused, Detail: err.Error()}
	case timedOut(ctx, err):
		return batching.Outcome{Kind: batching.TimedOut, Detail: "the worker did not answer within the inference timeout"}
	}
	return batching.Outcome{Kind: batching.Crashed, Detail: err.Error()}
}

// answered is the outcome of a 200.
func answered(b *batching.Batch, data []byte) batching.Outcome {
	r, err := wire.DecodeResponse(data, len(b.Tickets))
	switch {
	case err != nil:
		return batching.Outcome{Kind: batching.Crashed, Detail: err.Error()}
	case r.BatchID != b.ID:
		return batching.Outcome{Kind: batching.Crashed, Detail: fmt.Sprintf("the answer is for batch %q, not for %q", r.BatchID, b.ID)}
	}
	return batching.Outcome{Kind: batching.Answered, Results: r.Results}
}

// refused is the outcome of a problem.
func refused(p wire.Problem) batching.Outcome {
	o := batching.Outcome{Detail: p.Code + ": " + p.Message}
	switch p.Code {
	case wire.CodeBusy:
		o.Kind, o.FreeIn = batching.Busy, time.Duration(p.RetryAfterMs*float64(time.Millisecond))
	case wire.CodeDraining:
		o.Kind = batching.Leaving
	case wire.CodeNotReady:
		o.Kind = batching.Refused
	case wire.CodeApplication, wire.CodeInvalid:
		// A batch that the worker finds invalid did not run, but it will be invalid again: the attempt
		// counts, and the next one is smaller.
		o.Kind = batching.Raised
	default:
		// CodeBackend; and CodeDuplicate: this batch id was seen before, so its first sending ran or runs
		// and the answer is lost.
		o.Kind = batching.Crashed
	}
	return o
}

// state asks the worker at addr how it is.
func (c *client) state(ctx context.Context, addr string) (wire.WorkerState, error) {
	status, data, err := c.call(ctx, http.MethodGet, addr, wire.PathWorkerState, nil)
	var s wire.WorkerState
	if err != nil {
		return s, err
	}
	if status != http.StatusOK {
		return s, fmt.Errorf("GET %s answered %d", wire.PathWorkerState, status)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("GET %s: %w", wire.PathWorkerState, err)
	}
	return s, nil
}
