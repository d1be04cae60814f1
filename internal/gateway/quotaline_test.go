package gateway

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/quota"
)

// faraway is an owner that answers after a while; it counts the messages that it got.
type faraway struct {
	http.Handler
	takes time.Duration

	mu       sync.Mutex
	messages int
}

func (o *faraway) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.messages
}

func (o *faraway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.messages++
	o.mu.Unlock()
	time.Sleep(o.takes)
	o.Handler.ServeHTTP(w, r)
}

// withOwner runs f in virtual time with a gateway that asks an owner which takes so long for each message.
func withOwner(t *testing.T, takes time.Duration, f func(t *testing.T, asker, owner *FleetQuota, o *faraway)) {
	synctest.Test(t, func(t *testing.T) {
		owner, asker := NewFleetQuota("owner", 2*time.Second), NewFleetQuota("asker", 2*time.Second)
		mux := http.NewServeMux()
		owner.routes(mux)
		o := &faraway{Handler: mux, takes: takes}
		asker.client.Transport = transport{"10.0.0.1:8081": o}
		asker.SetPeers([]Peer{{Name: "owner", Addr: "10.0.0.1:8081"}})
		f(t, asker, owner, o)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		asker.Run(ctx) // returns: nothing is left under way
	})
}

// Reservations that come within a moment travel together, each gets its own answer, and so do settlements; a lone one
// waits for nothing.
func TestReservationsTravelTogether(t *testing.T) {
	withOwner(t, 300*time.Microsecond, func(t *testing.T, asker, owner *FleetQuota, o *faraway) {
		const tenants, each = 100, 20
		var wg sync.WaitGroup
		var mu sync.Mutex
		passed := map[string]int{}
		var slowest time.Duration
		for i := range tenants * each {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond) // 10,000/s
				began, tenant := time.Now(), fmt.Sprint("t", i%tenants)
				r := asker.Reserve(t.Context(), began, quota.Ask{Tenant: tenant, Limits: quota.Limits{RequestsPerMinute: int64(1 + i%tenants)}, Cost: quota.Cost{Requests: 1}})
				mu.Lock()
				defer mu.Unlock()
				slowest = max(slowest, time.Since(began))
				if r.Fallback {
					t.Error("the owner was there and did not decide")
				}
				if r.Granted {
					passed[tenant]++
					asker.Settle(time.Now(), r.Grant, quota.Cost{Requests: 1})
				}
			})
		}
		wg.Wait()
		for i := range tenants {
			if n, want := passed[fmt.Sprint("t", i)], min(each, 1+i); n != want {
				t.Errorf("tenant %d: %d passed, want %d", i, n, want)
			}
		}
		if n := o.count(); n > 450 { // 200 ms, one in 500 us
			t.Errorf("%d messages for %d reservations", n, tenants*each)
		}
		if slowest > 2*time.Millisecond {
			t.Errorf("one waited %v", slowest)
		}
		time.Sleep(time.Second)
		began := time.Now()
		asker.Reserve(t.Context(), began, quota.Ask{Tenant: "lone", Limits: quota.Limits{RequestsPerMinute: 1}, Cost: quota.Cost{Requests: 1}})
		if d := time.Since(began); d != o.takes {
			t.Errorf("a lone one took %v", d)
		}
	})
}

// A client leaves while the owner is asked for its request: what the owner granted is given back.
func TestAnAnswerThatNobodyWaitsForIsGivenBack(t *testing.T) {
	withOwner(t, 20*time.Millisecond, func(t *testing.T, asker, owner *FleetQuota, _ *faraway) {
		lim := quota.Limits{TokensPerMinute: 1000}
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, leave)
		if r := asker.Reserve(ctx, time.Now(), quota.Ask{Tenant: "a", Limits: lim, Cost: quota.Cost{Requests: 1, Tokens: 900}}); !r.Fallback {
			t.Errorf("%+v", r)
		}
		time.Sleep(100 * time.Millisecond)
		if left := owner.ledger.Reserve(time.Now(), quota.Ask{Tenant: "a", Limits: lim}).Levels[0].Remaining; left != 1000 {
			t.Errorf("%d of 1000 are left at the owner", left)
		}
		// It was the client that left, not the owner that failed: the next asks it.
		if r := asker.Reserve(t.Context(), time.Now(), quota.Ask{Tenant: "a", Limits: lim, Cost: quota.Cost{Requests: 1, Tokens: 900}}); r.Fallback || !r.Granted {
			t.Errorf("%+v", r)
		}
	})
}

// An owner that hangs costs each request its 50 ms at most, and is then left alone for a second.
func TestAnOwnerThatHangs(t *testing.T) {
	withOwner(t, time.Hour, func(t *testing.T, asker, _ *FleetQuota, o *faraway) {
		o.takes = 200 * time.Millisecond
		asker.client.Transport = hanging{o}
		for i, want := range []time.Duration{askTimeout, 0, 0} {
			began := time.Now()
			r := asker.Reserve(t.Context(), began, quota.Ask{Tenant: "a", Limits: quota.Limits{RequestsPerMinute: 10}, Cost: quota.Cost{Requests: 1}})
			if d := time.Since(began); d != want || !r.Fallback || !r.Granted {
				t.Errorf("request %d took %v, want %v: %+v", i, d, want, r)
			}
		}
		if n := asker.fallback.Load(); n != 3 {
			t.Errorf("%d fallbacks counted", n)
		}
		time.Sleep(ownerRest)
		began := time.Now()
		asker.Reserve(t.Context(), began, quota.Ask{Tenant: "a", Limits: quota.Limits{RequestsPerMinute: 10}, Cost: quota.Cost{Requests: 1}})
		if d := time.Since(began); d != askTimeout || o.count() != 2 {
			t.Errorf("after its rest it was asked for %v, %d messages", d, o.count())
		}
		time.Sleep(time.Second)
	})
}

// hanging gives a call up when its context ends, as a real transport does.
type hanging struct{ o *faraway }

func (h hanging) RoundTrip(q *http.Request) (*http.Response, error) {
	done := make(chan struct{})
	var res *http.Response
	var err error
	go func() {
		res, err = transport{q.URL.Host: h.o}.RoundTrip(q)
		close(done)
	}()
	select {
	case <-done:
		return res, err
	case <-q.Context().Done():
		return nil, q.Context().Err()
	}
}

// Settlements that find no place are counted, and never wait.
func TestSettlementsAreBounded(t *testing.T) {
	withOwner(t, time.Second, func(t *testing.T, asker, _ *FleetQuota, _ *faraway) {
		g := quota.Grant{Tenant: "a", Slot: 1, Cost: quota.Cost{Requests: 1}, Owner: "10.0.0.1:8081"}
		for range 2 * settleQueue {
			asker.Settle(time.Now(), g, quota.Cost{})
		}
		// One message's worth may have left before the last came.
		if n := asker.dropped.Load(); n < settleQueue-messageMost || n > settleQueue {
			t.Errorf("%d dropped of %d", n, 2*settleQueue)
		}
		g.Owner = "10.0.0.9:8081" // is gone
		before := asker.dropped.Load()
		asker.Settle(time.Now(), g, quota.Cost{})
		if asker.dropped.Load() != before+1 {
			t.Error("a settlement for a gateway that is gone is not counted")
		}
	})
}
