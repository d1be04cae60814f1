package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

func noEnv(string) string { return "" }

func TestFlags(t *testing.T) {
	pool := poolspec.Default()
	pool.Gateway.Auth, pool.Gateway.DefaultTier = "Keys", ""
	keys, _ := poolspec.Encode(pool)
	for _, c := range []struct {
		args []string
		want string // part of the error, "" for none
	}{
		{[]string{"--simulate-workers", "2"}, ""},
		{[]string{"--workers", "http://a:1, http://b:2"}, ""},
		{[]string{"--simulate-workers", "1", "--peers", "a=127.0.0.1:1,b=127.0.0.1:2"}, ""},
		{nil, "--simulate-workers N or --workers"},
		{[]string{"--simulate-workers", "-1"}, "--simulate-workers is -1"},
		{[]string{"--simulate-workers", "1", "--workers", "http://a:1"}, "exclude each other"},
		{[]string{"--simulate-workers", "1", "--pool", "{"}, "--pool"},
		{[]string{"--simulate-workers", "1", "--pool", `{"version":9}`}, "version 9"},
		{[]string{"--simulate-workers", "1", "--pool", keys}, "--tenants"},
		{[]string{"--simulate-workers", "1", "--peers", "a"}, "NAME=HOST:PORT"},
		{[]string{"--simulate-workers", "1", "--linger", "-1s"}, "--linger"},
		{[]string{"--simulate-workers", "1", "extra"}, "extra"},
	} {
		_, err := parseFlags(c.args, noEnv, io.Discard)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
	inCluster := func(k string) string {
		return map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "p", "POD_UID": "u", "POD_NAMESPACE": "n"}[k]
	}
	c, err := parseFlags([]string{"--pool", keys}, inCluster, io.Discard)
	if err != nil || !c.kubernetes() || c.Pod != "p" || c.PodUID != "u" || c.Namespace != "n" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := parseFlags([]string{"--tenants", "x"}, inCluster, io.Discard); err == nil {
		t.Error("--tenants in Kubernetes was taken and would be ignored")
	}
}

// running is a batcher on real sockets.
type running struct {
	*batcher
	public, secure, internal string
	cancel                   context.CancelFunc
	stopped                  atomic.Bool // it was told to stop
	done                     chan error
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	c, err := parseFlags(append([]string{"--listen", "127.0.0.1:0", "--internal-listen", "127.0.0.1:0"}, args...), noEnv, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c.TLSListen = "127.0.0.1:0"
	public, internal, err := c.Open()
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBatcher(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &running{batcher: b, internal: "http://" + internal.Addr().String(), cancel: cancel, done: make(chan error, 1)}
	if public.Plain != nil {
		p.public = "http://" + public.Plain.Addr().String()
	}
	if public.TLS != nil {
		p.secure = "https://" + public.TLS.Addr().String()
	}
	go func() { p.done <- b.Serve(ctx, public, internal) }()
	t.Cleanup(cancel)
	return p
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

// until asks until ok, at most 20 s.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (p *running) stats(t *testing.T) (s wire.Stats) {
	t.Helper()
	_, body := get(t, p.internal+wire.PathStats)
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *running) workersIdle(t *testing.T, n int) {
	t.Helper()
	until(t, fmt.Sprint(n, " idle workers"), func() bool {
		idle := 0
		for _, w := range p.stats(t).Workers {
			if w.State == wire.ViewIdle {
				idle++
			}
		}
		return idle == n
	})
}

// SIGTERM under load: every request that was accepted is answered 200, every later one is refused a connection;
// no connection is cut with a request in it.
func TestShutdownLosesNothing(t *testing.T) {
	p := start(t, "--simulate-workers", "2", "--simulate-service-time", "20ms", "--linger", "300ms")
	p.workersIdle(t, 2)
	var served, refused atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 20 {
		client := &http.Client{Transport: &http.Transport{}}
		wg.Go(func() {
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := client.Post(p.public+"/v1/inference", "application/json", strings.NewReader(`{"model":"local","input":"hello"}`))
				if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) && p.stopped.Load() {
					// After the linger the listener is gone. A connection that the kernel had taken but nobody
					// accepted is reset: no request of it was read.
					refused.Add(1)
					return
				}
				if err != nil {
					t.Errorf("lost: %v", err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 {
					t.Errorf("%d %s %v", res.StatusCode, body, err)
					return
				}
				served.Add(1)
			}
		})
	}
	until(t, "200 answers", func() bool { return served.Load() > 200 })
	p.cancel()
	until(t, "unready", func() bool { code, _ := get(t, p.internal+wire.PathReadyz); return code == 503 })
	p.stopped.Store(true)
	if err := <-p.done; err != nil {
		t.Errorf("serve: %v", err)
	}
	close(stop)
	wg.Wait()
	if refused.Load() == 0 {
		t.Error("nobody was refused: the load ended before the shutdown")
	}
}

// Ready does not wait for workers: a client must see 503, not a refused connection.
func TestReadyWithoutWorkers(t *testing.T) {
	p := start(t, "--workers", "http://127.0.0.1:1", "--linger", "0s")
	until(t, "ready", func() bool { code, _ := get(t, p.internal+wire.PathReadyz); return code == 200 })
	res, err := http.Post(p.public+"/v1/inference", "application/json", strings.NewReader(`{"model":"local","input":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("%s, Retry-After %q", res.Status, res.Header.Get("Retry-After"))
	}
	p.cancel()
	if err := <-p.done; err != nil {
		t.Error(err)
	}
}

// Outside Kubernetes tenants and zone come from files.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	tenants, signal := filepath.Join(dir, "tenants.json"), filepath.Join(dir, "signal.json")
	sum := sha256.Sum256([]byte("secret"))
	if err := os.WriteFile(tenants, fmt.Appendf(nil, `[{"name":"acme","tier":"free","keys":["%x"]}]`, sum), 0o600); err != nil {
		t.Fatal(err)
	}
	pool := poolspec.Default()
	pool.Gateway.Auth, pool.Gateway.DefaultTier = "Keys", ""
	doc, _ := poolspec.Encode(pool)
	p := start(t, "--simulate-workers", "1", "--simulate-service-time", "1ms", "--pool", doc, "--tenants", tenants, "--zone-file", signal, "--linger", "0s")
	p.workersIdle(t, 1)
	call := func(key string) int {
		req, _ := http.NewRequest(http.MethodPost, p.public+"/v1/inference", strings.NewReader(`{"model":"local","input":"x"}`))
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if code := call("wrong"); code != 401 {
		t.Errorf("a wrong key: %d", code)
	}
	if code := call("secret"); code != 200 {
		t.Errorf("the key: %d", code)
	}
	red, err := zone.Signal{Pool: "local", Generation: 1, Zone: zone.Red, Reason: zone.ReasonBacklogHigh, Since: time.Now(), ObservedAt: time.Now(),
		Tiers: []zone.SignalTier{{Name: "enterprise", AdmitPercent: 100}, {Name: "paid", AdmitPercent: 100}, {Name: "free", AdmitPercent: 0}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(signal, []byte(red), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the signal", func() bool { return p.stats(t).SignalGeneration == 1 })
	if code := call("secret"); code != 429 {
		t.Errorf("a free request in Red: %d", code)
	}
	p.cancel()
	if err := <-p.done; err != nil {
		t.Error(err)
	}
}
