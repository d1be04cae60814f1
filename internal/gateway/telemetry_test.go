package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/usage"
)

var noLimits, oneRequest = quota.Limits{}, quota.Limits{RequestsPerMinute: 1}

// logged counts the lines of a log by their reason, and adds up what they say was left out.
func logged(t *testing.T, out *bytes.Buffer) (lines map[string]int, skipped float64) {
	t.Helper()
	lines = map[string]int{}
	dec := json.NewDecoder(out)
	for {
		var m map[string]any
		if err := dec.Decode(&m); err == io.EOF {
			return lines, skipped
		} else if err != nil {
			t.Fatal(err)
		}
		lines[m["reason"].(string)]++
		skipped += m["skipped"].(float64)
	}
}

func logOf(out io.Writer, percent, perSecond int) *accessLog {
	p := poolspec.Default()
	p.Telemetry = &poolspec.Telemetry{AccessLog: &poolspec.AccessLog{SamplePercent: percent, LinesPerSecond: perSecond}}
	return accessLogOf(Options{Pool: p, Log: slog.New(slog.NewJSONHandler(out, nil)), AccessLogPerSecond: 1})
}

// An overload of refusals cannot flood the log, nor push out the answers.
func TestTheAccessLogIsBoundedForAnswersAndRefusalsEach(t *testing.T) {
	inBubble(t, 0, nil, func(t *testing.T, r *rig) {
		var out bytes.Buffer
		r.log = logOf(&out, 100, 10)
		x := &exchange{r: &http.Request{}, codec: native{}, id: "r"}
		flood := func(seconds int) {
			for range seconds * 1000 {
				for range 20 {
					r.log.write(r.Gateway, x, refuse(ReasonShed, "no"), 0)
				}
				r.log.write(r.Gateway, x, nil, 0)
				time.Sleep(time.Millisecond)
			}
		}
		flood(3)
		if lines, skipped := logged(t, &out); lines["ok"] != 30 || lines["shed"] != 30 || skipped != 2*(19990+990) {
			t.Errorf("%v lines in 3 s at 10 a second, %v skipped", lines, skipped)
		}
	})
}

func TestTheAccessLogSamplesWhatWasServedAndNothingElse(t *testing.T) {
	inBubble(t, 0, nil, func(t *testing.T, r *rig) {
		var out bytes.Buffer
		r.log = logOf(&out, 10, 1000000)
		x := &exchange{r: &http.Request{}, codec: native{}, id: "r"}
		for range 10000 {
			r.log.write(r.Gateway, x, nil, 0)
			r.log.write(r.Gateway, x, refuse(ReasonShed, "no"), 0)
		}
		if lines, _ := logged(t, &out); lines["shed"] != 10000 || lines["ok"] < 880 || lines["ok"] > 1120 { // four standard deviations
			t.Errorf("%v of 10,000 each at 10 %%", lines)
		}
		r.log = logOf(&out, 0, 10)
		r.log.write(r.Gateway, x, nil, 0)
		if lines, _ := logged(t, &out); len(lines) != 0 {
			t.Errorf("%v at 0 %%", lines)
		}
	})
}

// records runs f with usage records and returns them.
func records(t *testing.T, change func(*poolspec.Pool), f func(*testing.T, *rig)) (all []usage.Record) {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, change)
		r.reports.Usage = usage.NewLog(&out, 0, nil)
		f(t, r)
		r.stop()
		if err := r.reports.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for dec := json.NewDecoder(&out); ; {
		var u usage.Record
		if err := dec.Decode(&u); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
}

func TestEveryRequestOfATenantLeavesOneRecord(t *testing.T) {
	got := records(t, withKeys, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{keyed("acme", "paid", "k", noLimits), keyed("small", "free", "s", oneRequest)})
		post := func(body string, headers ...string) { r.post(t, "/v1/inference", body, headers...) }
		post(hello, "X-API-Key", "k", "X-Request-Id", "a")
		post(hello, "X-API-Key", "nobody's")                    // no record: nobody to account it to
		post(`{"model":"other","input":"x"}`, "X-API-Key", "k") // refused
		post(hello, "X-API-Key", "s")                           // served
		post(hello, "X-API-Key", "s")                           // refused by its limit
		r.post(t, "/v1/chat/completions", `{"model":"llm","messages":[{"role":"user","content":"hi"}]}`, "X-API-Key", "k")
		ctx, cancel := context.WithTimeout(r.ctx, 10*time.Millisecond)
		defer cancel()
		gone := &rig{Gateway: r.Gateway, ctx: ctx}
		gone.post(t, "/v1/inference", hello, "X-API-Key", "k")
		time.Sleep(time.Second) // its batch ends
	})
	type row struct{ tenant, tier, api, outcome, reason string }
	want := []row{
		{"acme", "paid", "native", "served", "ok"}, {"acme", "paid", "native", "refused", "unknown_model"}, {"small", "free", "native", "served", "ok"},
		{"small", "free", "native", "refused", "quota_requests"}, {"acme", "paid", "openai_chat", "served", "ok"}, {"acme", "paid", "native", "failed", "expired"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d records: %+v", len(got), got)
	}
	for i, u := range got {
		if (row{u.Tenant, u.Tier, u.API, u.Outcome, u.Reason}) != want[i] || u.Schema != usage.Schema || u.RequestID == "" || u.Time.IsZero() {
			t.Errorf("record %d: %+v, want %+v", i, u, want[i])
		}
		if served := u.Outcome == usage.OutcomeServed; served != (u.PromptTokens > 0 && u.Attempts == 1 && u.BatchID != "" && u.LatencyMs >= 100) {
			t.Errorf("record %d: %+v", i, u)
		}
	}
	if got[0].RequestID != "a" {
		t.Errorf("%+v", got[0])
	}
}

