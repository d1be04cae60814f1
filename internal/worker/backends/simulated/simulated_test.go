package simulated

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

func load(t *testing.T, c Config) worker.Instance {
	t.Helper()
	i, err := New(c).Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestServiceTimeIsTheSameForEverySize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := load(t, Config{ServiceTime: 100 * time.Millisecond})
		for _, n := range []int{1, 10, 100} {
			inputs := make([]string, n)
			for k := range inputs {
				inputs[k] = strings.Repeat("é", k)
			}
			start := time.Now()
			out, err := i.Run(t.Context(), worker.Batch{Inputs: inputs})
			if err != nil || time.Since(start) != 100*time.Millisecond {
				t.Fatalf("%d items took %v, %v", n, time.Since(start), err)
			}
			for k := range inputs {
				if out.Outputs[k] != inputs[k] {
					t.Errorf("output %d is %q, want %q", k, out.Outputs[k], inputs[k])
				}
				if want := (2*k + 3) / 4; out.Usage[k] != (wire.Usage{PromptTokens: want, CompletionTokens: want, Estimated: true}) {
					t.Errorf("usage %d is %+v, want %d tokens each way, estimated", k, out.Usage[k], want)
				}
			}
		}
	})
}

func TestJitterStaysWithinItsPercentage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := load(t, Config{ServiceTime: 100 * time.Millisecond, JitterPercent: 20, Seed: 1})
		low, high := time.Hour, time.Duration(0)
		for range 500 {
			start := time.Now()
			if _, err := i.Run(t.Context(), worker.Batch{Inputs: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
			low, high = min(low, time.Since(start)), max(high, time.Since(start))
		}
		if low < 80*time.Millisecond || high > 120*time.Millisecond || low > 85*time.Millisecond || high < 115*time.Millisecond {
			t.Errorf("500 batches took %v to %v, want 80ms to 120ms and most of that range", low, high)
		}
	})
}

func TestStartDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		load(t, Config{StartDelay: 30 * time.Second})
		if time.Since(start) != 30*time.Second {
			t.Errorf("loaded after %v", time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := New(Config{StartDelay: time.Minute}).Load(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a load that is given up: %v", err)
		}
	})
}

func TestFatesComeAtTheirRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{ServiceTime: time.Millisecond, FailPermille: 100, CrashPermille: 50, HangPermille: 25, Seed: 7})
		i, _ := b.Load(t.Context())
		var failed, crashed, hung int
		const n = 4000
		for range n {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("hung"))
			_, err := i.Run(ctx, worker.Batch{Inputs: []string{"a"}})
			cancel()
			var e *worker.Error
			switch {
			case err == nil:
				continue
			case errors.Is(err, worker.ErrReset):
				crashed++
			case errors.As(err, &e) && e.Code == wire.CodeApplication:
				failed++
				continue // the instance lives
			default:
				hung++
			}
			select {
			case <-i.Done():
			default:
				t.Fatalf("the instance lives after %v", err)
			}
			i, _ = b.Load(t.Context())
		}
		// Three standard deviations of a binomial count are at most 57, 42 and 30.
		for name, c := range map[string][3]int{"failed": {failed, 400, 57}, "crashed": {crashed, 200, 42}, "hung": {hung, 100, 30}} {
			if d := c[0] - c[1]; d < -c[2] || d > c[2] {
				t.Errorf("%s %d of %d, want %d +- %d", name, c[0], n, c[1], c[2])
			}
		}
	})
}

func TestCrashCallsItsHookInMidBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at time.Duration
		i := load(t, Config{ServiceTime: 100 * time.Millisecond, CrashPermille: 1000, Crash: func() { at = time.Since(start) }})
		if _, err := i.Run(t.Context(), worker.Batch{ID: worker.WarmUpID, Inputs: []string{"a"}}); err != nil {
			t.Fatalf("the warm-up batch met the fate of a client's: %v", err)
		}
		start = time.Now()
		_, _ = i.Run(t.Context(), worker.Batch{Inputs: []string{"a"}})
		if at != 50*time.Millisecond {
			t.Errorf("crashed after %v, want the middle of the batch", at)
		}
	})
}

func TestMaxTokensCutsTheEcho(t *testing.T) {
	n := 2
	i := load(t, Config{})
	out, err := i.Run(t.Context(), worker.Batch{Inputs: []string{"abcdefghijk", "abcdefghijk"}, ItemParams: []wire.Parameters{{MaxTokens: &n}, {}}})
	if err != nil || out.Outputs[0] != "abcdefgh" || out.Outputs[1] != "abcdefghijk" || out.Usage[0].CompletionTokens != 2 {
		t.Errorf("got %+v, %v", out, err)
	}
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{{"", 0, ""}, {"abc", 1, "abc"}, {"abcd", 0, ""}, {"abcd", -1, ""}, {"abcé", 1, "abc"}, {"日本", 1, "日"}, {"abcd", 1 << 62, "abcd"}} {
		if got := Cut(c.s, c.n); got != c.want || !utf8.ValidString(got) {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.s, c.n, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []Config{{JitterPercent: 101}, {JitterPercent: -1}, {FailPermille: -1}, {FailPermille: 500, CrashPermille: 400, HangPermille: 101}} {
		if c.Check() == nil {
			t.Errorf("%+v passes", c)
		}
	}
	if err := (Config{FailPermille: 500, CrashPermille: 400, HangPermille: 100, JitterPercent: 100}).Check(); err != nil {
		t.Error(err)
	}
}

func TestACallerThatHangsUpLeavesTheSimulatedGPUBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := worker.New(New(Config{ServiceTime: 100 * time.Millisecond}), worker.Options{SkipWarmUp: true})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = s.Run(ctx) }()
		synctest.Wait()
		send := func(ctx context.Context, id string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			body := strings.NewReader(`{"batch_id":"` + id + `","requests":[{"request_id":"r","input":"a"}]}`)
			s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, wire.PathBatch, body))
			return w
		}
		caller, hangUp := context.WithCancel(t.Context())
		go send(caller, "b1")
		time.Sleep(10 * time.Millisecond)
		hangUp()
		if w := send(t.Context(), "b2"); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), `"retry_after_ms":90`) {
			t.Errorf("while the batch runs: %d %s, want 409 with 90 ms", w.Code, w.Body)
		}
		if w := send(t.Context(), "b1"); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), wire.CodeDuplicate) {
			t.Errorf("the same batch again: %d %s", w.Code, w.Body)
		}
		time.Sleep(91 * time.Millisecond)
		if w := send(t.Context(), "b2"); w.Code != http.StatusOK {
			t.Errorf("once it is over: %d %s", w.Code, w.Body)
		}
		stop()
		synctest.Wait()
	})
}
