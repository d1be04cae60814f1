package gateway

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
)

// A refusal for quota names a wait after which the same request passes, and not a moment earlier.
func TestQuotaRefusalNamesTheWait(t *testing.T) {
	inBubble(t, 1, withKeys, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{keyed("acme", "paid", "k", quota.Limits{RequestsPerMinute: 3})})
		for i := range 3 {
			w := r.post(t, "/v1/inference", hello, "X-API-Key", "k")
			if w.Code != 200 || !strings.HasPrefix(w.Header().Get("RateLimit"), `"requests";r=`+strconv.Itoa(2-i)) {
				t.Fatalf("request %d: %d, RateLimit %q", i, w.Code, w.Header().Get("RateLimit"))
			}
		}
		w := r.post(t, "/v1/inference", hello, "X-API-Key", "k")
		w.want(429, "quota_requests")
		ms, _ := strconv.Atoi(w.Header().Get("retry-after-ms"))
		s, _ := strconv.Atoi(w.Header().Get("Retry-After"))
		if s*1000 < ms {
			t.Errorf("Retry-After %d s is before retry-after-ms %d", s, ms)
		}
		time.Sleep(time.Duration(ms-2) * time.Millisecond)
		r.post(t, "/v1/inference", hello, "X-API-Key", "k").want(429, "quota_requests")
		time.Sleep(2 * time.Millisecond)
		if w := r.post(t, "/v1/inference", hello, "X-API-Key", "k"); w.Code != 200 {
			t.Errorf("refused again after the wait: %d %s", w.Code, w.Body)
		}
		s0 := r.Stats().Tiers[1]
		if s0.RefusedQuota != 2 || s0.Offered != 4 || s0.RefusedCapacity != 0 {
			t.Errorf("%+v: a refusal for quota is no demand", s0)
		}
	})
}

func TestTokens(t *testing.T) {
	inBubble(t, 1, withKeys, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{keyed("acme", "paid", "k", quota.Limits{TokensPerMinute: 1000})})
		call := func(tokens, maxTokens int) reply {
			return r.post(t, "/v1/inference", `{"model":"llm","input":"`+strings.Repeat("abcd", tokens)+`","parameters":{"max_tokens":`+strconv.Itoa(maxTokens)+`}}`, "X-API-Key", "k")
		}
		call(600, 401).want(413, "cost_above_burst") // it could never pass: not a 429
		if w := call(600, 400); w.Code != 200 || !strings.HasPrefix(w.Header().Get("RateLimit"), `"tokens";r=0;t=60`) {
			t.Fatalf("%d, RateLimit %q", w.Code, w.Header().Get("RateLimit"))
		}
		// It was charged what it used: 600 in and 400 of 400 out, since the simulated function echoes more.
		call(1, 50).want(429, "quota_tokens")
	})
	// Without max_tokens an answer's worth is held back only as far as the bucket has room for it.
	inBubble(t, 1, withKeys, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{keyed("acme", "paid", "k", quota.Limits{TokensPerMinute: 10})})
		if w := r.post(t, "/v1/inference", `{"model":"llm","input":"abcd"}`, "X-API-Key", "k"); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// 1 token in, 1 out were used: 8 are left, and a bit of refill.
		if w := r.post(t, "/v1/inference", `{"model":"llm","input":"abcd","parameters":{"max_tokens":7}}`, "X-API-Key", "k"); w.Code != 200 {
			t.Errorf("what was not used was not given back: %d %s", w.Code, w.Body)
		}
	})
}

// A request that the pool refuses or fails costs its tenant nothing.
func TestShedAndFailedRequestsCostNothing(t *testing.T) {
	inBubble(t, 0, withKeys, func(t *testing.T, r *rig) { // no worker at all
		r.tenants.Set([]Tenant{keyed("acme", "paid", "k", quota.Limits{RequestsPerMinute: 2, TokensPerMinute: 100})})
		for range 10 {
			r.post(t, "/v1/inference", hello, "X-API-Key", "k").want(503, "no_capacity")
		}
	})
}

