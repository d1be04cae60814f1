// Package gateway makes one decision per request: the pipeline in pipeline.go, from the first header to the
// answer. It serves the native API and OpenAI's on the same pool.
//
// Identity stops here. Behind the gateway travel the index of a tier and an opaque flow key, nothing else.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

// Engine is what the gateway hands requests to: in this process a dispatch.Engine.
type Engine interface {
	batching.Submitter
	// Snapshot is one consistent view of the queue and the workers. It is called at most every 10 ms.
	Snapshot() batching.Snapshot
}

// shedCounter is an Engine that wants to know of requests that the zone refused: they are part of its load.
type shedCounter interface{ Shed() }

// poisonKeeper is an Engine that remembers inputs which fail the function.
type poisonKeeper interface {
	// Poisoned returns why an input is not tried, nil for nearly every one. It is called for each request.
	Poisoned(input string, params wire.Parameters) *batching.Error
}

// Quota keeps the tenants' limits. Both methods are safe for concurrent use.
type Quota interface {
	// Reserve takes a request's cost from its tenant's limits and from those it shares.
	Reserve(ctx context.Context, now time.Time, q quota.Ask) quota.Reply
	// Settle ends a reservation with what was used.
	Settle(now time.Time, g quota.Grant, used quota.Cost)
}

// Options are what a Gateway is made of. Pool and Engine are required.
type Options struct {
	Pool    poolspec.Pool
	Engine  Engine
	Tenants *Tenants // nil: nobody is known
	Quota   Quota    // nil: limits are kept in this process alone

	// PoolURL is the base URL of another pool, "" when it is not known. Nil: the Service of its name.
	PoolURL func(pool string) string

	// Standalone says that the queues of Engine are in other processes: they are not this one's to report.
	Standalone bool
	// Relayed counts the requests that standalone gateways handed to this process; nil: none.
	Relayed func() uint64

	// Pod, PodUID name the pod in Stats; empty outside Kubernetes.
	Pod, PodUID string
	// BodyTimeout bounds the reading of a body and WriteTimeout the writing of an answer, so that a client
	// that never sends or never reads holds nothing. Zero: 10 s. An answer that comes early has its request's
	// deadline and WriteTimeout, at most twice WriteTimeout.
	BodyTimeout, WriteTimeout time.Duration
	// Log gets a sampled access log; nil discards.
	Log *slog.Logger
	// AccessLogPerSecond bounds the lines of the access log, of served requests and of others each. Zero: none.
	// A pool that states its access log has the last word.
	AccessLogPerSecond int
	// Reports are what the pool's telemetry asks for, see NewReports. The caller closes them.
	Reports Reports
	// Certificate is what the public port is served with; nil without TLS. The caller runs it.
	Certificate *Certificate
}

// Gateway is the public HTTP API of a pool. Safe for concurrent use.
type Gateway struct {
	pool          poolspec.Pool
	engine        Engine
	identity      *identity
	anonymousFlow string
	standalone    bool
	relayed       func() uint64
	quota         Quota
	budgets       budgets
	tokens        *tokenCounter
	hours         []*zone.Hours      // by tier, nil: always
	ladders       []*degrade.Ladders // by tier, nil: none
	rerouter      *rerouter
	zone          *zoneView
	strays        strays
	tiers         []tierCounters
	metrics       *metrics
	log           *accessLog
	reports       Reports
	cert          *Certificate
	pseudonyms    bool
	bodyTimeout   time.Duration
	writeTimeout  time.Duration
	mux           *http.ServeMux
	pod, podUID   string
	startID       string
	started       time.Time
	closing       atomic.Bool
	elsewhere     atomic.Bool // clients should connect to others
}

