package gateway

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/zone"
)

// fakeEngine answers everything at once and shows what a test puts into its snapshot.
type fakeEngine struct {
	mu     sync.Mutex
	snap   batching.Snapshot
	last   batching.Request
	answer error
}

func (f *fakeEngine) Submit(_ context.Context, r batching.Request) (batching.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = r
	return batching.Result{Output: r.Input}, f.answer
}

func (f *fakeEngine) Snapshot() batching.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snap
}

func (f *fakeEngine) set(change func(*batching.Snapshot)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.snap)
}

// inFake runs f in virtual time with a gateway before a fake engine of one worker (900 items/s).
func inFake(t *testing.T, change func(*poolspec.Pool), f func(*testing.T, *rig, *fakeEngine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := poolspec.Default()
		p.Model, p.Gateway.DefaultTier = "llm", "free"
		if change != nil {
			change(&p)
		}
		e := &fakeEngine{snap: batching.Snapshot{Live: 1, Mu: 900, MuShare: 900, ServiceP50: 110 * time.Millisecond}}
		g, err := New(Options{Pool: p, Engine: e})
		if err != nil {
			t.Fatal(err)
		}
		f(t, &rig{Gateway: g, ctx: t.Context()}, e)
	})
}

func signal(z zone.Name, reason string, free float64) zone.Signal {
	return zone.Signal{Version: 1, Pool: "local", Generation: 7, Zone: z, Reason: reason, Tiers: []zone.SignalTier{{Name: "enterprise", AdmitPercent: 100}, {Name: "paid", AdmitPercent: 100}, {Name: "free", AdmitPercent: free}}}
}

func passed(t *testing.T, r *rig, n int) (ok int) {
	t.Helper()
	for range n {
		if w := r.post(t, "/v1/inference", hello); w.Code == 200 {
			ok++
		} else {
			w.want(429, "shed")
		}
	}
	return ok
}

func TestFleetZoneIsApplied(t *testing.T) {
	inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
		if n := passed(t, r, 10); n != 10 {
			t.Errorf("without a signal %d of 10 passed", n)
		}
		r.SetSignal(signal(zone.Red, zone.ReasonBacklogHigh, 0))
		if n := passed(t, r, 10); n != 0 {
			t.Errorf("Red: %d of 10 of the free tier passed", n)
		}
		s := r.Stats()
		if s.Zone != "Red" || s.SignalGeneration != 7 || s.Tiers[2].RefusedCapacity != 10 || s.Tiers[2].Offered != 20 {
			t.Errorf("%s, generation %d, %+v", s.Zone, s.SignalGeneration, s.Tiers[2])
		}
		r.SetSignal(signal(zone.Green, zone.ReasonCalm, 100))
		if n := passed(t, r, 10); n != 10 {
			t.Errorf("Green again: %d of 10 passed", n)
		}
	})
}

// A share is spread evenly, not by dice: in any run of requests it is off by less than one.
func TestSharesAreEvenlySpread(t *testing.T) {
	for _, percent := range []float64{0.1, 1, 12.5, 33.3, 50, 90, 99.9} {
		inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
			r.SetSignal(signal(zone.Yellow, zone.ReasonBacklogHigh, percent))
			ok := 0
			for i := 1; i <= 1000; i++ {
				ok += passed(t, r, 1)
				if want := float64(i) * percent / 100; float64(ok) < want-1.01 || float64(ok) > want+1.01 {
					t.Fatalf("%v %%: %d of %d passed", percent, ok, i)
				}
			}
		})
	}
}

// The gateway feels the loss of its workers at once, whatever the fleet's signal says: 503, not 429.
func TestNoWorkerIs503(t *testing.T) {
	inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
		r.SetSignal(signal(zone.Green, zone.ReasonCalm, 100))
		passed(t, r, 1)
		e.set(func(s *batching.Snapshot) { *s = batching.Snapshot{} })
		e.answer = &batching.Error{Cause: batching.NoCapacity, RetryAfter: 3 * time.Second}
		time.Sleep(50 * time.Millisecond)
		r.post(t, "/v1/inference", hello).want(503, "no_capacity")
		if s := r.Stats(); s.Zone != "Red" || s.ZoneReason != zone.ReasonNoCapacity {
			t.Errorf("zone %s (%s), want Red (NoCapacity)", s.Zone, s.ZoneReason)
		}
		// Workers come back: served at once, though the fleet's signal still says there are none.
		r.SetSignal(signal(zone.Red, zone.ReasonNoCapacity, 0))
		e.set(func(s *batching.Snapshot) { *s = batching.Snapshot{Live: 1, Mu: 900, MuShare: 900} })
		e.answer = nil
		time.Sleep(60 * time.Second)
		if w := r.post(t, "/v1/inference", hello); w.Code != 200 {
			t.Errorf("a minute after a worker came: %d %s", w.Code, w.Body)
		}
	})
}

