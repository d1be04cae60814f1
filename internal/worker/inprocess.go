package worker

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"syscall"
)

// InProcess is an http.RoundTripper that calls handlers in this process by the host of the URL, such as
// "worker-0:9000": a fleet of simulated workers without sockets. It behaves as a network does: the call ends
// with the request's context while the handler goes on, a handler that cuts the connection
// (http.ErrAbortHandler) is a reset, and an unknown host a refused connection. Safe for concurrent use as
// long as nobody writes to the map.
type InProcess map[string]http.Handler

// RoundTrip implements http.RoundTripper.
func (p InProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	h, ok := p[r.URL.Host]
	if !ok {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("in-process worker %q: %w", r.URL.Host, syscall.ECONNREFUSED)
	}
	in := r.Clone(r.Context()) // a handler may change its request, a RoundTripper may not
	in.RequestURI = r.URL.RequestURI()
	if in.Body == nil {
		in.Body = http.NoBody
	}
	done := make(chan error, 1)
	w := &recordedAnswer{header: make(http.Header), status: http.StatusOK}
	go func() {
		defer func() {
			_ = in.Body.Close()
			switch v := recover(); v {
			case nil:
				done <- nil
			case http.ErrAbortHandler:
				done <- fmt.Errorf("in-process worker %q: %w", r.URL.Host, syscall.ECONNRESET)
			default:
				panic(v)
			}
		}()
		h.ServeHTTP(w, in)
	}()
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case err := <-done:
		if err != nil {
			return nil, err
		}
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(bytes.NewReader(w.body.Bytes())), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// recordedAnswer is the answer of one call; only the handler's goroutine touches it until it has ended.
type recordedAnswer struct {
	header http.Header
	status int
	wrote  bool
	body   bytes.Buffer
}

func (w *recordedAnswer) Header() http.Header { return w.header }

func (w *recordedAnswer) WriteHeader(status int) {
	if !w.wrote {
		w.status, w.wrote = status, true
	}
}

func (w *recordedAnswer) Write(b []byte) (int, error) {
	w.wrote = true
	return w.body.Write(b)
}
