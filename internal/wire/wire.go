// Package wire is the internal HTTP API: a batcher's call to a GPU worker, and what gateways, batchers and
// workers report to the operator. It is the only place that names these paths, headers and JSON fields.
//
// Only the pods of one pool speak it, over a port that NetworkPolicy closes to everybody else.
package wire

import "strconv"

// Paths of the internal API.
const (
	// PathBatch runs one batch on a worker: POST BatchRequest -> BatchResponse or Problem.
	PathBatch = "/internal/batch"
	// PathWorkerState is a worker's own view of itself: GET -> WorkerState.
	PathWorkerState = "/internal/state"
	// PathStats is what the operator scrapes from gateways and batchers: GET -> Stats.
	PathStats = "/internal/stats"
	// PathHealthz answers 200 while the process lives.
	PathHealthz = "/healthz"
	// PathReadyz answers 200 while the process wants traffic.
	PathReadyz = "/readyz"
)

// Ports. The public port serves clients; the internal one serves the operator (stats), the kubelet
// (probes) and Prometheus.
const (
	PortPublic   = 8080 // batcher and gateway: the pool's Service maps 80 to it
	PortTLS      = 8443 // the same over TLS: the Service maps 443 to it
	PortInternal = 8081 // batcher and gateway: stats, probes, metrics
	PortWorker   = 9000 // GPU worker: batches, state, probes, metrics
)

