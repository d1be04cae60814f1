package gateway

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// Bounds of the public server. A client that sends its headers byte by byte is cut after five seconds, one
// whose headers are larger than 32 KiB gets 431.
const (
	readHeaderTimeout = 5 * time.Second
	maxHeaderBytes    = 32 << 10
	maxStreams        = 1000 // HTTP/2 requests at once on one connection; a proxy may bring thousands over few

	// idleTimeout is longer than that of the clients and balancers that matter, so that it is they who close: a
	// request that crosses with our closing has no answer. Go's client gives up after 90 s, nginx and AWS's
	// balancers after 60 s, Google's after 600 s, which asks for 620 s. (It was 90 s: in five minutes under load
	// 10 requests of 180,000 met it.)
	idleTimeout = 620 * time.Second
)

// NewServer returns a server for the public port: HTTP/1.1 and HTTP/2 without TLS on the same port.
func NewServer(h http.Handler, log *slog.Logger) *Server {
	s := &Server{fresh: map[net.Conn]struct{}{}, Server: http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}}
	s.ConnState = s.track
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	if log != nil {
		s.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return s
}

// Readiness says whether the process wants traffic. The zero value does not.
type Readiness struct{ ready atomic.Bool }

// Set changes what /readyz answers.
func (r *Readiness) Set(ready bool) { r.ready.Store(ready) }

// InternalOptions are what the internal port serves beside the gateway's own statistics.
type InternalOptions struct {
	Readiness *Readiness
	Quota     *FleetQuota // nil: limits are kept in this process alone
	Pprof     bool
}

// InternalHandler serves the internal port: the operator's scrape, probes, metrics, the other gateways'
// quota questions. NetworkPolicy closes the port to everybody else.
func (g *Gateway) InternalHandler(o InternalOptions) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PathStats, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(g.Stats()) // the operator asks again in 2 s
	})
	mux.HandleFunc("GET "+wire.PathHealthz, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET "+wire.PathReadyz, func(w http.ResponseWriter, _ *http.Request) {
		if !o.Readiness.ready.Load() {
			http.Error(w, "not ready: the caches are not synced yet, there is no certificate for TLS yet, or the process is stopping", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("GET /metrics", g.metricsHandler())
	if o.Quota != nil {
		o.Quota.routes(mux)
	}
	if o.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}
