package gateway

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
)

func tierCount(r *rig, tier string) uint64 {
	for _, t := range r.Stats().Tiers {
		if t.Name == tier {
			return t.Admitted
		}
	}
	return 0
}

func TestKeys(t *testing.T) {
	inBubble(t, 1, withKeys, func(t *testing.T, r *rig) {
		expiring := keyed("old", "paid", "old-key", quota.Limits{})
		expiring.Keys[0].NotAfter = time.Now().Add(time.Hour)
		r.tenants.Set([]Tenant{keyed("acme", "paid", "acme-key", quota.Limits{}), expiring})

		r.post(t, "/v1/inference", hello).want(401, "missing_key")
		r.post(t, "/v1/inference", hello, "Authorization", "Basic YTpi").want(401, "missing_key")
		r.post(t, "/v1/inference", hello, "Authorization", "Bearer ").want(401, "missing_key")
		r.post(t, "/v1/inference", hello, "Authorization", "Bearer wrong").want(401, "wrong_key")
		r.post(t, "/v1/inference", hello, "Authorization", "Bearer "+strings.Repeat("k", 10_000)).want(401, "wrong_key")
		hash := fmt.Sprintf("%x", sha256.Sum256([]byte("acme-key")))
		r.post(t, "/v1/inference", hello, "Authorization", "Bearer "+hash).want(401, "wrong_key")
		r.post(t, "/v1/chat/completions", `{"model":"llm"}`, "Authorization", "Bearer wrong").want(401, "wrong_key")
		for _, h := range [][2]string{{"Authorization", "Bearer acme-key"}, {"authorization", "bearer  acme-key "}, {"X-API-Key", "acme-key"}, {"Authorization", "Bearer old-key"}} {
			if w := r.post(t, "/v1/inference", hello, h[0], h[1]); w.Code != 200 {
				t.Errorf("%v: %d %s", h, w.Code, w.Body)
			}
		}
		time.Sleep(time.Hour)
		r.post(t, "/v1/inference", hello, "Authorization", "Bearer old-key").want(401, "expired_key")

		r.tenants.Set([]Tenant{keyed("acme", "paid", "new-key", quota.Limits{})}) // acme-key is revoked
		r.post(t, "/v1/inference", hello, "Authorization", "Bearer acme-key").want(401, "wrong_key")
		if w := r.post(t, "/v1/inference", hello, "Authorization", "Bearer new-key"); w.Code != 200 {
			t.Errorf("the new key: %d", w.Code)
		}
		r.tenants.Set(nil)
		r.post(t, "/v1/inference", hello, "Authorization", "Bearer new-key").want(401, "wrong_key")
	})
}

// A caller is who its key says, whatever else it claims.
func TestHeadersCannotSmuggleTierOrTenant(t *testing.T) {
	inBubble(t, 1, withKeys, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{keyed("small", "free", "free-key", quota.Limits{RequestsPerMinute: 2}), keyed("acme", "enterprise", "acme-key", quota.Limits{})})
		smuggle := []string{"Authorization", "Bearer free-key", "Sluice-Tier", "enterprise", "Sluice-Tenant", "acme", "X-Forwarded-For", "10.0.0.1", "X-Api-Key", "acme-key"}
		for range 2 {
			if w := r.post(t, "/v1/inference", hello, smuggle...); w.Code != 200 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		if e, f := tierCount(r, "enterprise"), tierCount(r, "free"); e != 0 || f != 2 {
			t.Errorf("%d as enterprise, %d as free, want 0 and 2", e, f)
		}
		r.post(t, "/v1/inference", hello, smuggle...).want(429, "quota_requests")
	})
	inBubble(t, 1, nil, func(t *testing.T, r *rig) { // auth None: the default tier, whatever is claimed
		r.post(t, "/v1/inference", hello, "Sluice-Tier", "free")
		if n := tierCount(r, "free"); n != 0 {
			t.Error("a header chose the tier of a pool without auth")
		}
	})
}

