package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/telemetry"
	"sluice.dev/sluice/internal/wire"
)

// Engine is what a Server submits to: a dispatch.Engine.
type Engine interface {
	batching.Submitter
	Snapshot() batching.Snapshot
}

// Server is the batcher's end: an http.Handler for wire.PathRelay. Safe for concurrent use.
type Server struct {
	engine Engine
	tiers  map[string]int
	log    *slog.Logger
	tracer *telemetry.Tracer

	mu       sync.Mutex
	sessions map[*session]struct{}
	leaving  bool
	closed   bool
	listener net.Listener
	relayed  uint64
	idle     chan struct{} // closed when a Drain may return; nil while nobody waits
}

// NewServer returns a server for the tiers of the pool, by name in their order. Batches link to the spans of the
// requests that they carry by the tracer; nil: they do not.
func NewServer(e Engine, tiers []string, tracer *telemetry.Tracer, log *slog.Logger) *Server {
	s := &Server{engine: e, tiers: map[string]int{}, tracer: tracer, log: log, sessions: map[*session]struct{}{}}
	for i, t := range tiers {
		s.tiers[t] = i
	}
	return s
}

// Relayed counts the requests that gateways handed over.
func (s *Server) Relayed() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.relayed
}

// ServeHTTP upgrades a gateway's request and serves it until either side ends it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != wire.PathRelay {
		http.NotFound(w, r)
		return
	}
	if r.Header.Get("Upgrade") != wire.UpgradeRelay {
		w.Header().Set("Upgrade", wire.UpgradeRelay)
		http.Error(w, "want Upgrade: "+wire.UpgradeRelay+": use images of one release", http.StatusUpgradeRequired)
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = c.SetDeadline(time.Time{}) // the HTTP server's
	x := &session{server: s, gateway: r.Header.Get(wire.HeaderGateway), conn: newConn(c, bufio.NewReaderSize(rw, bufferBytes)), calls: map[uint64]context.CancelFunc{}}
	if !s.enter(x) {
		_, _ = c.Write([]byte("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"))
		_ = c.Close()
		return
	}
	if _, err := fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", wire.UpgradeRelay); err == nil {
		x.serve()
	}
	_ = x.conn.Close()
	s.exit(x)
}

func (s *Server) enter(x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return false
	}
	s.sessions[x] = struct{}{}
	return true
}

func (s *Server) exit(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x)
	if s.idle != nil && len(s.sessions) == 0 {
		close(s.idle)
		s.idle = nil
	}
}

func (s *Server) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*session, 0, len(s.sessions))
	for x := range s.sessions {
		list = append(list, x)
	}
	return list
}

// Leaving tells every gateway to send no more. What still comes is served.
func (s *Server) Leaving() {
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
	for _, x := range s.all() {
		x.conn.send(kindLeaving, 0, nil)
	}
}

