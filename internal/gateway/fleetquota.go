package gateway

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/rendezvous"
)

const (
	// askTimeout bounds a question to a bucket's owner. It is the most that a lost owner can add to a request.
	askTimeout = 50 * time.Millisecond
	// ownerRest is how long an owner that did not answer is not asked again.
	ownerRest = time.Second
)

// FleetQuota keeps every tenant's bucket at one gateway of the pool, which rendezvous hashing of the tenant
// names; the others ask it over the internal port. While an owner does not answer, a gateway decides by its
// own share of the limit, so a gateway that comes or goes costs at most one burst. Where tenants share a budget,
// one gateway keeps it and their own buckets too: a request is still one question, for all of them or none.
// Safe for concurrent use.
type FleetQuota struct {
	ledger *quota.Ledger // of the tenants that this gateway owns
	shares *quota.Ledger // of the tenants whose owner does not answer
	self   string
	client *http.Client
	// timeout is askTimeout; tests on slow machines have more.
	timeout time.Duration
	peers   atomic.Pointer[peerSet]

	mu      sync.Mutex
	resting map[string]time.Time // owners that did not answer, until when

	flights  sync.WaitGroup // goroutines that send
	fallback atomic.Uint64
	dropped  atomic.Uint64
}

// Peer is one ready gateway of the pool.
type Peer struct {
	Name string // of its pod: what the hash is taken of
	Addr string // host:port of its internal port
}

type peerSet struct {
	names []string
	lines map[string]*quotaLine // by name
	addrs map[string]*quotaLine // by address
}

// NewFleetQuota returns the quota of the gateway that the others know by the name self. hold is the longest
// time that a request can take. Run must be called so that the last settlements leave before the process does.
func NewFleetQuota(self string, hold time.Duration) *FleetQuota {
	now := time.Now()
	return &FleetQuota{
		ledger: quota.NewLedger(now, hold), shares: quota.NewLedger(now, hold), self: self,
		client: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: askTimeout}).DialContext,
			MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
		}},
		timeout: askTimeout, resting: map[string]time.Time{},
	}
}

// SetPeers tells which gateways are ready; this one may be among them or not.
func (f *FleetQuota) SetPeers(peers []Peer) {
	set := &peerSet{lines: make(map[string]*quotaLine, len(peers)), addrs: make(map[string]*quotaLine, len(peers))}
	old := f.peers.Load()
	for _, p := range peers {
		set.names = append(set.names, p.Name)
		if p.Name == f.self {
			continue
		}
		var l *quotaLine
		if old != nil {
			l = old.addrs[p.Addr] // with what is on its way
		}
		if l == nil {
			l = &quotaLine{fleet: f, addr: p.Addr}
		}
		set.lines[p.Name], set.addrs[p.Addr] = l, l
	}
	f.peers.Store(set)
}

// owner is the line to the gateway that keeps the tenant's bucket, nil for this one, and the number of gateways.
func (f *FleetQuota) owner(tenant string) (*quotaLine, int) {
	p := f.peers.Load()
	if p == nil || len(p.names) == 0 {
		return nil, 1
	}
	return p.lines[p.names[rendezvous.Pick(tenant, p.names)]], len(p.names)
}

// budgetKey is what the owner of a shared budget is chosen by; no tenant has such a name.
const budgetKey = "\x00budget"

// Reserve implements Quota.
func (f *FleetQuota) Reserve(ctx context.Context, now time.Time, q quota.Ask) quota.Reply {
	key := q.Tenant
	if !q.TierLimits.Unlimited() || !q.PoolLimits.Unlimited() {
		key = budgetKey
	}
	owner, n := f.owner(key)
	if owner == nil {
		return f.ledger.Reserve(now, q)
	}
	if f.rested(now, owner.addr) {
		if reply, err := owner.ask(ctx, q); err == nil {
			reply.Grant.Owner = owner.addr
			return reply
		} else if ctx.Err() == nil {
			f.rest(now, owner.addr)
		}
	}
	f.fallback.Add(1)
	reply := f.shares.Reserve(now, q.Share(n))
	reply.Fallback = true
	reply.Grant.Owner = fallbackOwner
	return reply
}

// fallbackOwner marks a grant of the shares ledger; no address looks like it.
const fallbackOwner = "-"

// Settle implements Quota. It never waits.
func (f *FleetQuota) Settle(now time.Time, g quota.Grant, used quota.Cost) {
	switch g.Owner {
	case "":
		f.ledger.Settle(now, g, used)
	case fallbackOwner:
		f.shares.Settle(now, g, used)
	default:
		l := f.peers.Load().addrs[g.Owner] // a grant by another gateway: there were peers
		if l == nil || !l.settle(settlement{Grant: g, Used: used}) {
			f.dropped.Add(1)
		}
	}
}

// Run returns when ctx is done and what was on its way to owners has left. Nothing may be reserved or settled any more.
func (f *FleetQuota) Run(ctx context.Context) {
	<-ctx.Done()
	f.flights.Wait()
	f.client.CloseIdleConnections()
}

// Describe implements prometheus.Collector.
func (f *FleetQuota) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

var (
	descFallback  = desc(metricQuotaFallback, "Reservations decided by this gateway's share of the limits, because the gateway that keeps the bucket did not answer.")
	descUnsettled = desc(metricQuotaUnsettled, "Reservations whose settlement did not reach the gateway that keeps the bucket: they count as spent there.")
)

// Collect implements prometheus.Collector.
func (f *FleetQuota) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descFallback, prometheus.CounterValue, float64(f.fallback.Load()))
	ch <- prometheus.MustNewConstMetric(descUnsettled, prometheus.CounterValue, float64(f.dropped.Load()))
}

func (f *FleetQuota) rested(now time.Time, owner string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	until, resting := f.resting[owner]
	if resting && now.Before(until) {
		return false
	}
	delete(f.resting, owner)
	return true
}

func (f *FleetQuota) rest(now time.Time, owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resting[owner] = now.Add(ownerRest)
}
