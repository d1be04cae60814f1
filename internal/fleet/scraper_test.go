package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/internal/wire"
)

var poolKey = types.NamespacedName{Namespace: "ns", Name: "a"}

// batcher is a pod that reports counters that grow at a rate, and may hang or refuse.
type batcher struct {
	start     string
	perSecond float64
	began     time.Time
	hang      bool
	err       error
	depth     int
	relayed   float64 // a second, from standalone gateways
	workers   []wire.WorkerView
	uid       string
}

type pods struct {
	mu sync.Mutex
	m  map[string]*batcher
}

func (p *pods) fetch(ctx context.Context, t Target) (wire.Stats, error) {
	p.mu.Lock()
	b := p.m[t.Name]
	p.mu.Unlock()
	if b.hang {
		<-ctx.Done()
		return wire.Stats{}, ctx.Err()
	}
	if b.err != nil {
		return wire.Stats{}, b.err
	}
	n := uint64(b.perSecond * time.Since(b.began).Seconds())
	return wire.Stats{
		Relayed: uint64(b.relayed * time.Since(b.began).Seconds()),
		StartID: b.start, PodUID: b.uid, QueueDepth: b.depth, Workers: b.workers,
		Tiers:   []wire.TierStats{{Name: "free", Offered: n, Queued: b.depth}},
		Batches: n / 100, Items: n, BusyMs: n, ServiceSamples: 50, ServiceP50Ms: 100, GapMs: 2,
	}, nil
}

func targets(names ...string) []Target {
	var ts []Target
	for _, n := range names {
		ts = append(ts, Target{Name: n, UID: types.UID("uid-" + n), IP: "10.0.0.1"})
	}
	return ts
}

// scrape runs body with a started Scraper in virtual time.
func scrape(t *testing.T, m map[string]*batcher, body func(s *Scraper, p *pods)) {
	synctest.Test(t, func(t *testing.T) {
		for _, b := range m {
			b.began = time.Now()
		}
		p := &pods{m: m}
		s := NewScraper(p.fetch, func(types.NamespacedName) {})
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = s.Start(ctx) }()
		synctest.Wait()
		body(s, p)
		stop()
		synctest.Wait()
	})
}

func TestRatesAreDifferencesOfCountersOverReceiveTimes(t *testing.T) {
	scrape(t, map[string]*batcher{"x": {start: "1", perSecond: 500, depth: 7}, "y": {start: "1", perSecond: 300, depth: 5}}, func(s *Scraper, _ *pods) {
		s.Watch(poolKey, targets("x", "y"))
		time.Sleep(Interval + time.Millisecond) // two rounds
		l := s.Load(poolKey, time.Now())
		if !l.Complete || l.Sources != 2 || l.Rounds != 2 {
			t.Fatalf("complete %v, sources %d, rounds %d", l.Complete, l.Sources, l.Rounds)
		}
		if l.Offered < 795 || l.Offered > 805 || l.ByTier["free"] != l.Offered {
			t.Errorf("offered %v, by tier %v, want 800/s", l.Offered, l.ByTier)
		}
		if l.Depth != 12 || l.Queued["free"] != 12 {
			t.Errorf("depth %d, queued %v", l.Depth, l.Queued)
		}
		if l.ServiceTime != 100*time.Millisecond || l.Gap != 2*time.Millisecond {
			t.Errorf("service time %v, gap %v", l.ServiceTime, l.Gap)
		}
	})
}

func TestOneReportIsNoRate(t *testing.T) {
	scrape(t, map[string]*batcher{"x": {start: "1", perSecond: 500, depth: 7}}, func(s *Scraper, _ *pods) {
		s.Watch(poolKey, targets("x"))
		time.Sleep(time.Millisecond)
		l := s.Load(poolKey, time.Now())
		if l.Sources != 0 || l.Complete || len(l.Missing) != 1 {
			t.Errorf("%+v", l)
		}
		if l.Depth != 7 {
			t.Errorf("the queue is known from the first report on: %d", l.Depth)
		}
	})
}

