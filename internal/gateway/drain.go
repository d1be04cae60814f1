package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server is the public port. Its Drain loses no request, which http.Server's Shutdown alone does: Shutdown
// drops, unanswered, a request that arrives on a connection that was accepted a moment before.
type Server struct {
	http.Server
	mu       sync.Mutex
	fresh    map[net.Conn]struct{} // accepted, nothing read yet
	listener net.Listener
	draining bool
}

// freshGrace is how long Drain waits for the first byte on connections that were accepted already.
const freshGrace = time.Second

func (s *Server) track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == http.StateNew {
		s.fresh[c] = struct{}{}
	} else {
		delete(s.fresh, c)
	}
}

func (s *Server) freshConns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.fresh)
}

// Run serves until Drain or Close; then it returns nil.
func (s *Server) Run(l net.Listener) error {
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	serve := s.Serve
	if s.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
	}
	err := serve(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Drain accepts no more connections, lets the accepted ones send what they came for, and returns when every
// request was answered, or ctx's error. Closing must have been called on the gateway before, so that every
// answer closes its connection.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	l := s.listener
	s.mu.Unlock()
	if l != nil {
		_ = l.Close() // only the accept loop notices
	}
	for end := time.Now().Add(freshGrace); s.freshConns() > 0 && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond) // a request that was read just now is a few instructions away from its handler
	return s.Shutdown(ctx)
}