// Drain answers what is under way, closes the connections and returns when all are gone, or with ctx's error.
func (s *Server) Drain(ctx context.Context) error {
	s.Leaving()
	s.stopListening()
	for _, x := range s.all() {
		x.finish()
	}
	s.mu.Lock()
	idle := make(chan struct{})
	if len(s.sessions) == 0 {
		close(idle)
	} else {
		s.idle = idle
	}
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends every connection at once.
func (s *Server) Close() {
	s.stopListening()
	for _, x := range s.all() {
		_ = x.conn.Close()
	}
}

// offered is what all connected gateways are offered.
func (s *Server) offered() (sum float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.sessions {
		sum += x.offered
	}
	return sum
}

// session is one gateway's connection.
type session struct {
	server  *Server
	gateway string
	conn    *conn
	offered float64 // guarded by the server's lock

	mu        sync.Mutex
	calls     map[uint64]context.CancelFunc
	finishing bool
}

func (x *session) serve() {
	// When the gateway is gone so are its clients: their requests leave the queue.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go x.conn.write()
	err := x.conn.read(func(k kind, id uint64, body []byte) error {
		switch k {
		case kindSubmit:
			return x.submit(ctx, id, body)
		case kindCancel:
			x.mu.Lock()
			if stop := x.calls[id]; stop != nil {
				stop()
			}
			x.mu.Unlock()
		case kindReport:
			return x.report(body)
		}
		return nil // a kind of a later release
	})
	_ = x.conn.Close()
	<-x.conn.done
	x.server.log.Info("a gateway's connection ended", "gateway", x.gateway, "why", err)
}

func (x *session) submit(ctx context.Context, id uint64, body []byte) error {
	var q wire.Submission
	if err := wire.Decode(body, &q); err != nil {
		return fmt.Errorf("a submission that cannot be read: %w", err)
	}
	now := time.Now()
	x.server.mu.Lock()
	x.server.relayed++
	x.server.mu.Unlock()
	tier, ok := x.server.tiers[q.Tier]
	if !ok {
		x.conn.send(kindAnswer, id, wire.SubmissionAnswer{Cause: string(batching.Draining), Detail: fmt.Sprintf("this batcher's pool has no tier %.32q: a rollout is under way", q.Tier)})
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	x.mu.Lock()
	x.calls[id] = cancel
	x.mu.Unlock()
	r := batching.Request{
		ID: q.RequestID, Tier: tier, Flow: q.Flow, Input: q.Input, Params: q.Parameters,
		Arrival: now, Deadline: now.Add(micros(q.RemainingUs)),
	}
	if q.TraceParent != "" {
		h := http.Header{"Traceparent": {q.TraceParent}}
		if q.TraceState != "" {
			h.Set("Tracestate", q.TraceState)
		}
		r.Trace = x.server.tracer.Forwarded(h).Carried()
	}
	go func() {
		res, err := x.server.engine.Submit(ctx, r)
		x.conn.send(kindAnswer, id, answerOf(res, err))
		cancel()
		x.forget(id)
	}()
	return nil
}

func (x *session) forget(id uint64) {
	x.mu.Lock()
	delete(x.calls, id)
	done := x.finishing && len(x.calls) == 0
	x.mu.Unlock()
	if done {
		x.conn.finish()
	}
}

// finish closes the connection once every call is answered.
func (x *session) finish() {
	x.mu.Lock()
	x.finishing = true
	done := len(x.calls) == 0
	x.mu.Unlock()
	if done {
		x.conn.finish()
	}
}

// report answers a gateway's report with the batcher's.
func (x *session) report(body []byte) error {
	var g wire.GatewayReport
	if err := wire.Decode(body, &g); err != nil {
		return fmt.Errorf("a report that cannot be read: %w", err)
	}
	x.server.mu.Lock()
	x.offered = max(g.Offered, 0)
	x.server.mu.Unlock()
	s := x.server.engine.Snapshot()
	r := wire.BatcherReport{
		Offered: x.server.offered(), Live: s.Live, Mu: s.Mu, Depth: s.Depth, Queued: make([]int, len(s.Tiers)),
		ServiceSamples: s.ServiceSamples, ServiceUs: s.ServiceP50.Microseconds(),
	}
	for i := range s.Tiers {
		r.Queued[i] = s.Tiers[i].Queued
	}
	x.conn.send(kindReport, 0, r)
	return nil
}

func answerOf(res batching.Result, err error) wire.SubmissionAnswer {
	if err == nil {
		return wire.SubmissionAnswer{
			Output: res.Output, Usage: res.Usage, QueueWaitUs: res.QueueWait.Microseconds(), ServiceUs: res.Service.Microseconds(),
			BatchSize: res.BatchSize, Attempts: res.Attempts, BatchID: res.BatchID, Worker: res.Worker,
		}
	}
	var e *batching.Error
	if !errors.As(err, &e) {
		e = &batching.Error{Cause: batching.SecondFailure, Detail: err.Error()} // every error of an engine is one
	}
	return wire.SubmissionAnswer{Cause: string(e.Cause), Detail: e.Detail, RetryAfterUs: e.RetryAfter.Microseconds()}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Serve serves gateways on l until Drain or Close.
func (s *Server) Serve(l net.Listener) error {
	server := &http.Server{Handler: s, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	err := server.Serve(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	return err
}

// stopListening ends Serve. The connections that there are go on.
func (s *Server) stopListening() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving, s.closed = true, true
	if s.listener != nil {
		_ = s.listener.Close()
	}
}
