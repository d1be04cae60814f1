package main

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"sluice.dev/sluice/internal/poolspec"
)

// otlpReceiver is a collector: it decodes what comes by OTLP over HTTP.
type otlpReceiver struct {
	*httptest.Server
	mu       sync.Mutex
	spans    []*otlp.Span
	resource map[string]string
	paths    []string
}

func newOTLPReceiver(t *testing.T) *otlpReceiver {
	o := &otlpReceiver{resource: map[string]string{}}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && r.Header.Get("Content-Encoding") == "gzip" {
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
				body, err = io.ReadAll(z)
			}
		}
		var req collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &req)
		}
		if err != nil {
			t.Error(err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.paths = append(o.paths, r.Method+" "+r.URL.Path)
		for _, rs := range req.ResourceSpans {
			for _, kv := range rs.Resource.Attributes {
				o.resource[kv.Key] = kv.Value.GetStringValue()
			}
			for _, ss := range rs.ScopeSpans {
				o.spans = append(o.spans, ss.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		out, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
		_, _ = w.Write(out)
	}))
	t.Cleanup(o.Close)
	return o
}

func attribute(s *otlp.Span, key string) string {
	for _, kv := range s.Attributes {
		if kv.Key == key {
			return kv.Value.GetStringValue()
		}
	}
	return ""
}

// A request with a traceparent, through a batcher and a worker on real sockets: its spans arrive at the collector at
// the latest when the batcher ends.
func TestARequestIsSeenAtTheCollector(t *testing.T) {
	o := newOTLPReceiver(t)
	pool := poolspec.Default()
	pool.Telemetry = &poolspec.Telemetry{Traces: &poolspec.Traces{Endpoint: o.URL}}
	doc, err := poolspec.Encode(pool)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "--pool", doc, "--simulate-workers", "1", "--simulate-service-time", "5ms", "--linger", "0s")
	p.workersIdle(t, 1)
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for _, flags := range []string{"01", "00"} { // the second one's client does not want to be seen
		req, _ := http.NewRequest(http.MethodPost, p.public+"/v1/inference", strings.NewReader(`{"model":"local","input":"a secret input"}`))
		req.Header.Set("traceparent", "00-"+trace+"-"+parent+"-"+flags)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatal(res.Status)
		}
	}
	p.cancel()
	if err := <-p.done; err != nil {
		t.Error(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	byName := map[string]*otlp.Span{}
	for _, s := range o.spans {
		if byName[s.Name] != nil {
			t.Errorf("two spans %q", s.Name)
		}
		byName[s.Name] = s
		if strings.Contains(s.String(), "secret input") {
			t.Errorf("the input is in a span: %s", s)
		}
	}
	request, admit, queue, batch, work := byName["POST /v1/inference"], byName["admit"], byName["queue"], byName["batch"], byName["worker"]
	if request == nil || admit == nil || queue == nil || batch == nil || work == nil || len(byName) != 5 {
		t.Fatalf("%v", byName)
	}
	if !bytes.Equal(work.ParentSpanId, batch.SpanId) || attribute(work, "sluice.batch.id") != attribute(batch, "sluice.batch.id") {
		t.Errorf("the worker's span is not the batch's child: %s", work)
	}
	if hex.EncodeToString(request.TraceId) != trace || hex.EncodeToString(request.ParentSpanId) != parent {
		t.Errorf("the client's trace is not continued: %s", request)
	}
	for _, s := range []*otlp.Span{admit, queue} {
		if !bytes.Equal(s.ParentSpanId, request.SpanId) || !bytes.Equal(s.TraceId, request.TraceId) {
			t.Errorf("not a child of the request: %s", s)
		}
	}
	links := func(from, to *otlp.Span) bool {
		return slices.ContainsFunc(from.Links, func(l *otlp.Span_Link) bool {
			return bytes.Equal(l.SpanId, to.SpanId) && bytes.Equal(l.TraceId, to.TraceId)
		})
	}
	if !links(batch, request) || !links(request, batch) || len(batch.ParentSpanId) != 0 {
		t.Errorf("batch and request do not link to each other:\n%s\n%s", batch, request)
	}
	if request.StartTimeUnixNano > admit.EndTimeUnixNano || admit.EndTimeUnixNano > queue.StartTimeUnixNano+1 ||
		queue.EndTimeUnixNano > batch.EndTimeUnixNano || batch.EndTimeUnixNano > request.EndTimeUnixNano {
		t.Errorf("the order is wrong:\n%s\n%s\n%s\n%s", request, admit, queue, batch)
	}
	if attribute(request, "sluice.tier") != "enterprise" || attribute(request, "sluice.reason") != "ok" ||
		attribute(request, "sluice.batch.id") == "" || attribute(request, "sluice.batch.id") != attribute(batch, "sluice.batch.id") {
		t.Errorf("%s\n%s", request, batch)
	}
	if o.resource["service.name"] != "sluice-batcher" || o.resource["sluice.pool"] != "local" || o.paths[0] != "POST /v1/traces" {
		t.Errorf("%v %v", o.resource, o.paths)
	}
}
