// Package telemetry makes the OpenTelemetry spans of requests and batches and sends them to a collector by OTLP
// over HTTP. It never delays a request: spans wait in a bounded buffer, and what does not fit is dropped and
// counted.
//
// A nil *Tracer is tracing switched off: its methods do nothing and allocate nothing.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// maxBuffered bounds the spans that wait for their export: about 8 MB.
	maxBuffered = 8192
	// exportSize and exportEvery say when spans leave: so many, or so long after the last.
	exportSize  = 512
	exportEvery = 2 * time.Second
	// maxPerSecond bounds the requests of a process that are traced. A client decides for its own requests that
	// they are sampled; it must not decide what this costs everybody else.
	maxPerSecond = 1000
	// maxLinks of a batch's span: a batch has at most 1,000 requests.
	maxLinks = 1000
)

// Config says where spans go and whose they are.
type Config struct {
	// Endpoint is the collector: http(s)://host:port[/path]; without a path, /v1/traces.
	// Headers, certificates and timeouts come from the standard variables OTEL_EXPORTER_OTLP_*.
	Endpoint string
	// SamplePercent is the part of the requests without a traceparent of their client that is traced, 0 to 100.
	// One with a traceparent is traced exactly if that says sampled.
	SamplePercent int
	// Service is the service.name: sluice-batcher, sluice-gateway, sluice-gpuworker. The others may be empty.
	Service, Pool, Namespace, Pod string
	// Log is told of failing exports, at most once a minute; nil discards.
	Log *slog.Logger
}

// CheckEndpoint says what is wrong with an endpoint.
func CheckEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("%q is not http://HOST:PORT or https://HOST:PORT", endpoint)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q must have no user, query or fragment; headers come from OTEL_EXPORTER_OTLP_HEADERS", endpoint)
	}
	return nil
}

// Tracer makes spans. Safe for concurrent use.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	percent  uint32
	buffer   *buffer

	mu      sync.Mutex
	second  time.Time
	traced  int
	skipped uint64
}

// New returns a Tracer that exports to the collector. Nothing is sent before the first span: a collector that is
// away delays no start. Shut it down.
func New(ctx context.Context, c Config) (*Tracer, error) {
	if err := CheckEndpoint(c.Endpoint); err != nil {
		return nil, fmt.Errorf("traces endpoint: %w", err)
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(c.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("traces exporter: %w", err)
	}
	return newTracer(ctx, c, exporter)
}

func newTracer(ctx context.Context, c Config, exporter sdktrace.SpanExporter) (*Tracer, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	res, err := resource.New(ctx, resource.WithAttributes(resourceOf(c)...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { c.Log.Warn("OpenTelemetry", "error", err) }))
	b := &buffer{SpanExporter: exporter, log: c.Log, endpoint: c.Endpoint}
	b.SpanProcessor = sdktrace.NewBatchSpanProcessor(exports{b},
		sdktrace.WithMaxQueueSize(maxBuffered), sdktrace.WithMaxExportBatchSize(exportSize), sdktrace.WithBatchTimeout(exportEvery))
	limits := sdktrace.NewSpanLimits()
	limits.LinkCountLimit = maxLinks
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // only what is sampled gets a span, see Request
		sdktrace.WithRawSpanLimits(limits), sdktrace.WithResource(res), sdktrace.WithSpanProcessor(b))
	return &Tracer{provider: provider, tracer: provider.Tracer(instrumentName), percent: uint32(min(max(c.SamplePercent, 0), 100)), buffer: b}, nil
}

func resourceOf(c Config) []attribute.KeyValue {
	attrs := []attribute.KeyValue{attrService.String(c.Service)}
	add := func(k attribute.Key, v string) {
		if v != "" {
			attrs = append(attrs, k.String(v))
		}
	}
	add(attrPool, c.Pool)
	add(attrKubeNS, c.Namespace)
	add(attrPod, c.Pod)
	add(attrInstance, c.Pod)
	return attrs
}

// Shutdown sends what is buffered and ends the Tracer, at the latest with ctx.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// sampled says whether a request with this parent (invalid: none) is traced.
func (t *Tracer) sampled(parent trace.SpanContext, now time.Time) bool {
	switch {
	case parent.IsValid():
		if !parent.IsSampled() {
			return false
		}
	case rand.Uint32N(100) >= t.percent:
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.second) >= time.Second {
		t.second, t.traced = now, 0
	}
	if t.traced >= maxPerSecond {
		t.skipped++
		return false
	}
	t.traced++
	return true
}

// Describe implements prometheus.Collector.
func (t *Tracer) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(t, ch) }

var (
	descExported = prometheus.NewDesc(metricSpansExported, "Spans that the collector took.", nil, nil)
	descDropped  = prometheus.NewDesc(metricSpansDropped, "Spans that were dropped because the buffer was full or the export failed.", []string{"reason"}, nil)
	descSkipped  = prometheus.NewDesc(metricSkipped, "Requests that were sampled and not traced, because 1,000 of this second were.", nil, nil)
)

// Collect implements prometheus.Collector.
func (t *Tracer) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	t.mu.Lock()
	skipped := t.skipped
	t.mu.Unlock()
	counter(descExported, t.buffer.exported.Load())
	counter(descDropped, t.buffer.full.Load(), droppedFull)
	counter(descDropped, t.buffer.failed.Load(), droppedExport)
	counter(descSkipped, skipped)
}
