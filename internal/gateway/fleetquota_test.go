package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/wire"
)

// quotaFleet is n gateways that share limits over real sockets.
func quotaFleet(t *testing.T, n int) (fleet []*FleetQuota, servers []*httptest.Server) {
	t.Helper()
	var peers []Peer
	for i := range n {
		f := NewFleetQuota(fmt.Sprint("gw-", i), 2*time.Second)
		mux := http.NewServeMux()
		f.routes(mux)
		f.timeout = 10 * time.Second
		s := httptest.NewServer(mux)
		t.Cleanup(s.Close)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { f.Run(ctx); close(done) }()
		t.Cleanup(func() { cancel(); <-done; f.client.CloseIdleConnections() })
		fleet, servers = append(fleet, f), append(servers, s)
		peers = append(peers, Peer{Name: f.self, Addr: strings.TrimPrefix(s.URL, "http://")})
	}
	for _, f := range fleet {
		f.SetPeers(peers)
	}
	return fleet, servers
}

// One tenant, its requests spread over three gateways: together they pass exactly the limit.
func TestLimitHoldsOverAllGateways(t *testing.T) {
	fleet, _ := quotaFleet(t, 3)
	lim := quota.Limits{RequestsPerMinute: 30}
	for _, tenant := range []string{"a", "b", "c", "d", "e"} {
		ok, fallback := 0, 0
		now := time.Now()
		for i := range 90 {
			r := fleet[i%3].Reserve(t.Context(), now, quota.Ask{Tenant: tenant, Limits: lim, Cost: quota.Cost{Requests: 1}})
			if r.Granted {
				ok++
			} else if r.RetryAfter <= 0 {
				t.Errorf("refused without a wait: %+v", r)
			}
			if r.Fallback {
				fallback++
			}
		}
		// A refill of one request takes 2 s; the asking of 90 may take some of that on a slow machine.
		if fallback > 0 {
			t.Fatal("a gateway did not answer another one")
		}
		if ok < 30 || ok > 31+int(time.Since(now)/(2*time.Second)) {
			t.Errorf("tenant %s: %d requests passed a limit of 30", tenant, ok)
		}
	}
}

// A shared budget is one bucket at one gateway whoever asks, and the tenants' own limits are asked there too.
func TestSharedBudgetHoldsOverAllGateways(t *testing.T) {
	fleet, _ := quotaFleet(t, 3)
	now := time.Now()
	passed := map[string]int{}
	for i := range 300 {
		tenant := fmt.Sprint("t", i%5)
		r := fleet[i%3].Reserve(t.Context(), now, quota.Ask{
			Tenant: tenant, Limits: quota.Limits{RequestsPerMinute: 9}, PoolLimits: quota.Limits{RequestsPerMinute: 36}, Cost: quota.Cost{Requests: 1},
		})
		if r.Fallback {
			t.Fatal("a gateway did not answer another one")
		}
		if r.Granted {
			passed[tenant]++
		} else if r.RetryAfter <= 0 {
			t.Errorf("%+v", r)
		}
	}
	late := 1 + int(time.Since(now)/time.Second)
	total := 0
	for tenant, n := range passed {
		total += n
		if n < 5 || n > 9+late {
			t.Errorf("%s: %d, want a fair part of 36", tenant, n)
		}
	}
	if total < 25 || total > 36+late {
		t.Errorf("%d passed a budget of 36", total)
	}
	owners := 0
	for _, f := range fleet {
		if f.ledger.Len() > 0 {
			owners++
		}
	}
	if owners != 1 {
		t.Errorf("%d gateways keep accounts, want one", owners)
	}
}

// Nobody answers for the budget: each gateway lets its share of it pass, and together they are the whole.
func TestOwnerOfTheBudgetGone(t *testing.T) {
	fleet, servers := quotaFleet(t, 3)
	for i, f := range fleet {
		if !isAddr(f, budgetKey) {
			servers[i].Close()
		}
	}
	total := 0
	for _, f := range fleet {
		if !isAddr(f, budgetKey) {
			continue // it is gone
		}
		for range 50 {
			r := f.Reserve(t.Context(), time.Now(), quota.Ask{Tenant: "t", PoolLimits: quota.Limits{TokensPerMinute: 300}, Cost: quota.Cost{Requests: 1, Tokens: 10}})
			if r.Granted {
				total += 10
			}
			if !r.Fallback {
				t.Fatalf("%+v", r)
			}
		}
	}
	if total < 80 || total > 220 { // two shares of 100, of which a lone tenant has at least half at once
		t.Errorf("%d tokens passed at two of three gateways of a budget of 300", total)
	}
}

// What a request did not use goes back to the gateway that keeps the bucket.
func TestSettlementReachesTheOwner(t *testing.T) {
	fleet, _ := quotaFleet(t, 2)
	lim := quota.Limits{TokensPerMinute: 1000}
	tenant := ""
	for i := 0; ; i++ { // a tenant whose bucket is at gateway 1
		if tenant = fmt.Sprint("t", i); isAddr(fleet[0], tenant) {
			break
		}
	}
	r := fleet[0].Reserve(t.Context(), time.Now(), quota.Ask{Tenant: tenant, Limits: lim, Cost: quota.Cost{Requests: 1, Tokens: 1000}})
	if r.Fallback || !r.Granted {
		t.Fatalf("the owner did not answer: %+v", r)
	}
	fleet[0].Settle(time.Now(), r.Grant, quota.Cost{Requests: 1, Tokens: 100})
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		got := fleet[1].ledger.Reserve(time.Now(), quota.Ask{Tenant: tenant, Limits: lim})
		if got.Levels[0].Remaining >= 900 {
			return
		}
	}
	t.Error("900 unused tokens were never given back at the owner")
}