// An answer that came from a ladder is recorded as served, says so, and has no tokens: none were used here.
func TestARecordSaysWhatWasDegraded(t *testing.T) {
	got := records(t, func(p *poolspec.Pool) {
		laddered([]poolspec.Step{capTo64, sorry}, nil)(p)
		p.Gateway.DefaultTier = "free"
	}, func(t *testing.T, r *rig) {
		r.SetSignal(yellow(0))
		r.post(t, "/v1/inference", hello)
		r.SetSignal(yellow(100))
		r.post(t, "/v1/inference", hello)
	})
	if len(got) != 2 || !slices.Equal(got[0].Degraded, []string{"answer"}) || !slices.Equal(got[1].Degraded, []string{"max_tokens=64"}) {
		t.Fatalf("%+v", got)
	}
	for i, used := range []bool{false, true} {
		if u := got[i]; u.Outcome != usage.OutcomeServed || u.Reason != "ok" || (u.PromptTokens > 0) != used || (u.BatchID != "") != used {
			t.Errorf("record %d: %+v", i, u)
		}
	}
}

func TestATenantMayBeNamedByAPseudonym(t *testing.T) {
	var log bytes.Buffer
	got := records(t, func(p *poolspec.Pool) {
		withKeys(p)
		p.Telemetry = &poolspec.Telemetry{Tenants: poolspec.TenantsPseudonym}
	}, func(t *testing.T, r *rig) {
		r.log = logOf(&log, 100, 100)
		r.tenants.Set([]Tenant{keyed("jane@example.com", "paid", "k", noLimits), keyed("joe@example.com", "paid", "j", noLimits)})
		for _, key := range []string{"k", "k", "j"} {
			r.post(t, "/v1/inference", hello, "X-API-Key", key)
		}
	})
	if len(got) != 3 || got[0].Tenant != got[1].Tenant || got[0].Tenant == got[2].Tenant || got[0].Tenant == "" {
		t.Errorf("%+v", got)
	}
	for _, u := range got {
		if strings.Contains(u.Tenant, "@") {
			t.Errorf("the record names the tenant: %+v", u)
		}
	}
	if strings.Contains(log.String(), "example.com") || !strings.Contains(log.String(), got[0].Tenant) {
		t.Errorf("the log names the tenant, or does not know the pseudonym:\n%s", &log)
	}
}

// BenchmarkReports is BenchmarkServe with each of the reports: off must cost what the pipeline alone costs.
func BenchmarkReports(b *testing.B) {
	const sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, c := range []struct {
		name      string
		telemetry *poolspec.Telemetry
		parent    string
	}{
		{"off", nil, ""},
		{"off, client samples", nil, sampled},
		{"traces at 0 percent", &poolspec.Telemetry{Traces: &poolspec.Traces{Endpoint: "http://127.0.0.1:9"}}, ""},
		{"traced, at most 1000 a second", &poolspec.Telemetry{Traces: &poolspec.Traces{Endpoint: "http://127.0.0.1:9"}}, sampled},
		{"usage records", &poolspec.Telemetry{UsageRecords: poolspec.UsageStdout}, ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := poolspec.Default()
			p.Telemetry = c.telemetry
			reports, err := NewReports(context.Background(), p, "bench", "", io.Discard, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			defer func() { _ = reports.Close(ctx) }()
			g, err := New(Options{Pool: p, Reports: reports,
				Engine: &instantEngine{batching.Snapshot{Live: 13, Mu: 12871, MuShare: 12871, ServiceP50: 100 * time.Millisecond}}})
			if err != nil {
				b.Fatal(err)
			}
			benchServe(b, g, c.parent)
		})
	}
}
