package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sluice.dev/sluice/internal/wire"
)

const (
	// bodyTimeout is how long a caller may take to send a batch, and answerTimeout to read the answer: a
	// batch of 37.5 MiB at 10 Mbit/s takes 31 s to send, and every usual one milliseconds.
	bodyTimeout   = 30 * time.Second
	answerTimeout = 30 * time.Second

	maxIDLength = 128 // of a batch or request id, in bytes
)

// buffers of bodies and answers: a usual one is 10 to 100 KB and comes ten times a second. Larger ones
// are not kept.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const keptBuffer = 4 << 20

func (s *Server) handleBatch(w http.ResponseWriter, r *http.Request) {
	work := s.opt.Tracer.Work(r.Header, time.Now())
	req, bad := s.readBatch(w, r)
	if bad != nil {
		work.End("", 0, 0, bad.Code)
		s.writeRefusal(w, bad)
		return
	}
	inst, no := s.tryBegin(req.BatchID)
	if no != nil {
		work.End(req.BatchID, len(req.Requests), 0, no.Code)
		s.writeRefusal(w, no)
		return
	}
	out, took, err := s.run(work.Context(context.Background()), inst, batchOf(req))
	work.End(req.BatchID, len(req.Requests), took, failureCode(err))
	if r.Context().Err() != nil {
		s.metrics.abandoned.Inc()
	}
	if err != nil {
		writeFailure(w, err)
		return
	}
	resp := wire.BatchResponse{BatchID: req.BatchID, Results: make([]wire.Result, len(req.Requests)), ServiceMs: ms(took)}
	for i := range req.Requests {
		resp.Results[i] = wire.Result{
			RequestID: req.Requests[i].RequestID, Output: out.Outputs[i], Status: wire.StatusOK, Usage: &out.Usage[i],
		}
	}
	answer := takeBuffer()
	defer freeBuffer(answer)
	if err := wire.AppendResponse(answer, &resp); err != nil {
		writeFailure(w, err)
		return
	}
	writeBody(w, http.StatusOK, answer.Bytes())
}

// readBatch reads and checks a body within the limits of size and time.
func (s *Server) readBatch(w http.ResponseWriter, r *http.Request) (*wire.BatchRequest, *refusal) {
	body, bad := s.readBody(w, r)
	if bad != nil {
		return nil, bad
	}
	defer freeBuffer(body)
	req, err := DecodeBatch(body.Bytes(), s.opt.MaxBatch)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, wire.CodeInvalid, err.Error())
	}
	return req, nil
}

func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (*bytes.Buffer, *refusal) {
	// Not every ResponseWriter has deadlines (a test's recorder): then there is no slow network either.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	buf := takeBuffer()
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, s.opt.MaxBodyBytes))
	if err == nil {
		return buf, nil // at the end of a body net/http lifts the deadline itself
	}
	freeBuffer(buf)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, refuse(http.StatusBadRequest, wire.CodeInvalid, fmt.Sprintf("the body is larger than the limit of %d bytes", tooLarge.Limit))
	}
	return nil, refuse(http.StatusBadRequest, wire.CodeInvalid, "the body ended early: "+err.Error())
}

func takeBuffer() *bytes.Buffer {
	b := buffers.Get().(*bytes.Buffer)
	b.Reset()
	return b
}

func freeBuffer(b *bytes.Buffer) {
	if b.Cap() <= keptBuffer {
		buffers.Put(b)
	}
}

// DecodeBatch reads a wire.BatchRequest of 1 to maxBatch requests and says what is wrong with it.
func DecodeBatch(body []byte, maxBatch int) (*wire.BatchRequest, error) {
	req, err := wire.DecodeBatch(body)
	if err != nil {
		return nil, err
	}
	switch n := len(req.Requests); {
	case req.BatchID == "" || len(req.BatchID) > maxIDLength:
		return nil, fmt.Errorf("batch_id must have 1 to %d bytes, it has %d", maxIDLength, len(req.BatchID))
	case n == 0:
		return nil, errors.New("requests is empty")
	case n > maxBatch:
		return nil, fmt.Errorf("the batch has %d requests, the limit of this worker is %d (--max-batch)", n, maxBatch)
	}
	for i := range req.Requests {
		if n := len(req.Requests[i].RequestID); n == 0 || n > maxIDLength {
			return nil, fmt.Errorf("requests[%d].request_id must have 1 to %d bytes, it has %d", i, maxIDLength, n)
		}
	}
	return req, nil
}

func batchOf(req *wire.BatchRequest) Batch {
	b := Batch{ID: req.BatchID, Inputs: make([]string, len(req.Requests))}
	if req.Parameters != nil {
		b.Params = *req.Parameters
	}
	for i := range req.Requests {
		b.Inputs[i] = req.Requests[i].Input
		if p := req.Requests[i].Parameters; p != nil {
			if b.ItemParams == nil {
				b.ItemParams = make([]wire.Parameters, len(req.Requests))
			}
			b.ItemParams[i] = *p
		}
	}
	return b
}

func (s *Server) handleState(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.State())
}

func (s *Server) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.draining && s.phase == phaseReady && !died(s.instance)
}

func (s *Server) handleReady(w http.ResponseWriter, _ *http.Request) {
	if s.ready() {
		_, _ = io.WriteString(w, "ok\n")
		return
	}
	st := s.State()
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = fmt.Fprintf(w, "%s: %s\n", st.State, st.Message)
}

func (s *Server) writeRefusal(w http.ResponseWriter, r *refusal) {
	s.metrics.refusals.WithLabelValues(r.Code).Inc()
	writeJSON(w, r.status, r.Problem)
}

// writeFailure answers for a batch that ran and failed. It cuts the connection for ErrReset.
func writeFailure(w http.ResponseWriter, err error) {
	switch code := codeOf(err); code {
	case codeReset:
		panic(http.ErrAbortHandler)
	case wire.CodeApplication:
		writeJSON(w, http.StatusInternalServerError, wire.Problem{Code: code, Message: messageOf(err)})
	default:
		writeJSON(w, http.StatusBadGateway, wire.Problem{Code: wire.CodeBackend, Message: messageOf(err)})
	}
}

// failureCode is the code of a batch that ran, "" for one that succeeded.
func failureCode(err error) string {
	if err == nil {
		return ""
	}
	return codeOf(err)
}

func messageOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v) // none of the types that come here can fail
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(err.Error())
	}
	writeBody(w, status, body)
}

// writeBody writes an answer that the caller must take within answerTimeout.
func writeBody(w http.ResponseWriter, status int, body []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
