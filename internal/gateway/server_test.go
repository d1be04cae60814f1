package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/batching"
)

// pipeListener is a network in memory, so that slow clients can be tested in virtual time.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- addressed{server}
	return client
}

// addressed gives a pipe the addresses of a socket.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711} }

// inServer runs f in virtual time with a server on a network in memory.
func inServer(t *testing.T, f func(*testing.T, *rig, *pipeListener)) {
	t.Helper()
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		l := newPipeListener()
		s := NewServer(r, nil)
		go func() { _ = s.Run(l) }()
		defer s.Close()
		f(t, r, l)
	})
}

func request(body string, headers ...string) string {
	return fmt.Sprintf("POST /v1/inference HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s", len(body), strings.Join(headers, ""), body)
}

// send writes without blocking the test: a pipe has no buffer.
func send(c net.Conn, s string) { go func() { _, _ = io.WriteString(c, s) }() }

func answered(t *testing.T, c net.Conn) (*http.Response, string) {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	return res, string(body)
}

func closedBy(c net.Conn) error {
	_, err := io.Copy(io.Discard, c)
	return err
}

func TestHugeHeader(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		send(c, request(hello, "Sluice-Tenant: "+strings.Repeat("a", 1<<20)+"\r\n"))
		if res, _ := answered(t, c); res.StatusCode != 431 {
			t.Errorf("%s, want 431", res.Status)
		}
	})
}

// A client that sends its headers byte by byte is cut after five seconds.
func TestSlowHeaders(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		began := time.Now()
		go func() {
			for range 1000 {
				if _, err := io.WriteString(c, "P"); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		_ = closedBy(c)
		if d := time.Since(began); d < 4*time.Second || d > 7*time.Second {
			t.Errorf("cut after %v", d)
		}
		time.Sleep(2 * time.Second) // the writer notices
	})
}

// A client that never finishes its body gets 408 after ten seconds, and is cut.
func TestUnfinishedBody(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		began := time.Now()
		send(c, "POST /v1/inference HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"model\"")
		res, body := answered(t, c)
		if res.StatusCode != 408 || !strings.Contains(body, "body_timeout") || !res.Close {
			t.Errorf("%s %s, close %v", res.Status, body, res.Close)
		}
		if d := time.Since(began); d < 9*time.Second || d > 12*time.Second {
			t.Errorf("after %v", d)
		}
		if n := counter(t, r.Gateway, `sluice_requests_total{code="408",reason="body_timeout",tier="enterprise"}`); n != 1 {
			t.Errorf("counted %v times", n)
		}
		_ = closedBy(c)
	})
}

// A client that never reads its answer holds a connection for ten seconds, no longer.
func TestClientThatNeverReads(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		if _, err := io.WriteString(c, request(hello)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if _, err := c.Write([]byte("x")); err == nil {
			t.Error("the connection is still open after 30 s")
		}
	})
}

// The read deadline of the body must not end a long wait for the answer.
func TestKeptConnectionServesAgainAfterAPause(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		in := bufio.NewReader(c)
		for i := range 3 {
			send(c, request(hello))
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
				t.Fatalf("request %d: %s, %v", i, res.Status, err)
			}
			time.Sleep(20 * time.Second)
		}
		_ = c.Close()
	})
}

// A client that asks for leave to send its body (curl does, for large ones) gets it on a kept connection too, however
// long ago the last answer's time to be written ended.
func TestContinueOnAKeptConnection(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		in := bufio.NewReader(c)
		send(c, request(hello))
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		time.Sleep(20 * time.Second)
		send(c, "POST /v1/inference HTTP/1.1\r\nHost: x\r\nContent-Length: "+strconv.Itoa(len(hello))+"\r\nExpect: 100-continue\r\n\r\n")
		if res, err = http.ReadResponse(in, nil); err != nil || res.StatusCode != 100 {
			t.Fatalf("%v, %v, want leave to send the body", res, err)
		}
		send(c, hello)
		if res, err = http.ReadResponse(in, nil); err != nil || res.StatusCode != 200 {
			t.Fatalf("%v, %v", res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = c.Close()
	})
}