func isAddr(f *FleetQuota, tenant string) bool { owner, _ := f.owner(tenant); return owner != nil }

// The owner is gone: each gateway lets its own share pass, at once after the first question, and the shares
// are together one burst.
func TestOwnerGoneFallsBackToAShare(t *testing.T) {
	fleet, servers := quotaFleet(t, 3)
	lim := quota.Limits{RequestsPerMinute: 30}
	tenant := ""
	for i := 0; ; i++ { // a tenant whose bucket is at gateway 2
		tenant = fmt.Sprint("t", i)
		if _, n := fleet[2].owner(tenant); n == 3 && !isAddr(fleet[2], tenant) {
			break
		}
	}
	servers[2].Close()
	total := 0
	for _, f := range fleet[:2] {
		ok := 0
		for range 50 {
			if r := f.Reserve(t.Context(), time.Now(), quota.Ask{Tenant: tenant, Limits: lim, Cost: quota.Cost{Requests: 1}}); r.Granted {
				ok++
			} else if !r.Fallback {
				t.Errorf("%+v", r)
			}
		}
		if ok < 10 || ok > 11 {
			t.Errorf("%d passed at one gateway, want its share of 10", ok)
		}
		total += ok
	}
	if total > 30 {
		t.Errorf("%d passed in all", total)
	}
	// A request that is larger than a share but within the limit is not called impossible.
	big := quota.Limits{TokensPerMinute: 300}
	if r := fleet[0].Reserve(t.Context(), time.Now(), quota.Ask{Tenant: tenant, Limits: big, Cost: quota.Cost{Requests: 1, Tokens: 250}}); r.TooLarge {
		t.Errorf("%+v", r)
	}
	// The gateway that is gone leaves the list: somebody else keeps the bucket.
	for _, f := range fleet[:2] {
		f.SetPeers([]Peer{{Name: "gw-0", Addr: strings.TrimPrefix(servers[0].URL, "http://")}, {Name: "gw-1", Addr: strings.TrimPrefix(servers[1].URL, "http://")}})
	}
	if r := fleet[0].Reserve(t.Context(), time.Now(), quota.Ask{Tenant: "another", Limits: lim, Cost: quota.Cost{Requests: 1}}); !r.Granted {
		t.Errorf("%+v", r)
	}
}

func TestQuotaQuestionsFromStrangers(t *testing.T) {
	fleet, servers := quotaFleet(t, 1)
	for _, body := range []string{
		``, `{`, `{"asks":[{"cost":{"tokens":-5}}]}`, `{"asks":[{"limits":{"tokens_per_minute":-1}}]}`, `{"settles":[{"used":{"tokens":-1}}]}`,
		`{"asks":[{"cost":{"requests":1},"limits":{"requests_per_minute":1}},{"cost":{"tokens":-5}}]}`,
		`{"asks":[` + strings.Repeat("{},", messageMost) + `{}]}`, strings.Repeat(" ", messageBytes) + `{}`,
	} {
		res, err := http.Post(servers[0].URL+pathQuota, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 400 {
			t.Errorf("%.200q: %s", body, res.Status)
		}
	}
	if fleet[0].ledger.Len() != 0 {
		t.Error("an account was made")
	}
}

// Whatever a gateway is asked by another one, it answers and keeps no account of what makes no sense.
func FuzzQuotaQuestions(f *testing.F) {
	for _, s := range []string{
		`{"asks":[{"tenant":"a","limits":{"tokens_per_minute":10},"cost":{"requests":1,"tokens":3}}]}`,
		`{"asks":[{"tenant":"a","tier":"free","tier_limits":{"requests_per_minute":17592186044416},"pool_limits":{"tokens_per_minute":1},"cost":{"requests":1}}]}`,
		`{"asks":[{},{"tenant":"b"}],"settles":[{"grant":{"tenant":"a","pool":true,"cost":{"tokens":3},"slot":1},"used":{"tokens":9223372036854775807}}]}`, `{`, `null`,
		`{"Asks":[{"Cost":{"requests":1,"requests":2}}],"asks":[{},{}]}`, `{"asks":[{"tier_limits":{"requests_per_minute":1},"cost":{"requests":1}}]}`,
		"{\"asks\":[{\"tenant\":\"\x92\",\"limits\":{\"requests_per_minute\":1},\"cost\":{\"requests\":1}},{\"tenant\":\"\ufffd\"}]}",
	} {
		f.Add([]byte(s))
	}
	fleet := NewFleetQuota("gw", 2*time.Second)
	mux := http.NewServeMux()
	fleet.routes(mux)
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, pathQuota, strings.NewReader(string(body))))
		if w.Code != 200 && w.Code != 400 {
			t.Errorf("%d for %q", w.Code, body)
		}
		if w.Code != 200 {
			return
		}
		var m quotaMessage
		var a quotaAnswer
		if err := wire.Decode(w.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		if err := wire.Decode(body, &m); err != nil || len(a.Replies) != len(m.Asks) {
			t.Errorf("%d replies to %q: %v", len(a.Replies), body, err)
		}
		for _, r := range a.Replies {
			if !r.Granted && !r.TooLarge && r.RetryAfter <= 0 {
				t.Errorf("refused without a wait: %q: %s", body, w.Body)
			}
		}
	})
}