func TestTrustedHeaders(t *testing.T) {
	trusted := func(p *poolspec.Pool) {
		p.Gateway.Auth, p.Gateway.DefaultTier = "TrustedHeaders", ""
		p.Gateway.TrustedCIDRs = []string{"10.1.0.0/16", "fd00::/8"}
	}
	inBubble(t, 1, trusted, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{{Name: "limited", Tier: "free", Limits: quota.Limits{RequestsPerMinute: 1}}})
		from := func(peer string, headers ...string) reply {
			req := httptest.NewRequestWithContext(r.ctx, http.MethodPost, "/v1/inference", strings.NewReader(hello))
			req.RemoteAddr = peer
			for i := 0; i < len(headers); i += 2 {
				req.Header.Set(headers[i], headers[i+1])
			}
			w := httptest.NewRecorder()
			r.ServeHTTP(w, req)
			return reply{w, t}
		}
		acme := []string{"Sluice-Tenant", "acme", "Sluice-Tier", "paid"}
		for _, peer := range []string{"10.1.2.3:1000", "[::ffff:10.1.2.3]:1000", "[fd00::1]:1000"} {
			if w := from(peer, acme...); w.Code != 200 {
				t.Errorf("%s: %d %s", peer, w.Code, w.Body)
			}
		}
		if n := tierCount(r, "paid"); n != 3 {
			t.Errorf("%d as paid, want 3", n)
		}
		for _, peer := range []string{"10.2.0.1:1000", "127.0.0.1:1", "nonsense", ""} {
			from(peer, append(acme, "X-Forwarded-For", "10.1.0.1", "Forwarded", "for=10.1.0.1")...).want(401, "untrusted_source")
		}
		from("10.1.0.1:1").want(401, "missing_tenant")
		from("10.1.0.1:1", "Sluice-Tenant", strings.Repeat("a", 1<<20), "Sluice-Tier", "paid").want(400, "invalid_header")
		from("10.1.0.1:1", "Sluice-Tenant", "a\tb", "Sluice-Tier", "paid").want(400, "invalid_header")
		if n := counter(t, r.Gateway, `sluice_requests_total{code="400",reason="invalid_header",tier="unknown"}`); n != 2 {
			t.Errorf("%v tenant headers that are none counted", n)
		}
		from("10.1.0.1:1", "Sluice-Tenant", "acme", "Sluice-Tier", "gold").want(403, "unknown_tier")
		from("10.1.0.1:1", "Sluice-Tenant", "stranger").want(403, "unknown_tier")
		if w := from("10.1.0.1:1", "Sluice-Tenant", "limited"); w.Code != 200 { // its object says the tier
			t.Errorf("%d %s", w.Code, w.Body)
		}
		from("10.1.0.1:1", "Sluice-Tenant", "limited", "Sluice-Tier", "paid").want(429, "quota_requests")
	})
}

// A tenant whose tier the pool lacks: 403, and the operator hears of it. The list is bounded.
func TestUnknownTierIsReported(t *testing.T) {
	inBubble(t, 1, withKeys, func(t *testing.T, r *rig) {
		var list []Tenant
		for i := range 100 {
			list = append(list, keyed(fmt.Sprint("t", i), "gold", fmt.Sprint("key", i), quota.Limits{}))
		}
		r.tenants.Set(list)
		for i := range 100 {
			r.post(t, "/v1/inference", hello, "X-API-Key", fmt.Sprint("key", i)).want(403, "unknown_tier")
		}
		if body := serveGet(t, r.InternalHandler(InternalOptions{}), "/metrics").Body.String(); !strings.Contains(body, `sluice_requests_total{code="403",reason="unknown_tier",tier="unknown"} 100`) {
			t.Error("refusals for an unknown tier are not counted under tier unknown")
		}
		got := r.Stats().UnknownTierTenants
		if len(got) != strayMax || !slices.Contains(got, "t0") {
			t.Errorf("%v", got)
		}
		time.Sleep(strayLife + time.Second)
		if got := r.Stats().UnknownTierTenants; len(got) != 0 {
			t.Errorf("still reported long after: %v", got)
		}
	})
}

// 100,000 wrong keys in 10 s leave nothing behind and never touch the engine or a body; who has a right one is served
// all the while.
func TestWrongKeysAreCheap(t *testing.T) {
	inBubble(t, 1, withKeys, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{keyed("acme", "paid", "acme-key", quota.Limits{})})
		body := &countingReader{}
		began, served := time.Now(), 0
		var good sync.WaitGroup
		good.Go(func() {
			for time.Since(began) < 10*time.Second {
				if w := r.post(t, "/v1/inference", hello, "X-API-Key", "acme-key"); w.Code != 200 {
					t.Errorf("the right key during the flood: %d %s", w.Code, w.Body)
				}
				served++
			}
		})
		for i := range 100_000 {
			if i%100 == 99 {
				time.Sleep(10 * time.Millisecond)
			}
			req := httptest.NewRequestWithContext(r.ctx, http.MethodPost, "/v1/inference", body)
			req.Header.Set("X-API-Key", fmt.Sprint("wrong", i))
			w := httptest.NewRecorder()
			r.ServeHTTP(w, req)
			if w.Code != 401 {
				t.Fatalf("key %d: %d", i, w.Code)
			}
		}
		good.Wait()
		if served < 80 { // one after the other, 100 ms each
			t.Errorf("%d with the right key", served)
		}
		if body.reads > 0 {
			t.Errorf("%d reads of bodies of unknown callers", body.reads)
		}
		if w := r.post(t, "/v1/inference", hello, "X-API-Key", "acme-key"); w.Code != 200 {
			t.Errorf("the right key after the flood: %d", w.Code)
		}
		if n := len(r.Stats().UnknownTierTenants); n != 0 {
			t.Errorf("%d names kept", n)
		}
		if n := counter(t, r.Gateway, `sluice_requests_total{code="401",reason="wrong_key",tier="unknown"}`); n != 100_000 {
			t.Errorf("%v wrong keys counted", n)
		}
	})
}