// A body over the limit is refused by its announced length, before a byte of it is read.
func TestAnnouncedBodyOverTheLimit(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		send(c, "POST /v1/inference HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
		res, body := answered(t, c)
		if res.StatusCode != 413 || !strings.Contains(body, "body_too_large") {
			t.Errorf("%s %s", res.Status, body)
		}
	})
}

// A client that leaves while it waits leaves the queue.
func TestClientThatLeaves(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		r.engine.SetWorkers(nil) // nobody would ever run it
		r.engine.SetWorkers(r.endpoints)
		time.Sleep(50 * time.Millisecond)
		busy := l.dial()
		send(busy, request(hello))
		time.Sleep(60 * time.Millisecond) // the worker runs it
		c := l.dial()
		if _, err := io.WriteString(c, request(hello)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		if n := r.Stats().QueueDepth; n != 1 {
			t.Fatalf("%d waiting, want 1", n)
		}
		_ = c.Close()
		time.Sleep(time.Millisecond)
		if s := r.Stats(); s.QueueDepth != 0 || s.Tiers[0].Cancelled != 1 {
			t.Errorf("%d waiting, %+v", s.QueueDepth, s.Tiers[0])
		}
		answered(t, busy)
	})
}

// While the process goes away every answer closes its connection, and is an answer all the same.
func TestClosing(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		r.Closing()
		c := l.dial()
		send(c, request(hello))
		if res, body := answered(t, c); res.StatusCode != 200 || !res.Close {
			t.Errorf("%s %s, close %v", res.Status, body, res.Close)
		}
		if err := closedBy(c); err != nil {
			t.Error(err)
		}
	})
}

func TestHTTP2WithoutTLS(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		p := new(http.Protocols)
		p.SetUnencryptedHTTP2(true)
		tr := &http.Transport{Protocols: p, DialContext: func(context.Context, string, string) (net.Conn, error) { return l.dial(), nil }}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Post("http://x/v1/inference", "application/json", strings.NewReader(hello))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.ProtoMajor != 2 || res.StatusCode != 200 {
			t.Errorf("%s %s", res.Proto, res.Status)
		}
	})
}

func TestInternalPort(t *testing.T) {
	inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
		e.set(func(s *batching.Snapshot) { s.Depth = 5 })
		var ready Readiness
		h := r.InternalHandler(InternalOptions{Readiness: &ready})
		get := func(path string) reply { return serveGet(t, h, path) }
		if w := get("/readyz"); w.Code != 503 {
			t.Errorf("ready before it was said: %d", w.Code)
		}
		ready.Set(true)
		if w := get("/readyz"); w.Code != 200 {
			t.Errorf("%d", w.Code)
		}
		if w := get("/healthz"); w.Code != 200 {
			t.Errorf("%d", w.Code)
		}
		r.post(t, "/v1/inference", hello)
		r.post(t, "/v1/inference", `{`)
		time.Sleep(viewEvery)
		if w := get("/internal/stats"); !strings.Contains(w.Body.String(), `"queue_depth":5`) {
			t.Errorf("%s", w.Body)
		}
		body := get("/metrics").Body.String()
		for _, want := range []string{
			`sluice_requests_total{code="200",reason="ok",tier="free"} 1`, `sluice_requests_total{code="400",reason="invalid_json",tier="free"} 1`,
			`sluice_zone{zone="Green"} 1`, `sluice_request_duration_seconds_count{tier="free"} 1`, `sluice_offered_requests_total{tier="free"} 1`, "go_goroutines",
		} {
			if !strings.Contains(body, want) {
				t.Errorf("no %s in the metrics", want)
			}
		}
		if w := get("/debug/pprof/"); w.Code != 404 {
			t.Errorf("pprof without being asked for: %d", w.Code)
		}
	})
}
