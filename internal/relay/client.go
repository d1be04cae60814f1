package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/rendezvous"
	"sluice.dev/sluice/internal/telemetry"
	"sluice.dev/sluice/internal/wire"
)

// Peer is one Ready batcher.
type Peer struct {
	Name string // of its pod: what the hash is taken of
	Addr string // host:port of its relay port
}

// Options are what a Client is made of.
type Options struct {
	Pool poolspec.Pool
	Name string // of this gateway, for the batchers' logs
	Log  *slog.Logger
	// Dial opens a connection; nil is TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Client is a gateway's engine whose queues are at the batchers. Each request goes to the batcher that
// rendezvous hashing of its key names among those that are Ready and connected. Safe for concurrent use.
//
// A batcher that refuses the connection, says that it leaves, or breaks before anything of a request left
// costs the request nothing: the next in its order of preference gets it. A batcher that dies with a request
// costs its one re-route, if its deadline allows it.
type Client struct {
	tiers []poolspec.Tier
	prior time.Duration // S until batches were measured
	name  string
	log   *slog.Logger
	dial  func(ctx context.Context, addr string) (net.Conn, error)
	ctx   context.Context
	stop  context.CancelFunc
	links sync.WaitGroup

	calls, timers sync.Pool // of *call, *time.Timer

	mu     sync.Mutex
	byPeer map[Peer]*link
	// settled is closed when each batcher of the first list was tried once.
	settled chan struct{}
	first   sync.Once

	usable   atomic.Pointer[usable]
	arrivals atomic.Uint64 // submitted or shed
	lambda   atomic.Uint64 // bits of the float64: requests/s
	parked   atomic.Int64
	counts   []tierCounts
	rerouted atomic.Uint64
	lost     atomic.Uint64
	poisons  *poisons
}

// usable are the batchers that take requests now.
type usable struct {
	names []string
	links []*link
}

// tierCounts are what became of a tier's requests.
type tierCounts struct {
	admitted, refused, served, expired, cancelled, failed atomic.Uint64
}

// copies is the prior of what a batch takes over the pool's inferenceTime, as in package batching.
const copies = 10 * time.Millisecond

// NewClient returns a client that knows no batcher. Close it.
func NewClient(o Options) *Client {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Dial == nil {
		d := &net.Dialer{KeepAlive: 15 * time.Second}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	c := &Client{
		tiers: o.Pool.Tiers, prior: o.Pool.Batching.InferenceTime.D() + copies, name: o.Name, log: o.Log, dial: o.Dial,
		byPeer: map[Peer]*link{}, settled: make(chan struct{}), counts: make([]tierCounts, len(o.Pool.Tiers)),
		poisons: newPoisons(),
	}
	c.calls.New = newCall
	c.timers.New = func() any { return time.NewTimer(time.Hour) }
	c.usable.Store(&usable{})
	c.ctx, c.stop = context.WithCancel(context.Background())
	go c.measure()
	return c
}

// Close ends every connection; what is under way is answered with no_capacity.
func (c *Client) Close() {
	c.stop()
	c.links.Wait()
}

// SetBatchers makes peers the whole set of Ready batchers. What is under way at one that left is awaited.
func (c *Client) SetBatchers(peers []Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return
	}
	want := map[Peer]bool{}
	var fresh []*link
	for _, p := range peers {
		want[p] = true
		if c.byPeer[p] == nil {
			l := &link{client: c, peer: p, calls: map[uint64]*call{}}
			c.byPeer[p] = l
			fresh = append(fresh, l)
		}
	}
	for p, l := range c.byPeer {
		if !want[p] {
			l.drop()
			delete(c.byPeer, p)
		}
	}
	var tried sync.WaitGroup
	for _, l := range fresh {
		tried.Add(1)
		ctx, cancel := context.WithCancel(c.ctx)
		l.stop = cancel
		c.links.Go(func() {
			defer cancel()
			once := sync.OnceFunc(tried.Done)
			defer once()
			l.run(ctx, once)
		})
	}
	c.refresh()
	c.first.Do(func() {
		go func() { tried.Wait(); close(c.settled) }()
	})
}

// changed makes a new list of the batchers that take requests.
func (c *Client) changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
}