type countingReader struct{ reads int }

func (c *countingReader) Read([]byte) (int, error) { c.reads++; return 0, http.ErrBodyReadAfterClose }

// Of two tenants with one key the first keeps it.
// A key is revoked while fifty clients use it: from that instant on no request is let in by it; what was let in
// before is answered.
func TestKeyRevokedUnderLoad(t *testing.T) {
	inBubble(t, 4, withKeys, func(t *testing.T, r *rig) {
		list := []Tenant{keyed("acme", "paid", "acme-key", quota.Limits{}), keyed("other", "paid", "other-key", quota.Limits{})}
		r.tenants.Set(list)
		var mu sync.Mutex
		var revoked time.Time
		before, after, wrong := 0, 0, 0
		var wg sync.WaitGroup
		for client := range 50 {
			key, stays := "acme-key", false
			if client%5 == 0 {
				key, stays = "other-key", true
			}
			wg.Go(func() {
				for range 20 {
					mu.Lock()
					began, is := time.Now(), !revoked.IsZero()
					mu.Unlock()
					w := r.post(t, "/v1/inference", hello, "X-API-Key", key)
					mu.Lock()
					switch {
					case stays && w.Code != 200, !stays && is && w.Code != 401, !stays && !is && w.Code != 200 && !began.Equal(revoked):
						wrong++
					case is:
						after++
					default:
						before++
					}
					mu.Unlock()
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		time.Sleep(time.Second)
		mu.Lock()
		r.tenants.Set(list[1:])
		revoked = time.Now()
		mu.Unlock()
		wg.Wait()
		if wrong > 0 || before < 100 || after < 100 {
			t.Errorf("%d wrong answers, %d before the key was revoked, %d after", wrong, before, after)
		}
	})
}

func TestOneKeyTwoTenants(t *testing.T) {
	var ts Tenants
	ts.Set([]Tenant{keyed("a", "paid", "k", quota.Limits{}), keyed("b", "enterprise", "k", quota.Limits{})})
	if e, ok := ts.byKey("k"); !ok || e.tenant.Name != "a" {
		t.Errorf("%+v", e)
	}
}

func TestPoolsThatCannotBeServed(t *testing.T) {
	for want, change := range map[string]func(*poolspec.Pool){
		"gateway.auth":         func(p *poolspec.Pool) { p.Gateway.Auth = "Oauth" },
		"gateway.defaultTier":  func(p *poolspec.Pool) { p.Gateway.DefaultTier = "gold" },
		"gateway.trustedCIDRs": func(p *poolspec.Pool) { p.Gateway.Auth = "TrustedHeaders" },
		"maxBodyBytes":         func(p *poolspec.Pool) { p.Gateway.MaxBodyBytes = 0 },
	} {
		p := poolspec.Default()
		change(&p)
		if _, err := New(Options{Pool: p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestDecodeTenants(t *testing.T) {
	good := `[{"name":"acme","tier":"paid","keys":["` + strings.Repeat("ab", 32) + `"],"limits":{"requestsPerMinute":120,"tokensPerMinute":14000}}]`
	list, err := DecodeTenants([]byte(good))
	if err != nil || len(list) != 1 || list[0].Limits != (quota.Limits{RequestsPerMinute: 120, TokensPerMinute: 14000}) || list[0].Keys[0].SHA256[0] != 0xab {
		t.Errorf("%+v, %v", list, err)
	}
	for _, bad := range []string{`{}`, `[{"name":"a"}]`, `[{"name":"a","tier":"b","keys":["xyz"]}]`, `[{"name":"a","tier":"b","key":"c"}]`, `[{"name":"a","tier":"b","limits":{"requestsPerMinute":-1}}]`} {
		if _, err := DecodeTenants([]byte(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
