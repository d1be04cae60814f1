// Package openai proves the OpenAI-compatible API with the real SDK from npm: it starts a batcher with
// simulated workers and lets sdk.test.mjs call it.
package openai

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/zone"
)

// missing skips, or fails where everything must be there.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func TestOpenAISDK(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		missing(t, "node is not installed: the OpenAI SDK cannot run")
	}
	if _, err := os.Stat("node_modules/openai/package.json"); err != nil {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund").CombinedOutput(); err != nil {
			missing(t, "the OpenAI SDK could not be installed (npm ci: %v): %s", err, out)
		}
	}

	dir := t.TempDir()
	bin := filepath.Join(dir, "batcher")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "sluice.dev/sluice/cmd/batcher").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	pool := poolspec.Default()
	pool.Model, pool.Gateway.Auth, pool.Gateway.DefaultTier = "llm", "Keys", ""
	// The free tier is shed entirely and has a ladder; the others are not touched by the zone.
	pool.Tiers[2].Degrade = &poolspec.Degrade{Yellow: []poolspec.Step{{MaxTokens: 64}, {Answer: "We are busy."}}}
	doc, err := poolspec.Encode(pool)
	if err != nil {
		t.Fatal(err)
	}
	tenants := filepath.Join(dir, "tenants.json")
	list := fmt.Appendf(nil, `[{"name":"free-hand","tier":"enterprise","keys":["%x"]},{"name":"limited","tier":"paid","keys":["%x"],"limits":{"requestsPerMinute":120}},{"name":"cheap","tier":"free","keys":["%x"]}]`,
		sha256.Sum256([]byte("key-1")), sha256.Sum256([]byte("key-2")), sha256.Sum256([]byte("key-3")))
	if err := os.WriteFile(tenants, list, 0o600); err != nil {
		t.Fatal(err)
	}
	signal, err := zone.Signal{
		Version: zone.SignalVersion, Pool: pool.Name, Generation: 1, Zone: zone.Yellow, Reason: zone.ReasonBacklogHigh,
		Since: time.Now(), ObservedAt: time.Now(), Capacity: 1000, Offered: 2000, Workers: 2,
		Tiers: []zone.SignalTier{{Name: "enterprise", AdmitPercent: 100}, {Name: "paid", AdmitPercent: 100}, {Name: "free", AdmitPercent: 0}},
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	zoneFile := filepath.Join(dir, "signal.json")
	if err := os.WriteFile(zoneFile, []byte(signal), 0o600); err != nil {
		t.Fatal(err)
	}
	public, internal := freeAddr(t), freeAddr(t)
	batcher := exec.CommandContext(t.Context(), bin, "--simulate-workers", "2", "--pool", doc, "--tenants", tenants, "--zone-file", zoneFile, "--listen", public, "--internal-listen", internal, "--linger", "0s")
	batcher.Stderr = os.Stderr
	if err := batcher.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = batcher.Process.Kill(); _ = batcher.Wait() })
	ready(t, "http://"+internal+"/readyz")

	sdk := exec.CommandContext(t.Context(), node, "--test", "sdk.test.mjs")
	sdk.Env = append(os.Environ(), "SLUICE_URL=http://"+public, "SLUICE_INTERNAL=http://"+internal, "SLUICE_KEY=key-1", "SLUICE_LIMITED_KEY=key-2", "SLUICE_CHEAP_KEY=key-3", "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	out, err := sdk.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("the SDK's tests: %v", err)
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func ready(t *testing.T, url string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if res, err := http.Get(url); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
	}
	t.Fatal("the batcher was not ready within 30 s")
}