func TestCountersThatBeginAgainAreNoTraffic(t *testing.T) {
	scrape(t, map[string]*batcher{"x": {start: "1", perSecond: 500}}, func(s *Scraper, p *pods) {
		s.Watch(poolKey, targets("x"))
		time.Sleep(2*Interval + time.Millisecond)
		p.mu.Lock()
		p.m["x"] = &batcher{start: "2", perSecond: 500, began: time.Now()}
		p.mu.Unlock()
		time.Sleep(Interval)
		if l := s.Load(poolKey, time.Now()); l.Sources != 0 || l.Offered != 0 {
			t.Errorf("after a restart nothing is known: %+v", l)
		}
		time.Sleep(Interval)
		if l := s.Load(poolKey, time.Now()); l.Offered < 495 || l.Offered > 505 {
			t.Errorf("offered %v, want 500/s", l.Offered)
		}
	})
}

func TestABatcherThatHangsHoldsUpNobody(t *testing.T) {
	scrape(t, map[string]*batcher{"x": {start: "1", perSecond: 500}, "y": {start: "1", hang: true}}, func(s *Scraper, _ *pods) {
		s.Watch(poolKey, targets("x", "y"))
		time.Sleep(3 * Interval)
		l := s.Load(poolKey, time.Now())
		if l.Sources != 1 || l.Complete {
			t.Errorf("sources %d, complete %v", l.Sources, l.Complete)
		}
		if len(l.Missing) != 1 || !strings.HasPrefix(l.Missing[0], "y") {
			t.Errorf("missing %v", l.Missing)
		}
		if l.Offered < 495 {
			t.Errorf("what is known counts: %v", l.Offered)
		}
	})
}

func TestSamplesAgeAndGo(t *testing.T) {
	scrape(t, map[string]*batcher{"x": {start: "1", perSecond: 500}}, func(s *Scraper, p *pods) {
		s.Watch(poolKey, targets("x"))
		time.Sleep(2 * Interval)
		p.mu.Lock()
		p.m["x"] = &batcher{err: errors.New("connection refused")}
		p.mu.Unlock()
		time.Sleep(Interval + time.Millisecond)
		if l := s.Load(poolKey, time.Now()); l.Sources != 1 {
			t.Errorf("one failed scrape is not the end of a sample: %+v", l)
		}
		time.Sleep(freshFor)
		l := s.Load(poolKey, time.Now())
		if l.Sources != 0 || l.Offered != 0 || !strings.Contains(l.Missing[0], "refused") {
			t.Errorf("a stale sample is none, and says why: %+v", l)
		}
	})
}

func TestSamplesOfAPodThatIsGoneAreDropped(t *testing.T) {
	scrape(t, map[string]*batcher{"x": {start: "1", perSecond: 500}, "y": {start: "1", perSecond: 500}}, func(s *Scraper, _ *pods) {
		s.Watch(poolKey, targets("x", "y"))
		time.Sleep(2 * Interval)
		s.Watch(poolKey, targets("x"))
		l := s.Load(poolKey, time.Now())
		if !l.Complete || l.Sources != 1 || l.Offered > 505 {
			t.Errorf("%+v", l)
		}
		s.Forget(poolKey)
		if l := s.Load(poolKey, time.Now()); l.Sources != 0 || l.Rounds != 0 {
			t.Errorf("forgotten: %+v", l)
		}
	})
}

func TestAnAnswerOfAnotherPodIsNotBelieved(t *testing.T) {
	scrape(t, map[string]*batcher{"x": {start: "1", perSecond: 500, uid: "somebody-else"}}, func(s *Scraper, _ *pods) {
		s.Watch(poolKey, targets("x"))
		time.Sleep(2 * Interval)
		if l := s.Load(poolKey, time.Now()); l.Sources != 0 {
			t.Errorf("%+v", l)
		}
	})
}

