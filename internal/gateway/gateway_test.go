package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/dispatch"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/worker"
	"sluice.dev/sluice/internal/worker/backends/simulated"
)

// rig is a gateway with a real engine and simulated workers, all in one process and in virtual time.
type rig struct {
	*Gateway
	engine    *dispatch.Engine
	endpoints []dispatch.Endpoint
	tenants   *Tenants
	ctx       context.Context
	stop      func()
}

// newRig must be called inside a synctest bubble.
func newRig(t *testing.T, workers int, change func(*poolspec.Pool)) *rig {
	t.Helper()
	p := poolspec.Default()
	p.Model = "llm"
	if change != nil {
		change(&p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &rig{tenants: &Tenants{}, ctx: ctx}
	fleet := worker.InProcess{}
	for i := range workers {
		s := worker.New(simulated.New(simulated.Config{ServiceTime: 100 * time.Millisecond}), worker.Options{MaxBatch: p.Batching.MaxSize, SkipWarmUp: true})
		go func() { _ = s.Run(ctx) }()
		addr := "w" + strconv.Itoa(i) + ":9000"
		fleet[addr] = s
		r.endpoints = append(r.endpoints, dispatch.Endpoint{Addr: addr, Pod: "w" + strconv.Itoa(i)})
	}
	r.engine = dispatch.New(dispatch.Config{Batching: batching.FromPool(p, "test"), Transport: fleet})
	synctest.Wait() // the workers are loaded
	r.engine.SetWorkers(r.endpoints)
	time.Sleep(50 * time.Millisecond) // they were asked and said idle
	g, err := New(Options{Pool: p, Engine: r.engine, Tenants: r.tenants})
	if err != nil {
		t.Fatal(err)
	}
	r.Gateway = g
	r.stop = func() {
		r.engine.Close()
		cancel()
		synctest.Wait()
	}
	return r
}

// inBubble runs f in virtual time with a fresh rig.
func inBubble(t *testing.T, workers int, change func(*poolspec.Pool), f func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, workers, change)
		defer r.stop()
		f(t, r)
	})
}

type reply struct {
	*httptest.ResponseRecorder
	t *testing.T
}

// post sends a body; headers are pairs of name and value.
func (r *rig) post(t *testing.T, path, body string, headers ...string) reply {
	t.Helper()
	req := httptest.NewRequestWithContext(r.ctx, http.MethodPost, path, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return reply{w, t}
}

func (r reply) into(v any) {
	r.t.Helper()
	if err := json.Unmarshal(r.Body.Bytes(), v); err != nil {
		r.t.Fatalf("the answer is no JSON: %v: %s", err, r.Body)
	}
}

// reason is the stable word of a refusal in either API's shape.
func (r reply) reason() string {
	r.t.Helper()
	var v struct {
		Reason string
		Error  struct{ Code string }
	}
	r.into(&v)
	return v.Reason + v.Error.Code
}

func (r reply) want(status int, reason string) {
	r.t.Helper()
	if r.Code != status || r.reason() != reason {
		r.t.Errorf("answered %d %s, want %d %s", r.Code, r.Body, status, reason)
	}
	if r.Header().Get("X-Request-Id") == "" {
		r.t.Error("no X-Request-Id")
	}
	if status == 429 || status == 503 {
		s, err := strconv.Atoi(r.Header().Get("Retry-After"))
		if err != nil || s < 1 || s > 60 {
			r.t.Errorf("Retry-After %q, want 1 to 60", r.Header().Get("Retry-After"))
		}
		if n, err := strconv.Atoi(r.Header().Get("retry-after-ms")); err != nil || n < 1 {
			r.t.Errorf("retry-after-ms %q", r.Header().Get("retry-after-ms"))
		}
	}
}

const hello = `{"model":"llm","input":"hello"}`

func keyed(name, tier, key string, lim quota.Limits) Tenant {
	return Tenant{Name: name, Tier: tier, Limits: lim, Keys: []Key{{SHA256: sha256.Sum256([]byte(key))}}}
}

func withKeys(p *poolspec.Pool) { p.Gateway.Auth, p.Gateway.DefaultTier = "Keys", "" }

func TestNativeAnswer(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		w := r.post(t, "/v1/inference", `{"model":"llm","input":"hello wörld","parameters":{"max_tokens":7,"temperature":0.5}}`, "X-Request-Id", "mine-1", "Content-Type", "application/json")
		var v struct {
			RequestID string `json:"request_id"`
			Output    string
			Metadata  map[string]float64
		}
		w.into(&v)
		if w.Code != 200 || v.RequestID != "mine-1" || v.Output != "hello wörld" || w.Header().Get("X-Request-Id") != "mine-1" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if l := v.Metadata["latency_ms"]; l < 100 || l > 160 {
			t.Errorf("latency_ms %v, want about the service time of 100", l)
		}
		if v.Metadata["tokens_used"] <= 0 || v.Metadata["queue_wait_ms"] < 0 || len(v.Metadata) != 3 {
			t.Errorf("metadata %v", v.Metadata)
		}
		if w.Header().Get("Warning") != "" {
			t.Errorf("Warning %q for parameters that the backend takes", w.Header().Get("Warning"))
		}
	})
}

