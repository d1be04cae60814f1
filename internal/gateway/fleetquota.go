package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/rendezvous"
)

// Paths of the quota questions between the gateways of one pool, on the internal port.
const (
	pathReserve = "/internal/quota/reserve"
	pathSettle  = "/internal/quota/settle"
)

const (
	// askTimeout bounds a question to a bucket's owner. It is the most that a lost owner can add to a request.
	askTimeout = 50 * time.Millisecond
	// ownerRest is how long an owner that did not answer is not asked again.
	ownerRest = time.Second
	// settleQueue bounds the settlements on their way to owners. One that finds no place is dropped: its
	// reservation counts as spent, so the limit errs on the strict side.
	settleQueue = 4096
	// settlers is the number of connections on which settlements leave.
	settlers = 4
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

	settles  chan settlement
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
	addrs map[string]string
}

type settlement struct {
	owner string
	Grant quota.Grant `json:"grant"`
	Used  quota.Cost  `json:"used"`
}

// NewFleetQuota returns the quota of the gateway that the others know by the name self. hold is the longest
// time that a request can take. Run must be called for settlements to reach other gateways.
func NewFleetQuota(self string, hold time.Duration) *FleetQuota {
	now := time.Now()
	return &FleetQuota{
		ledger: quota.NewLedger(now, hold), shares: quota.NewLedger(now, hold), self: self,
		client: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: askTimeout}).DialContext,
			MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
		}},
		timeout: askTimeout, resting: map[string]time.Time{}, settles: make(chan settlement, settleQueue),
	}
}

// SetPeers tells which gateways are ready; this one may be among them or not.
func (f *FleetQuota) SetPeers(peers []Peer) {
	set := &peerSet{addrs: make(map[string]string, len(peers))}
	for _, p := range peers {
		set.names = append(set.names, p.Name)
		set.addrs[p.Name] = p.Addr
	}
	f.peers.Store(set)
}

// owner is the gateway that keeps the tenant's bucket, "" for this one, and the number of gateways.
func (f *FleetQuota) owner(tenant string) (string, int) {
	p := f.peers.Load()
	if p == nil || len(p.names) == 0 {
		return "", 1
	}
	name := p.names[rendezvous.Pick(tenant, p.names)]
	if name == f.self {
		return "", len(p.names)
	}
	return p.addrs[name], len(p.names)
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
	if owner == "" {
		return f.ledger.Reserve(now, q)
	}
	if f.rested(now, owner) {
		if reply, err := f.ask(ctx, owner, q); err == nil {
			reply.Grant.Owner = owner
			return reply
		} else if ctx.Err() == nil {
			f.rest(now, owner)
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
		select {
		case f.settles <- settlement{owner: g.Owner, Grant: g, Used: used}:
		default:
			f.dropped.Add(1)
		}
	}
}

// Run sends settlements to their owners until ctx is done.
func (f *FleetQuota) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range settlers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case s := <-f.settles:
					if err := f.post(ctx, s.owner, pathSettle, s, nil); err != nil {
						f.dropped.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
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

func (f *FleetQuota) ask(ctx context.Context, owner string, q quota.Ask) (quota.Reply, error) {
	var reply quota.Reply
	err := f.post(ctx, owner, pathReserve, q, &reply)
	return reply, err
}

func (f *FleetQuota) post(ctx context.Context, addr, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := f.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNoContent {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4096)) // so that the connection is used again
		return fmt.Errorf("%s answered %s", addr, res.Status)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(io.LimitReader(res.Body, 1<<16)).Decode(out)
}

// routes serves the other gateways' questions.
func (f *FleetQuota) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST "+pathReserve, func(w http.ResponseWriter, r *http.Request) {
		var q quota.Ask
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&q); err != nil || !q.Valid() {
			http.Error(w, "want a reservation", http.StatusBadRequest)
			return
		}
		// By the codec that reads it: the fast one of public answers writes durations in another form.
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(f.ledger.Reserve(time.Now(), q)) // the asker may be gone
	})
	mux.HandleFunc("POST "+pathSettle, func(w http.ResponseWriter, r *http.Request) {
		var s settlement
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&s); err != nil || !s.Grant.Cost.Valid() || !s.Used.Valid() {
			http.Error(w, "want a settlement", http.StatusBadRequest)
			return
		}
		f.ledger.Settle(time.Now(), s.Grant, s.Used)
		w.WriteHeader(http.StatusNoContent)
	})
}
