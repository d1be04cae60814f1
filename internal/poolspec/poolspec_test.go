package poolspec

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestADocumentIsReadAsItWasWritten(t *testing.T) {
	want := Default()
	want.Gateway.SharedLimits = Limits{TokensPerMinute: 5}
	want.Tiers[0].Limits = Limits{RequestsPerMinute: 7}
	want.Tiers[0].Degrade = &Degrade{Yellow: []Step{{MaxTokens: 5}, {Parameter: "a", Value: "b"}}, Red: []Step{{Pool: "p", Model: "m", TLS: &Trust{CAFile: "/ca", ServerName: "p"}}, {Answer: "x"}}}
	want.Tiers[2].Background = true
	want.Tiers[2].Hours = &Hours{Schedule: "0 22 * * *", Duration: Duration(8 * time.Hour), TimeZone: "UTC"}
	doc, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(doc)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, wrote %+v", got, want)
	}
	if !strings.Contains(doc, `"maxWait":"40ms"`) {
		t.Errorf("durations are not strings in %s", doc)
	}
}

func TestADocumentThatMakesNoSenseIsRefusedByName(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*Pool)
	}{
		{"another version", "version 7", func(p *Pool) { p.Version = 7 }},
		{"no model", "model", func(p *Pool) { p.Model = "" }},
		{"no tier", "0 tiers", func(p *Pool) { p.Tiers = nil }},
		{"a tier twice", "tiers[1].name", func(p *Pool) { p.Tiers[1].Name = p.Tiers[0].Name }},
		{"a tier without a timeout", "tiers[2]", func(p *Pool) { p.Tiers[2].Timeout = 0 }},
		{"too much reserved", "reservedPercent", func(p *Pool) { p.Tiers[0].ReservedPercent = 49 }},
		{"a batch of none", "maxSize", func(p *Pool) { p.Batching.MaxSize = 0 }},
		{"no inference time", "inferenceTime", func(p *Pool) { p.Batching.InferenceTime = 0 }},
		{"a timeout shorter than a batch", "inferenceTimeout", func(p *Pool) { p.Batching.InferenceTimeout = p.Batching.InferenceTime }},
		{"hours of a tier that is no background", "tiers[1].hours", func(p *Pool) { p.Tiers[1].Hours = &Hours{} }},
		{"a ladder of a background tier", "tiers[1].degrade", func(p *Pool) { p.Tiers[1].Background, p.Tiers[1].Degrade = true, &Degrade{} }},
		{"a step that is two", "tiers[1].degrade", func(p *Pool) { p.Tiers[1].Degrade = &Degrade{Red: []Step{{MaxTokens: 1, Answer: "x"}}} }},
		{"a step that is none", "tiers[1].degrade", func(p *Pool) { p.Tiers[1].Degrade = &Degrade{Yellow: []Step{{Pool: "x"}}} }},
		{"a step after the answer", "tiers[1].degrade", func(p *Pool) { p.Tiers[1].Degrade = &Degrade{Yellow: []Step{{Answer: "x"}, {MaxTokens: 1}}} }},
		{"TLS to no pool", "tls needs a pool", func(p *Pool) {
			p.Tiers[1].Degrade = &Degrade{Yellow: []Step{{MaxTokens: 1, TLS: &Trust{CAFile: "x", ServerName: "y"}}}}
		}},
		{"TLS that trusts nobody", "tls needs a pool, a caFile", func(p *Pool) {
			p.Tiers[1].Degrade = &Degrade{Yellow: []Step{{Pool: "p", Model: "m", TLS: &Trust{ServerName: "y"}}}}
		}},
		{"a negative limit", "tiers[1].limits", func(p *Pool) { p.Tiers[1].Limits.TokensPerMinute = -1 }},
		{"traces to nowhere", "telemetry.traces.endpoint", func(p *Pool) { p.Telemetry = &Telemetry{Traces: &Traces{}} }},
		{"traces of more than all", "telemetry.traces.samplePercent", func(p *Pool) {
			p.Telemetry = &Telemetry{Traces: &Traces{Endpoint: "http://c:4318", SamplePercent: 101}}
		}},
		{"a log of less than nothing", "telemetry.accessLog.samplePercent", func(p *Pool) { p.Telemetry = &Telemetry{AccessLog: &AccessLog{SamplePercent: -1}} }},
		{"a negative number of lines", "telemetry.accessLog.linesPerSecond", func(p *Pool) { p.Telemetry = &Telemetry{AccessLog: &AccessLog{LinesPerSecond: -1}} }},
		{"records elsewhere", "telemetry.usageRecords", func(p *Pool) { p.Telemetry = &Telemetry{UsageRecords: "Kafka"} }},
		{"tenants otherwise", "telemetry.tenants", func(p *Pool) { p.Telemetry = &Telemetry{Tenants: "Hidden"} }},
		{"TLS from nowhere", "gateway.tls.directory", func(p *Pool) { p.Gateway.TLS = &TLS{} }},
		{"no target", "targetPercent", func(p *Pool) { p.TargetPercent = 0 }},
	} {
		p := Default()
		c.change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error that names %q", c.name, err, c.want)
		}
	}
	if _, err := Decode(`{"version":1,"modek":"m"}`); err == nil || !strings.Contains(err.Error(), "modek") {
		t.Errorf("an unknown field: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	doc, _ := Encode(Default())
	f.Add(doc)
	f.Add(`{"version":1,"batching":{"maxWait":"1h"}}`)
	f.Add(`{"version":1,"tiers":[{"name":"a","degrade":{"red":[{"pool":"b","model":"m","tls":{"caFile":"/ca","serverName":"b"}}]}}]}`)
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Decode(s)
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Errorf("Decode accepted what Validate refuses: %v", err)
		}
		again, err := Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Decode(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if third, _ := Encode(q); third != again { // as text: an empty list and none are the same
			t.Errorf("%s became %s", again, third)
		}
	})
}
