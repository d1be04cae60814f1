package usage

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func record(i int, outcome string) Record {
	r := Record{Time: time.Date(2026, 3, 1, 12, 0, 0, i, time.FixedZone("CET", 3600)), RequestID: "r-1", Pool: "llm", Tier: "paid", Tenant: "acme", API: "native",
		Outcome: outcome, Status: 200, Reason: "ok", PromptTokens: i, LatencyMs: 1.5, Attempts: 1}
	if outcome != OutcomeServed {
		r.Status, r.Reason = 429, "shed"
	}
	return r
}

func lines(t *testing.T, b []byte) (all []Record) {
	t.Helper()
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		var r Record
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s", err, s.Text())
		}
		all = append(all, r)
	}
	return all
}

// sink blocks each Write while hold is locked, and notes that every Write is of whole lines.
type sink struct {
	hold sync.Mutex
	bytes.Buffer
	torn bool
	fail error
}

func (s *sink) Write(b []byte) (int, error) {
	s.hold.Lock()
	defer s.hold.Unlock()
	if s.fail != nil {
		return 0, s.fail
	}
	s.torn = s.torn || b[len(b)-1] != '\n'
	return s.Buffer.Write(b)
}

func TestRecordsAreWrittenInOrderAndFlushedOnClose(t *testing.T) {
	w := &sink{}
	l := NewLog(w, 10000, nil)
	for i := range 5000 { // many times flushBytes
		l.Add(record(i, OutcomeServed))
	}
	if err := l.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	got := lines(t, w.Bytes())
	for i, r := range got {
		if r.PromptTokens != i {
			t.Fatalf("record %d is number %d", i, r.PromptTokens)
		}
	}
	if len(got) != 5000 || l.written.Load() != 5000 || w.torn {
		t.Errorf("%d lines, %d counted, torn: %v", len(got), l.written.Load(), w.torn)
	}
}

// A record does not wait for the buffer to fill.
func TestAQuietPoolIsWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &sink{}
		l := NewLog(w, 10, nil)
		l.Add(record(1, OutcomeServed))
		synctest.Wait()
		if n := len(lines(t, w.Bytes())); n != 1 {
			t.Errorf("%d lines", n)
		}
		_ = l.Close(context.Background())
	})
}

// A full pipe delays nobody: what does not fit is dropped and counted, refusals first.
func TestAStuckWriterDropsAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var out bytes.Buffer
		l := NewLog(writer(func(b []byte) (int, error) { <-gate; return out.Write(b) }), 100, nil)
		l.Add(record(0, OutcomeServed))
		synctest.Wait() // the writer holds it and hangs
		start := time.Now()
		for i := range 80 {
			l.Add(record(i, OutcomeRefused))
		}
		if got := l.full.Load(); got != 30 {
			t.Errorf("%d refusals dropped, want 30: they may fill half of 100", got)
		}
		for i := range 80 {
			l.Add(record(i, OutcomeServed))
		}
		if got := l.full.Load(); got != 60 {
			t.Errorf("%d dropped, want 60: 50 refusals and 50 answers fit", got)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("Close of a stuck writer: %v after %v", err, time.Since(start))
		}
		close(gate)
		<-l.done
		if n := len(lines(t, out.Bytes())); n != 101 {
			t.Errorf("%d lines", n)
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func TestAFailingWriterIsCountedAndLogged(t *testing.T) {
	var out bytes.Buffer
	w := &sink{fail: errors.New("disk full")}
	l := NewLog(w, 10, slog.New(slog.NewTextHandler(&out, nil)))
	for range 5 {
		l.Add(record(1, OutcomeServed))
	}
	_ = l.Close(context.Background())
	if l.failed.Load() != 5 || l.written.Load() != 0 || strings.Count(out.String(), "disk full") != 1 {
		t.Errorf("failed %d, written %d, log:\n%s", l.failed.Load(), l.written.Load(), &out)
	}
}

func TestSwitchedOff(t *testing.T) {
	var l *Log
	r := record(1, OutcomeServed)
	if n := testing.AllocsPerRun(100, func() { l.Add(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := l.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestOutcomes(t *testing.T) {
	for status, want := range map[int]string{200: "served", 400: "refused", 413: "refused", 429: "refused", 499: "cancelled", 500: "failed", 503: "failed", 504: "failed"} {
		if got := OutcomeOf(status); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}

// What is written is what docs/schema promises, and the schema names every field that is written.
func TestRecordsFollowTheSchema(t *testing.T) {
	file, err := os.ReadFile("../../docs/schema/usage-record.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	doc.(map[string]any)["additionalProperties"] = false // a reader takes more, this writer must not
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("usage", doc); err != nil {
		t.Fatal(err)
	}
	schema := c.MustCompile("usage")
	full := record(3, OutcomeServed)
	full.Namespace, full.Pod, full.BatchID, full.QueueWaitMs, full.Estimated = "team", "llm-batcher-1", "b-1", 12.25, true
	full.Degraded = []string{"max_tokens=64"}
	for name, r := range map[string]Record{"served": full, "refused": record(0, OutcomeRefused), "no tenant": {RequestID: "r", Pool: "p", Tier: "t", API: "openai_chat", Outcome: OutcomeFailed, Status: 503, Reason: "no_capacity"}} {
		line := appendLine(nil, &r)
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); err != nil {
			t.Errorf("%s: %v\n%s", name, err, line)
		}
		if !bytes.HasPrefix(line, []byte(`{"schema":"`+Schema+`"`)) {
			t.Errorf("%s: the schema does not come first: %s", name, line)
		}
	}
	for name, change := range map[string]func(*Record){
		"an unknown outcome": func(r *Record) { r.Outcome = "lost" }, "negative tokens": func(r *Record) { r.PromptTokens = -1 },
		"no reason": func(r *Record) { r.Reason = "" }, "status 0": func(r *Record) { r.Status = 0 },
	} {
		r := full
		change(&r)
		v, _ := jsonschema.UnmarshalJSON(bytes.NewReader(appendLine(nil, &r)))
		if schema.Validate(v) == nil {
			t.Errorf("the schema takes %s", name)
		}
	}
}
