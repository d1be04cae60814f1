package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"sluice.dev/sluice/internal/wire"
)

const (
	// dialTimeout: inside a cluster a connection takes under a millisecond.
	dialTimeout = 500 * time.Millisecond
	// redialFirst and redialLast bound the pause before a batcher is tried again.
	redialFirst = 20 * time.Millisecond
	redialLast  = time.Second
	// reportEvery is how often a gateway and a batcher tell each other how they are: a lost worker is felt
	// after this and the 10 ms for which a view holds.
	reportEvery = 25 * time.Millisecond
	// deadAfter is how long a batcher may be silent. It answers a report every 25 ms, so only one that is gone,
	// frozen, or without a processor for that long is silent; its requests have most of their two seconds left.
	deadAfter = time.Second
)

// link is the connection to one batcher, made anew when it breaks until the batcher is no longer named.
type link struct {
	client *Client
	peer   Peer
	stop   context.CancelFunc

	mu      sync.Mutex
	conn    *conn // nil while there is none
	next    uint64
	calls   map[uint64]*call
	leaving bool // the batcher wants no more requests
	dropped bool // no longer named: ends when nothing is under way
	report  wire.BatcherReport
	heard   time.Time // when the batcher last said anything
	spoke   bool      // report is of this connection
}

// call is one request under way at a batcher. Whoever takes it out of link.calls says how it ended.
type call struct {
	done   chan struct{} // of capacity 1
	at     uint64        // the place of its frame in the connection
	answer wire.SubmissionAnswer
	lost   bool // the connection ended first
	unsent bool // and nothing of the request had left
}

func newCall() any { return &call{done: make(chan struct{}, 1)} }

func (c *Client) freeCall(x *call) {
	*x = call{done: x.done}
	c.calls.Put(x)
}

// run keeps the link connected until ctx ends. tried is called after the first attempt.
func (l *link) run(ctx context.Context, tried func()) {
	pause := redialFirst
	for first := true; ctx.Err() == nil; first = false {
		c, err := l.dial(ctx)
		if err == nil {
			pause = redialFirst
			err = l.use(ctx, c, func() {
				if first {
					tried()
				}
			})
		} else if first {
			tried()
		}
		if ctx.Err() != nil || l.isDropped() {
			return
		}
		l.client.log.Warn("no connection to a batcher", "batcher", l.peer.Name, "addr", l.peer.Addr, "why", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, redialLast)
	}
}

func (l *link) isDropped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// dial asks the batcher for a relay.
func (l *link) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := l.client.dial(ctx, l.peer.Addr)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	r := bufio.NewReaderSize(c, bufferBytes)
	if err := upgrade(c, r, l.peer.Addr, l.client.name); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	_ = c.SetDeadline(time.Time{})
	return newConn(c, r), nil
}

func upgrade(c net.Conn, r *bufio.Reader, addr, name string) error {
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+wire.PathRelay, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", wire.UpgradeRelay)
	req.Header.Set(wire.HeaderGateway, name)
	if err := req.Write(c); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // of a refusal; 101 has none
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != wire.UpgradeRelay {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return fmt.Errorf("%s answers %s: %s", addr, resp.Status, said)
	}
	return nil
}

// use runs a connection to its end and returns why it ended.
func (l *link) use(ctx context.Context, c *conn, up func()) error {
	l.mu.Lock()
	l.conn, l.leaving, l.spoke, l.heard = c, false, false, time.Now()
	l.mu.Unlock()
	l.client.changed()
	l.client.log.Info("connected to a batcher", "batcher", l.peer.Name, "addr", l.peer.Addr)
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	go c.write()
	beat := make(chan struct{})
	silent := make(chan struct{})
	go l.beat(c, beat, silent)
	up()
	err := c.read(func(k kind, id uint64, body []byte) error { return l.receive(k, id, body) })
	close(beat)
	_ = c.Close()
	<-c.done // no byte leaves from here on
	select {
	case <-silent:
		err = fmt.Errorf("it was silent for %v", deadAfter)
	default:
	}
	l.lose(c)
	return err
}

