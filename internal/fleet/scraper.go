// Package fleet observes a pool's data plane: a Scraper reads the reports of its batchers, concurrently and
// outside any reconcile, and turns counters into rates by the manager's own clock; Workers reads the
// states of the GPU workers from their Pods. No pod's clock is ever read.
package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/internal/wire"
)

const (
	// Interval is the time between two scrapes of a pool.
	Interval = 2 * time.Second
	// Timeout is the longest time that one pod may take to answer.
	Timeout = time.Second
	// maxReport bounds what is read of a report: a thousand workers' views are under 200 KiB.
	maxReport = 4 << 20
	// concurrency bounds the scrapes that run at once, all pools together. 1,000 pools of 2 batchers at
	// 5 ms each need 5; the rest is for pods that do not answer.
	concurrency = 128
)

// Target is a Ready batcher or standalone gateway to scrape.
type Target struct {
	Name string    // of the pod
	UID  types.UID // of the pod: a new pod of the same name is another one
	IP   string
	// Gateway says that it is a standalone gateway: it knows what clients want, and no queue is its own.
	Gateway bool
	// Unready is a pod that gets no requests: only its certificate counts.
	Unready bool
}

// Fetch reads the report of one target. It must respect ctx.
type Fetch func(ctx context.Context, t Target) (wire.Stats, error)

// Scraper scrapes the batchers of every pool that it was told of, each pool every Interval. It is safe for
// concurrent use. Start must run for anything to be scraped.
type Scraper struct {
	fetch  Fetch
	notify func(types.NamespacedName)
	slots  chan struct{}

	mu    sync.Mutex
	ctx   context.Context // of Start; nil before
	pools map[types.NamespacedName]*poolScrape
}

// NewScraper returns a Scraper that calls notify after each round of a pool, from a goroutine of its own.
func NewScraper(fetch Fetch, notify func(types.NamespacedName)) *Scraper {
	return &Scraper{
		fetch:  fetch,
		notify: notify,
		slots:  make(chan struct{}, concurrency),
		pools:  map[types.NamespacedName]*poolScrape{},
	}
}

// poolScrape is what is known of one pool's batchers.
type poolScrape struct {
	stop    context.CancelFunc
	targets []Target
	pods    map[types.UID]*series
	rounds  uint64
}

// Start scrapes until ctx ends. It implements manager.Runnable; only the leader scrapes.
func (s *Scraper) Start(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	for key, p := range s.pools {
		s.run(key, p)
	}
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

// Watch sets the batchers of a pool; from the first call on the pool is scraped. Samples of pods that are no
// longer named are dropped at once.
func (s *Scraper) Watch(pool types.NamespacedName, targets []Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[pool]
	if p == nil {
		p = &poolScrape{pods: map[types.UID]*series{}}
		s.pools[pool] = p
		if s.ctx != nil {
			s.run(pool, p)
		}
	}
	p.targets = targets
	named := make(map[types.UID]bool, len(targets))
	for _, t := range targets {
		named[t.UID] = true
		if p.pods[t.UID] == nil {
			p.pods[t.UID] = &series{}
		}
	}
	for uid := range p.pods {
		if !named[uid] {
			delete(p.pods, uid)
		}
	}
}

// Forget ends the scraping of a pool.
func (s *Scraper) Forget(pool types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pools[pool]; p != nil {
		if p.stop != nil {
			p.stop()
		}
		delete(s.pools, pool)
	}
}

// run starts the goroutine of a pool; s.mu is held.
func (s *Scraper) run(key types.NamespacedName, p *poolScrape) {
	ctx, stop := context.WithCancel(s.ctx)
	p.stop = stop
	go func() {
		// A new leader begins with every pool in the same instant: the second round, which gives the first
		// rates, comes early by an amount of the pool's own, and so all later ones are spread over the
		// interval.
		tick := time.NewTicker(firstWait(key))
		defer tick.Stop()
		for first := true; ; first = false {
			s.Round(ctx, key)
			if ctx.Err() != nil {
				return
			}
			s.notify(key)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if first {
				tick.Reset(Interval)
			}
		}
	}()
}

// firstWait is the time from a pool's first round to its second: from 60 to 100 % of Interval, which is long
// enough for a rate.
func firstWait(key types.NamespacedName) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key.String()))
	return Interval - time.Duration(h.Sum32()%400)*(Interval/1000)
}

// Round scrapes every batcher of a pool once, all at the same time, and returns when the last has answered
// or timed out.
func (s *Scraper) Round(ctx context.Context, key types.NamespacedName) {
	s.mu.Lock()
	p := s.pools[key]
	if p == nil {
		s.mu.Unlock()
		return
	}
	targets := p.targets
	s.mu.Unlock()

	var wg sync.WaitGroup
	for _, t := range targets {
		wg.Go(func() {
			select {
			case s.slots <- struct{}{}:
				defer func() { <-s.slots }()
			case <-ctx.Done():
				return
			}
			ctx, cancel := context.WithTimeout(ctx, Timeout)
			defer cancel()
			sent := time.Now()
			stats, err := s.fetch(ctx, t)
			received := time.Now()
			if err == nil && stats.PodUID != "" && stats.PodUID != string(t.UID) {
				err = fmt.Errorf("%s answers for pod %s: its address was given to another pod", t.IP, stats.PodUID)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if sample := p.pods[t.UID]; sample != nil && err == nil {
				sample.add(sent, received, stats)
			} else if sample != nil {
				sample.err = err
			}
		})
	}
	wg.Wait()
	s.mu.Lock()
	p.rounds++
	s.mu.Unlock()
}

// HTTPFetch returns a Fetch over HTTP. Connections are kept, one a batcher.
func HTTPFetch() Fetch {
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: Timeout}).DialContext,
			MaxIdleConnsPerHost: 1,
			IdleConnTimeout:     5 * Interval,
			DisableCompression:  true,
			// One connection a batcher is kept, thousands in all: buffers of the default 4 KiB were a quarter of
			// the operator's heap. Reports have about 1 KiB.
			ReadBufferSize: 2 << 10, WriteBufferSize: 512,
		},
		// The internal API never redirects: following one would let a pod choose what the operator reads.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, t Target) (wire.Stats, error) {
		return get(ctx, client, "http://"+net.JoinHostPort(t.IP, strconv.Itoa(wire.PortInternal))+wire.PathStats)
	}
}

func get(ctx context.Context, client *http.Client, url string) (wire.Stats, error) {
	var s wire.Stats
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return s, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReport+1))
	if err != nil {
		return s, err
	}
	if len(body) > maxReport {
		return s, fmt.Errorf("%s: a report of more than %d bytes", url, maxReport)
	}
	return s, json.Unmarshal(body, &s)
}
