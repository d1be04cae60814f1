package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/wire"
)

func TestMalformedBatchesNameWhatIsWrong(t *testing.T) {
	s := New(&fakeBackend{}, Options{MaxBatch: 2, MaxBodyBytes: 600})
	long := strings.Repeat("x", maxIDLength+1)
	for name, c := range map[string]struct{ body, want string }{
		"no JSON":            {`{"batch_id":`, "not valid JSON"},
		"not an object":      {`[]`, "not valid JSON"},
		"trailing data":      {batchBody("b", "a") + "{}", "not valid JSON"},
		"input is a number":  {`{"batch_id":"b","requests":[{"request_id":"r","input":1}]}`, "input"},
		"no batch id":        {batchBody("", "a"), "batch_id"},
		"a long batch id":    {batchBody(long, "a"), "batch_id"},
		"no requests":        {batchBody("b"), "requests is empty"},
		"over the maximum":   {batchBody("b", "1", "2", "3"), "3 requests, the limit of this worker is 2"},
		"no request id":      {`{"batch_id":"b","requests":[{"input":"a"}]}`, "requests[0].request_id"},
		"over the body size": {batchBody("b", strings.Repeat("x", 600)), "larger than the limit of 600 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, post(t.Context(), s, wire.PathBatch, c.body), 400, wire.CodeInvalid, c.want)
		})
	}
	if n := counter(t, s, MetricRefusals, wire.CodeInvalid); n != 10 {
		t.Errorf("%s = %v, want 10", MetricRefusals, n)
	}
}

func TestOtherMethodsAndPaths(t *testing.T) {
	s := New(&fakeBackend{}, Options{})
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", wire.PathBatch, 405}, {"GET", "/", 404}, {"POST", wire.PathWorkerState, 405},
		{"GET", wire.PathHealthz, 200}, {"GET", wire.PathReadyz, 503}, {"GET", wire.PathWorkerState, 200}, {"GET", "/metrics", 200},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if w.Code != c.want {
			t.Errorf("%s %s = %d, want %d", c.method, c.path, w.Code, c.want)
		}
	}
}

// pipeListener hands net.Pipe connections to a server: sockets that live in virtual time.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }
func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

func servePipe(t *testing.T, s *Server) *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := NewHTTPServer(s)
	ended := make(chan struct{})
	go func() { _ = srv.Serve(l); close(ended) }()
	t.Cleanup(func() { _ = srv.Close(); <-ended })
	return l
}

func TestSlowCallersAreCutOff(t *testing.T) {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: w\r\nContent-Length: 1000\r\n", wire.PathBatch)
	for name, c := range map[string]struct {
		sends string
		after time.Duration
	}{
		"that never end their headers": {head, 5 * time.Second},
		"that never end their body":    {head + "\r\n{", bodyTimeout},
		"that say nothing":             {"", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true})
				synctest.Wait()
				conn := servePipe(t, s).dial()
				defer func() { _ = conn.Close() }()
				start := time.Now()
				if _, err := io.WriteString(conn, c.sends); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				wantEcho(t, send(s, "b1", "a"), "a") // others are served meanwhile
				_, _ = io.ReadAll(conn)
				if d := time.Since(start); d < c.after || d > c.after+time.Second {
					t.Errorf("cut off after %v, want %v", d, c.after)
				}
			})
		})
	}
}

func TestBatchMayTakeLongerThanItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{run: func(ctx context.Context, _ *fakeInstance, b Batch) (Output, error) {
			return echoAfter(ctx, 2*bodyTimeout, b)
		}}
		s := startWorker(t, b, Options{SkipWarmUp: true, BatchTimeout: time.Hour})
		synctest.Wait()
		conn := servePipe(t, s).dial()
		defer func() { _ = conn.Close() }()
		body := batchBody("b1", "a")
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n%s", wire.PathBatch, len(body), body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("got %v, %v", resp, err)
		}
		if n := counter(t, s, MetricAbandoned); n != 0 {
			t.Errorf("a caller that waits counts as gone")
		}
	})
}

func TestCallerThatNeverReadsHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true})
		synctest.Wait()
		conn := servePipe(t, s).dial()
		defer func() { _ = conn.Close() }()
		body := batchBody("b1", "a")
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n%s", wire.PathBatch, len(body), body); err != nil {
			t.Fatal(err)
		}
		time.Sleep(101 * time.Millisecond) // a pipe has no buffer: the answer can't leave
		wantEcho(t, send(s, "b2", "b"), "b")
		time.Sleep(answerTimeout)
		if rest, _ := io.ReadAll(conn); len(rest) > 0 {
			t.Errorf("%d bytes after the time to read them was over", len(rest))
		}
	})
}

func TestKeptConnectionOutlivesAClientsIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, &fakeBackend{}, Options{SkipWarmUp: true})
		synctest.Wait()
		conn := servePipe(t, s).dial()
		defer func() { _ = conn.Close() }()
		answers := bufio.NewReader(conn)
		for i := range 2 {
			body := batchBody(fmt.Sprint("b", i), "a")
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n%s", wire.PathBatch, len(body), body); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(answers, nil)
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("call %d: %v", i, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			time.Sleep(http.DefaultTransport.(*http.Transport).IdleConnTimeout + time.Second)
		}
	})
}

func TestCrashCutsARealConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBackend{run: func(_ context.Context, i *fakeInstance, _ Batch) (Output, error) {
			return Output{}, i.die(ErrReset)
		}}
		s := startWorker(t, b, Options{SkipWarmUp: true})
		synctest.Wait()
		conn := servePipe(t, s).dial()
		defer func() { _ = conn.Close() }()
		body := batchBody("b1", "a")
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n%s", wire.PathBatch, len(body), body); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
			t.Errorf("%q, %v: want nothing but the end", rest, err)
		}
	})
}

func FuzzDecodeBatch(f *testing.F) {
	f.Add([]byte(batchBody("b", "a", "é\x00\u2028")))
	f.Add([]byte(`{"batch_id":"b","parameters":{"max_tokens":null},"requests":[{"request_id":"r","input":"` + "\xff" + `","parameters":{"temperature":1e400}}]}`))
	f.Add([]byte(`{"batch_id":"b","requests":[null]}`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := DecodeBatch(body, 4)
		if err != nil {
			return
		}
		if n := len(req.Requests); n < 1 || n > 4 || req.BatchID == "" {
			t.Fatalf("accepted %+v", req)
		}
		b := batchOf(req)
		if len(b.Inputs) != len(req.Requests) || (b.ItemParams != nil && len(b.ItemParams) != len(b.Inputs)) {
			t.Fatalf("batch %+v of %+v", b, req)
		}
		again, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeBatch(again, 4); err != nil {
			t.Fatalf("what was accepted once is refused again: %v", err)
		}
	})
}
