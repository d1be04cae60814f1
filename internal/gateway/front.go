package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"sluice.dev/sluice/internal/poolspec"
)

// Listeners are the public ports that a pool asks for; nil is one that it does not.
type Listeners struct{ Plain, TLS net.Listener }

// Listen opens the public ports: plain HTTP, unless the pool says TLS and not both.
func Listen(p poolspec.Pool, plainAddr, tlsAddr string) (l Listeners, err error) {
	if p.Gateway.TLS == nil || p.Gateway.TLS.Plaintext {
		if l.Plain, err = net.Listen("tcp", plainAddr); err != nil {
			return Listeners{}, err
		}
	}
	if p.Gateway.TLS != nil {
		if l.TLS, err = net.Listen("tcp", tlsAddr); err != nil {
			return Listeners{}, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// Close closes what Listen opened.
func (l Listeners) Close() error {
	var err error
	for _, x := range []net.Listener{l.Plain, l.TLS} {
		if x != nil {
			err = errors.Join(err, x.Close())
		}
	}
	return err
}

// String names the addresses, for logs.
func (l Listeners) String() string {
	s := ""
	if l.Plain != nil {
		s = l.Plain.Addr().String()
	}
	if l.TLS != nil {
		if s != "" {
			s += ", "
		}
		s += l.TLS.Addr().String() + " (TLS)"
	}
	return s
}

// Front is the public side of a process: a server for each of the Listeners.
type Front struct {
	listeners  Listeners
	plain, tls *Server
}

// NewFront returns the servers for the listeners. The certificate is needed for the one with TLS.
func NewFront(h http.Handler, l Listeners, cert *Certificate, log *slog.Logger) *Front {
	f := &Front{listeners: l}
	if l.Plain != nil {
		f.plain = NewServer(h, log)
	}
	if l.TLS != nil {
		f.tls = NewServer(h, log)
		f.tls.TLSConfig = cert.config()
		f.tls.Protocols.SetUnencryptedHTTP2(false)
		f.tls.Protocols.SetHTTP2(true)
	}
	return f
}

// each runs do for every server at once and joins the errors.
func (f *Front) each(do func(*Server, net.Listener) error) error {
	errs, n := make(chan error, 2), 0
	start := func(s *Server, l net.Listener) {
		if s != nil {
			n++
			go func() { errs <- do(s, l) }()
		}
	}
	start(f.plain, f.listeners.Plain)
	start(f.tls, f.listeners.TLS)
	var all error
	for range n {
		all = errors.Join(all, <-errs)
	}
	return all
}

// Run serves until Drain or Close; then it returns nil. If one server fails, the others are closed.
func (f *Front) Run() error {
	return f.each(func(s *Server, l net.Listener) error {
		err := s.Run(l)
		if err != nil {
			_ = f.Close()
		}
		return err
	})
}

// Drain is Server.Drain of all servers.
func (f *Front) Drain(ctx context.Context) error {
	return f.each(func(s *Server, _ net.Listener) error { return s.Drain(ctx) })
}

// Close closes everything at once.
func (f *Front) Close() error {
	return f.each(func(s *Server, _ net.Listener) error { return s.Close() })
}