func (c *Client) refresh() {
	u := &usable{}
	for p, l := range c.byPeer {
		if l.usable() {
			u.names = append(u.names, p.Name)
			u.links = append(u.links, l)
		}
	}
	c.usable.Store(u)
}

// WaitSettled returns nil when every batcher of the first list was tried once, or ctx's error.
func (c *Client) WaitSettled(ctx context.Context) error {
	select {
	case <-c.settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("relay: not every batcher was tried yet: %w", ctx.Err())
	}
}

// Shed counts a request that the gateway's zone refused: it is part of the gateway's load.
func (c *Client) Shed() { c.arrivals.Add(1) }

// Submit implements batching.Submitter.
func (c *Client) Submit(ctx context.Context, r batching.Request) (batching.Result, error) {
	c.arrivals.Add(1)
	c.parked.Add(1)
	defer c.parked.Add(-1)
	res, err := c.submit(ctx, &r)
	if r.Tier < len(c.counts) {
		c.counts[r.Tier].add(err)
	}
	if err != nil {
		return batching.Result{}, err
	}
	return res, nil
}

func (t *tierCounts) add(err *batching.Error) {
	switch {
	case err == nil:
		t.admitted.Add(1)
		t.served.Add(1)
	case err.Cause == batching.QueueFull, err.Cause == batching.Infeasible, err.Cause == batching.NoCapacity:
		t.refused.Add(1)
	case err.Cause == batching.Expired:
		t.admitted.Add(1)
		t.expired.Add(1)
	case err.Cause == batching.Cancelled:
		t.admitted.Add(1)
		t.cancelled.Add(1)
	default:
		t.admitted.Add(1)
		t.failed.Add(1)
	}
}

// retryLost is what a client is told to wait when no batcher takes its request: new ones are Ready in seconds.
const retryLost = time.Second

// lateBy is how long after its deadline a request is answered here when its batcher does not: the batcher
// answers an expired request on time, so this is for one that is frozen.
const lateBy = 100 * time.Millisecond

// route is a request on its way through the batchers.
type route struct {
	key      string
	deadline time.Time
	tried    []*link
	lostAt   string // the batcher that died with the request
}

func (c *Client) submit(ctx context.Context, r *batching.Request) (batching.Result, *batching.Error) {
	if r.Arrival.IsZero() {
		r.Arrival = time.Now()
	}
	rt := route{key: r.Route, deadline: r.Deadline}
	if rt.key == "" {
		rt.key = r.ID
	}
	if most := r.Arrival.Add(c.tiers[r.Tier].Timeout.D()); rt.deadline.IsZero() || rt.deadline.After(most) {
		rt.deadline = most
	}
	for {
		l := c.choose(&rt)
		if l == nil {
			return batching.Result{}, rt.nobody()
		}
		rt.tried = append(rt.tried, l)
		now := time.Now()
		if rt.lostAt != "" && !now.Before(rt.deadline) {
			return batching.Result{}, &batching.Error{Cause: batching.Expired, Detail: "the deadline passed when batcher " + rt.lostAt + " was lost"}
		}
		q := wire.Submission{
			RequestID: r.ID, Tier: c.tiers[r.Tier].Name, Flow: r.Flow, Input: r.Input, Parameters: r.Params,
			RemainingUs: rt.deadline.Sub(now).Microseconds(),
		}
		if traced, ok := r.Trace.(*telemetry.Request); ok {
			h := http.Header{}
			telemetry.Inject(traced.Context(context.Background()), h)
			q.TraceParent, q.TraceState = h.Get("Traceparent"), h.Get("Tracestate")
		}
		x, id := l.begin(&q)
		if x == nil {
			continue // nothing was sent, nothing is spent
		}
		if err := c.wait(ctx, x, rt.deadline.Sub(now)+lateBy); err != nil {
			l.abandon(x, id)
			return batching.Result{}, err
		}
		a, lost, unsent := x.answer, x.lost, x.unsent
		c.freeCall(x)
		switch {
		case unsent:
		case lost:
			c.lost.Add(1)
			if rt.lostAt != "" {
				return batching.Result{}, &batching.Error{Cause: batching.SecondFailure, RetryAfter: retryLost,
					Detail: fmt.Sprintf("batchers %s and %s were lost, one after the other, while they had the request", rt.lostAt, l.peer.Name)}
			}
			rt.lostAt = l.peer.Name
			c.rerouted.Add(1)
		case a.Cause == "":
			// What passed before the batcher had the request is wait too, that at a batcher that was lost above all.
			return resultOf(&a, now.Sub(r.Arrival)), nil
		case a.Cause == string(batching.Draining): // it was never queued there
		default:
			e := rt.refused(&a)
			c.poisons.add(time.Now(), r, e)
			return batching.Result{}, e
		}
	}
}