// Requests that arrive together share batches and each gets its own answer.
func TestManyAtOnceEachGetsItsOwn(t *testing.T) {
	inBubble(t, 2, nil, func(t *testing.T, r *rig) {
		var wg sync.WaitGroup
		for i := range 150 {
			wg.Go(func() {
				in := "input " + strconv.Itoa(i)
				w := r.post(t, "/v1/inference", `{"model":"llm","input":"`+in+`"}`)
				if w.Code != 200 || !bytes.Contains(w.Body.Bytes(), []byte(`"output":"`+in+`"`)) {
					t.Errorf("request %d: %d %s", i, w.Code, w.Body)
				}
			})
		}
		wg.Wait()
		if s := r.Stats(); s.Batches > 6 || s.Tiers[0].Served != 150 || s.Tiers[0].Offered != 150 || s.Tiers[0].Admitted != 150 {
			t.Errorf("%d batches, %+v", s.Batches, s.Tiers[0])
		}
	})
}

// Every line of bad input, on both APIs: what it gets, and that a good request passes afterwards.
func TestBadInput(t *testing.T) {
	big := strings.Repeat("x", 64<<10)
	cases := []struct {
		name, path, body string
		headers          []string
		status           int
		reason           string
	}{
		{"not JSON", "/v1/inference", `{"model":`, nil, 400, "invalid_json"},
		{"empty body", "/v1/inference", ``, nil, 400, "invalid_json"},
		{"an array", "/v1/inference", `[]`, nil, 400, "invalid_json"},
		{"two objects", "/v1/inference", hello + hello, nil, 400, "invalid_json"},
		{"a syntax error", "/v1/inference", `{"model":"llm","input":"x",}`, nil, 400, "invalid_json"},
		{"not UTF-8", "/v1/inference", "{\"model\":\"llm\",\"input\":\"\xff\"}", nil, 400, "invalid_json"},
		{"an unknown field", "/v1/inference", `{"model":"llm","input":"x","max_token":5}`, nil, 400, "unknown_field"},
		{"an unknown parameter", "/v1/inference", `{"model":"llm","input":"x","parameters":{"top_p":1}}`, nil, 400, "unknown_field"},
		{"a wrong type", "/v1/inference", `{"model":"llm","input":5}`, nil, 400, "invalid_request"},
		{"a wrong type inside", "/v1/inference", `{"model":"llm","input":"x","parameters":{"max_tokens":"many"}}`, nil, 400, "invalid_request"},
		{"no model", "/v1/inference", `{"input":"x"}`, nil, 400, "invalid_request"},
		{"no input", "/v1/inference", `{"model":"llm"}`, nil, 400, "invalid_request"},
		{"empty input", "/v1/inference", `{"model":"llm","input":""}`, nil, 400, "empty_input"},
		{"oversized input", "/v1/inference", `{"model":"llm","input":"` + big + `y"}`, nil, 413, "input_too_large"},
		{"oversized body", "/v1/inference", strings.Repeat(" ", 1<<20) + hello, nil, 413, "body_too_large"},
		{"unknown model", "/v1/inference", `{"model":"gpt","input":"x"}`, nil, 404, "unknown_model"},
		{"max_tokens 0", "/v1/inference", `{"model":"llm","input":"x","parameters":{"max_tokens":0}}`, nil, 400, "invalid_request"},
		{"max_tokens negative", "/v1/inference", `{"model":"llm","input":"x","parameters":{"max_tokens":-1}}`, nil, 400, "invalid_request"},
		{"max_tokens huge", "/v1/inference", `{"model":"llm","input":"x","parameters":{"max_tokens":99999999999999999999}}`, nil, 400, "invalid_request"},
		{"max_tokens fractional", "/v1/inference", `{"model":"llm","input":"x","parameters":{"max_tokens":1.5}}`, nil, 400, "invalid_request"},
		{"temperature out of range", "/v1/inference", `{"model":"llm","input":"x","parameters":{"temperature":-0.1}}`, nil, 400, "invalid_request"},
		{"a form", "/v1/inference", `model=llm`, []string{"Content-Type", "multipart/form-data"}, 415, "unsupported_media_type"},
		{"a request id with a line break", "/v1/inference", hello, []string{"X-Request-Id", "a\nb"}, 400, "invalid_header"},
		{"a request id of 1 KB", "/v1/inference", hello, []string{"X-Request-Id", strings.Repeat("a", 1024)}, 400, "invalid_header"},
		{"a timeout of no number", "/v1/inference", hello, []string{"Sluice-Timeout-Ms", "soon"}, 400, "invalid_header"},
		{"a timeout of 0", "/v1/inference", hello, []string{"Sluice-Timeout-Ms", "0"}, 400, "invalid_header"},
		{"a negative timeout", "/v1/inference", hello, []string{"Sluice-Timeout-Ms", "-5"}, 400, "invalid_header"},
		{"no such path", "/v2/inference", hello, nil, 404, "not_found"},

		{"chat: not JSON", "/v1/chat/completions", `{`, nil, 400, "invalid_json"},
		{"chat: no messages", "/v1/chat/completions", `{"model":"llm"}`, nil, 400, "empty_input"},
		{"chat: empty message", "/v1/chat/completions", `{"model":"llm","messages":[{"role":"user","content":""}]}`, nil, 400, "empty_input"},
		{"chat: unknown role", "/v1/chat/completions", `{"model":"llm","messages":[{"role":"boss","content":"x"}]}`, nil, 400, "invalid_request"},
		{"chat: an image", "/v1/chat/completions", `{"model":"llm","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, nil, 400, "invalid_request"},
		{"chat: content of a wrong type", "/v1/chat/completions", `{"model":"llm","messages":[{"role":"user","content":7}]}`, nil, 400, "invalid_request"},
		{"chat: two answers", "/v1/chat/completions", `{"model":"llm","n":2,"messages":[{"role":"user","content":"x"}]}`, nil, 400, "unsupported_parameter"},
		{"chat: unknown model", "/v1/chat/completions", `{"model":"gpt","messages":[{"role":"user","content":"x"}]}`, nil, 404, "unknown_model"},
		{"completions: no prompt", "/v1/completions", `{"model":"llm"}`, nil, 400, "invalid_request"},
		{"completions: two prompts", "/v1/completions", `{"model":"llm","prompt":["a","b"]}`, nil, 400, "invalid_request"},
		{"completions: tokens", "/v1/completions", `{"model":"llm","prompt":[1,2]}`, nil, 400, "invalid_request"},
	}
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		for _, c := range cases {
			w := r.post(t, c.path, c.body, c.headers...)
			if w.Code != c.status || w.reason() != c.reason {
				t.Errorf("%s: answered %d %s, want %d %s", c.name, w.Code, w.Body, c.status, c.reason)
			}
		}
		if w := r.post(t, "/v1/inference", `{"model":"llm","input":"`+big+`"}`); w.Code != 200 {
			t.Errorf("an input of exactly the limit: %d", w.Code)
		}
		if s := r.Stats(); s.Tiers[0].Offered != 1 || s.Tiers[0].Admitted != 1 {
			t.Errorf("bad input counted as demand: %+v", s.Tiers[0])
		}
	})
}

func TestMessagesNameTheField(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		for body, want := range map[string]string{
			`{"model":"llm","input":"x","max_token":5}`:                       "max_token",
			`{"model":"llm","input":5}`:                                       "input must be of type string, not number",
			`{"model":"llm","input":"x","parameters":{"max_tokens":"many"}}`:  "parameters.max_tokens must be of type integer, not string",
			`{"model":"gpt","input":"x"}`:                                     `this pool serves \"llm\"`,
			`{"model":"llm","input":"x","parameters":{"temperature":"warm"}}`: "parameters.temperature must be of type number",
		} {
			if w := r.post(t, "/v1/inference", body); !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: %s does not say %s", body, w.Body, want)
			}
		}
	})
}