// Parameters are what a client may set for one request. Nil is "not set".
type Parameters struct {
	MaxTokens   *int     `json:"max_tokens,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	// Switch is a parameter that the pool sets, never the client: see Map.
	Switch *Switch `json:"switch,omitempty"`
}

// Switch is a parameter of the backend by which it leaves an optional path out.
type Switch struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// IsZero says that nothing is set.
func (p Parameters) IsZero() bool {
	return p.MaxTokens == nil && p.Temperature == nil && p.Switch == nil
}

// Map is what a backend gets: every parameter by its name, Switch among them. The Switch's true and false are
// booleans, whole numbers are integers, all else is a string.
func (p Parameters) Map() map[string]any {
	m := map[string]any{}
	if s := p.Switch; s != nil {
		n, err := strconv.ParseInt(s.Value, 10, 64)
		switch {
		case s.Value == "true" || s.Value == "false":
			m[s.Name] = s.Value == "true"
		case err == nil:
			m[s.Name] = n
		default:
			m[s.Name] = s.Value
		}
	}
	if p.MaxTokens != nil {
		m["max_tokens"] = *p.MaxTokens
	}
	if p.Temperature != nil {
		m["temperature"] = *p.Temperature
	}
	return m
}

// Item is one request of a batch.
type Item struct {
	RequestID  string      `json:"request_id"`
	Input      string      `json:"input"`
	Parameters *Parameters `json:"parameters,omitempty"`
}

// BatchRequest asks a worker to run one batch. BatchID is unique for ever: a worker that has seen it
// answers 409 with CodeDuplicate, so that no batch runs twice.
type BatchRequest struct {
	BatchID string `json:"batch_id"`
	// Parameters hold for the whole batch when the backend takes them per batch.
	Parameters *Parameters `json:"parameters,omitempty"`
	Requests   []Item      `json:"requests"`
}

// Status of one result.
const (
	StatusOK    = "ok"
	StatusError = "error"
)

// Usage counts the tokens of one request. Estimated says that the backend did not report them and they are
// an estimate of 4 bytes a token.
type Usage struct {
	PromptTokens     int  `json:"prompt_tokens"`
	CompletionTokens int  `json:"completion_tokens"`
	Estimated        bool `json:"estimated,omitempty"`
}

// Result is the answer to the Item at the same index.
type Result struct {
	RequestID string `json:"request_id"`
	Output    string `json:"output,omitempty"`
	Status    string `json:"status"`
	Error     string `json:"error,omitempty"` // with StatusError
	Usage     *Usage `json:"usage,omitempty"`
}

// BatchResponse answers a BatchRequest. Results has the length and order of the requests.
type BatchResponse struct {
	BatchID string   `json:"batch_id"`
	Results []Result `json:"results"`
	// ServiceMs is the time that the backend took, in milliseconds, by the worker's monotonic clock.
	ServiceMs float64 `json:"service_ms"`
}

// Codes of a Problem.
const (
	// CodeBusy: 409, another batch runs; RetryAfterMs says when the worker is likely to be free.
	CodeBusy = "busy"
	// CodeDuplicate: 409, the batch id was seen before; this call ran nothing.
	CodeDuplicate = "duplicate"
	// CodeDraining: 503, the worker is leaving; this call ran nothing.
	CodeDraining = "draining"
	// CodeNotReady: 503, the backend is not loaded yet or is being restarted; this call ran nothing.
	CodeNotReady = "not_ready"
	// CodeApplication: 500, the user's function raised; the worker is healthy.
	CodeApplication = "application"
	// CodeBackend: 502, the backend crashed, hung or broke the contract (wrong length, not strings).
	CodeBackend = "backend"
	// CodeInvalid: 400, the batch is malformed or too large.
	CodeInvalid = "invalid"
)

// Problem is a worker's refusal or failure of a whole batch.
type Problem struct {
	Code         string  `json:"code"`
	Message      string  `json:"message"`
	RetryAfterMs float64 `json:"retry_after_ms,omitempty"`
}

// States of a worker as it reports itself.
const (
	WorkerLoading  = "loading"
	WorkerIdle     = "idle"
	WorkerBusy     = "busy"
	WorkerDraining = "draining"
	WorkerFailed   = "failed" // the backend is down and being restarted
)

// WorkerState is a worker's own view of itself.
type WorkerState struct {
	State      string  `json:"state"`
	FreeInMs   float64 `json:"free_in_ms,omitempty"` // while busy
	Batches    uint64  `json:"batches"`
	Items      uint64  `json:"items"`
	BusyMs     uint64  `json:"busy_ms"`
	ParamsMode string  `json:"parameters_mode"` // item, batch or none
	Message    string  `json:"message,omitempty"`
}

// Stats is what a gateway or batcher reports when scraped. Counters only grow within one StartID; the
// reader takes differences over its own receive times and never reads a pod's clock.
type Stats struct {
	Version int    `json:"version"`
	Pod     string `json:"pod,omitempty"`
	PodUID  string `json:"pod_uid,omitempty"`
	// StartID is random for each start of the process: a change says that the counters began again.
	StartID string `json:"start_id"`

	Tiers []TierStats `json:"tiers"` // in the pool's order, highest first
	// Relayed counts the requests that standalone gateways handed to this batcher. They are in no counter of
	// Tiers that a gateway keeps (Offered, RefusedQuota): those gateways count them.
	Relayed uint64 `json:"relayed,omitempty"`

	QueueDepth   int     `json:"queue_depth"`
	QueueBytes   int64   `json:"queue_bytes"`
	OldestWaitMs float64 `json:"oldest_wait_ms"`
	Parked       int     `json:"parked"` // waiting or in a running batch

	// ServiceSamples says how many batches at least 80 % full were measured; below 20 the service times are
	// the configured prior.
	ServiceSamples uint64  `json:"service_samples"`
	ServiceP50Ms   float64 `json:"service_p50_ms"`
	ServiceP99Ms   float64 `json:"service_p99_ms"`
	GapMs          float64 `json:"gap_ms"` // between a worker finishing and its next batch

	Batches uint64 `json:"batches"` // sent and answered
	Items   uint64 `json:"items"`   // in those batches
	BusyMs  uint64 `json:"busy_ms"` // time that workers ran this batcher's batches
	Wasted  uint64 `json:"wasted"`  // items run whose client no longer waited

	// Poisoned counts requests whose input was found to fail the function, PoisonRefused those that were
	// answered so from memory, and LatestPoison says why the latest of the former failed.
	Poisoned      uint64 `json:"poisoned,omitempty"`
	PoisonRefused uint64 `json:"poison_refused,omitempty"`
	LatestPoison  string `json:"latest_poison,omitempty"`

	Workers []WorkerView `json:"workers"`

	// Zone is the zone that this gateway applies now: the worse of the fleet's and its own.
	Zone       string `json:"zone"`
	ZoneReason string `json:"zone_reason,omitempty"`
	// SignalGeneration is the generation of the last zone document read, 0 for none.
	SignalGeneration int64 `json:"signal_generation"`
	SignalStale      bool  `json:"signal_stale"`

	TLS *TLSStatus `json:"tls,omitempty"` // only of a pool with TLS

	Reroutes []RerouteProblem `json:"reroutes,omitempty"` // pools of degrade ladders with which something is wrong

	UnknownTierTenants []string `json:"unknown_tier_tenants,omitempty"` // tenants refused because the pool lacks their tier
}

// Problems of a pool that requests are handed to.
const (
	RerouteCAMissing = "ca_missing" // there is no file of those who may sign its certificate
	RerouteCAInvalid = "ca_invalid" // it has no certificate
	RerouteFailing   = "failing"    // requests handed to it did not help, and the next will not either
)

// RerouteProblem says what is wrong with another pool, as one gateway sees it.
type RerouteProblem struct {
	Pool    string `json:"pool"`
	Problem string `json:"problem"` // RerouteCAMissing, RerouteCAInvalid, RerouteFailing
	Message string `json:"message"`
}

// Problems of a certificate.
const (
	TLSMissing = "missing" // there are no files
	TLSInvalid = "invalid" // they are no usable pair
)

// TLSStatus says what certificate a gateway serves, in Unix seconds (0: none), and why not the one in its files.
type TLSStatus struct {
	NotBefore int64  `json:"not_before"`
	NotAfter  int64  `json:"not_after"`
	Problem   string `json:"problem,omitempty"` // TLSMissing, TLSInvalid
	Message   string `json:"message,omitempty"`
}

// TierStats are the counters of one tier. Offered counts first attempts that were wanted served: admitted
// plus refused for capacity. Refusals for quota and clients' retries are not demand.
type TierStats struct {
	Name            string `json:"name"`
	Offered         uint64 `json:"offered"`
	Admitted        uint64 `json:"admitted"`
	RefusedCapacity uint64 `json:"refused_capacity"` // zone, queue or feasibility: 429 and, for no live worker, 503
	RefusedQuota    uint64 `json:"refused_quota"`
	Served          uint64 `json:"served"`
	Expired         uint64 `json:"expired"`
	Cancelled       uint64 `json:"cancelled"`
	Failed          uint64 `json:"failed"`
	Queued          int    `json:"queued"`
}

// Views of a worker by a batcher.
const (
	ViewIdle      = "idle"
	ViewMine      = "mine"  // runs a batch of this batcher
	ViewOther     = "other" // runs a batch of another batcher
	ViewUnhealthy = "unhealthy"
	ViewDraining  = "draining"
)

// WorkerView is how one batcher sees one worker.
type WorkerView struct {
	Addr     string  `json:"addr"` // IP:port
	Pod      string  `json:"pod,omitempty"`
	State    string  `json:"state"`
	IdleMs   float64 `json:"idle_ms"` // since its last batch, while idle
	Failures uint64  `json:"failures"`
	Message  string  `json:"message,omitempty"`
}
