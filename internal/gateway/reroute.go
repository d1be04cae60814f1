package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// headerRerouted names the pool that handed a request on. A request that has it is not handed on again, so
// that two pools which point at each other cannot play ball with it.
const headerRerouted = "Sluice-Rerouted-From"

// stepElsewhere is what the other pool says of its own degrading; it is counted there.
const stepElsewhere = "there"

const (
	// maxReroutes bounds the requests that wait for another pool; one more takes the next step of its ladder.
	maxReroutes = 2000
	// maxRerouteAnswer bounds the answer of another pool.
	maxRerouteAnswer = 16 << 20
	// rerouteLeast is the least time that must be left for asking another pool to be worth it.
	rerouteLeast = 20 * time.Millisecond
)

// rerouter hands requests to other pools of the namespace.
type rerouter struct {
	url     func(pool string) string // base URL, "" when it is not known
	client  *http.Client
	waiting atomic.Int64
}

func newRerouter(url func(string) string) *rerouter {
	return &rerouter{url: url, client: &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, MaxIdleConnsPerHost: 256, IdleConnTimeout: 60 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the key goes nowhere else
	}}
}

// serviceURL is the Service of another pool: the pods of a namespace resolve its bare name.
func serviceURL(pool string) string { return "http://" + pool }

// reroute asks another pool, with the caller's credentials and within the request's deadline, and says whether
// that answered 200.
func (g *Gateway) reroute(x *exchange, s poolspec.Step) bool {
	if x.r.Header.Get(headerRerouted) != "" || time.Until(x.deadline) < rerouteLeast {
		return false
	}
	if g.rerouter.waiting.Add(1) > maxReroutes {
		g.rerouter.waiting.Add(-1)
		return false
	}
	defer g.rerouter.waiting.Add(-1)
	ctx, cancel := context.WithDeadline(x.r.Context(), x.deadline)
	defer cancel()
	text, usage, there, err := g.askPool(ctx, x, s)
	if err != nil {
		g.metrics.rerouteFailed.Inc()
		if g.log.log != nil {
			g.log.log.Debug("another pool did not answer", "pool", s.Pool, "request_id", x.id, "error", err)
		}
		return false
	}
	x.result = batching.Result{Output: text, Usage: usage}
	// A parameter of this pool's backend did not go with it.
	x.degraded = slices.DeleteFunc(x.degraded, func(d degradation) bool { return d.step == stepParameter })
	x.degrade(stepReroute, s.Pool)
	if there != "" {
		x.degrade(stepElsewhere, there)
	}
	return true
}

// askPool calls the other pool's /v1/completions: any pool has it, it takes the input as it is and says what was used.
func (g *Gateway) askPool(ctx context.Context, x *exchange, s poolspec.Step) (text string, usage wire.Usage, degraded string, err error) {
	body, err := json.Marshal(struct {
		Model       string   `json:"model"`
		Prompt      string   `json:"prompt"`
		MaxTokens   *int     `json:"max_tokens,omitempty"`
		Temperature *float64 `json:"temperature,omitempty"`
	}{s.Model, x.call.input, x.call.params.MaxTokens, x.call.params.Temperature})
	if err != nil {
		return "", usage, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(g.rerouter.url(s.Pool), "/")+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return "", usage, "", err
	}
	g.identity.pass(x.r.Header, req.Header)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", x.id)
	req.Header.Set("Sluice-Timeout-Ms", strconv.FormatInt(max(1, time.Until(x.deadline).Milliseconds()), 10))
	req.Header.Set(headerRerouted, g.pool.Name)
	res, err := g.rerouter.client.Do(req)
	if err != nil {
		return "", usage, "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxRerouteAnswer))
	if err != nil {
		return "", usage, "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", usage, "", fmt.Errorf("it answered %s: %.200s", res.Status, raw)
	}
	var a openAIResponse
	if err := json.Unmarshal(raw, &a); err != nil || len(a.Choices) != 1 || a.Choices[0].Text == nil {
		return "", usage, "", fmt.Errorf("its answer is no completion: %.200s", raw)
	}
	if a.Usage != nil {
		usage = wire.Usage{PromptTokens: a.Usage.PromptTokens, CompletionTokens: a.Usage.CompletionTokens}
	}
	return *a.Choices[0].Text, usage, res.Header.Get(headerDegraded), nil
}

// pass copies what identifies the caller.
func (id *identity) pass(from, to http.Header) {
	names := []string{"Authorization", "X-Api-Key"}
	switch id.mode {
	case "TrustedHeaders":
		names = []string{id.tenantHeader, id.tierHeader}
	case "None":
		names = nil
	}
	for _, n := range names {
		if v := from.Get(n); v != "" {
			to.Set(n, v)
		}
	}
}
