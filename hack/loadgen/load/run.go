package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"
)

// run is one run of a plan. The scheduler goroutine owns what has no lock.
type run struct {
	plan  Plan
	codec *codec
	began time.Time
	tiers []*tierRecord
	late  *histogram // how long after its time each request was written

	expiries expiryHeap // of hang-ups
	patience []expiry   // of give-ups and the answer bound: the same for every call, so a FIFO
	serial   uint64
	buf      []byte

	mu      sync.Mutex
	idle    [][]*conn // by target, used last-in first-out
	open    int
	pending sync.WaitGroup // calls without an outcome

	hinted sync.Mutex
	bare   uint64 // 429 and 503 answers without Retry-After
}

// Run sends the plan's requests and returns when every one has its outcome, at the latest AnswerBound after
// the schedule's end. Cancelling ctx ends the schedule early; what was sent is still waited for. The error is
// for a plan that cannot be run: failures of requests are in the report.
func Run(ctx context.Context, plan Plan) (*Report, error) {
	plan, err := plan.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &run{plan: plan, codec: newCodec(plan), late: newHistogram(totalPrecision), idle: make([][]*conn, len(plan.Targets))}
	for range plan.Tiers {
		r.tiers = append(r.tiers, newTierRecord(plan.Warmup))
	}
	if err := r.connect(); err != nil {
		return nil, err
	}
	usage := cpuTime()
	r.began = time.Now()
	stop := make(chan struct{})
	if plan.Progress != nil {
		go r.progress(stop)
	}
	sent := r.schedule(ctx)
	r.pending.Wait()
	close(stop)
	rep := r.report(sent, cpuTime()-usage)
	r.closeIdle()
	return rep, nil
}

// connect opens the connections that the plan wants before the run, so that the run's first second does not
// measure handshakes.
func (r *run) connect() error {
	for t, addr := range r.plan.Targets {
		for range min(r.plan.Connections, r.plan.MaxConnections/len(r.plan.Targets)) {
			c, err := r.dial(t)
			if err != nil {
				return fmt.Errorf("connect to %s: %w", addr, err)
			}
			r.release(c)
		}
	}
	return nil
}

func (r *run) dial(target int) (*conn, error) {
	d := &net.Dialer{Timeout: r.plan.AnswerBound}
	var nc net.Conn
	var err error
	if addr := r.plan.Targets[target]; r.plan.TLS == nil {
		nc, err = d.Dial("tcp", addr)
	} else {
		nc, err = tls.DialWithDialer(d, "tcp", addr, r.plan.TLS)
	}
	if err != nil {
		return nil, err
	}
	c := &conn{c: nc, target: target}
	r.mu.Lock()
	r.open++
	r.mu.Unlock()
	go r.read(c)
	return c, nil
}

// schedule writes every request when it is due and ends the waiting of those whose patience is over. It
// returns how many were due.
func (r *run) schedule(ctx context.Context) (sent uint64) {
	rng := rand.New(rand.NewPCG(r.plan.Seed, 2))
	pick := newChooser(r.plan.Tiers)
	next, more := r.plan.Schedule.Next()
	for {
		now := time.Since(r.began)
		if more && ctx.Err() != nil {
			more = false
		}
		for more && next.At <= now {
			r.send(sent, next, pick.tier(rng.Float64()), rng)
			sent++
			next, more = r.plan.Schedule.Next()
		}
		wake, waiting := r.expire(time.Since(r.began))
		if !more && !waiting {
			return sent
		}
		if more && (!waiting || next.At < wake) {
			wake = next.At
		}
		// A long pause is cut so that a cancelled run ends soon.
		time.Sleep(min(wake-time.Since(r.began), 100*time.Millisecond))
	}
}

// send starts one call.
func (r *run) send(n uint64, a Arrival, tier int, rng *rand.Rand) {
	length := a.InputBytes
	if length == 0 {
		length = r.plan.InputBytes
	}
	cl := call{n: n, due: a.At, tier: tier, input: r.codec.input(n, length), maxTokens: a.MaxTokens}
	var body []byte
	r.buf, body = r.codec.request(r.buf[:0], tier, cl.input, a.MaxTokens)
	if r.plan.API == Echo {
		cl.body = append([]byte(nil), body...)
	}
	var hangUp time.Duration
	if r.plan.HangUp > 0 && rng.Float64() < r.plan.HangUp {
		hangUp = 1 + time.Duration(rng.Float64()*float64(r.plan.HangUpWithin))
	}
	r.serial++
	r.pending.Add(1)
	target := int(n) % len(r.plan.Targets)
	c, room := r.acquire(target)
	switch {
	case c != nil:
		r.start(c, cl, r.serial, r.buf)
		r.watch(c, cl, r.serial, hangUp)
	case room:
		// The wait for a connection is part of the latency, as it is for any client. The scheduler must not
		// wait for it.
		go r.dialAndStart(target, cl, r.serial, hangUp, append([]byte(nil), r.buf...))
	default:
		r.finish(cl, NoConnection, "client: out of connections")
	}
}