// choose is the batcher that the key names among those that take requests and were not tried yet.
func (c *Client) choose(rt *route) *link {
	u := c.usable.Load()
	if len(rt.tried) == 0 {
		if i := rendezvous.Pick(rt.key, u.names); i >= 0 {
			return u.links[i]
		}
		return nil
	}
	for _, i := range rendezvous.Order(rt.key, u.names) {
		if !rt.has(u.links[i]) {
			return u.links[i]
		}
	}
	return nil
}

func (rt *route) has(l *link) bool {
	for _, x := range rt.tried {
		if x == l {
			return true
		}
	}
	return false
}

// nobody is the answer when no batcher takes the request.
func (rt *route) nobody() *batching.Error {
	e := &batching.Error{Cause: batching.NoCapacity, RetryAfter: retryLost, Detail: "no batcher is connected"}
	switch {
	case rt.lostAt != "":
		e.Detail = "batcher " + rt.lostAt + " was lost and no other takes the request"
	case len(rt.tried) > 0:
		e.Detail = "every batcher is leaving"
	}
	return e
}

// refused is the batcher's refusal. One that has no place for a re-routed request does not make it a 429: it
// had been admitted, and what failed is the service.
func (rt *route) refused(a *wire.SubmissionAnswer) *batching.Error {
	e := &batching.Error{Cause: batching.Cause(a.Cause), Detail: a.Detail, RetryAfter: micros(a.RetryAfterUs)}
	if rt.lostAt != "" && (e.Cause == batching.QueueFull || e.Cause == batching.Infeasible) {
		e.Cause, e.Detail = batching.SecondFailure, fmt.Sprintf("batcher %s was lost, and the next has no place for the request: %s", rt.lostAt, e.Error())
	}
	return e
}

// wait returns nil when the call has ended, and why it is given up otherwise.
func (c *Client) wait(ctx context.Context, x *call, most time.Duration) *batching.Error {
	t := c.timers.Get().(*time.Timer)
	t.Reset(most)
	defer func() {
		t.Stop()
		c.timers.Put(t)
	}()
	select {
	case <-x.done:
		return nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &batching.Error{Cause: batching.Expired, Detail: "given up at the gateway"}
		}
		return &batching.Error{Cause: batching.Cancelled, Detail: "the client went away"}
	case <-t.C:
		return &batching.Error{Cause: batching.Expired, Detail: "the batcher did not answer"}
	}
}

func resultOf(a *wire.SubmissionAnswer, before time.Duration) batching.Result {
	return batching.Result{
		Output: a.Output, Usage: a.Usage, QueueWait: before + micros(a.QueueWaitUs), Service: micros(a.ServiceUs),
		BatchSize: a.BatchSize, Attempts: a.Attempts, BatchID: a.BatchID, Worker: a.Worker,
	}
}

// rateOver is the time over which a gateway's own load is measured.
const rateOver = time.Second

// measure keeps the rate of arrivals.
func (c *Client) measure() {
	tick := time.NewTicker(4 * reportEvery)
	defer tick.Stop()
	before, last, rate := uint64(0), time.Now(), 0.0
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		now, n := time.Now(), c.arrivals.Load()
		dt := now.Sub(last).Seconds()
		if dt <= 0 {
			continue
		}
		rate += (1 - math.Exp(-dt/rateOver.Seconds())) * (float64(n-before)/dt - rate)
		before, last = n, now
		c.lambda.Store(math.Float64bits(rate))
	}
}

// rate is this gateway's load in requests/s.
func (c *Client) rate() float64 { return math.Float64frombits(c.lambda.Load()) }
