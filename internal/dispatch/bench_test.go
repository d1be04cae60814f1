package dispatch

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// BenchmarkEngine measures a request's whole way over real HTTP to a worker that only echoes, the worker's
// share of the CPU included: 1,000 callers, 13 workers.
func BenchmarkEngine(b *testing.B) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PathWorkerState, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"state":"idle"}`)
	})
	mux.HandleFunc("POST "+wire.PathBatch, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		// Not a codec: the benchmark is about this side.
		s := strings.Replace(string(body), `"requests"`, `"results"`, 1)
		s = strings.ReplaceAll(s, `"input"`, `"status":"ok","output"`)
		_, _ = io.WriteString(w, s)
	})
	var urls []string
	for range 13 {
		s := httptest.NewServer(mux)
		defer s.Close()
		urls = append(urls, s.URL)
	}
	cfg := batching.FromPool(poolspec.Default(), "bench")
	for i := range cfg.Tiers { // the workers answer faster than the prior says
		cfg.Tiers[i].LatencyTarget = cfg.Tiers[i].Timeout
	}
	e := New(Config{Batching: cfg})
	defer e.Close()
	setWorkers(e, urls...)
	for e.Snapshot().Live < len(urls) {
	}
	input := strings.Repeat("some words of a prompt ", 5)
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	const callers = 1000
	for c := range callers {
		wg.Go(func() {
			for i := c; i < b.N; i += callers {
				id := "req-" + strconv.Itoa(i)
				if _, err := e.Submit(context.Background(), batching.Request{ID: id, Input: input}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s := e.Snapshot()
	b.ReportMetric(float64(s.Items)/float64(max(s.Batches, 1)), "items/batch")
}