// dialAndStart carries a call on a new connection. Its patience is watched by the connection's deadline,
// because the scheduler's lists are the scheduler's alone.
func (r *run) dialAndStart(target int, cl call, serial uint64, hangUp time.Duration, request []byte) {
	c, err := r.dial(target)
	if err != nil {
		r.finish(cl, NoConnection, "client: cannot connect")
		return
	}
	bound, o := r.bound()
	left := cl.due + bound - time.Since(r.began)
	time.AfterFunc(max(left, 0), func() { r.abandon(c, serial, o) })
	if hangUp > 0 {
		time.AfterFunc(hangUp, func() { r.abandon(c, serial, HungUp) })
	}
	r.start(c, cl, serial, request)
}

// bound returns when a call ends without an answer, and as what.
func (r *run) bound() (time.Duration, Outcome) {
	if r.plan.GiveUp > 0 && r.plan.GiveUp < r.plan.AnswerBound {
		return r.plan.GiveUp, GaveUp
	}
	return r.plan.AnswerBound, Lost
}

// keepIdle is how long an idle connection is used again. Every server closes them some day, and a request that
// crosses with that is lost: clients give up first (requests and browsers after seconds, Go after 90 s).
const keepIdle = time.Minute

// acquire returns an idle connection, or whether a new one may be opened.
func (r *run) acquire(target int) (c *conn, room bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := time.Now().Add(-keepIdle)
	for s := r.idle[target]; len(s) > 0; {
		c, s = s[len(s)-1], s[:len(s)-1]
		r.idle[target] = s
		if c.idleSince.Before(oldest) {
			_ = c.c.Close() // its reader sees it and takes it out
			continue
		}
		c.mu.Lock()
		if !c.dead {
			c.busy = true
			c.mu.Unlock()
			return c, true
		}
		c.mu.Unlock()
	}
	return nil, r.open < r.plan.MaxConnections
}

func (r *run) release(c *conn) {
	now := time.Now()
	r.mu.Lock()
	c.idleSince = now
	r.idle[c.target] = append(r.idle[c.target], c)
	r.mu.Unlock()
}

// start writes the request. A write error is left to the reader, which sees the same broken connection.
func (r *run) start(c *conn, cl call, serial uint64, request []byte) {
	c.mu.Lock()
	c.busy, c.serial, c.call = true, serial, cl
	dead := c.dead
	c.mu.Unlock()
	if dead { // closed by the server since it was acquired: the reader is gone and cannot finish the call
		r.abandon(c, serial, Lost)
		return
	}
	_, _ = c.c.Write(request)
	r.mu.Lock()
	r.late.add(time.Since(r.began) - cl.due)
	r.mu.Unlock()
}

// abandon ends the call's waiting, unless it has ended, by closing the connection, as a client does.
func (r *run) abandon(c *conn, serial uint64, o Outcome) {
	c.mu.Lock()
	if !c.busy || c.serial != serial {
		c.mu.Unlock()
		return
	}
	cl := c.call
	c.busy, c.call = false, call{}
	c.mu.Unlock()
	_ = c.c.Close() // the reader sees it and takes the connection out
	if o == HungUp && r.plan.Left != nil {
		r.plan.Left(cl.n, time.Now())
	}
	why := ""
	if o == Lost {
		why = "client: no answer"
	}
	r.finish(cl, o, why)
}

// read is the life of a connection.
func (r *run) read(c *conn) {
	br := bufio.NewReaderSize(c.c, 2048)
	var buf []byte
	for {
		a, err := readAnswer(br, buf)
		now := time.Since(r.began)
		c.mu.Lock()
		busy, cl := c.busy, c.call
		c.busy, c.call = false, call{}
		keep := err == nil && a.keepAlive && busy // bytes that nobody asked for end a connection
		c.dead = !keep
		c.mu.Unlock()
		if !keep {
			_ = c.c.Close()
			r.mu.Lock()
			r.open--
			r.mu.Unlock()
		}
		if busy {
			if err != nil {
				r.finish(cl, Lost, "client: connection ended without an answer")
			} else {
				if keep {
					r.release(c)
				}
				r.answered(cl, a, now)
			}
		}
		if !keep {
			return
		}
		buf = a.body[:0]
	}
}

// answered classifies a call's answer.
func (r *run) answered(cl call, a answer, now time.Duration) {
	o, why := OtherStatus, ""
	switch a.status {
	case 200:
		o = Served
		if !r.codec.right(a.body, cl) {
			o, why = Wrong, "200 wrong answer"
		}
	case 429:
		o = Refused
	case 503:
		o = Unavailable
	case 504:
		o = Expired
	}
	if o != Served && why == "" {
		why = strconv.Itoa(a.status) + " " + reason(a.body)
	}
	if (o == Refused || o == Unavailable) && !a.retryAfter {
		r.hinted.Lock()
		r.bare++
		r.hinted.Unlock()
	}
	r.tiers[cl.tier].add(cl.due, now-cl.due, r.plan.OnTime, o, why)
	r.pending.Done()
}

// finish records a call that has no answer.
func (r *run) finish(cl call, o Outcome, why string) {
	r.tiers[cl.tier].add(cl.due, time.Since(r.began)-cl.due, r.plan.OnTime, o, why)
	r.pending.Done()
}

func (r *run) closeIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.idle {
		for _, c := range s {
			_ = c.c.Close()
		}
	}
}
