package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// suspectAfter is how many batches must fail in a row by application errors before the worker checks with a
// warm-up batch that the instance still works at all. A process can be broken for good while it still answers
// (after a CUDA device-side assert every later call raises); one bad input can't get there alone, because the
// batches around it succeed.
const suspectAfter = 3

// Run loads the backend, runs the warm-up batch, and loads it again whenever it dies, with a backoff, until
// ctx ends. It then waits for the running batch, frees the backend and returns nil. Call Drain first to leave
// without refusing as not_ready. Run is called once.
func (s *Server) Run(ctx context.Context) error {
	backoff := s.opt.BackoffMin
	for ctx.Err() == nil {
		start := time.Now()
		inst, err := s.load(ctx)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			s.setDown(phaseFailed, fmt.Sprintf("the backend could not be loaded: %v; next try in %v", err, backoff))
			s.opt.Log.Error("backend could not be loaded", "error", err, "retry_in", backoff.String())
		} else {
			took := time.Since(start)
			s.metrics.load.Set(took.Seconds())
			s.opt.Log.Info("ready", "load_seconds", took.Seconds(), "parameters", inst.ParamsMode())
			s.setReady(inst)
			batchesBefore := s.State().Batches
			err = s.watch(ctx, inst)
			s.retire(inst, err)
			if ctx.Err() != nil {
				break
			}
			if s.State().Batches > batchesBefore {
				backoff = s.opt.BackoffMin
			}
			s.metrics.restarts.Inc()
			s.opt.Log.Error("backend died", "error", err, "lived_seconds", (time.Since(start) - took).Seconds(), "restart_in", backoff.String())
		}
		sleep(ctx, backoff)
		backoff = min(2*backoff, s.opt.BackoffMax)
	}
	return nil
}

// load loads an instance and runs the warm-up batch on it. An instance that fails its warm-up is closed.
func (s *Server) load(ctx context.Context) (Instance, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.opt.LoadTimeout,
		fmt.Errorf("loading took longer than %v", s.opt.LoadTimeout))
	defer cancel()
	inst, err := s.backend.Load(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return nil, err
	}
	if err := s.warmUp(ctx, inst); err != nil {
		s.close(inst)
		return nil, err
	}
	return inst, nil
}

// warmUp runs one full batch, so that what a backend allocates or compiles for its largest batch is not paid
// by the first clients, and a model that can't answer is never Ready.
func (s *Server) warmUp(ctx context.Context, inst Instance) error {
	if s.opt.SkipWarmUp {
		return nil
	}
	b := Batch{ID: WarmUpID, Inputs: make([]string, s.opt.MaxBatch)}
	for i := range b.Inputs {
		b.Inputs[i] = s.opt.WarmUpInput
	}
	out, err := inst.Run(ctx, b)
	if err == nil {
		err = checkLength(out, len(b.Inputs))
	}
	if err != nil {
		return fmt.Errorf("warm-up batch of %d inputs %.40q: %w", len(b.Inputs), s.opt.WarmUpInput, err)
	}
	return nil
}

// watch returns why the instance must go: it died, it failed its check after suspectAfter failures, or ctx
// ended (nil).
func (s *Server) watch(ctx context.Context, inst Instance) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-inst.Done():
			return inst.Err()
		case <-s.suspect:
			if err := s.check(ctx, inst); err != nil {
				return fmt.Errorf("%d batches failed in a row, and then the %w", suspectAfter, err)
			}
		}
	}
}

// check runs the warm-up batch on an instance under suspicion, in the GPU's one slot.
func (s *Server) check(ctx context.Context, inst Instance) error {
	select {
	case <-s.slot:
	case <-ctx.Done():
		return nil
	}
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		s.slot <- struct{}{}
		return nil // nothing runs any more that a broken instance could spoil
	}
	s.beginLocked()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, s.opt.BatchTimeout, errHung(s.opt.BatchTimeout))
	defer cancel()
	err := s.warmUp(ctx, inst)
	s.mu.Lock()
	s.endLocked()
	if err != nil {
		s.phase, s.instance, s.message = phaseFailed, nil, err.Error()
	}
	s.mu.Unlock()
	s.slot <- struct{}{}
	return err
}

func (s *Server) setReady(inst Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.instance, s.failuresInRow = phaseReady, inst, 0
	if !s.draining {
		s.message = ""
	}
	select { // a suspicion of the instance before
	case <-s.suspect:
	default:
	}
}

func (s *Server) setDown(p phase, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.instance = p, nil
	if !s.draining {
		s.message = message
	}
}

// retire takes the instance out of service, waits for its running batch and frees it.
func (s *Server) retire(inst Instance, why error) {
	s.setDown(phaseFailed, fmt.Sprintf("the backend is being restarted: %v", why))
	<-s.slot
	s.close(inst)
	s.slot <- struct{}{}
}

func (s *Server) close(inst Instance) {
	if err := inst.Close(); err != nil {
		s.opt.Log.Warn("backend not closed cleanly", slog.Any("error", err))
	}
}

func errHung(d time.Duration) error {
	return fmt.Errorf("the batch took longer than %v and counts as hung", d)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