// Requests that arrive together cannot overshoot: what one needs is reserved before it is known.
func TestParallelRequestsCannotOvershoot(t *testing.T) {
	inBubble(t, 2, withKeys, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{keyed("acme", "paid", "k", quota.Limits{RequestsPerMinute: 20})})
		var wg sync.WaitGroup
		var mu sync.Mutex
		ok := 0
		for range 100 {
			wg.Go(func() {
				if w := r.post(t, "/v1/inference", hello, "X-API-Key", "k"); w.Code == 200 {
					mu.Lock()
					ok++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if ok != 20 {
			t.Errorf("%d of 100 at once passed a limit of 20", ok)
		}
	})
}

// The limits that tenants share gate beside their own, in fair parts; a refusal says whose limit it was and what
// the tenant's part is, and costs nothing of the others.
func TestSharedAndTierLimits(t *testing.T) {
	inBubble(t, 1, func(p *poolspec.Pool) {
		withKeys(p)
		p.Gateway.SharedLimits.RequestsPerMinute = 30
		p.Tiers[2].Limits.TokensPerMinute = 100
	}, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{
			keyed("a", "paid", "a", quota.Limits{}), keyed("b", "paid", "b", quota.Limits{RequestsPerMinute: 2}), keyed("c", "free", "c", quota.Limits{}),
		})
		call := func(key, body string) reply { return r.post(t, "/v1/inference", body, "X-API-Key", key) }
		for i := range 15 {
			if w := call("a", hello); w.Code != 200 || w.Header().Get("RateLimit") != "" {
				t.Fatalf("request %d: %d %s", i, w.Code, w.Body)
			}
		}
		n := 0
		for ; call("a", hello).Code == 200; n++ { // what has flowed in by now
		}
		if n > 1 {
			t.Errorf("%d more of a tenant that has had its part", n)
		}
		w := call("a", hello)
		w.want(429, "shared_quota_requests")
		if !strings.Contains(w.Body.String(), "all tenants of the pool together may make 30 requests a minute; this tenant's fair part is 15") {
			t.Error(w.Body)
		}
		for range 2 {
			if w := call("b", hello); w.Code != 200 {
				t.Errorf("a tenant under its part was refused: %d %s", w.Code, w.Body)
			}
		}
		call("b", hello).want(429, "quota_requests")
		call("c", `{"model":"llm","input":"x","parameters":{"max_tokens":100}}`).want(413, "cost_above_burst")
		if w := call("c", `{"model":"llm","input":"x","parameters":{"max_tokens":49}}`); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		w = call("c", `{"model":"llm","input":"x","parameters":{"max_tokens":40}}`)
		if w.Code != 200 { // the first was charged the two tokens that it used
			t.Errorf("%d %s", w.Code, w.Body)
		}
		for w.Code == 200 {
			w = call("c", `{"model":"llm","input":"abcdefghabcdefgh","parameters":{"max_tokens":40}}`)
		}
		w.want(429, "tier_quota_tokens")
		ms, _ := strconv.Atoi(w.Header().Get("retry-after-ms"))
		time.Sleep(time.Duration(ms) * time.Millisecond)
		if w = call("c", `{"model":"llm","input":"abcdefghabcdefgh","parameters":{"max_tokens":40}}`); w.Code != 200 {
			t.Errorf("refused again after the wait: %s", w.Body)
		}
		if s := r.Stats(); s.Tiers[1].RefusedQuota < 3 || s.Tiers[2].RefusedQuota != 2 || s.Tiers[1].RefusedCapacity != 0 {
			t.Errorf("%+v", s.Tiers)
		}
	})
}

// The acceptance scenario through the whole gateway: prompts as they come, answers as they cost. Afterwards the big
// tenant does as it is told: each wait that a refusal names ends in an answer.
func TestOneBigTenantAmongSmallOnes(t *testing.T) {
	inBubble(t, 2, func(p *poolspec.Pool) {
		withKeys(p)
		p.Gateway.SharedLimits.TokensPerMinute = 72_000
	}, func(t *testing.T, r *rig) {
		var list []Tenant
		for i := range 5 {
			list = append(list, keyed("t"+strconv.Itoa(i), "paid", "k"+strconv.Itoa(i), quota.Limits{TokensPerMinute: 14_000}))
		}
		r.tenants.Set(list)
		small, big := strings.Repeat("abcd", 20), strings.Repeat("abcd", 3000)
		admitted, smallRefused, badWait := 0, 0, 0
		ask := func(i int) reply {
			in := small
			if i == 4 {
				in = big
			}
			return r.post(t, "/v1/inference", `{"model":"llm","input":"`+in+`","parameters":{"max_tokens":1}}`, "X-API-Key", "k"+strconv.Itoa(i))
		}
		began := time.Now()
		for s := range 120 {
			time.Sleep(time.Until(began.Add(time.Duration(s) * time.Second)))
			for i := range 5 {
				w := ask(i)
				switch {
				case w.Code == 200 && i == 4 && s >= 60:
					admitted += 3000
				case w.Code != 200 && i < 4 && s >= 60:
					smallRefused++
				case w.Code == 429 && w.Header().Get("Retry-After") == "":
					badWait++
				}
			}
		}
		if rate := float64(admitted) / 60; rate < 200 || rate > 250 {
			t.Errorf("%.0f prompt tokens/s of the big tenant, want 200-250", rate)
		}
		if smallRefused > 0 || badWait > 0 {
			t.Errorf("%d refusals of small tenants, %d refusals without Retry-After", smallRefused, badWait)
		}
		for kept := 0; kept < 10; {
			w := ask(4)
			if w.Code == 200 {
				continue
			}
			ms, _ := strconv.Atoi(w.Header().Get("retry-after-ms"))
			time.Sleep(time.Duration(ms) * time.Millisecond)
			if w := ask(4); w.Code != 200 {
				t.Fatalf("refused again after the %d ms that the refusal named: %s", ms, w.Body)
			}
			kept++
		}
	})
}