// Half of the workers die under a queue that was harmless before: the gateway's own zone is worse within 50 ms
// and free requests are refused, with no word from the operator.
func TestCapacityLossIsFeltAtOnce(t *testing.T) {
	inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
		r.SetSignal(signal(zone.Green, zone.ReasonCalm, 100))
		e.set(func(s *batching.Snapshot) {
			s.Live, s.Mu, s.MuShare, s.Depth, s.Backlog = 4, 3600, 3600, 720, 200*time.Millisecond
		})
		for range 40 {
			passed(t, r, 20)
			time.Sleep(100 * time.Millisecond)
		}
		if z := r.Stats().Zone; z != "Green" {
			t.Fatalf("zone %s before", z)
		}
		e.set(func(s *batching.Snapshot) {
			s.Live, s.Mu, s.MuShare, s.Backlog = 1, 900, 900, 800*time.Millisecond
		})
		time.Sleep(50 * time.Millisecond)
		if n := passed(t, r, 20); n != 0 {
			t.Errorf("%d of 20 free requests passed 50 ms after three of four workers died", n)
		}
		if s := r.Stats(); s.Zone != "Red" {
			t.Errorf("zone %s", s.Zone)
		}
	})
}

// The operator is silent for ten seconds: the signal is stale, and the pool's policy holds.
func TestStaleSignal(t *testing.T) {
	for _, ownView := range []bool{false, true} {
		inFake(t, func(p *poolspec.Pool) { p.Gateway.StaleSignalOwnView = ownView }, func(t *testing.T, r *rig, e *fakeEngine) {
			r.SetSignal(signal(zone.Red, zone.ReasonBacklogHigh, 0))
			time.Sleep(9 * time.Second)
			if n := passed(t, r, 5); n != 0 {
				t.Errorf("%d passed before the signal was stale", n)
			}
			if s := r.stats(time.Now()); s.SignalStale {
				t.Error("stale after 9 s")
			}
			time.Sleep(2 * time.Second)
			if s := r.stats(time.Now()); !s.SignalStale {
				t.Error("not stale after 11 s")
			}
			want := 0 // what was stricter holds on
			if ownView {
				want = 5
			}
			if n := passed(t, r, 5); n != want {
				t.Errorf("own view only %v: %d of 5 passed, want %d", ownView, n, want)
			}
			r.Stats() // the operator asks: it is there again
			if n := passed(t, r, 5); n != 0 {
				t.Errorf("%d passed after the operator came back", n)
			}
		})
	}
}

// A zone ends by itself while nobody calls.
func TestZoneEndsWhileNobodyCalls(t *testing.T) {
	inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		go r.Run(ctx)
		e.set(func(s *batching.Snapshot) { s.Depth, s.Backlog = 900, time.Second })
		time.Sleep(2 * time.Second)
		if n := passed(t, r, 5); n != 0 {
			t.Fatalf("%d free requests passed with a backlog of a second", n)
		}
		e.set(func(s *batching.Snapshot) { s.Depth, s.Backlog = 0, 0 })
		time.Sleep(time.Minute)
		if n := passed(t, r, 5); n != 5 {
			t.Errorf("%d of 5 passed a minute after the queue was empty", n)
		}
	})
}

// What is offered to the pool: admitted and refused for capacity, first attempts only.
func TestRetriesAreNotDemand(t *testing.T) {
	inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
		r.SetSignal(signal(zone.Red, zone.ReasonBacklogHigh, 0))
		for _, h := range [][]string{nil, {"X-Stainless-Retry-Count", "0"}, {"Sluice-Attempt", "1"}, {"X-Stainless-Retry-Count", "2"}, {"Sluice-Attempt", "2"}, {"Sluice-Attempt", "x"}} {
			r.post(t, "/v1/inference", hello, h...).want(429, "shed")
		}
		if s := r.Stats().Tiers[2]; s.Offered != 4 || s.RefusedCapacity != 6 {
			t.Errorf("%+v, want 4 offered of 6 refused", s)
		}
	})
}

