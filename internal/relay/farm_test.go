package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// farm is a gateway's client and the batchers that it can reach, over pipes, in virtual time.
type farm struct {
	t      *testing.T
	client *Client
	made   int

	mu       sync.Mutex
	batchers map[string]*testBatcher // by address
}

// testBatcher is a real Batcher behind a real Server; its workers take 100 ms a batch and answer
// "NAME:" + input.
type testBatcher struct {
	peer    Peer
	batcher *batching.Batcher
	server  *Server
	conns   chan net.Conn // to accept

	mu     sync.Mutex
	down   bool // refuses connections
	open   []*gated
	asked  []string      // ids in the order of their batches
	runFor time.Duration // of a batch
}

func newFarm(t *testing.T) *farm {
	f := &farm{t: t, batchers: map[string]*testBatcher{}}
	f.client = NewClient(Options{Pool: poolspec.Default(), Name: "g", Dial: f.dial})
	t.Cleanup(func() {
		f.client.Close()
		for _, b := range f.batchers {
			b.kill()
			b.batcher.Close()
		}
		synctest.Wait()
	})
	return f
}

func (f *farm) dial(_ context.Context, addr string) (net.Conn, error) {
	f.mu.Lock()
	b := f.batchers[addr]
	f.mu.Unlock()
	if b == nil {
		return nil, syscall.ECONNREFUSED
	}
	return b.connect()
}

func (b *testBatcher) connect() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, syscall.ECONNREFUSED
	}
	near, far := net.Pipe()
	g := &gated{Conn: far}
	b.open = append(b.open, g)
	b.conns <- g
	return near, nil
}

// gated is a connection whose owner can be frozen: then it neither reads nor writes.
type gated struct {
	net.Conn
	mu     sync.Mutex
	frozen chan struct{} // closed when it thaws; nil for not frozen
}

func (g *gated) gate() {
	g.mu.Lock()
	frozen := g.frozen
	g.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (g *gated) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.gate()
	return n, err
}

func (g *gated) Write(p []byte) (int, error) {
	g.gate()
	return g.Conn.Write(p)
}

// listener accepts what connect opened.
type listener struct {
	b      *testBatcher
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.b.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// add starts n batchers with one worker each and tells the client of all.
func (f *farm) add(n int) []*testBatcher {
	f.t.Helper()
	var list []*testBatcher
	for range n {
		i := f.made
		f.made++
		b := &testBatcher{peer: Peer{Name: fmt.Sprintf("b%d", i), Addr: fmt.Sprintf("10.0.0.%d:8082", i)}, conns: make(chan net.Conn, 16), runFor: 100 * time.Millisecond}
		b.batcher = batching.NewBatcher(batching.FromPool(poolspec.Default(), b.peer.Name), b)
		b.batcher.SetWorkers([]batching.WorkerID{{Addr: "w" + b.peer.Name}})
		b.batcher.WorkerIdle("w" + b.peer.Name)
		b.serve()
		f.mu.Lock()
		f.batchers[b.peer.Addr] = b
		f.mu.Unlock()
		list = append(list, b)
	}
	f.name()
	return list
}

// name tells the client of every batcher but those given.
func (f *farm) name(but ...*testBatcher) {
	var peers []Peer
	for _, b := range f.batchers {
		named := true
		for _, x := range but {
			named = named && x != b
		}
		if named {
			peers = append(peers, b.peer)
		}
	}
	f.client.SetBatchers(peers)
	synctest.Wait()
}

func (b *testBatcher) serve() {
	b.server = NewServer(b.batcher, []string{"enterprise", "paid", "free"}, nil, slog.New(slog.DiscardHandler))
	l := &listener{b: b, closed: make(chan struct{})}
	go func() { _ = b.server.Serve(l) }()
}

// Run implements batching.Runner.
func (b *testBatcher) Run(ctx context.Context, x *batching.Batch) batching.Outcome {
	o := batching.Outcome{Kind: batching.Answered}
	b.mu.Lock()
	d := b.runFor
	for _, t := range x.Tickets {
		if t.Input == poisonInput {
			o = batching.Outcome{Kind: batching.Raised, Detail: "ValueError"}
		}
		b.asked = append(b.asked, t.ID)
		o.Results = append(o.Results, wire.Result{RequestID: t.ID, Output: b.peer.Name + ":" + t.Input, Status: wire.StatusOK, Usage: &wire.Usage{PromptTokens: 3, CompletionTokens: 4}})
	}
	b.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return batching.Outcome{Kind: batching.Crashed, Detail: "aborted"}
	}
	if o.Kind != batching.Answered {
		o.Results = nil
	}
	return o
}

// kill ends the batcher as SIGKILL does: connections break and new ones are refused.
func (b *testBatcher) kill() {
	b.mu.Lock()
	b.down = true
	open := b.open
	b.open = nil
	b.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	b.server.Close()
}

func (b *testBatcher) up() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.down
}

func (b *testBatcher) freeze() (thaw func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	frozen := make(chan struct{})
	for _, g := range b.open {
		g.mu.Lock()
		g.frozen = frozen
		g.mu.Unlock()
	}
	return func() { close(frozen) }
}

func (b *testBatcher) ran() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.asked...)
}

// outcome of one request.
type outcome struct {
	id   string
	res  batching.Result
	err  error
	took time.Duration
}

func (o outcome) cause() batching.Cause {
	var e *batching.Error
	if errors.As(o.err, &e) {
		return e.Cause
	}
	return ""
}

// ask submits a request of the default pool's tier enterprise and returns where its outcome will be.
func (f *farm) ask(ctx context.Context, id string, timeout time.Duration) <-chan outcome {
	out := make(chan outcome, 1)
	began := time.Now()
	r := batching.Request{ID: id, Flow: "f", Input: "in-" + id, Arrival: began, Deadline: began.Add(timeout)}
	go func() {
		res, err := f.client.Submit(ctx, r)
		out <- outcome{id, res, err, time.Since(began)}
	}()
	return out
}
