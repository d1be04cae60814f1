package dispatch

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

const (
	// dialTimeout: inside a cluster a connection takes under a millisecond; the address of a deleted pod
	// answers nothing at all, and its batch should find another worker soon.
	dialTimeout = 200 * time.Millisecond
	// idleTimeout is far below a worker's own (10 minutes), so that it is never the worker who closes a
	// connection just when a batch goes out on it.
	idleTimeout = 90 * time.Second
	// idlePerWorker: one connection for the batch, one for the health check, one to spare.
	idlePerWorker = 3
)

// NewTransport returns a transport for calls to workers: HTTP/1.1 (one batch at a time needs no streams),
// never a proxy, no limit on connections but what one worker can use.
func NewTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		DialContext:           dialer.DialContext,
		MaxIdleConns:          0, // no limit: idlePerWorker times the workers
		MaxIdleConnsPerHost:   idlePerWorker,
		IdleConnTimeout:       idleTimeout,
		DisableCompression:    true,
		WriteBufferSize:       64 << 10, // a batch of 100 short inputs in one write
		ReadBufferSize:        64 << 10,
		ExpectContinueTimeout: 0,
	}
}

// neverSent says whether err proves that the worker got nothing of a request. connected is whether a
// connection was had at all; it is true for transports that cannot tell.
func neverSent(err error, connected bool) bool {
	if !connected || errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	// net/http: the worker had closed a kept connection before the request was written to it. The error
	// value is not exported. (When nothing was written at all net/http itself tries another connection.)
	return strings.Contains(err.Error(), "server closed idle connection")
}

// timedOut says whether err is that of a deadline of ours.
func timedOut(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}
