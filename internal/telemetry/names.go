package telemetry

import "go.opentelemetry.io/otel/attribute"

// Names of spans. A request's span is named by its method and path; admit and queue are its children. A batch
// has many parents, so it begins a trace of its own: its links name the requests', and theirs name it. The
// worker's span is the batch's child, made in the worker's process.
const (
	spanAdmit  = "admit"
	spanQueue  = "queue"
	spanBatch  = "batch"
	spanWorker = "worker"
)

// Attributes beside those of the HTTP semantic conventions. None ever carries an input, an output or a key.
const (
	attrMethod     = attribute.Key("http.request.method")
	attrRoute      = attribute.Key("http.route")
	attrStatus     = attribute.Key("http.response.status_code")
	attrErrorType  = attribute.Key("error.type")
	attrRequestID  = attribute.Key("sluice.request.id")
	attrTier       = attribute.Key("sluice.tier")
	attrTenant     = attribute.Key("sluice.tenant")
	attrReason     = attribute.Key("sluice.reason")
	attrAttempts   = attribute.Key("sluice.attempts")
	attrBatchID    = attribute.Key("sluice.batch.id")
	attrBatchSize  = attribute.Key("sluice.batch.size")
	attrOutcome    = attribute.Key("sluice.batch.outcome")
	attrWorker     = attribute.Key("sluice.worker")
	attrServiceMs  = attribute.Key("sluice.service_ms")
	attrPool       = attribute.Key("sluice.pool")
	attrService    = attribute.Key("service.name")
	attrInstance   = attribute.Key("service.instance.id")
	attrPod        = attribute.Key("k8s.pod.name")
	attrKubeNS     = attribute.Key("k8s.namespace.name")
	instrumentName = "sluice.dev/sluice"
)

// Names of metrics.
const (
	metricSpansExported = "sluice_trace_spans_exported_total"
	metricSpansDropped  = "sluice_trace_spans_dropped_total"
	metricSkipped       = "sluice_trace_requests_skipped_total"
)

// Values of the label reason of metricSpansDropped.
const (
	droppedFull   = "buffer_full"
	droppedExport = "export_failed"
)
