package wire

// The relay: a standalone gateway hands requests to a batcher over one connection, an HTTP/1.1 request that
// was upgraded (PathRelay, UpgradeRelay). From then on both sides send frames: see internal/relay.
const (
	// PathRelay is where a gateway asks a batcher for a relay: GET with Upgrade: UpgradeRelay -> 101.
	PathRelay = "/internal/relay"
	// UpgradeRelay names the protocol and its version. A batcher that does not know it answers 426.
	UpgradeRelay = "sluice-relay/1"
	// HeaderGateway names the gateway that asks.
	HeaderGateway = "Sluice-Gateway"
)

// PortRelay is a batcher's port for standalone gateways. It has no other use, so that NetworkPolicy can close
// it to everybody else: who reaches it chooses tiers.
const PortRelay = 8082

// Submission is one request on its way from a gateway to a batcher. Identity does not travel: of the caller a
// batcher learns the tier and an opaque flow key.
type Submission struct {
	RequestID string `json:"request_id"`
	// Tier by name: gateway and batcher may be of different rollouts, in which an index means another tier.
	Tier       string     `json:"tier"`
	Flow       string     `json:"flow,omitempty"`
	Input      string     `json:"input"`
	Parameters Parameters `json:"parameters,omitzero"`
	// RemainingUs is the time until the request's deadline, in microseconds: clocks are not compared between
	// pods.
	RemainingUs int64 `json:"remaining_us"`
	// TraceParent and TraceState are W3C Trace Context, of a request that is traced.
	TraceParent string `json:"traceparent,omitempty"`
	TraceState  string `json:"tracestate,omitempty"`
}

// SubmissionAnswer answers a Submission: with Cause "" the request was served.
type SubmissionAnswer struct {
	Output      string `json:"output,omitempty"`
	Usage       Usage  `json:"usage,omitzero"`
	QueueWaitUs int64  `json:"queue_wait_us,omitempty"` // at this batcher
	ServiceUs   int64  `json:"service_us,omitempty"`
	BatchSize   int    `json:"batch_size,omitempty"`
	Attempts    int    `json:"attempts,omitempty"`
	BatchID     string `json:"batch_id,omitempty"`
	Worker      string `json:"worker,omitempty"`

	// Cause is why there is no result, in batching's words.
	Cause        string `json:"cause,omitempty"`
	Detail       string `json:"detail,omitempty"`
	RetryAfterUs int64  `json:"retry_after_us,omitempty"`
}

// GatewayReport is what a gateway tells each batcher several times a second.
type GatewayReport struct {
	// Offered is the rate that the gateway sees, what its zone shed included, in requests/s.
	Offered float64 `json:"offered"`
}

// BatcherReport answers a GatewayReport: what a gateway needs for its own view of the fleet.
type BatcherReport struct {
	Offered float64 `json:"offered"` // of all gateways that are connected to the batcher, requests/s
	Live    int     `json:"live"`    // workers that the batcher sees alive: of the whole fleet
	Mu      float64 `json:"mu"`      // what they can serve, items/s
	Depth   int     `json:"depth"`   // requests that wait at this batcher
	Queued  []int   `json:"queued"`  // the same by tier, in the order of the batcher's document

	ServiceSamples uint64 `json:"service_samples"`
	ServiceUs      int64  `json:"service_us"` // median of a full batch, or its prior
}