// New returns a Gateway. The error says which field of the pool it cannot serve.
func New(o Options) (*Gateway, error) {
	if err := o.Pool.Validate(); err != nil {
		return nil, err
	}
	if o.Pool.Gateway.MaxBodyBytes < 1 || o.Pool.Gateway.MaxInputBytes < 1 {
		return nil, fmt.Errorf("pool document: gateway.maxBodyBytes and gateway.maxInputBytes must be positive")
	}
	if o.Tenants == nil {
		o.Tenants = &Tenants{}
	}
	id, err := newIdentity(o.Pool, o.Tenants)
	if err != nil {
		return nil, fmt.Errorf("pool document: %w", err)
	}
	poolURL := serviceURL
	if o.PoolURL != nil {
		poolURL = func(s poolspec.Step) string { return o.PoolURL(s.Pool) }
	}
	if err := checkLadders(o.Pool, poolURL); err != nil {
		return nil, fmt.Errorf("pool document: %w", err)
	}
	hours, err := newHours(o.Pool)
	if err != nil {
		return nil, fmt.Errorf("pool document: %w", err)
	}
	tokens, err := newTokenCounter(o.Pool.Gateway.TokenEncoding)
	if err != nil {
		return nil, fmt.Errorf("pool document: %w", err)
	}
	now := time.Now()
	if o.Quota == nil {
		o.Quota = localQuota{quota.NewLedger(now, longestTimeout(o.Pool))}
	}
	g := &Gateway{
		pool: o.Pool, engine: o.Engine, identity: id, anonymousFlow: flowKey(o.Pool.Name, ""),
		quota: o.Quota, zone: newZoneView(o.Pool, o.Engine, now), tiers: make([]tierCounters, len(o.Pool.Tiers)),
		budgets: newBudgets(o.Pool), tokens: tokens, hours: hours, ladders: degrade.Of(o.Pool), rerouter: newRerouter(o.Pool, poolURL, o.Log),
		log: accessLogOf(o), reports: o.Reports, cert: o.Certificate, pseudonyms: pseudonyms(o.Pool),
		bodyTimeout: defaultTo(o.BodyTimeout, 10*time.Second), writeTimeout: defaultTo(o.WriteTimeout, 10*time.Second),
		standalone: o.Standalone, relayed: o.Relayed,
		pod: o.Pod, podUID: o.PodUID, startID: newID(), started: now,
	}
	g.metrics = newMetrics(g)
	if t := o.Reports.Tracer; t != nil {
		g.metrics.registry.MustRegister(t)
	}
	if u := o.Reports.Usage; u != nil {
		g.metrics.registry.MustRegister(u)
	}
	if o.Certificate != nil {
		g.metrics.registry.MustRegister(o.Certificate)
	}
	g.mux = g.routes()
	return g, nil
}

func defaultTo(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}

// longestTimeout is the longest time that a request of the pool may take.
func longestTimeout(p poolspec.Pool) time.Duration {
	var d time.Duration
	for _, t := range p.Tiers {
		d = max(d, t.Timeout.D())
	}
	return d
}

// SetSignal tells the fleet's zone; the operator's document is read by the caller.
func (g *Gateway) SetSignal(s zone.Signal) { g.zone.setSignal(s) }

// Closing makes every further answer close its connection, so that clients find another pod before this one
// stops accepting. Requests are served as before.
func (g *Gateway) Closing() { g.closing.Store(true) }

// SendElsewhere makes every answer close its connection for as long as on holds: the pool's Service names other
// gateways, and clients that keep their connections would never find them. Requests are served as before.
func (g *Gateway) SendElsewhere(on bool) { g.elsewhere.Store(on) }

// Run keeps the gateway's own zone up to date while nobody calls, until ctx is done: without it, the first
// request after a quiet hour would be judged by the zone of an hour ago.
func (g *Gateway) Run(ctx context.Context) {
	tick := time.NewTicker(classifyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			g.zone.view(now)
		}
	}
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.closing.Load() || g.elsewhere.Load() {
		w.Header().Set("Connection", "close") // over HTTP/2: GOAWAY
	}
	g.mux.ServeHTTP(w, r)
}

func (g *Gateway) routes() *http.ServeMux {
	mux := http.NewServeMux()
	route := func(method, path string, c codec, h http.HandlerFunc) {
		mux.HandleFunc(method+" "+path, h)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", method)
			g.refuseRoute(w, r, c, refuse(ReasonMethod, "use %s", method))
		})
	}
	post := func(path string, c codec) {
		route(http.MethodPost, path, c, func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, c) })
	}
	post("/v1/inference", native{})
	post("/v1/chat/completions", openAI{chat: true})
	post("/v1/completions", openAI{})
	route(http.MethodGet, "/v1/models", openAI{chat: true}, g.listModels)
	route(http.MethodGet, "/v1/models/{model...}", openAI{chat: true}, g.getModel)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		g.refuseRoute(w, r, native{}, refuse(ReasonNotFound, "this pool answers POST /v1/inference, POST /v1/chat/completions, POST /v1/completions and GET /v1/models"))
	})
	return mux
}
