package v1alpha1

// UsageRecords says where usage records go.
// +kubebuilder:validation:Enum=Off;Stdout
type UsageRecords string

const (
	// UsageOff writes none.
	UsageOff UsageRecords = "Off"
	// UsageStdout writes them to the standard output of the pod that answers.
	UsageStdout UsageRecords = "Stdout"
)

// TenantNames says how logs, traces and usage records call a tenant.
// +kubebuilder:validation:Enum=Name;Pseudonym
type TenantNames string

const (
	// TenantsName calls a tenant by its name.
	TenantsName TenantNames = "Name"
	// TenantsPseudonym calls a tenant by an opaque key.
	TenantsPseudonym TenantNames = "Pseudonym"
)

// TelemetrySpec says what leaves the data plane about single requests. None of it ever holds an input, an output
// or a key, and none of it delays a request: what does not fit is dropped and counted.
type TelemetrySpec struct {
	// traces sends OpenTelemetry spans of requests and batches to a collector. Unset, there are none.
	// +optional
	Traces *TracesSpec `json:"traces,omitempty"`

	// accessLog bounds the lines that a batcher logs about single requests. Unset, every request is logged up to
	// 10 lines a second of served requests and 10 of others.
	// +optional
	AccessLog *AccessLogSpec `json:"accessLog,omitempty"`

	// usageRecords is Off or Stdout: one line of JSON for each request of a known tenant, for accounting, on the
	// standard output of the pod that answers (the log goes to standard error). Their schema is
	// docs/schema/usage-record.schema.json.
	// +optional
	// +kubebuilder:default="Off"
	UsageRecords UsageRecords `json:"usageRecords,omitempty"`

	// tenants is Name or Pseudonym: how access log, traces and usage records call a tenant. A pseudonym is the same
	// for the same tenant of the same pool and does not say which tenant that is; who knows a name can compute it.
	// +optional
	// +kubebuilder:default=Name
	Tenants TenantNames `json:"tenants,omitempty"`
}

// TracesSpec says where spans go and of which requests.
type TracesSpec struct {
	// endpoint is the OpenTelemetry collector, by OTLP over HTTP: http(s)://host:port, with a path unless that is
	// /v1/traces. Headers and certificates come from the standard variables OTEL_EXPORTER_OTLP_* in batchers.pod.env
	// and workers.pod.env.
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?$`
	Endpoint string `json:"endpoint"`

	// samplePercent is the part of the requests that is traced, of those whose client sends no traceparent. One with
	// a traceparent is traced exactly if that says so. At most 1,000 requests a second and pod are traced.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	SamplePercent *int32 `json:"samplePercent,omitempty"`
}

// AccessLogSpec bounds the access log.
type AccessLogSpec struct {
	// samplePercent is the part of the served requests that is logged. Those that were not served are always logged,
	// up to linesPerSecond.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	SamplePercent *int32 `json:"samplePercent,omitempty"`

	// linesPerSecond is the most lines a second and pod, for served requests and for others each, so that neither
	// pushes out the other. A line says how many were left out before it. 0 logs none.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	LinesPerSecond *int32 `json:"linesPerSecond,omitempty"`
}

// PlainHTTP says whether the Service's port 80 stays open beside 443.
// +kubebuilder:validation:Enum=Closed;Open
type PlainHTTP string

const (
	// PlainHTTPClosed closes port 80.
	PlainHTTPClosed PlainHTTP = "Closed"
	// PlainHTTPOpen keeps port 80.
	PlainHTTPOpen PlainHTTP = "Open"
)

// TLSSpec says with which certificate the pool's Service is served on port 443.
type TLSSpec struct {
	// secretName names a Secret of the pool's namespace with the keys tls.crt (the certificate and its
	// intermediates) and tls.key, as of type kubernetes.io/tls. The kubelet mounts it; the operator has no right to
	// read it. A change is served within about a minute, and no connection is dropped. While the Secret is not there
	// or cannot be used, new pods wait unready and old ones serve on; the condition CertificateCurrent says so.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	SecretName string `json:"secretName"`

	// plainHTTP is Closed or Open: Open keeps port 80 beside 443, for the time in which clients move. Keys that are
	// sent there can be read on the way.
	// +optional
	// +kubebuilder:default=Closed
	PlainHTTP PlainHTTP `json:"plainHTTP,omitempty"`
}
