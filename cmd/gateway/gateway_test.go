package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/process"
	"sluice.dev/sluice/internal/relay"
	"sluice.dev/sluice/internal/wire"
)

func TestFlags(t *testing.T) {
	inCluster := func(k string) string {
		return map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "p"}[k]
	}
	for _, c := range []struct {
		args []string
		env  func(string) string
		want string // part of the error, "" for none
	}{
		{[]string{"--batchers", "a=127.0.0.1:1,b=127.0.0.1:2"}, nil, ""},
		{nil, inCluster, ""},
		{nil, nil, "give --batchers"},
		{[]string{"--batchers", "a"}, nil, "NAME=HOST:PORT"},
		{[]string{"--tenants", "x"}, inCluster, "outside Kubernetes"},
		{[]string{"--batchers", "a=127.0.0.1:1", "--linger", "-1s"}, nil, "--linger"},
		{[]string{"extra"}, inCluster, "extra"},
	} {
		if c.env == nil {
			c.env = func(string) string { return "" }
		}
		_, err := parseFlags(c.args, c.env, io.Discard)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}

// answering is an engine that says what it is asked to say.
type answering struct {
	snap batching.Snapshot
}

func (a *answering) Snapshot() batching.Snapshot { return a.snap }

func (a *answering) Submit(_ context.Context, r batching.Request) (batching.Result, error) {
	if cause, ok := strings.CutPrefix(r.Input, "cause:"); ok {
		return batching.Result{}, &batching.Error{Cause: batching.Cause(cause), RetryAfter: 7 * time.Second, Detail: "detail of " + cause}
	}
	return batching.Result{Output: "out:" + r.Input, Usage: wire.Usage{PromptTokens: 5, CompletionTokens: 6}, BatchSize: 3, Attempts: 1, BatchID: "b-1", Worker: "w"}, nil
}

// batcherEnd is a relay server on a real socket.
func batcherEnd(t *testing.T, e relay.Engine) (*relay.Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := relay.NewServer(e, []string{"enterprise", "paid", "free"}, nil, slog.New(slog.DiscardHandler))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Close)
	return s, l.Addr().String()
}

func start(t *testing.T, linger string, batchers ...string) (p *process.Process, url string, stop func() error) {
	t.Helper()
	c, err := parseFlags([]string{"--batchers", strings.Join(batchers, ","), "--linger", linger}, func(string) string { return "" }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c.Listen, c.InternalListen, c.TLSListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	public, internal, err := c.Open()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = newGateway(c, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, public, internal) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	if err := p.Synced(ctx); err != nil {
		t.Fatal(err)
	}
	return p, "http://" + public.Plain.Addr().String(), stop
}

// seen is what a client sees of an answer, but for the time it took and its own request id.
type seen struct {
	status             int
	contentType, retry string
	body               map[string]any
}

func ask(t *testing.T, client *http.Client, url, path, body string) seen {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", "mine")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, _ := io.ReadAll(res.Body)
	s := seen{status: res.StatusCode, contentType: res.Header.Get("Content-Type"), retry: fmt.Sprint(res.Header.Get("Retry-After") != "")}
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&s.body); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	if m, ok := s.body["metadata"].(map[string]any); ok {
		delete(m, "latency_ms")
		delete(m, "queue_wait_ms")
	}
	delete(s.body, "created")
	if res.Header.Get("X-Request-Id") != "mine" {
		t.Errorf("X-Request-Id %q", res.Header.Get("X-Request-Id"))
	}
	return s
}

// A client cannot tell a standalone gateway from one inside the batcher: every answer of the same engine has
// the same status, reason, detail, headers and body, whichever way it came.
func TestAnswersAreTheSameEitherWay(t *testing.T) {
	engine := &answering{snap: batching.Snapshot{Live: 2, Mu: 2000, MuShare: 2000, ServiceP50: 110 * time.Millisecond}}
	inProcess, err := gateway.New(gateway.Options{Pool: poolspec.Default(), Engine: engine})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(inProcess)
	defer s.Close()
	_, addr := batcherEnd(t, engine)
	_, url, _ := start(t, "0s", "b="+addr)
	for _, path := range []string{"/v1/inference", "/v1/completions"} {
		field := "input"
		if path != "/v1/inference" {
			field = "prompt"
		}
		for _, input := range []string{"hello", "é\\\"<&>\\n\\u2028", "cause:queue_full", "cause:infeasible", "cause:no_capacity", "cause:second_failure", "cause:expired", "cause:input_failed", ""} {
			body := fmt.Sprintf(`{"model":"local","%s":"%s"}`, field, input)
			want, got := ask(t, http.DefaultClient, s.URL, path, body), ask(t, http.DefaultClient, url, path, body)
			if a, b := fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got); a != b {
				t.Errorf("%s %q:\nin the batcher %s\nstandalone     %s", path, input, a, b)
			}
		}
	}
}

// slow takes 20 ms.
type slow struct{ answering }

func (s *slow) Submit(ctx context.Context, r batching.Request) (batching.Result, error) {
	select {
	case <-time.After(20 * time.Millisecond):
		return s.answering.Submit(ctx, r)
	case <-ctx.Done():
		return batching.Result{}, &batching.Error{Cause: batching.Cancelled}
	}
}

// SIGTERM under load, and a batcher that dies in the midst of it: every request that was accepted is answered
// with its own answer.
func TestShutdownUnderLoadLosesNothing(t *testing.T) {
	e := &slow{answering{snap: batching.Snapshot{Live: 2, Mu: 20000, MuShare: 20000, ServiceP50: 20 * time.Millisecond}}}
	mortal, first := batcherEnd(t, e)
	_, second := batcherEnd(t, e)
	p, url, stop := start(t, "300ms", "a="+first, "b="+second)
	var served, refused atomic.Int64
	var leaving atomic.Bool
	done := make(chan struct{})
	var wg sync.WaitGroup
	for n := range 20 {
		client := &http.Client{Transport: &http.Transport{}}
		wg.Go(func() {
			defer client.CloseIdleConnections()
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				in := fmt.Sprintf("%d-%d", n, i)
				res, err := client.Post(url+"/v1/inference", "application/json", strings.NewReader(`{"model":"local","input":"`+in+`"}`))
				if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) && leaving.Load() {
					refused.Add(1)
					return
				}
				if err != nil {
					t.Errorf("lost: %v", err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 || !strings.Contains(string(body), `"out:`+in+`"`) {
					t.Errorf("%s: %d %s %v", in, res.StatusCode, body, err)
					return
				}
				if served.Add(1) == 300 {
					mortal.Close()
				}
			}
		})
	}
	for served.Load() < 600 && !t.Failed() {
		time.Sleep(time.Millisecond)
	}
	leaving.Store(true)
	if err := stop(); err != nil {
		t.Error(err)
	}
	close(done)
	wg.Wait()
	if refused.Load() == 0 {
		t.Error("nobody was refused: the load ended before the shutdown")
	}
	if n := p.Parked(); n != 0 {
		t.Errorf("%d still parked", n)
	}
}
