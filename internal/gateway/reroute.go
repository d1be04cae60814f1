package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/degrade"
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
	url     func(poolspec.Step) string // base URL, "" when it is not known
	client  *http.Client               // for plain HTTP
	targets map[targetKey]*rerouteTarget
	waiting atomic.Int64
}

func newRerouter(p poolspec.Pool, url func(poolspec.Step) string, log *slog.Logger) *rerouter {
	r := &rerouter{url: url, client: newRerouteClient(nil), targets: map[targetKey]*rerouteTarget{}}
	for _, t := range p.Tiers {
		if t.Degrade == nil {
			continue
		}
		for _, s := range slices.Concat(t.Degrade.Yellow, t.Degrade.Red) {
			if s.Pool != "" && r.targets[keyOf(s)] == nil {
				r.targets[keyOf(s)] = &rerouteTarget{pool: s.Pool, trust: s.TLS, client: r.client, log: log}
			}
		}
	}
	return r
}

// newRerouteClient returns a client; secure is nil for plain HTTP. It speaks HTTP/1.1: the connections of a pool
// spread over the other one's pods, and an HTTP/2 one would put all on a single pod.
func newRerouteClient(secure *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, MaxIdleConnsPerHost: 256, IdleConnTimeout: 60 * time.Second,
			TLSClientConfig: secure, TLSHandshakeTimeout: time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the key goes nowhere else
	}
}

// serviceURL is the Service of another pool: the pods of a namespace resolve its bare name.
func serviceURL(s poolspec.Step) string {
	if s.TLS != nil {
		return "https://" + s.Pool
	}
	return "http://" + s.Pool
}

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
	g.rerouter.targets[keyOf(s)].note(time.Now(), err)
	if err != nil {
		g.metrics.rerouteFailed.Inc()
		return false
	}
	x.result = batching.Result{Output: text, Usage: usage}
	x.degraded = degrade.After(x.degraded, s)
	if there != "" {
		x.degraded = append(x.degraded, degrade.Taken{Step: stepElsewhere, What: there})
	}
	return true
}

// askPool calls the other pool's /v1/completions: any pool has it, it takes the input as it is and says what was used.
// An error is a misfit if it will come again with the next request.
func (g *Gateway) askPool(ctx context.Context, x *exchange, s poolspec.Step) (text string, usage wire.Usage, degraded string, err error) {
	client, err := g.rerouter.targets[keyOf(s)].at(time.Now())
	if err != nil {
		return "", usage, "", err
	}
	req, err := g.rerouted(ctx, x, s)
	if err != nil {
		return "", usage, "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", usage, "", broken(ctx, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxRerouteAnswer))
	if err != nil {
		return "", usage, "", broken(ctx, err)
	}
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return "", usage, "", misfit{fmt.Errorf("it answered %s: %.200s", res.Status, titleOf(raw))}
	default:
		return "", usage, "", fmt.Errorf("it answered %s", res.Status)
	}
	var a openAIResponse
	if err := json.Unmarshal(raw, &a); err != nil || len(a.Choices) != 1 || a.Choices[0].Text == nil {
		return "", usage, "", misfit{fmt.Errorf("its answer is no completion: %.200s", raw)}
	}
	if a.Usage != nil {
		usage = wire.Usage{PromptTokens: a.Usage.PromptTokens, CompletionTokens: a.Usage.CompletionTokens}
	}
	return *a.Choices[0].Text, usage, res.Header.Get(headerDegraded), nil
}

// rerouted is the request to the other pool.
func (g *Gateway) rerouted(ctx context.Context, x *exchange, s poolspec.Step) (*http.Request, error) {
	body, err := json.Marshal(struct {
		Model       string   `json:"model"`
		Prompt      string   `json:"prompt"`
		MaxTokens   *int     `json:"max_tokens,omitempty"`
		Temperature *float64 `json:"temperature,omitempty"`
	}{s.Model, x.call.input, x.call.params.MaxTokens, x.call.params.Temperature})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(g.rerouter.url(s), "/")+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	g.identity.pass(x.r.Header, req.Header)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", x.id)
	req.Header.Set("Sluice-Timeout-Ms", strconv.FormatInt(max(1, time.Until(x.deadline).Milliseconds()), 10))
	req.Header.Set(headerRerouted, g.pool.Name)
	return req, nil
}

// titleOf is what an error in OpenAI's shape says, or the answer itself.
func titleOf(raw []byte) string {
	var v struct{ Error struct{ Message string } }
	if json.Unmarshal(raw, &v) == nil && v.Error.Message != "" {
		return v.Error.Message
	}
	return string(raw)
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
