package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/zone"
)

// laddered gives the free tier a ladder.
func laddered(yellow, red []poolspec.Step) func(*poolspec.Pool) {
	return func(p *poolspec.Pool) { p.Tiers[2].Degrade = &poolspec.Degrade{Yellow: yellow, Red: red} }
}

var (
	capTo64 = poolspec.Step{MaxTokens: 64}
	noRank  = poolspec.Step{Parameter: "rerank", Value: "false"}
	small   = poolspec.Step{Pool: "llm-small", Model: "small"}
	sorry   = poolspec.Step{Answer: "We are busy, please come back."}
)

// said is how an answer says that it was degraded: in the header and, equally, in its body.
func said(t *testing.T, w reply) string {
	t.Helper()
	var v struct {
		Metadata struct{ Degraded []string }
	}
	if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		w.into(&v)
		if got := strings.Join(v.Metadata.Degraded, ", "); got != w.Header().Get(headerDegraded) {
			t.Errorf("the body says %q, the header %q", got, w.Header().Get(headerDegraded))
		}
	}
	return w.Header().Get(headerDegraded)
}

// counter is the value of a line of /metrics, 0 if it is not there.
func counter(t *testing.T, g *Gateway, line string) float64 {
	t.Helper()
	body := serveGet(t, g.metricsHandler(), "/metrics").Body.String()
	for l := range strings.SplitSeq(body, "\n") {
		if rest, ok := strings.CutPrefix(l, line+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

func degradedCount(t *testing.T, g *Gateway, zone, step string) float64 {
	t.Helper()
	return counter(t, g, fmt.Sprintf("%s{step=%q,tier=\"free\",zone=%q}", metricDegraded, step, zone))
}

func yellow(free float64) zone.Signal { return signal(zone.Yellow, zone.ReasonBacklogHigh, free) }

// In Yellow and Red a request is made cheaper, in Green never; what the client asked for less of stays as it is.
func TestDegradeMakesCheaper(t *testing.T) {
	inFake(t, laddered([]poolspec.Step{capTo64, noRank}, []poolspec.Step{{MaxTokens: 16}}), func(t *testing.T, r *rig, e *fakeEngine) {
		ask := func(maxTokens string) reply {
			body := hello
			if maxTokens != "" {
				body = `{"model":"llm","input":"hello","parameters":{"max_tokens":` + maxTokens + `}}`
			}
			w := r.post(t, "/v1/inference", body)
			if w.Code != 200 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			return w
		}
		if w := ask("500"); said(t, w) != "" || *e.last.Params.MaxTokens != 500 || e.last.Params.Switch != nil {
			t.Errorf("Green: %q, %+v", said(t, w), e.last.Params)
		}
		r.SetSignal(yellow(100))
		for _, n := range []string{"500", ""} {
			if w := ask(n); said(t, w) != "max_tokens=64, parameter=rerank" || *e.last.Params.MaxTokens != 64 || e.last.Params.Switch.Name != "rerank" {
				t.Errorf("Yellow, max_tokens %q: %q, %+v", n, said(t, w), e.last.Params)
			}
		}
		if w := ask("8"); said(t, w) != "parameter=rerank" || *e.last.Params.MaxTokens != 8 {
			t.Errorf("Yellow, less than the cap: %q, %+v", said(t, w), e.last.Params)
		}
		r.SetSignal(signal(zone.Red, zone.ReasonBacklogHigh, 100))
		if w := ask("500"); said(t, w) != "max_tokens=16" || e.last.Params.Switch != nil {
			t.Errorf("Red: %q, %+v", said(t, w), e.last.Params)
		}
		for _, c := range []struct {
			zone, step string
			want       float64
		}{{"Yellow", degrade.StepMaxTokens, 2}, {"Yellow", degrade.StepParameter, 3}, {"Red", degrade.StepMaxTokens, 1}, {"Green", degrade.StepMaxTokens, 0}} {
			if got := degradedCount(t, r.Gateway, c.zone, c.step); got != c.want {
				t.Errorf("%s %s counted %v times, want %v", c.zone, c.step, got, c.want)
			}
		}
	})
}

// A client cannot set the pool's parameter.
func TestClientCannotSetTheSwitch(t *testing.T) {
	inFake(t, nil, func(t *testing.T, r *rig, e *fakeEngine) {
		r.post(t, "/v1/inference", `{"model":"llm","input":"x","parameters":{"switch":{"name":"a","value":"b"}}}`).want(400, "unknown_field")
	})
}

// What would be shed gets the static answer, in every API's shape; it costs the tenant nothing and the pool no
// slot, and counts as shed load all the same.
func TestStaticAnswerInsteadOfShedding(t *testing.T) {
	inFake(t, func(p *poolspec.Pool) {
		laddered([]poolspec.Step{capTo64, sorry}, nil)(p)
		withKeys(p)
	}, func(t *testing.T, r *rig, e *fakeEngine) {
		r.Gateway.identity.tenants.Set([]Tenant{keyed("acme", "free", "k", quota.Limits{RequestsPerMinute: 5})})
		r.SetSignal(signal(zone.Red, zone.ReasonBacklogHigh, 0)) // Yellow's ladder holds in Red too
		for range 20 {
			w := r.post(t, "/v1/inference", hello, "X-API-Key", "k")
			if w.Code != 200 || said(t, w) != "answer" || !strings.Contains(w.Body.String(), `"output":"We are busy, please come back."`) {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		chat := `{"model":"llm","messages":[{"role":"user","content":"x"}]`
		for path, body := range map[string]string{"/v1/chat/completions": chat + "}", "/v1/completions": `{"model":"llm","prompt":"x"}`} {
			w := r.post(t, path, body, "X-API-Key", "k")
			if w.Code != 200 || said(t, w) != "answer" || !strings.Contains(w.Body.String(), "please come back") {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		if w := r.post(t, "/v1/chat/completions", chat+`,"stream":true}`, "X-API-Key", "k"); w.Code != 200 || !strings.Contains(w.Body.String(), `"metadata":{"degraded":["answer"]}`) {
			t.Errorf("stream: %d %s", w.Code, w.Body)
		}
		if e.last.ID != "" {
			t.Errorf("the batcher got %+v", e.last)
		}
		if s := r.Stats().Tiers[2]; s.Offered != 23 || s.RefusedCapacity != 23 {
			t.Errorf("%+v: what the pool did not serve is demand all the same", s)
		}
	})
}

// A request that the batcher refuses for want of capacity takes the ladder too, even in Green; one that is at
// fault itself does not.
func TestInfeasibleRequestIsAnsweredInstead(t *testing.T) {
	inFake(t, laddered([]poolspec.Step{capTo64, sorry}, nil), func(t *testing.T, r *rig, e *fakeEngine) {
		for _, c := range []batching.Cause{batching.Infeasible, batching.QueueFull, batching.NoCapacity} {
			e.answer = &batching.Error{Cause: c, RetryAfter: time.Second}
			if w := r.post(t, "/v1/inference", hello); w.Code != 200 || said(t, w) != "answer" {
				t.Errorf("%s: %d %s", c, w.Code, w.Body)
			}
		}
		for _, c := range []batching.Cause{batching.InputFailed, batching.SecondFailure, batching.Draining, batching.Expired} {
			e.answer = &batching.Error{Cause: c}
			if w := r.post(t, "/v1/inference", hello); w.Code == 200 || w.Header().Get(headerDegraded) != "" {
				t.Errorf("%s: %d %s", c, w.Code, w.Body)
			}
		}
		// Other tiers have no ladder.
		r.Gateway.identity.defaultTier = 1
		e.answer = &batching.Error{Cause: batching.Infeasible, RetryAfter: time.Second}
		r.post(t, "/v1/inference", hello).want(429, "infeasible")
	})
}

// What a ladder helps is what the table of answers calls a want of capacity. A batcher that drains is asked again
// elsewhere, and background work, which has no ladder, pauses.
func TestWhatALadderHelpsIsAWantOfCapacity(t *testing.T) {
	for r, a := range answers {
		want := a.capacity && r != ReasonPaused && r != Reason(batching.Draining)
		if got := degrade.Helps(string(r)); got != want {
			t.Errorf("%s: a ladder helps is %v, want %v", r, got, want)
		}
	}
}

// transport answers HTTP calls by handlers in this process.
type transport map[string]http.Handler

func (tr transport) RoundTrip(q *http.Request) (*http.Response, error) {
	h, ok := tr[q.URL.Host]
	if !ok {
		return nil, http.ErrServerClosed
	}
	w := httptest.NewRecorder()
	q.RequestURI = q.URL.Path
	h.ServeHTTP(w, q)
	return w.Result(), nil
}

// A shed request goes to the other pool with the caller's key, is served there and charged there, not here.
func TestRerouteToAnotherPool(t *testing.T) {
	inFake(t, func(p *poolspec.Pool) {
		laddered([]poolspec.Step{capTo64, noRank, small, sorry}, nil)(p)
		withKeys(p)
	}, func(t *testing.T, r *rig, e *fakeEngine) {
		acme := []Tenant{keyed("acme", "free", "k", quota.Limits{RequestsPerMinute: 3})}
		r.Gateway.identity.tenants.Set(acme)
		otherPool := poolspec.Default()
		otherPool.Name, otherPool.Model = "llm-small", "small"
		withKeys(&otherPool)
		laddered([]poolspec.Step{{MaxTokens: 8}, {Pool: "local", Model: "llm"}}, nil)(&otherPool) // it points back
		otherEngine := &fakeEngine{snap: e.snap}
		tenants := &Tenants{}
		tenants.Set(acme)
		other, err := New(Options{Pool: otherPool, Engine: otherEngine, Tenants: tenants})
		if err != nil {
			t.Fatal(err)
		}
		pools := transport{"llm-small": other, "local": r.Gateway}
		r.Gateway.rerouter.client.Transport, other.rerouter.client.Transport = pools, pools

		r.SetSignal(yellow(0))
		w := r.post(t, "/v1/inference", hello, "X-API-Key", "k", "X-Request-Id", "mine")
		if w.Code != 200 || said(t, w) != "max_tokens=64, reroute=llm-small" || !strings.Contains(w.Body.String(), `"output":"hello"`) {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if otherEngine.last.ID != "mine" || *otherEngine.last.Params.MaxTokens != 64 || e.last.ID != "" || w.Header().Get("X-Request-Id") != "mine" {
			t.Errorf("the other pool got %+v, this one's batcher %+v", otherEngine.last, e.last)
		}
		if d := time.Until(otherEngine.last.Deadline); d <= 0 || d > 2*time.Second {
			t.Errorf("the other pool has %v for it", d)
		}
		if n := degradedCount(t, r.Gateway, "Yellow", degrade.StepReroute); n != 1 {
			t.Errorf("counted %v times", n)
		}
		// In OpenAI's shape, with the other pool's usage.
		w = r.post(t, "/v1/chat/completions", `{"model":"llm","messages":[{"role":"user","content":"hi"}]}`, "Authorization", "Bearer k")
		if w.Code != 200 || said(t, w) != "max_tokens=64, reroute=llm-small" || !strings.Contains(w.Body.String(), `"model":"llm"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// The other pool is in trouble too. It does not hand the request back, and this pool goes on.
		other.SetSignal(yellow(0))
		w = r.post(t, "/v1/inference", hello, "X-API-Key", "k")
		if w.Code != 200 || said(t, w) != "answer" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if n := counter(t, other, metricReroutes) + degradedCount(t, other, "Yellow", degrade.StepReroute); n != 0 {
			t.Error("the other pool handed on what had been handed to it")
		}
		if n := counter(t, r.Gateway, metricReroutes); n != 1 {
			t.Errorf("%v failures counted", n)
		}
		// The other pool degrades what it takes, and the answer says so.
		other.SetSignal(yellow(100))
		if w = r.post(t, "/v1/inference", hello, "X-API-Key", "k"); said(t, w) != "max_tokens=64, reroute=llm-small, there=max_tokens=8" {
			t.Errorf("%q", said(t, w))
		}
		// The caller's limit there is used up now; here it was charged for nothing.
		if w = r.post(t, "/v1/inference", hello, "X-API-Key", "k"); said(t, w) != "answer" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		r.SetSignal(signal(zone.Green, zone.ReasonCalm, 100))
		for range 3 {
			if w := r.post(t, "/v1/inference", hello, "X-API-Key", "k"); w.Code != 200 || said(t, w) != "" {
				t.Errorf("Green again: %d %s", w.Code, w.Body)
			}
		}
		// A client that says so itself is not handed on.
		time.Sleep(time.Minute)
		r.SetSignal(yellow(0))
		if w = r.post(t, "/v1/inference", hello, "X-API-Key", "k", headerRerouted, "x"); said(t, w) == "" || strings.Contains(said(t, w), "reroute") {
			t.Errorf("%q", said(t, w))
		}
	})
}

// Nobody answers at the other pool: what was refused stays refused, with its own reason.
func TestRerouteFails(t *testing.T) {
	inFake(t, laddered([]poolspec.Step{small}, nil), func(t *testing.T, r *rig, e *fakeEngine) {
		garbage := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
		r.SetSignal(yellow(0))
		for _, tr := range []transport{{}, {"llm-small": garbage}, {"llm-small": http.NotFoundHandler()}} {
			r.Gateway.rerouter.client.Transport = tr
			w := r.post(t, "/v1/inference", hello)
			w.want(429, "shed")
			if w.Header().Get(headerDegraded) != "" {
				t.Errorf("a refusal says that it was degraded")
			}
		}
		if n := counter(t, r.Gateway, metricReroutes); n != 3 {
			t.Errorf("%v failures counted", n)
		}
	})
}

// Trusted headers go on to the other pool, keys of another mode do not.
func TestWhatIdentifiesTheCallerIsPassedOn(t *testing.T) {
	from := http.Header{"Authorization": {"Bearer k"}, "X-Api-Key": {"k"}, "X-Tenant": {"acme"}, "X-Tier": {"free"}, "Cookie": {"c"}}
	for mode, want := range map[string][]string{"Keys": {"Authorization", "X-Api-Key"}, "TrustedHeaders": {"X-Tenant", "X-Tier"}, "None": nil} {
		to := http.Header{}
		(&identity{mode: mode, tenantHeader: "X-Tenant", tierHeader: "X-Tier"}).pass(from, to)
		var got []string
		for n := range to {
			got = append(got, n)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", mode, got, want)
		}
	}
}
