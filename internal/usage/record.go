// Package usage writes usage records: one JSON line for each request of a known tenant, for accounting and audit.
// It never delays a request: records wait in a bounded buffer, and what does not fit is dropped and counted.
package usage

import (
	"time"

	"sluice.dev/sluice/internal/wire"
)

// Schema is the first field of every record: it tells records from other lines of the same stream and names
// docs/schema/usage-record.schema.json.
const Schema = "sluice.dev/usage/v1"

// Outcomes of a request.
const (
	OutcomeServed    = "served"    // answered 200
	OutcomeRefused   = "refused"   // 4xx: by a limit, for want of capacity, or for what it asked
	OutcomeFailed    = "failed"    // 5xx: no worker, two failures, the deadline passed
	OutcomeCancelled = "cancelled" // the client left
)

// Record is one request. It never holds an input, an output or a key.
type Record struct {
	Schema    string    `json:"schema"`
	Time      time.Time `json:"time"` // of the arrival, UTC
	RequestID string    `json:"request_id"`
	Namespace string    `json:"namespace,omitempty"`
	Pool      string    `json:"pool"`
	Pod       string    `json:"pod,omitempty"` // the gateway's
	Tenant    string    `json:"tenant,omitempty"`
	Tier      string    `json:"tier"`
	API       string    `json:"api"`
	// Outcome is served, refused, failed or cancelled; Status and Reason are those of the answer, 499 and
	// cancelled when nobody read one.
	Outcome string `json:"outcome"`
	Status  int    `json:"status"`
	Reason  string `json:"reason"`
	// Tokens are what was used: 0 unless served. Estimated says that the backend did not report them.
	PromptTokens     int     `json:"prompt_tokens"`
	CompletionTokens int     `json:"completion_tokens"`
	Estimated        bool    `json:"estimated"`
	LatencyMs        float64 `json:"latency_ms"`
	QueueWaitMs      float64 `json:"queue_wait_ms"`
	Attempts         int     `json:"attempts"`
	BatchID          string  `json:"batch_id,omitempty"`
	// Degraded is how the request was degraded, as the Sluice-Degraded header says it. What another pool answered
	// is recorded there: here it has no tokens.
	Degraded []string `json:"degraded,omitempty"`
}

// OutcomeOf is the outcome that goes with a status.
func OutcomeOf(status int) string {
	switch {
	case status < 400:
		return OutcomeServed
	case status == 499:
		return OutcomeCancelled
	case status < 500:
		return OutcomeRefused
	}
	return OutcomeFailed
}

// appendLine appends r as one line of JSON.
func appendLine(b []byte, r *Record) []byte {
	r.Schema, r.Time = Schema, r.Time.UTC()
	line, err := wire.AppendJSON(b, r)
	if err != nil { // strings, numbers and a time only
		return b
	}
	return append(line, '\n')
}
