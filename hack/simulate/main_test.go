package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice.dev/sluice/hack/simulate/report"
)

const testPool = `apiVersion: inference.sluice.dev/v1alpha1
kind: InferencePool
metadata: {name: llm-v1}
spec:
  model: llm-v1
  workers: {coldStart: 20s}
  tiers:
  - {name: enterprise, shedding: Never}
  - {name: paid}
  - {name: free, shedding: First, reservedPercent: 2, degrade: {yellow: [{maxTokens: 100}, {reroute: {pool: llm-small, model: s}}]}}
---
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceTenant
metadata: {name: acme}
spec: {tier: paid, limits: {requestsPerMinute: 12000}}
`

func testFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// One run, with everything that can be asked of it.
func TestRun(t *testing.T) {
	pool := testFile(t, "pool.yaml", testPool)
	series, drawn := filepath.Join(t.TempDir(), "run.csv"), filepath.Join(t.TempDir(), "run.png")
	args := []string{"-pool", pool, "-load", "step,from=900,to=3000,at=20s", "-duration", "1m", "-fail", "worker,at=50s", "-csv", series, "-picture", drawn, "-price", "2.5"}

	var text bytes.Buffer
	if err := run(args, &text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Pool llm-v1 under step,from=900,to=3000,at=20s", "enterprise", "worker-hours ($", "in hindsight", "zone      Green → ", "1 worker(s) lost", "2 → ", "free was degraded: ", "answered by another pool (reroute)", "note         tier free hands requests to pool llm-small"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}

	var out bytes.Buffer
	if err := run(append(args, "-o", "json"), &out); err != nil {
		t.Fatal(err)
	}
	var s report.Summary
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		t.Fatal(err)
	}
	if s.Requests == 0 || len(s.Tiers) != 3 || len(s.Changes) == 0 || s.Cost.Simulated <= 0 || s.Tiers[1].Refused["quota_requests"] == 0 ||
		s.Tiers[0].Degraded != nil || s.Tiers[2].Degraded["reroute"] == 0 || s.Tiers[2].Degraded["max_tokens"] == 0 || len(s.Notes) != 1 {
		t.Errorf("%+v", s)
	}

	rows := readCSV(t, series)
	rerouted := 0.0
	if c := slices.Index(rows[0], "free_reroute_per_second"); c > 0 {
		for _, r := range rows[1:] {
			x, _ := strconv.ParseFloat(r[c], 64)
			rerouted += x
		}
	}
	if len(rows) != 61 || rows[0][1] != "offered_per_second" || int(rerouted+0.5) != s.Tiers[2].Degraded["reroute"] || slices.Contains(rows[0], "paid_reroute_per_second") {
		t.Errorf("%d rows of the time series, %v", len(rows), rows[0])
	}
	f, err := os.Open(drawn)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil || img.Bounds().Dx() != 2400 {
		t.Errorf("the picture: %v", err)
	}
}

func readCSV(t *testing.T, path string) [][]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestTraceAtAnotherRate(t *testing.T) {
	pool := testFile(t, "pool.yaml", testPool)
	trace := "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for _, at := range []string{"00:00.1000000", "00:07.2000000", "00:12.9000000", "00:29.0000000"} {
		trace += "2023-11-16 18:" + at + ",374,44\n"
	}
	var out bytes.Buffer
	if err := run([]string{"-pool", pool, "-trace", testFile(t, "t.csv", trace), "-rate", "50", "-o", "json"}, &out); err != nil {
		t.Fatal(err)
	}
	var s report.Summary
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.MeanPerSecond < 48 || s.MeanPerSecond > 52 {
		t.Errorf("%.1f/s, want 50/s", s.MeanPerSecond)
	}
}

func TestWrongCommandLines(t *testing.T) {
	pool := testFile(t, "pool.yaml", testPool)
	for _, args := range [][]string{
		{}, {"-pool", pool}, {"-pool", pool, "-load", "steady,rate=1", "-trace", "x"}, {"-pool", "nowhere.yaml", "-load", "steady,rate=1"},
		{"-pool", pool, "-load", "steady"}, {"-pool", pool, "-load", "steady,rate=1", "-o", "xml"}, {"-pool", pool, "-load", "steady,rate=1", "more"},
		{"-pool", pool, "-load", "steady,rate=1", "-duration", "1m", "-fail", "worker,at=2m"}, {"-pool", pool, "-load", "steady,rate=1", "-mix", "gold=1"},
		{"-pool", pool, "-load", "steady,rate=1", "-rate", "-3"}, {"-pool", pool, "-load", "steady,rate=1", "-rate", "3", "-rate-scale", "2"},
		{"-pool", pool, "-load", "steady,rate=1", "-reroute-fails", "101"},
	} {
		if err := run(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
