package dispatch

import (
	"context"
	"math/rand/v2"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/wire"
)

const (
	// probeTimeout: a state is answered without touching the backend, in a millisecond.
	probeTimeout = 500 * time.Millisecond
	// probeIdle is how often a worker that gets no batches is asked: capacity must follow within a second.
	probeIdle = 500 * time.Millisecond
	// probeDraining is how often a leaving worker is asked whether it came back (a static address).
	probeDraining = time.Second
	// The backoff for an unhealthy worker.
	probeFirst = 20 * time.Millisecond
	probeLast  = time.Second
	// holdFirst is how long a worker that failed twice in a row is left alone before it is asked, doubled
	// by each further failure up to holdLast: one that says idle and fails every batch must not take the
	// only second attempt of everyone.
	holdFirst = 50 * time.Millisecond
	holdLast  = 5 * time.Second
)

// prober asks one worker how it is, whenever no batch tells.
type prober struct {
	e      *Engine
	ep     Endpoint
	cancel context.CancelFunc
	kicked chan struct{}
	misses int // probes in a row without an answer
	up     bool
}

func (e *Engine) startProber(ep Endpoint) *prober {
	ctx, cancel := context.WithCancel(e.ctx)
	p := &prober{e: e, ep: ep, cancel: cancel, kicked: make(chan struct{}, 1)}
	e.probing.Add(1)
	go func() {
		defer e.probing.Done()
		p.loop(ctx)
	}()
	return p
}

// wake makes the prober look at its worker now.
func (p *prober) wake() {
	select {
	case p.kicked <- struct{}{}:
	default:
	}
}

func (p *prober) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.kicked:
			timer.Reset(p.hold())
			continue
		case <-timer.C:
		}
		view, since, _ := p.e.WorkerView(p.ep.Addr)
		if view != wire.ViewMine && time.Since(since) >= p.quiet(view) {
			p.probe(ctx, view, since)
		}
		if ctx.Err() != nil {
			return
		}
		timer.Reset(p.pause())
	}
}

// quiet is how long a view must have lasted before it is worth asking.
func (p *prober) quiet(view string) time.Duration {
	if view == wire.ViewIdle || view == wire.ViewOther {
		return probeIdle / 2
	}
	return 0
}

// hold is the time between a failed batch and the first question.
func (p *prober) hold() time.Duration {
	_, _, streak := p.e.WorkerView(p.ep.Addr)
	if streak < 2 || p.e.Snapshot().Live == 0 {
		return 0 // with no other worker alive there is nobody to spare, and the fault is hardly this one's
	}
	return jitter(min(holdLast, holdFirst<<min(streak-2, 10)))
}

// pause is the time until the next question.
func (p *prober) pause() time.Duration {
	view, _, _ := p.e.WorkerView(p.ep.Addr)
	switch view {
	case wire.ViewUnhealthy:
		return jitter(min(probeLast, probeFirst<<min(p.misses, 10)))
	case wire.ViewDraining:
		return jitter(probeDraining)
	}
	return jitter(probeIdle)
}

// jitter spreads d by 25 % to both sides: batchers must not ask in step.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(rand.Int64N(int64(d/2)+1))
}

// probe asks once and reports, unless the view changed meanwhile: then something newer is known.
func (p *prober) probe(ctx context.Context, view string, since time.Time) {
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	s, err := p.e.client.state(limited, p.ep.Addr)
	cancel()
	if ctx.Err() != nil {
		return
	}
	if v, at, _ := p.e.WorkerView(p.ep.Addr); v != view || !at.Equal(since) {
		return
	}
	if err != nil {
		p.missed(err)
		return
	}
	if s.ParamsMode != "" {
		p.e.SetParamsMode(s.ParamsMode)
	}
	switch s.State {
	case wire.WorkerIdle:
		p.misses = 0
		p.report(true, "")
		p.e.WorkerIdle(p.ep.Addr)
	case wire.WorkerBusy:
		p.misses++
		p.e.WorkerBusy(p.ep.Addr, time.Duration(s.FreeInMs*float64(time.Millisecond)))
	case wire.WorkerDraining:
		p.report(false, "draining")
		p.e.WorkerDraining(p.ep.Addr)
	default:
		p.misses++
		p.report(false, s.State+" "+s.Message)
		p.e.WorkerUnhealthy(p.ep.Addr, s.State+": "+s.Message)
	}
}

// missed counts a question without an answer. One timeout of a worker thought healthy proves nothing on a
// busy machine; two do, and so does a refused connection.
func (p *prober) missed(err error) {
	p.misses++
	if o := failed(context.Background(), err); p.misses > 1 || o.Kind == batching.Refused {
		p.report(false, err.Error())
		p.e.WorkerUnhealthy(p.ep.Addr, "does not answer: "+err.Error())
	}
}

// report logs a change.
func (p *prober) report(up bool, why string) {
	if up == p.up {
		return
	}
	p.up = up
	if up {
		p.e.log.Info("worker is idle", "worker", p.ep.Addr, "pod", p.ep.Pod)
	} else {
		p.e.log.Warn("worker is not available", "worker", p.ep.Addr, "pod", p.ep.Pod, "why", why)
	}
}
