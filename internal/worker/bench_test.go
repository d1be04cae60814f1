package worker

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/wire"
)

// BenchmarkBatchOf100 is what the worker itself costs for a batch of 100 inputs of 64 bytes on a GPU that takes
// no time: decode, check, run, encode.
func BenchmarkBatchOf100(b *testing.B) {
	s := New(&fakeBackend{run: func(_ context.Context, _ *fakeInstance, b Batch) (Output, error) {
		return Output{Outputs: b.Inputs}, nil
	}}, Options{SkipWarmUp: true})
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	go func() { _ = s.Run(ctx) }()
	for !s.ready() {
		runtime.Gosched()
	}
	inputs := make([]string, 100)
	for i := range inputs {
		inputs[i] = strings.Repeat("x", 64)
	}
	tail := strings.TrimPrefix(batchBody("", inputs...), `{"batch_id":""`)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, wire.PathBatch, strings.NewReader(fmt.Sprintf(`{"batch_id":"%d"`, n)+tail)))
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}
