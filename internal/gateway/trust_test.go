package gateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/tlstest"
	"sluice.dev/sluice/internal/wire"
)

// Requests are handed to a pool that serves HTTPS only, over real sockets: to nobody but who has a certificate of the
// authority that is named, for the name that is named. What is wrong is counted, reported, and over when it is mended.
func TestRerouteOverTLS(t *testing.T) {
	dir, ca := t.TempDir(), filepath.Join(t.TempDir(), "ca.crt")
	now := time.Now()
	crt, key, err := tlstest.Pair(1, now.Add(-time.Hour), now.Add(time.Hour), "spare.team.svc")
	must(t, err)
	stranger, _, err := tlstest.Pair(2, now.Add(-time.Hour), now.Add(time.Hour), "spare.team.svc")
	must(t, err)
	mount(t, dir, crt, key)

	p := poolspec.Default()
	p.Name, p.Model, p.Gateway.TLS = "spare", "small", &poolspec.TLS{Directory: dir}
	live := batching.Snapshot{Live: 1, Mu: 900, MuShare: 900, ServiceP50: 100 * time.Millisecond}
	spare, err := New(Options{Pool: p, Engine: &fakeEngine{snap: live}})
	must(t, err)
	l, err := Listen(p, "127.0.0.1:0", "127.0.0.1:0")
	must(t, err)
	front := NewFront(spare, l, NewCertificate(dir, nil), slog.New(slog.DiscardHandler))
	go func() { _ = front.Run() }()
	defer front.Close()

	pool := poolspec.Default()
	pool.Model, pool.Gateway.DefaultTier = "llm", "free"
	step := poolspec.Step{Pool: "spare", Model: "small", TLS: &poolspec.Trust{CAFile: ca, ServerName: "spare.team.svc"}}
	laddered([]poolspec.Step{step}, nil)(&pool)
	var log bytes.Buffer
	g, err := New(Options{Pool: pool, Engine: &fakeEngine{snap: live}, PoolURL: func(string) string { return "https://" + l.TLS.Addr().String() },
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	r := &rig{Gateway: g, ctx: t.Context()}
	g.SetSignal(yellow(0))
	target := g.rerouter.targets[keyOf(step)]
	look := func() { target.mu.Lock(); target.looked = time.Time{}; target.mu.Unlock() }
	problem := func() string {
		list := g.Stats().Reroutes
		if len(list) == 0 {
			return ""
		}
		if len(list) > 1 || list[0].Pool != "spare" || list[0].Message == "" {
			t.Errorf("%+v", list)
		}
		return list[0].Problem
	}
	refused := func(what, want string) {
		t.Helper()
		look()
		r.post(t, "/v1/inference", hello).want(429, "shed")
		if got := problem(); got != want {
			t.Errorf("%s: reported %q, want %q", what, got, want)
		}
	}
	served := func(what string) {
		t.Helper()
		look()
		if w := r.post(t, "/v1/inference", hello); w.Code != 200 || said(t, w) != "reroute=spare" || problem() != "" {
			t.Errorf("%s: %d %s, reported %q", what, w.Code, w.Body, problem())
		}
	}
	refused("nothing mounted", wire.RerouteCAMissing)
	must(t, os.WriteFile(ca, []byte("no certificate"), 0o600))
	refused("garbage", wire.RerouteCAInvalid)
	must(t, os.WriteFile(ca, stranger, 0o600))
	refused("another authority", wire.RerouteFailing)
	must(t, os.WriteFile(ca, crt, 0o600))
	served("the right one")
	must(t, os.Remove(ca))
	look()
	if w := r.post(t, "/v1/inference", hello); w.Code != 200 || problem() != wire.RerouteCAMissing {
		t.Errorf("the one that was good is not kept: %d %s, reported %q", w.Code, w.Body, problem())
	}
	must(t, os.WriteFile(ca, crt, 0o600))
	served("there again")
	if n := counter(t, g, metricReroutes); n != 3 {
		t.Errorf("%v failures counted", n)
	}
	for _, want := range []string{"no such file", "has no certificate", "certificate signed by unknown authority"} {
		if strings.Count(log.String(), want) == 0 {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}

	// Of the right authority, for another name.
	step.TLS.ServerName = "spare.other.svc"
	laddered([]poolspec.Step{step}, nil)(&pool)
	g, err = New(Options{Pool: pool, Engine: &fakeEngine{snap: live}, PoolURL: func(string) string { return "https://" + l.TLS.Addr().String() }})
	must(t, err)
	r = &rig{Gateway: g, ctx: t.Context()}
	g.SetSignal(yellow(0))
	r.post(t, "/v1/inference", hello).want(429, "shed")
	if problem() != wire.RerouteFailing || !strings.Contains(g.Stats().Reroutes[0].Message, "spare.other.svc") {
		t.Errorf("%+v", g.Stats().Reroutes)
	}
}

// A pool that has no place is not at fault; one that does not know model or caller is. The report ends with the first
// request that is served, or when nobody tried for a while.
func TestWhatIsReportedOfAnotherPool(t *testing.T) {
	inFake(t, laddered([]poolspec.Step{small}, nil), func(t *testing.T, r *rig, e *fakeEngine) {
		r.SetSignal(yellow(0))
		status := http.StatusOK
		body := `{"choices":[{"text":"x"}]}`
		r.Gateway.rerouter.client.Transport = transport{"llm-small": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})}
		failing := func() bool { return len(r.Stats().Reroutes) > 0 }
		for _, s := range []int{400, 408, 413, 422, 429, 500, 503, 504} {
			status = s
			r.post(t, "/v1/inference", hello).want(429, "shed")
			if failing() {
				t.Errorf("%d is reported", s)
			}
		}
		for _, s := range []int{401, 403, 404} {
			status, body = s, `{"error":{"message":"the model is not served here"}}`
			r.post(t, "/v1/inference", hello).want(429, "shed")
			if !failing() || !strings.Contains(r.Stats().Reroutes[0].Message, "the model is not served here") {
				t.Errorf("%d: %+v", s, r.Stats().Reroutes)
			}
			status, body = 200, `{"choices":[{"text":"x"}]}`
			if w := r.post(t, "/v1/inference", hello); w.Code != 200 || failing() {
				t.Errorf("served again: %d, %+v", w.Code, r.Stats().Reroutes)
			}
		}
		status = 404
		r.post(t, "/v1/inference", hello).want(429, "shed")
		time.Sleep(misfitFor - time.Second)
		if !failing() {
			t.Error("forgotten too early")
		}
		time.Sleep(2 * time.Second)
		if failing() {
			t.Error("reported for ever")
		}
	})
}

// What is reported of a broken connection is the same for each.
func TestErrorsOfConnections(t *testing.T) {
	reset := &url.Error{Op: "Post", URL: "http://x", Err: &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{Port: 4711}, Err: errors.New("connection reset by peer")}}
	err := broken(t.Context(), reset)
	if !errors.As(err, &misfit{}) || strings.Contains(err.Error(), "4711") || !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if errors.As(broken(ctx, reset), &misfit{}) {
		t.Error("a client that leaves is the other pool's fault")
	}
}

func TestLaddersThatCannotBeClimbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := poolspec.Default()
		laddered([]poolspec.Step{{Pool: "x", Model: "m", TLS: &poolspec.Trust{CAFile: "/ca", ServerName: "x"}}}, nil)(&p)
		for at, want := range map[string]string{"": "not known", "http://x": "over TLS", "https://x": ""} {
			_, err := New(Options{Pool: p, Engine: &fakeEngine{}, PoolURL: func(string) string { return at }})
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", at, err)
			}
		}
		for want, s := range map[string]poolspec.Step{"http://x": {Pool: "x"}, "https://x": {Pool: "x", TLS: &poolspec.Trust{}}} {
			if got := serviceURL(s); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
	})
}
