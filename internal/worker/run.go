package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// refusal is an answer to a call that ran nothing, or the failure of one that did.
type refusal struct {
	status int
	wire.Problem
}

func refuse(status int, code, message string) *refusal {
	return &refusal{status: status, Problem: wire.Problem{Code: code, Message: message}}
}

// admit says why a batch can't begin now, or nil. A repeated id is told before everything else: draining and
// not_ready promise the caller that the batch never ran, which this id may have.
func (s *Server) admitLocked(id string) *refusal {
	switch {
	case s.seen.contains(id):
		return refuse(http.StatusConflict, wire.CodeDuplicate, "batch "+id+" was seen before")
	case s.draining:
		return refuse(http.StatusServiceUnavailable, wire.CodeDraining, "the worker is leaving")
	case s.phase != phaseReady || died(s.instance):
		msg := s.message
		if msg == "" {
			msg = "the backend has died and is being restarted"
		}
		return refuse(http.StatusServiceUnavailable, wire.CodeNotReady, msg)
	}
	return nil
}

// tryBegin takes the slot for the batch without waiting.
func (s *Server) tryBegin(id string) (Instance, *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.admitLocked(id); r != nil {
		return nil, r
	}
	select {
	case <-s.slot:
	default:
		r := refuse(http.StatusConflict, wire.CodeBusy, "another batch runs")
		r.RetryAfterMs = ms(s.freeInLocked())
		return nil, r
	}
	s.seen.add(id)
	s.beginLocked()
	return s.instance, nil
}

// waitBegin waits for the slot in the order of arrival.
func (s *Server) waitBegin(ctx context.Context, id string) (Instance, *refusal) {
	select {
	case <-s.slot:
	case <-ctx.Done():
		return nil, refuse(http.StatusServiceUnavailable, wire.CodeBusy, "the caller hung up while it waited")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.admitLocked(id); r != nil {
		s.slot <- struct{}{}
		return nil, r
	}
	s.seen.add(id)
	s.beginLocked()
	return s.instance, nil
}

func (s *Server) beginLocked() { s.running, s.started = true, time.Now() }

func (s *Server) endLocked() time.Duration {
	took := time.Since(s.started)
	s.running = false
	s.busy += took
	s.metrics.busy.Add(took.Seconds())
	if s.draining {
		close(s.drained)
	}
	return took
}

// run runs a batch that has the slot, and gives the slot back when the GPU is free. The time that it took is
// the backend's alone. A batch runs to its end whatever its caller does: of ctx only a trace is used.
func (s *Server) run(ctx context.Context, inst Instance, b Batch) (Output, time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.opt.BatchTimeout, errHung(s.opt.BatchTimeout))
	defer cancel()
	out, err := inst.Run(ctx, b)
	if err == nil {
		err = checkLength(out, len(b.Inputs))
	}
	s.mu.Lock()
	took := s.endLocked()
	s.accountLocked(inst, len(b.Inputs), took, err)
	s.mu.Unlock()
	s.slot <- struct{}{}
	if err == nil && out.Usage == nil {
		out.Usage = make([]wire.Usage, len(out.Outputs))
		for i := range out.Outputs {
			out.Usage[i] = EstimateUsage(b.Inputs[i], out.Outputs[i])
		}
	}
	return out, took, err
}

// accountLocked counts a finished batch and draws the conclusions for the instance.
func (s *Server) accountLocked(inst Instance, n int, took time.Duration, err error) {
	if died(inst) && s.phase == phaseReady {
		// At once, so that no batch is sent to a dead instance before Run has noticed.
		s.phase, s.instance, s.message = phaseFailed, nil, fmt.Sprintf("the backend died: %v", inst.Err())
	}
	if err == nil {
		s.batches++
		s.items += uint64(n)
		s.failuresInRow = 0
		s.service += (took - s.service) / 8
		s.metrics.batches.Inc()
		s.metrics.items.Add(float64(n))
		s.metrics.duration.Observe(took.Seconds())
		return
	}
	code := codeOf(err)
	s.metrics.failures.WithLabelValues(code).Inc()
	s.opt.Log.Warn("batch failed", "code", code, "items", n, "took_ms", ms(took), "error", err)
	if code != wire.CodeApplication {
		return
	}
	if s.failuresInRow++; s.failuresInRow >= suspectAfter {
		s.failuresInRow = 0
		select {
		case s.suspect <- struct{}{}:
		default:
		}
	}
}

// checkLength finds an answer that can't be matched to its inputs: position is identity.
func checkLength(out Output, n int) error {
	if len(out.Outputs) != n {
		return Backendf("%d outputs came back for %d inputs", len(out.Outputs), n)
	}
	if out.Usage != nil && len(out.Usage) != n {
		return Backendf("usage of %d items came back for %d inputs", len(out.Usage), n)
	}
	return nil
}

func codeOf(err error) string {
	var e *Error
	switch {
	case errors.Is(err, ErrReset):
		return codeReset
	case errors.As(err, &e):
		return e.Code
	}
	return wire.CodeBackend
}

func died(inst Instance) bool {
	select {
	case <-inst.Done():
		return true
	default:
		return false
	}
}
