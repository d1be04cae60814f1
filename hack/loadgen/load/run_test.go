package load

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serve runs a plan of about 200 requests in 100 ms against a handler.
func serve(t *testing.T, h http.HandlerFunc, change func(*Plan)) *Report {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	p := Plan{
		Targets:  []string{strings.TrimPrefix(s.URL, "http://")},
		Schedule: Poisson([]Phase{{2000, 2000, 100 * time.Millisecond}}, 1),
	}
	if change != nil {
		change(&p)
	}
	r, err := Run(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	sum := r.Served + r.Wrong + r.Lost + r.Refused + r.Unavailable + r.Expired + r.Other + r.NoConnection + r.GaveUp + r.HungUp
	if r.Sent == 0 || r.Sent != r.Scheduled || sum != r.Sent {
		t.Fatalf("scheduled %d, sent %d, outcomes %d: every request has exactly one outcome", r.Scheduled, r.Sent, sum)
	}
	return r
}

// Over TLS nobody is trusted but whom the plan says.
func TestTLS(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		answerWith(w, map[string]string{"output": decode(r).Input})
	}
	s := httptest.NewTLSServer(http.HandlerFunc(h))
	defer s.Close()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	roots := x509.NewCertPool()
	p := Plan{
		Targets: []string{strings.TrimPrefix(s.URL, "https://")}, TLS: &tls.Config{RootCAs: roots},
		Schedule: Poisson([]Phase{{200, 200, 100 * time.Millisecond}}, 1),
	}
	if _, err := Run(context.Background(), p); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	roots.AddCert(s.Certificate())
	if r, err := Run(context.Background(), p); err != nil || r.Served == 0 || r.Served != r.Sent {
		t.Errorf("%+v, %v", r, err)
	}
}

type nativeBody struct {
	Model  string `json:"model"`
	Input  string `json:"input"`
	Output string `json:"output,omitempty"`
}

func decode(r *http.Request) (b nativeBody) {
	_ = json.NewDecoder(r.Body).Decode(&b)
	return b
}

func answerWith(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func TestRightAnswersAreServed(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, r *http.Request) {
		answerWith(w, map[string]string{"output": decode(r).Input})
	}, nil)
	if r.Served != r.Sent {
		t.Errorf("served %d of %d: %v", r.Served, r.Sent, r.Tiers[0].Reasons)
	}
}

// A long answer is chunked by net/http; every client must read it all the same.
func TestChunkedAnswers(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, r *http.Request) {
		in := decode(r).Input
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, `{"padding":"`+strings.Repeat("x", 10000)+`",`)
		w.(http.Flusher).Flush()
		q, _ := json.Marshal(in)
		_, _ = fmt.Fprintf(w, `"output":%s}`, q)
	}, nil)
	if r.Served != r.Sent {
		t.Errorf("served %d of %d: %v", r.Served, r.Sent, r.Tiers[0].Reasons)
	}
}

func TestWrongAnswersAreSeen(t *testing.T) {
	var last atomic.Value
	last.Store("nothing yet")
	for what, h := range map[string]http.HandlerFunc{
		"another's answer": func(w http.ResponseWriter, r *http.Request) {
			answerWith(w, map[string]any{"output": last.Swap(decode(r).Input)})
		},
		"null":           func(w http.ResponseWriter, r *http.Request) { decode(r); answerWith(w, map[string]any{"output": nil}) },
		"half an answer": func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, `{"output":%q`, decode(r).Input) },
		"a longer one": func(w http.ResponseWriter, r *http.Request) {
			answerWith(w, map[string]any{"output": decode(r).Input + "x"})
		},
		"empty": func(_ http.ResponseWriter, r *http.Request) { decode(r) },
	} {
		if r := serve(t, h, nil); r.Wrong != r.Sent {
			t.Errorf("%s: %d of %d seen as wrong", what, r.Wrong, r.Sent)
		}
	}
}

