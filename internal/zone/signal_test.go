package zone

import (
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func testSignal() Signal {
	return Signal{
		Version: SignalVersion, Pool: "llm-v1", Generation: 7, Zone: Yellow, Reason: ReasonBacklogHigh, Since: epoch, ObservedAt: epoch.Add(time.Minute),
		Capacity: 3636.4, Offered: 4100, Workers: 4,
		Tiers:    []SignalTier{{"enterprise", 100}, {"paid", 100}, {"free", 37.5}},
		Batchers: []SignalBatcher{{"llm-v1-batcher-a", 3000}, {"llm-v1-batcher-b", 1100}},
	}
}

func TestSignalRoundTrip(t *testing.T) {
	doc, err := testSignal().Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeSignal(doc)
	if err != nil || !reflect.DeepEqual(got, testSignal()) {
		t.Errorf("%v\n%+v\n%+v", err, got, testSignal())
	}
}

// broken are documents that neither the reader nor the schema may take.
var broken = map[string]func(m map[string]any){
	"another version":         func(m map[string]any) { m["version"] = 2 },
	"no version":              func(m map[string]any) { delete(m, "version") },
	"an unknown field":        func(m map[string]any) { m["colour"] = "blue" },
	"no pool":                 func(m map[string]any) { m["pool"] = "" },
	"generation 0":            func(m map[string]any) { m["generation"] = 0 },
	"an unknown zone":         func(m map[string]any) { m["zone"] = "Purple" },
	"no reason":               func(m map[string]any) { m["reason"] = "" },
	"since is no time":        func(m map[string]any) { m["since"] = "yesterday" },
	"negative capacity":       func(m map[string]any) { m["capacity"] = -1 },
	"offered is a string":     func(m map[string]any) { m["offered"] = "many" },
	"negative workers":        func(m map[string]any) { m["workers"] = -1 },
	"no tiers":                func(m map[string]any) { m["tiers"] = []any{} },
	"more than 100 %":         func(m map[string]any) { m["tiers"].([]any)[0].(map[string]any)["admitPercent"] = 100.5 },
	"less than 0 %":           func(m map[string]any) { m["tiers"].([]any)[0].(map[string]any)["admitPercent"] = -0.5 },
	"a tier without a name":   func(m map[string]any) { m["tiers"].([]any)[1].(map[string]any)["name"] = "" },
	"a tier with more fields": func(m map[string]any) { m["tiers"].([]any)[1].(map[string]any)["weight"] = 3 },
	"a negative lambda":       func(m map[string]any) { m["batchers"].([]any)[0].(map[string]any)["lambda"] = -3 },
	"a batcher without a pod": func(m map[string]any) { m["batchers"].([]any)[0].(map[string]any)["pod"] = "" },
}

func TestSignalReaderAndSchemaAgree(t *testing.T) {
	schema := compileSchema(t)
	check := func(doc []byte) error {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(doc)))
		if err != nil {
			return err
		}
		return schema.Validate(v)
	}
	doc, err := testSignal().Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := check([]byte(doc)); err != nil {
		t.Errorf("the schema refuses what Encode writes: %v", err)
	}
	for name, spoil := range broken {
		var m map[string]any
		if err := json.Unmarshal([]byte(doc), &m); err != nil {
			t.Fatal(err)
		}
		spoil(m)
		bad, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeSignal(string(bad)); err == nil {
			t.Errorf("%s: the reader takes it", name)
		}
		if check(bad) == nil {
			t.Errorf("%s: the schema takes it", name)
		}
	}
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	file, err := os.Open("../../docs/schema/zone-signal.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	raw, err := jsonschema.UnmarshalJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("zone-signal.schema.json", raw); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("zone-signal.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// What a schema cannot say.
func TestSignalReaderRefusesMore(t *testing.T) {
	doc, err := testSignal().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"nothing":             "",
		"null":                "null",
		"two documents":       doc + doc,
		"a tier twice":        strings.Replace(doc, `"name":"paid"`, `"name":"free"`, 1),
		"a batcher twice":     strings.Replace(doc, "batcher-b", "batcher-a", 1),
		"too long a document": doc + strings.Repeat(" ", maxSignalBytes),
	} {
		if _, err := DecodeSignal(bad); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for _, x := range []float64{math.NaN(), math.Inf(1)} {
		s := testSignal()
		s.Capacity = x
		if _, err := s.Encode(); err == nil {
			t.Errorf("a capacity of %v is written", x)
		}
	}
}

func FuzzDecodeSignal(f *testing.F) {
	doc, err := testSignal().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(doc)
	f.Add(`{"version":1}`)
	f.Add(`{"version":1,"tiers":[null],"batchers":null}`)
	f.Fuzz(func(t *testing.T, doc string) {
		s, err := DecodeSignal(doc)
		if err != nil {
			return
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		if back, err := DecodeSignal(again); err != nil || back.Zone != s.Zone || back.Capacity != s.Capacity || len(back.Tiers) != len(s.Tiers) {
			t.Fatalf("%v: %+v became %+v", err, s, back)
		}
	})
}

func TestShouldPublish(t *testing.T) {
	later := func(d time.Duration, f func(*Signal)) Signal {
		s := testSignal()
		s.Tiers = append([]SignalTier(nil), s.Tiers...)
		s.Batchers = append([]SignalBatcher(nil), s.Batchers...)
		s.Generation++
		s.ObservedAt = s.ObservedAt.Add(d)
		if f != nil {
			f(&s)
		}
		return s
	}
	tests := []struct {
		name string
		next Signal
		want bool
	}{
		{"the same an hour later", later(time.Hour, nil), false},
		{"another zone", later(tick, func(s *Signal) { s.Zone = Red }), true},
		{"no capacity any more", later(tick, func(s *Signal) { s.Reason = ReasonNoCapacity }), true},
		{"another reason", later(time.Hour, func(s *Signal) { s.Reason = ReasonRecovering }), false},
		{"4 % of capacity", later(tick, func(s *Signal) { s.Capacity *= 1.04 }), false},
		{"4 % of capacity for 10 s", later(10*time.Second, func(s *Signal) { s.Capacity *= 1.04 }), true},
		{"6 % of capacity", later(tick, func(s *Signal) { s.Capacity *= 0.94 }), true},
		{"4.9 points", later(tick, func(s *Signal) { s.Tiers[2].AdmitPercent += 4.9 }), false},
		{"5 points", later(tick, func(s *Signal) { s.Tiers[2].AdmitPercent -= 5 }), true},
		{"2 points for 10 s", later(10*time.Second, func(s *Signal) { s.Tiers[2].AdmitPercent += 2 }), true},
		{"a tier more", later(tick, func(s *Signal) { s.Tiers = append(s.Tiers, SignalTier{"batch", 0}) }), true},
		{"another batcher", later(tick, func(s *Signal) { s.Batchers[0].Pod = "llm-v1-batcher-c" }), true},
		{"a tenth more load", later(time.Hour, func(s *Signal) { s.Offered *= 1.1 }), false},
		{"a quarter more load", later(tick, func(s *Signal) { s.Offered *= 1.25 }), true},
		{"another share of the load", later(time.Hour, func(s *Signal) { s.Batchers[1].Lambda *= 3 }), true},
	}
	for _, tt := range tests {
		if got := ShouldPublish(testSignal(), tt.next); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if !ShouldPublish(Signal{}, testSignal()) {
		t.Error("the first document is not written")
	}
	few := testSignal()
	few.Offered = 5
	more := few
	more.Offered = 50
	if ShouldPublish(few, more) {
		t.Error("written for a load of next to nothing")
	}
	green := testSignal()
	green.Zone = Green
	next := green
	next.ObservedAt = next.ObservedAt.Add(time.Hour)
	next.Capacity *= 1.04
	if ShouldPublish(green, next) {
		t.Error("Green is written for 4 % of capacity")
	}
}

func TestShare(t *testing.T) {
	if got, ok := testSignal().Share("llm-v1-batcher-a"); !ok || math.Abs(got-3000.0/4100) > 1e-9 {
		t.Errorf("share %v, %v", got, ok)
	}
	if _, ok := testSignal().Share("llm-v1-batcher-c"); ok {
		t.Error("a share of a batcher that the document does not know")
	}
	if _, ok := (Signal{Batchers: []SignalBatcher{{"a", 0}}}).Share("a"); ok {
		t.Error("a share of no load")
	}
}