func TestBackgroundIsPaused(t *testing.T) {
	inFake(t, func(p *poolspec.Pool) { p.Tiers[2].Background = true }, func(t *testing.T, r *rig, e *fakeEngine) {
		r.SetSignal(signal(zone.Yellow, zone.ReasonBacklogHigh, 0))
		w := r.post(t, "/v1/inference", hello)
		w.want(429, "background_paused")
		if !strings.Contains(w.Body.String(), "Yellow") {
			t.Error(w.Body)
		}
	})
}

func TestDeadlines(t *testing.T) {
	const s = 110 * time.Millisecond // of the fake engine
	for _, c := range []struct {
		name    string
		headers []string
		want    time.Duration
	}{
		{"nothing said", nil, 2 * time.Second},
		{"ours", []string{"Sluice-Timeout-Ms", "700"}, 700 * time.Millisecond},
		{"longer than the tier's", []string{"Sluice-Timeout-Ms", "60000"}, 2 * time.Second},
		{"Envoy's", []string{"x-envoy-expected-rq-timeout-ms", "800"}, 800 * time.Millisecond},
		{"OpenAI's SDK, in seconds", []string{"x-stainless-timeout", "1"}, time.Second},
		{"OpenAI's default of ten minutes", []string{"x-stainless-timeout", "600"}, 2 * time.Second},
		{"the shortest of all", []string{"Sluice-Timeout-Ms", "900", "x-envoy-expected-rq-timeout-ms", "500", "x-stainless-timeout", "1"}, 500 * time.Millisecond},
		{"a proxy's nonsense", []string{"x-envoy-expected-rq-timeout-ms", "abc", "x-stainless-timeout", "NaN"}, 2 * time.Second},
		{"a proxy's infinity", []string{"x-envoy-expected-rq-timeout-ms", "-1", "x-stainless-timeout", "1e400"}, 2 * time.Second},
		{"impatient: at least 2S", []string{"Sluice-Timeout-Ms", "1"}, 2 * s},
	} {
		inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
			r.post(t, "/v1/inference", hello, c.headers...)
			if got := e.last.Deadline.Sub(e.last.Arrival); got != c.want {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		})
	}
}

// Behind the gateway nothing says who asked.
func TestOnlyTierAndOpaqueFlowTravel(t *testing.T) {
	a, b := flowKey("pool", "acme"), flowKey("pool", "acme2")
	if a == b || strings.Contains(a, "acme") || len(a) != 16 || a != flowKey("pool", "acme") || a == flowKey("other", "acme") {
		t.Errorf("%s, %s", a, b)
	}
}

func TestEveryCauseOfTheBatcher(t *testing.T) {
	inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
		for cause, status := range map[batching.Cause]int{
			batching.QueueFull: 429, batching.Infeasible: 429, batching.NoCapacity: 503, batching.SecondFailure: 503,
			batching.Draining: 503, batching.Expired: 504, batching.InputFailed: 422,
		} {
			e.answer = &batching.Error{Cause: cause, RetryAfter: time.Second, Detail: "because"}
			r.post(t, "/v1/inference", hello).want(status, string(cause))
			r.post(t, "/v1/chat/completions", `{"model":"llm","messages":[{"role":"user","content":"x"}]}`).want(status, string(cause))
		}
		e.answer = context.DeadlineExceeded
		r.post(t, "/v1/inference", hello).want(500, "internal")
		e.answer = &batching.Error{Cause: "new_cause"}
		r.post(t, "/v1/inference", hello).want(500, "internal")
		e.answer = &batching.Error{Cause: batching.Cancelled}
		if w := r.post(t, "/v1/inference", hello); w.Body.Len() != 0 {
			t.Errorf("an answer to nobody: %s", w.Body)
		}
	})
}

func TestMeter(t *testing.T) {
	at := time.Now()
	m := meter{began: at}
	for i := range 1000 { // 100/s for ten seconds
		m.add(at.Add(time.Duration(i) * 10 * time.Millisecond))
	}
	if got := m.rate(at.Add(10 * time.Second)); got < 95 || got > 105 {
		t.Errorf("%v/s, want 100", got)
	}
	if got := m.rate(at.Add(10*time.Second + 950*time.Millisecond)); got < 40 || got > 60 {
		t.Errorf("%v/s a second after it stopped, want about half", got)
	}
	if got := m.rate(at.Add(time.Minute)); got != 0 {
		t.Errorf("%v/s a minute later", got)
	}
	m = meter{began: at}
	m.add(at)
	if got := m.rate(at.Add(time.Millisecond)); got != 1 {
		t.Errorf("the very first request looks like %v/s", got)
	}
}
