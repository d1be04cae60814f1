// Package relay is the hop between a standalone gateway and the batchers: Client is a gateway's engine whose
// queues are in the batchers' processes, Server the batcher's end.
//
// A gateway keeps one connection to each batcher, an HTTP/1.1 request upgraded to frames, and all its requests
// share it. Measured on two cores while 1,000 requests wait 100 ms each (BenchmarkHop), both ends and the load
// together cost 26 us of CPU a request this way, 116 us as HTTP/1.1 requests on kept connections and 119 us as
// HTTP/2 streams: as much as all else that a batcher does.
//
// A frame is
//
//	4 bytes  length of the body, big endian
//	1 byte   kind
//	8 bytes  id of the call, chosen by the gateway
//	body     JSON of package wire, or nothing
package relay

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// kind of a frame.
type kind uint8

const (
	kindSubmit  kind = iota + 1 // gateway: wire.Submission
	kindCancel                  // gateway: the client of the call went away
	kindReport                  // gateway: wire.GatewayReport; batcher: wire.BatcherReport. Also the heartbeat
	kindAnswer                  // batcher: wire.SubmissionAnswer
	kindLeaving                 // batcher: send no more; what was sent will be answered
)

const (
	headerBytes = 4 + 1 + 8
	// maxFrame bounds a body: an input of 16 MiB, the most a pool may admit, of which JSON escapes every byte.
	maxFrame = 100 << 20
	// maxUnsent bounds what waits for a peer that does not read. It is lost with the connection.
	maxUnsent = 256 << 20
	// writeTimeout is how long a write may make no progress.
	writeTimeout = 2 * time.Second
	bufferBytes  = 64 << 10
	// keptBuffer is the largest buffer that is kept for the next frame.
	keptBuffer = 1 << 20
)

// conn is one relayed connection: frames are written by one goroutine, so that those that come together leave
// in one system call, and read by another. Safe for concurrent writes.
type conn struct {
	net.Conn
	r *bufio.Reader

	mu      sync.Mutex
	unsent  []byte
	spare   []byte
	queued  uint64 // bytes ever appended
	handed  uint64 // bytes ever handed to the kernel
	kick    chan struct{}
	closed  bool
	closing bool // close once everything is written
	done    chan struct{}
}

func newConn(c net.Conn, r *bufio.Reader) *conn {
	return &conn{Conn: c, r: r, kick: make(chan struct{}, 1), done: make(chan struct{})}
}

// bodies are scratch space for encoding outside of a connection's lock.
var bodies = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// send appends a frame whose body is the JSON of v, nil for none. It returns the place of its first byte among
// all that were ever sent, and false when the connection is closed or its peer reads nothing.
func (c *conn) send(k kind, id uint64, v any) (at uint64, ok bool) {
	scratch := bodies.Get().(*[]byte)
	defer func() {
		if cap(*scratch) <= keptBuffer {
			bodies.Put(scratch)
		}
	}()
	b := (*scratch)[:headerBytes]
	if v != nil {
		var err error
		if b, err = wire.AppendJSON(b, v); err != nil {
			return 0, false // only strings and numbers are ever encoded; NaN is never among them
		}
	}
	*scratch = b
	binary.BigEndian.PutUint32(b, uint32(len(b)-headerBytes))
	b[4] = byte(k)
	binary.BigEndian.PutUint64(b[5:], id)

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.closing || len(c.unsent)+len(b) > maxUnsent {
		return 0, false
	}
	at = c.queued
	c.queued += uint64(len(b))
	c.unsent = append(c.unsent, b...)
	select {
	case c.kick <- struct{}{}:
	default:
	}
	return at, true
}

// sent says whether the byte at a place may have reached the peer.
func (c *conn) sent(at uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return at < c.handed
}

// write sends what send appended until the connection is closed or breaks.
func (c *conn) write() {
	defer close(c.done)
	defer c.Close()
	for range c.kick {
		for {
			c.mu.Lock()
			b := c.unsent
			if len(b) == 0 || c.closed {
				stop := c.closed || c.closing
				c.mu.Unlock()
				if stop {
					return
				}
				break
			}
			c.unsent = c.spare[:0]
			c.handed += uint64(len(b))
			c.mu.Unlock()
			_ = c.SetWriteDeadline(time.Now().Add(writeTimeout + time.Duration(len(b))*time.Microsecond))
			if _, err := c.Conn.Write(b); err != nil {
				return
			}
			c.spare = nil
			if cap(b) <= keptBuffer {
				c.spare = b
			}
		}
	}
}

// Close ends the connection at once.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.unsent = nil
	c.wake()
	c.mu.Unlock()
	return c.Conn.Close()
}

// finish ends the connection once everything is written.
func (c *conn) finish() {
	c.mu.Lock()
	c.closing = true
	c.wake()
	c.mu.Unlock()
}

// wake makes the writer look. c.mu is held.
func (c *conn) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// read calls each with every frame until one is malformed, each returns an error, or the connection ends. The
// body is only good during the call.
func (c *conn) read(each func(k kind, id uint64, body []byte) error) error {
	var head [headerBytes]byte
	var body []byte
	for {
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > maxFrame {
			return fmt.Errorf("a frame of %d bytes, at most %d", n, maxFrame)
		}
		if cap(body) > keptBuffer {
			body = nil
		}
		var err error
		if body, err = readBody(c.r, body[:0], int(n)); err != nil {
			return err
		}
		if err := each(kind(head[4]), binary.BigEndian.Uint64(head[5:]), body); err != nil {
			return err
		}
	}
}

// readBody reads n bytes. Memory grows with what arrives, not with what the header says.
func readBody(r io.Reader, buf []byte, n int) ([]byte, error) {
	const step = 1 << 20
	for len(buf) < n {
		from := len(buf)
		to := min(n, from+step)
		if cap(buf) < to {
			grown := make([]byte, from, max(to, min(n, 2*cap(buf))))
			copy(grown, buf)
			buf = grown
		}
		buf = buf[:to]
		if _, err := io.ReadFull(r, buf[from:]); err != nil {
			return nil, err
		}
	}
	return buf, nil
}
