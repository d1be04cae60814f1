package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// What the fake batchers report: B = 100 in S = 100 ms with 1 ms between batches, batches filled to 80 %.
const (
	batchSize   = 100
	fill        = 0.8
	serviceMs   = 100.0
	gapMs       = 1.0
	rateNoise   = 0.03 // of the load, from one scrape to the next
	queueMillis = 15   // mean wait in the queue under a steady load
	batchersOf  = 2    // batchers a pool
	workersOf   = 2    // workers a pool
)

// capacity is mu of a pool with its workers, in requests/s.
const capacity = workersOf * batchSize / ((serviceMs + gapMs) / 1000)

// tierShares are the parts of the load, by the default tiers of a pool.
var tierShares = []struct {
	name  string
	share float64
}{{"enterprise", 0.2}, {"paid", 0.3}, {"free", 0.5}}

// dataPlane answers the operator's scrapes for every batcher of every pool: one server, one loopback address
// a batcher.
type dataPlane struct {
	server *http.Server

	mu       sync.Mutex
	next     int // number of addresses given out
	pools    map[string]*poolLoad
	batchers map[string]*batcher // by address
}

// poolLoad is what happens to a pool.
type poolLoad struct {
	mu      sync.Mutex
	rate    float64 // requests/s
	jam     int     // requests waiting at each batcher beyond the usual, 0 for none
	seen    chan struct{}
	seenAt  time.Time // when a jam was first told to the operator
	workers []wire.WorkerView
}

// batcher is one fake batcher's counters; poolLoad.mu guards them.
type batcher struct {
	pool     *poolLoad
	name     string
	uid      string
	start    string
	last     time.Time
	tiers    []float64
	items    float64
	listener net.Listener
}

func newDataPlane() *dataPlane {
	d := &dataPlane{pools: map[string]*poolLoad{}, batchers: map[string]*batcher{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PathStats, d.stats)
	d.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return d
}

func (d *dataPlane) stop() { _ = d.server.Close() }

// load is a pool's load, made with a steady one when it is not there yet.
func (d *dataPlane) load(pool string) *poolLoad {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.pools[pool]
	if l == nil {
		l = &poolLoad{rate: 0.65 * capacity}
		d.pools[pool] = l
	}
	return l
}

// addBatcher begins to answer for a batcher and returns its address.
func (d *dataPlane) addBatcher(pool, name, uid string) (string, error) {
	l := d.load(pool)
	ip := d.address(1)
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(wire.PortInternal)))
	if err != nil {
		return "", fmt.Errorf("a fake batcher needs port %d of every loopback address: %w", wire.PortInternal, err)
	}
	b := &batcher{
		pool: l, name: name, uid: uid, start: strconv.FormatUint(rand.Uint64(), 16), last: time.Now(),
		tiers: make([]float64, len(tierShares)), listener: listener,
	}
	d.mu.Lock()
	d.batchers[ip] = b
	d.mu.Unlock()
	go func() { _ = d.server.Serve(listener) }() // until it is closed
	return ip, nil
}

// addWorker lets the pool's batchers see a worker, and returns its address. Nobody connects to it.
func (d *dataPlane) addWorker(pool, name string) string {
	l := d.load(pool)
	ip := d.address(128)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.workers = append(l.workers, wire.WorkerView{Addr: net.JoinHostPort(ip, strconv.Itoa(wire.PortWorker)), Pod: name, State: wire.ViewIdle})
	return ip
}

// address is an unused address in 127.0.0.0/8.
func (d *dataPlane) address(from int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	return fmt.Sprintf("127.%d.%d.%d", from+d.next/62500, d.next/250%250, 1+d.next%250)
}

// remove ends the batchers of a pool.
func (d *dataPlane) remove(pool string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for ip, b := range d.batchers {
		if b.pool == d.pools[pool] {
			_ = b.listener.Close()
			delete(d.batchers, ip)
		}
	}
	delete(d.pools, pool)
}

func (d *dataPlane) stats(w http.ResponseWriter, r *http.Request) {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		http.Error(w, "no local address", http.StatusInternalServerError)
		return
	}
	d.mu.Lock()
	b := d.batchers[addr.IP.String()]
	d.mu.Unlock()
	if b == nil {
		http.Error(w, "this batcher is gone", http.StatusNotFound)
		return
	}
	report, jammed := b.report(time.Now())
	body, err := json.Marshal(report)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
	if jammed {
		b.pool.told(time.Now())
	}
}

// report is the batcher's report now, and whether it tells of a jam.
func (b *batcher) report(now time.Time) (s wire.Stats, jammed bool) {
	l := b.pool
	l.mu.Lock()
	defer l.mu.Unlock()
	rate := l.rate / batchersOf
	n := rate * now.Sub(b.last).Seconds() * (1 + rateNoise*(2*rand.Float64()-1))
	b.last = now
	b.items += n
	batches := b.items / (fill * batchSize)
	s = wire.Stats{
		Version: 1, Pod: b.name, PodUID: b.uid, StartID: b.start, Zone: "Green",
		ServiceSamples: uint64(batches), ServiceP50Ms: serviceMs, ServiceP99Ms: 1.02 * serviceMs, GapMs: gapMs,
		Batches: uint64(batches), Items: uint64(b.items), BusyMs: uint64(batches * serviceMs),
		Workers: l.workers,
	}
	for i, t := range tierShares {
		b.tiers[i] += n * t.share
		queued := int(rate*t.share*queueMillis/1000*2*rand.Float64()) + int(float64(l.jam)*t.share)
		offered := uint64(b.tiers[i])
		s.QueueDepth += queued
		s.Tiers = append(s.Tiers, wire.TierStats{Name: t.name, Offered: offered, Admitted: offered, Served: offered, Queued: queued})
	}
	return s, l.jam > 0
}

// told notes that the operator was told of a jam.
func (l *poolLoad) told(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jam > 0 && l.seenAt.IsZero() { // not one that was cleared or begun meanwhile
		l.seenAt = now
		close(l.seen)
	}
}

// setRate changes the load from now on.
func (l *poolLoad) setRate(perSecond float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = perSecond
}

// setJam makes a queue of n requests at each batcher.
func (l *poolLoad) setJam(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.jam, l.seenAt, l.seen = n, time.Time{}, make(chan struct{})
}

// jamSeen waits until the operator was told of the jam and says when.
func (l *poolLoad) jamSeen(ctx context.Context) (time.Time, error) {
	l.mu.Lock()
	seen := l.seen
	l.mu.Unlock()
	if seen == nil {
		return time.Time{}, errors.New("there is no jam")
	}
	select {
	case <-seen:
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("the operator does not scrape: %w", context.Cause(ctx))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seenAt, nil
}
