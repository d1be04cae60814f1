package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/internal/poolspec"
)

// The quota scenario: four tenants at 1 request/s with small prompts and one at 1 request/s with 3,000-token
// prompts, 14,000 tokens/min each under a shared 72,000, their requests in turn to two gateways.
const (
	quotaTenants   = 5
	quotaBig       = quotaTenants - 1
	quotaLimit     = 14_000
	quotaShared    = 72_000
	quotaBigPrompt = 3000 // tokens
	// quotaAnswerTokens is max_tokens: as much as the number at the beginning of each input takes.
	quotaAnswerTokens = 4
	quotaWarmup       = time.Minute
	quotaLength       = time.Minute
	quotaPromises     = 40 * time.Second // how long the big tenant does as it is told
)

func quotaScenario() scenario {
	var list []string
	for i := range quotaTenants {
		list = append(list, fmt.Sprintf(`{"name":"tenant-%d","tier":"paid","limits":{"tokensPerMinute":%d}}`, i, quotaLimit))
	}
	return scenario{
		name: "quota", named: true, about: "four small tenants and a big one, 14,000 tokens/min each under a shared 72,000, two gateways",
		rate: quotaTenants, workers: 2, batchers: 2, tiers: steady, drive: driveQuota,
		tenants: "[" + strings.Join(list, ",") + "]",
		pool:    func(p *poolspec.Pool) { p.Gateway.SharedLimits.TokensPerMinute = quotaShared },
		targets: []bound{atMost("small_refused", 0), atLeast("big_prompt_tokens_per_s", 200), atMost("big_prompt_tokens_per_s", 250),
			atMost("without_retry_after", 0), atLeast("promises", 1), atMost("promises_broken", 0), atMost("errors", 0), atMost("wrong_answers", 0)},
	}
}

// quotaRun counts what the clients see in the measured minute.
type quotaRun struct {
	f      *fleet
	client *http.Client

	mu                  sync.Mutex
	latencies           []time.Duration
	sent, served        int
	refused             [quotaTenants]int
	bigTokens           int
	noWait, wrong, fail int
	reasons             map[string]uint64
}

// quotaAnswer is one answer.
type quotaAnswer struct {
	status int
	wait   time.Duration // retry-after-ms
	reason string
	right  bool
}

func (q *quotaRun) call(ctx context.Context, tenant, n int) (a quotaAnswer, err error) {
	tokens := 20
	if tenant == quotaBig {
		tokens = quotaBigPrompt
	}
	input := fmt.Sprintf("%d-%d-", tenant, n)
	input += strings.Repeat("x", 4*tokens-len(input))
	body := fmt.Sprintf(`{"model":"local","input":%q,"parameters":{"max_tokens":%d}}`, input, quotaAnswerTokens)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+q.f.public[n%len(q.f.public)]+"/v1/inference", strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Sluice-Tenant", fmt.Sprintf("tenant-%d", tenant))
	res, err := q.client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return a, err
	}
	a.status = res.StatusCode
	if ms, err := strconv.Atoi(res.Header.Get("Retry-After-Ms")); err == nil && res.Header.Get("Retry-After") != "" {
		a.wait = time.Duration(ms) * time.Millisecond
	}
	var v struct{ Output, Reason string }
	if err := json.Unmarshal(bytes.TrimSpace(raw), &v); err != nil {
		return a, err
	}
	a.reason, a.right = v.Reason, v.Output == input[:4*quotaAnswerTokens] // the simulated function cuts
	return a, nil
}

// send is one request of the open loop; it counts when measured.
func (q *quotaRun) send(ctx context.Context, tenant, n int, measured bool) {
	began := time.Now()
	a, err := q.call(ctx, tenant, n)
	took := time.Since(began)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !measured {
		return
	}
	q.sent++
	switch {
	case err != nil || a.status != http.StatusOK && a.status != http.StatusTooManyRequests:
		q.fail++
	case a.status == http.StatusOK:
		q.served++
		q.latencies = append(q.latencies, took)
		if !a.right {
			q.wrong++
		}
		if tenant == quotaBig {
			q.bigTokens += quotaBigPrompt
		}
	default:
		q.refused[tenant]++
		q.reasons[a.reason]++
		if a.wait <= 0 {
			q.noWait++
		}
	}
}

// tick calls do once a second until ctx is done, and waits for what it began.
func tick(ctx context.Context, offset time.Duration, do func(i int)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if sleep(ctx, offset) != nil {
		return
	}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for i := 0; ; i++ {
		wg.Go(func() { do(i) })
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func driveQuota(ctx context.Context, s scenario, f *fleet) (*result, error) {
	q := &quotaRun{f: f, client: &http.Client{Timeout: 5 * time.Second}, reasons: map[string]uint64{}}
	began := time.Now()
	measured := func() bool {
		t := time.Since(began)
		return t >= quotaWarmup && t < quotaWarmup+quotaLength
	}
	all, stopAll := context.WithTimeout(ctx, quotaWarmup+quotaLength+quotaPromises)
	defer stopAll()
	open, stopBig := context.WithTimeout(ctx, quotaWarmup+quotaLength)
	defer stopBig()
	var small sync.WaitGroup
	for tenant := range quotaBig {
		small.Go(func() {
			tick(all, time.Duration(tenant)*time.Second/quotaTenants, func(i int) { q.send(ctx, tenant, i, measured()) })
		})
	}
	tick(open, quotaBig*time.Second/quotaTenants, func(i int) { q.send(ctx, quotaBig, i, measured()) })
	promises, broken, err := q.obey(all)
	if err != nil {
		return nil, err
	}
	small.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	r := &result{
		CapacityPerS: round(capacity(s.workers), 1), Errors: float64(q.fail + q.wrong), Wrong: float64(q.wrong), WithoutRetryAfter: float64(q.noWait),
		OfferedPerSec: round(float64(q.sent)/quotaLength.Seconds(), 2), GoodputPerSec: round(float64(q.served)/quotaLength.Seconds(), 2),
		RSSMB: round(f.rssMB(), 1), Tiers: map[string]tierResult{}, Reasons: q.reasons,
		Derived: map[string]float64{
			"big_prompt_tokens_per_s": round(float64(q.bigTokens)/quotaLength.Seconds(), 1), "big_refused": float64(q.refused[quotaBig]),
			"promises": float64(promises), "promises_broken": float64(broken),
		},
	}
	for _, n := range q.refused {
		r.Shed += float64(n)
	}
	r.Derived["small_refused"] = r.Shed - r.Derived["big_refused"]
	slices.Sort(q.latencies)
	if n := len(q.latencies); n > 0 {
		r.P50Ms, r.P95Ms, r.P99Ms = ms(q.latencies[n/2]), ms(q.latencies[n*95/100]), ms(q.latencies[n*99/100])
	}
	return r, nil
}

// obey lets the big tenant send one request after the other until ctx is done. After a refusal it waits as long
// as it was told and sends the same request again: that must pass.
func (q *quotaRun) obey(ctx context.Context) (promises, broken int, err error) {
	var wait time.Duration
	for n := 0; ; n++ {
		if sleep(ctx, wait) != nil {
			return promises, broken, nil
		}
		a, err := q.call(context.WithoutCancel(ctx), quotaBig, n)
		if err != nil {
			return 0, 0, err
		}
		if wait > 0 {
			promises++
			if a.status == http.StatusTooManyRequests {
				broken++
			}
		}
		wait = 0
		if a.status == http.StatusTooManyRequests {
			wait = a.wait
		}
	}
}