func TestMethods(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		for path, allow := range map[string]string{"/v1/inference": "POST", "/v1/chat/completions": "POST", "/v1/models": "GET", "/v1/models/llm": "GET"} {
			req := httptest.NewRequestWithContext(r.ctx, http.MethodDelete, path, nil)
			w := httptest.NewRecorder()
			r.ServeHTTP(w, req)
			reply{w, t}.want(405, "method_not_allowed")
			if got := w.Header().Get("Allow"); got != allow {
				t.Errorf("%s: Allow %q, want %q", path, got, allow)
			}
		}
	})
}

func TestParametersThatTheBackendDoesNotTake(t *testing.T) {
	none := func(p *poolspec.Pool) { p.Gateway.BackendParameterMode = "none" }
	body := `{"model":"llm","input":"x","parameters":{"temperature":1}}`
	inBubble(t, 1, none, func(t *testing.T, r *rig) {
		w := r.post(t, "/v1/inference", body)
		if w.Code != 200 || !strings.Contains(w.Header().Get("Warning"), "temperature") {
			t.Errorf("%d, Warning %q", w.Code, w.Header().Get("Warning"))
		}
		w = r.post(t, "/v1/inference", hello)
		if w.Code != 200 || w.Header().Get("Warning") != "" {
			t.Errorf("nothing set: %d, Warning %q", w.Code, w.Header().Get("Warning"))
		}
	})
	reject := func(p *poolspec.Pool) { none(p); p.Gateway.RejectUnsupported = true }
	inBubble(t, 1, reject, func(t *testing.T, r *rig) {
		r.post(t, "/v1/inference", body).want(400, "unsupported_parameter")
		r.post(t, "/v1/chat/completions", `{"model":"llm","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]}`).want(400, "unsupported_parameter")
	})
}

func serveGet(t *testing.T, h http.Handler, path string) reply {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return reply{w, t}
}
