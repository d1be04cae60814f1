package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
)

// instantEngine answers at once, so that a benchmark sees the pipeline alone.
type instantEngine struct{ snap batching.Snapshot }

func (e *instantEngine) Submit(_ context.Context, r batching.Request) (batching.Result, error) {
	return batching.Result{Output: r.Input, QueueWait: time.Millisecond, BatchSize: 100, Attempts: 1}, nil
}
func (e *instantEngine) Snapshot() batching.Snapshot { return e.snap }

// sink is a ResponseWriter that keeps nothing.
type sink struct {
	h      http.Header
	status int
}

func (s *sink) Header() http.Header              { return s.h }
func (s *sink) WriteHeader(status int)           { s.status = status }
func (s *sink) Write(b []byte) (int, error)      { return len(b), nil }
func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkWrongKey is one request with a key that nobody has: what a flood of them costs.
func BenchmarkWrongKey(b *testing.B) {
	p := poolspec.Default()
	p.Gateway.Auth, p.Gateway.DefaultTier = "Keys", ""
	g, err := New(Options{Pool: p, Engine: &instantEngine{batching.Snapshot{Live: 13, Mu: 12871, MuShare: 12871, ServiceP50: 100 * time.Millisecond}}})
	if err != nil {
		b.Fatal(err)
	}
	r, _ := http.NewRequest(http.MethodPost, "/v1/inference", http.NoBody)
	r.Header = http.Header{"X-Api-Key": {"0123456789abcdef0123456789abcdef"}}
	w := &sink{h: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.h)
		g.ServeHTTP(w, r)
		if w.status != http.StatusUnauthorized {
			b.Fatalf("status %d", w.status)
		}
	}
}

// BenchmarkServe is one request through the whole pipeline, without net/http and without a queue.
func BenchmarkServe(b *testing.B) {
	p := poolspec.Default()
	p.Gateway.Auth, p.Gateway.DefaultTier, p.Gateway.TrustedCIDRs = "TrustedHeaders", "", []string{"127.0.0.0/8"}
	g, err := New(Options{Pool: p, Engine: &instantEngine{batching.Snapshot{Live: 13, Mu: 12871, MuShare: 12871, ServiceP50: 100 * time.Millisecond}}})
	if err != nil {
		b.Fatal(err)
	}
	benchServe(b, g, "")
}

func benchServe(b *testing.B, g *Gateway, traceparent string) {
	body := `{"model":"local","input":"` + strings.Repeat("abcdefg ", 8) + `"}`
	reader := strings.NewReader(body)
	r, _ := http.NewRequest(http.MethodPost, "/v1/inference", nil)
	r.RemoteAddr = "127.0.0.1:4711"
	r.ContentLength = int64(len(body))
	r.Header = http.Header{"Content-Type": {"application/json"}, "Sluice-Tier": {"enterprise"}, "Sluice-Tenant": {"bench"}, "User-Agent": {"bench"}}
	if traceparent != "" {
		r.Header.Set("Traceparent", traceparent)
	}
	w := &sink{h: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		reader.Reset(body)
		r.Body = io.NopCloser(reader)
		clear(w.h)
		w.status = 0
		g.ServeHTTP(w, r)
		if w.status != http.StatusOK {
			b.Fatalf("status %d", w.status)
		}
	}
}
