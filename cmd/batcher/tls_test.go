package main

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/tlstest"
)

// A batcher whose Secret is not there yet waits for it unready, says so to the operator, and serves when it comes.
func TestABatcherWaitsForItsCertificate(t *testing.T) {
	dir := t.TempDir()
	pool := poolspec.Default()
	pool.Gateway.TLS = &poolspec.TLS{Directory: dir}
	doc, err := poolspec.Encode(pool)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "--pool", doc, "--simulate-workers", "1", "--simulate-service-time", "1ms", "--linger", "0s")
	if p.public != "" {
		t.Error("plain HTTP is open")
	}
	p.workersIdle(t, 1)
	if code, body := get(t, p.internal+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "certificate") {
		t.Errorf("%d %s", code, body)
	}
	if s := p.stats(t).TLS; s == nil || s.Problem != "missing" || s.NotAfter != 0 {
		t.Errorf("%+v", s)
	}
	crt, key, err := tlstest.Pair(1, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"tls.key": key, "tls.crt": crt} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "ready", func() bool { code, _ := get(t, p.internal+"/readyz"); return code == http.StatusOK })
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(crt)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	res, err := client.Post(p.secure+"/v1/inference", "application/json", strings.NewReader(`{"model":"local","input":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
		t.Errorf("%s %s", res.Proto, res.Status)
	}
	if s := p.stats(t).TLS; s.Problem != "" || s.NotAfter < time.Now().Unix() {
		t.Errorf("%+v", s)
	}
	if _, metrics := get(t, p.internal+"/metrics"); !strings.Contains(metrics, "sluice_tls_certificate_not_after_seconds 1.") {
		t.Error("no expiry among the metrics")
	}
	client.CloseIdleConnections()
	p.cancel()
	if err := <-p.done; err != nil {
		t.Error(err)
	}
}