// beat reports to the batcher and ends a connection on which the batcher is silent.
func (l *link) beat(c *conn, stop <-chan struct{}, silent chan<- struct{}) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		c.send(kindReport, 0, wire.GatewayReport{Offered: l.client.rate()})
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		l.mu.Lock()
		since := time.Since(l.heard)
		l.mu.Unlock()
		if since > deadAfter {
			close(silent)
			_ = c.Close()
			return
		}
	}
}

// receive takes one frame of the batcher.
func (l *link) receive(k kind, id uint64, body []byte) error {
	now := time.Now()
	switch k {
	case kindAnswer:
		var a wire.SubmissionAnswer
		if err := wire.Decode(body, &a); err != nil {
			return fmt.Errorf("an answer that cannot be read: %w", err)
		}
		l.mu.Lock()
		l.heard = now
		c := l.calls[id]
		delete(l.calls, id)
		l.endIfDropped()
		l.mu.Unlock()
		if c != nil { // else its client went away
			c.answer = a
			c.done <- struct{}{}
		}
	case kindReport:
		var r wire.BatcherReport
		if err := wire.Decode(body, &r); err != nil {
			return fmt.Errorf("a report that cannot be read: %w", err)
		}
		l.mu.Lock()
		l.heard, l.report, l.spoke = now, r, true
		l.mu.Unlock()
	case kindLeaving:
		l.mu.Lock()
		l.heard, l.leaving = now, true
		l.mu.Unlock()
		l.client.changed()
	}
	return nil
}

// lose ends the calls of a connection that is gone.
func (l *link) lose(c *conn) {
	l.mu.Lock()
	lost := l.calls
	l.calls = map[uint64]*call{}
	l.conn, l.spoke = nil, false
	l.mu.Unlock()
	l.client.changed()
	for _, x := range lost {
		x.lost, x.unsent = true, !c.sent(x.at)
		x.done <- struct{}{}
	}
}

// usable says whether the batcher takes requests.
func (l *link) usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && !l.leaving && !l.dropped
}

// begin sends a request. Nil: nothing was sent.
func (l *link) begin(q *wire.Submission) (*call, uint64) {
	c := l.client.calls.Get().(*call)
	l.mu.Lock()
	if l.conn == nil {
		l.mu.Unlock()
		l.client.freeCall(c)
		return nil, 0
	}
	conn := l.conn
	l.next++
	id := l.next
	l.calls[id] = c
	l.mu.Unlock()
	// Between these two the connection may be lost, and the call with it: at 0 counts as sent, which only errs
	// towards spending the one re-route.
	at, ok := conn.send(kindSubmit, id, q)
	l.mu.Lock()
	mine := l.calls[id] == c
	switch {
	case !mine:
	case ok:
		c.at = at
	default:
		delete(l.calls, id)
	}
	l.mu.Unlock()
	if mine && !ok {
		l.client.freeCall(c)
		return nil, 0
	}
	return c, id
}

// abandon ends a call that nobody waits for any more; the batcher is told. The caller must not use c again.
func (l *link) abandon(c *call, id uint64) {
	l.mu.Lock()
	mine := l.calls[id] == c
	delete(l.calls, id)
	conn := l.conn
	l.endIfDropped()
	l.mu.Unlock()
	if !mine {
		<-c.done // somebody is just ending it
	} else if conn != nil {
		conn.send(kindCancel, id, nil)
	}
	l.client.freeCall(c)
}

// drop says that the batcher is no longer named: what is under way there is still awaited.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped = true
	l.endIfDropped()
}

// endIfDropped ends a link that is no longer named once nothing is under way. l.mu is held.
func (l *link) endIfDropped() {
	if l.dropped && len(l.calls) == 0 {
		l.stop()
	}
}