func TestViewsOfAWorkerAreJoined(t *testing.T) {
	scrape(t, map[string]*batcher{
		"x": {start: "1", workers: []wire.WorkerView{{Pod: "w0", State: wire.ViewIdle, IdleMs: 5000}, {Pod: "w1", State: wire.ViewIdle, IdleMs: 9000}, {Addr: "10.0.0.3:9000", State: wire.ViewIdle, IdleMs: 1000}}},
		"y": {start: "1", workers: []wire.WorkerView{{Pod: "w0", State: wire.ViewIdle, IdleMs: 2000}, {Pod: "w1", State: wire.ViewMine}, {Addr: "10.0.0.3:9000", State: wire.ViewUnhealthy}}},
	}, func(s *Scraper, _ *pods) {
		s.Watch(poolKey, targets("x", "y"))
		time.Sleep(2 * Interval)
		l := s.Load(poolKey, time.Now())
		if v := l.View(Worker{Name: "w0"}); v.Idle != 2*time.Second || v.Unhealthy {
			t.Errorf("the batcher that used it last knows: %+v", v)
		}
		if v := l.View(Worker{Name: "w1"}); v.Idle != 0 {
			t.Errorf("busy for one is busy: %+v", v)
		}
		if v := l.View(Worker{Name: "w2", IP: "10.0.0.3"}); !v.Unhealthy {
			t.Errorf("unhealthy for one is unhealthy, found by its address: %+v", v)
		}
	})
}

func TestEachRoundNotifiesItsPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n int
		s := NewScraper(func(context.Context, Target) (wire.Stats, error) { return wire.Stats{}, nil }, func(types.NamespacedName) { n++ })
		ctx, stop := context.WithCancel(t.Context())
		s.Watch(poolKey, nil) // before Start, as the controller may
		go func() { _ = s.Start(ctx) }()
		time.Sleep(2*Interval + time.Millisecond)
		stop()
		synctest.Wait()
		if n != 3 {
			t.Errorf("%d rounds in two intervals, want 3", n)
		}
	})
}

// Two standalone gateways see the load, the batchers get most of it: nothing counts twice. What the gateways
// see is offered; queues, batches and service times are the batchers'; each batcher's rate is what reaches it.
func TestStandaloneGatewaysAndBatchersAreCountedOnce(t *testing.T) {
	scrape(t, map[string]*batcher{
		"b1": {start: "1", relayed: 150, depth: 7}, "b2": {start: "2", relayed: 50, perSecond: 10}, // some clients still know b2
		"g1": {start: "3", perSecond: 200, depth: 5}, "g2": {start: "4", perSecond: 100, depth: 5},
	}, func(s *Scraper, p *pods) {
		ts := targets("b1", "b2", "g1", "g2")
		ts[2].Gateway, ts[3].Gateway = true, true
		s.Watch(poolKey, ts)
		time.Sleep(3*Interval + time.Second)
		l := s.Load(poolKey, time.Now())
		near := func(what string, got, want float64) {
			t.Helper()
			if got < want*0.98 || got > want*1.02 {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		near("offered", l.Offered, 310)
		near("offered by tier", l.ByTier["free"], 310)
		if !l.Complete || l.Sources != 2 || l.Gateways != 2 || l.Depth != 7 || l.Queued["free"] != 7 || len(l.Batchers) != 2 {
			t.Errorf("%+v", l)
		}
		near("b1's rate", l.Batchers[0].Lambda, 150)
		near("b2's rate", l.Batchers[1].Lambda, 60)

		p.mu.Lock()
		p.m["g2"].err = errors.New("refused")
		p.mu.Unlock()
		time.Sleep(2 * freshFor)
		if l := s.Load(poolKey, time.Now()); l.Complete || l.Gateways != 1 || len(l.Missing) != 1 {
			t.Errorf("a gateway is missing: %+v", l)
		}
	})
}