func TestInstances(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Instances []string `json:"instances"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		answerWith(w, map[string][]string{"predictions": q.Instances})
	}, func(p *Plan) { p.API = Instances })
	if r.Served != r.Sent {
		t.Errorf("served %d of %d: %v", r.Served, r.Sent, r.Tiers[0].Reasons)
	}
}

// Refusals are counted by status and reason, tier by tier; the tier is told by key and header.
func TestRefusalsByTierAndReason(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, r *http.Request) {
		in := decode(r).Input
		switch {
		case r.Header.Get("Authorization") == "Bearer secret" && r.Header.Get("Sluice-Tier") == "free":
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			answerWith(w, map[string]string{"reason": "shed"})
		case r.Header.Get("Sluice-Tier") == "paid":
			w.WriteHeader(http.StatusServiceUnavailable)
			answerWith(w, map[string]any{"error": map[string]string{"code": "no_capacity"}})
		default:
			answerWith(w, map[string]string{"output": in})
		}
	}, func(p *Plan) {
		p.Tiers = []Tier{{Name: "enterprise", Weight: 1}, {Name: "paid", Weight: 1, Header: "Sluice-Tier: paid"}, {Name: "free", Weight: 2, Key: "secret", Header: "Sluice-Tier: free\n"}}
	})
	e, p, f := r.Tiers[0], r.Tiers[1], r.Tiers[2]
	if e.Served != e.Sent || e.Sent == 0 {
		t.Errorf("enterprise: served %d of %d", e.Served, e.Sent)
	}
	if p.Unavailable != p.Sent || p.Sent == 0 || p.Reasons["503 no_capacity"] != p.Sent {
		t.Errorf("paid: %d of %d unavailable, %v", p.Unavailable, p.Sent, p.Reasons)
	}
	if f.Refused != f.Sent || f.Sent <= p.Sent/2 || f.Reasons["429 shed"] != f.Sent {
		t.Errorf("free: %d of %d refused, %v", f.Refused, f.Sent, f.Reasons)
	}
	if r.WithoutRetryAfter != p.Sent {
		t.Errorf("%d answers without Retry-After, want the %d of paid", r.WithoutRetryAfter, p.Sent)
	}
}

// A client that gives up closes its connection, and the server notices.
func TestGiveUpClosesTheConnection(t *testing.T) {
	var gone atomic.Int64
	r := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		decode(r)
		<-r.Context().Done()
		gone.Add(1)
	}, func(p *Plan) { p.GiveUp = 30 * time.Millisecond })
	if r.GaveUp != r.Sent {
		t.Errorf("%d of %d gave up: %v", r.GaveUp, r.Sent, r.Tiers[0].Reasons)
	}
	if gone.Load() == 0 {
		t.Error("no handler saw its client leave")
	}
}

func TestHangUps(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, r *http.Request) {
		in := decode(r).Input
		select { // longer than any patience here
		case <-r.Context().Done():
		case <-time.After(300 * time.Millisecond):
			answerWith(w, map[string]string{"output": in})
		}
	}, func(p *Plan) { p.HangUp, p.HangUpWithin = .5, 20*time.Millisecond })
	if r.HungUp < r.Sent/4 || r.Served < r.Sent/4 || r.HungUp+r.Served != r.Sent {
		t.Errorf("of %d, %d hung up and %d were served", r.Sent, r.HungUp, r.Served)
	}
}

// A server that cuts connections or never answers makes lost requests, and the run still ends.
func TestLost(t *testing.T) {
	cut := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	if r := serve(t, cut, nil); r.Lost != r.Sent {
		t.Errorf("cut: %d of %d lost", r.Lost, r.Sent)
	}
	silent := func(_ http.ResponseWriter, r *http.Request) { decode(r); <-r.Context().Done() }
	if r := serve(t, silent, func(p *Plan) { p.AnswerBound = 50 * time.Millisecond }); r.Lost != r.Sent {
		t.Errorf("silent: %d of %d lost", r.Lost, r.Sent)
	}
}

// A draining server answers and closes; the next request needs a new connection and is not lost.
func TestConnectionCloseLosesNothing(t *testing.T) {
	r := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		answerWith(w, map[string]string{"output": decode(r).Input})
	}, nil)
	if r.Served != r.Sent {
		t.Errorf("served %d of %d: %v", r.Served, r.Sent, r.Tiers[0].Reasons)
	}
}

func TestNobodyListens(t *testing.T) {
	s := httptest.NewServer(nil)
	addr := strings.TrimPrefix(s.URL, "http://")
	s.Close()
	_, err := Run(context.Background(), Plan{Targets: []string{addr}, Schedule: Poisson([]Phase{{10, 10, time.Second}}, 1)})
	if err == nil || !strings.Contains(err.Error(), addr) {
		t.Errorf("error %v, want one that names %s", err, addr)
	}
}

func TestWarmupStaysOutOfTheTotals(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answerWith(w, map[string]string{"output": decode(r).Input})
	}))
	defer s.Close()
	r, err := Run(context.Background(), Plan{Targets: []string{strings.TrimPrefix(s.URL, "http://")}, Warmup: 50 * time.Millisecond,
		Schedule: Poisson([]Phase{{2000, 2000, 100 * time.Millisecond}}, 1)})
	if err != nil {
		t.Fatal(err)
	}
	inSeconds := uint64(0)
	for _, sec := range r.Tiers[0].PerSecond {
		inSeconds += sec.Sent
	}
	if r.Sent >= r.Scheduled || inSeconds != r.Scheduled {
		t.Errorf("totals have %d of %d, seconds %d: want less, and all", r.Sent, r.Scheduled, inSeconds)
	}
}
