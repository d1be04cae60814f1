package gateway

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

// Reason is why a request was not served: the stable word in answers, logs and metrics.
type Reason string

// Reasons of the gateway itself. Those of the batcher (queue_full, infeasible, no_capacity, ...) are
// batching's causes and appear unchanged, as do the zone's.
const (
	ReasonOK                   Reason = "ok"
	ReasonInvalidJSON          Reason = "invalid_json"
	ReasonUnknownField         Reason = "unknown_field"
	ReasonInvalidRequest       Reason = "invalid_request"
	ReasonInvalidHeader        Reason = "invalid_header"
	ReasonEmptyInput           Reason = "empty_input"
	ReasonUnsupportedParameter Reason = "unsupported_parameter"
	ReasonInputTooLarge        Reason = "input_too_large"
	ReasonBodyTooLarge         Reason = "body_too_large"
	ReasonBodyTimeout          Reason = "body_timeout"
	ReasonMediaType            Reason = "unsupported_media_type"
	ReasonNotFound             Reason = "not_found"
	ReasonMethod               Reason = "method_not_allowed"
	ReasonUnknownModel         Reason = "unknown_model"
	ReasonMissingKey           Reason = "missing_key"
	ReasonWrongKey             Reason = "wrong_key"
	ReasonExpiredKey           Reason = "expired_key"
	ReasonUntrusted            Reason = "untrusted_source"
	ReasonMissingTenant        Reason = "missing_tenant"
	ReasonUnknownTier          Reason = "unknown_tier"
	ReasonCostAboveBurst       Reason = "cost_above_burst"
	ReasonQuotaRequests        Reason = "quota_requests"
	ReasonQuotaTokens          Reason = "quota_tokens"
	ReasonTierRequests         Reason = "tier_quota_requests"
	ReasonTierTokens           Reason = "tier_quota_tokens"
	ReasonSharedRequests       Reason = "shared_quota_requests"
	ReasonSharedTokens         Reason = "shared_quota_tokens"
	ReasonHours                Reason = "outside_hours"
	ReasonShed                 Reason = zone.CauseShed
	ReasonPaused               Reason = zone.CausePaused
	ReasonInternal             Reason = "internal"
)

// answer is one row of the table from reason to what the client sees.
type answer struct {
	status int
	title  string
	// kind is the "type" of an error in OpenAI's shape.
	kind string
	// capacity says that the refusal is for want of capacity: it counts as offered load.
	capacity bool
}

// ofQuota says that a limit refused, not the pool.
func (r Reason) ofQuota() bool {
	switch r {
	case ReasonCostAboveBurst, ReasonQuotaRequests, ReasonQuotaTokens, ReasonTierRequests, ReasonTierTokens, ReasonSharedRequests, ReasonSharedTokens:
		return true
	}
	return false
}

// OpenAI's error types.
const (
	kindInvalid   = "invalid_request_error"
	kindAuth      = "authentication_error"
	kindForbidden = "permission_error"
	kindNotFound  = "not_found_error"
	kindRate      = "rate_limit_error"
	kindServer    = "server_error"
	kindTimeout   = "timeout_error"
)

// statusClientClosed is what logs and metrics say of a request whose client left; nothing is written.
const statusClientClosed = 499

// answers is the whole table: cause -> status -> headers. Shedding is 429, never 503: a proxy in front
// would take a 503 for an outage and eject a healthy pod. Every 429 and 503 carries Retry-After.
var answers = map[Reason]answer{
	ReasonInvalidJSON:          {400, "The body is not valid JSON", kindInvalid, false},
	ReasonUnknownField:         {400, "The body has a field that is not known", kindInvalid, false},
	ReasonInvalidRequest:       {400, "The request is not valid", kindInvalid, false},
	ReasonInvalidHeader:        {400, "A header is not valid", kindInvalid, false},
	ReasonEmptyInput:           {400, "The input is empty", kindInvalid, false},
	ReasonUnsupportedParameter: {400, "The backend does not take a parameter", kindInvalid, false},
	ReasonMissingKey:           {401, "A key is required", kindAuth, false},
	ReasonWrongKey:             {401, "The key is not known", kindAuth, false},
	ReasonExpiredKey:           {401, "The key has expired", kindAuth, false},
	ReasonUntrusted:            {401, "This address may not state a tenant", kindAuth, false},
	ReasonMissingTenant:        {401, "The trusted headers name no tenant", kindAuth, false},
	ReasonUnknownTier:          {403, "The pool has no such tier", kindForbidden, false},
	ReasonNotFound:             {404, "There is nothing here", kindNotFound, false},
	ReasonUnknownModel:         {404, "The model is not served here", kindNotFound, false},
	ReasonMethod:               {405, "The method is not allowed", kindInvalid, false},
	ReasonBodyTimeout:          {408, "The body did not arrive in time", kindTimeout, false},
	ReasonInputTooLarge:        {413, "The input is too large", kindInvalid, false},
	ReasonBodyTooLarge:         {413, "The body is too large", kindInvalid, false},
	ReasonCostAboveBurst:       {413, "The request costs more than the tenant's limit ever holds", kindInvalid, false},
	ReasonMediaType:            {415, "The body must be application/json", kindInvalid, false},
	ReasonQuotaRequests:        {429, "The tenant's requests per minute are used up", kindRate, false},
	ReasonQuotaTokens:          {429, "The tenant's tokens per minute are used up", kindRate, false},
	ReasonTierRequests:         {429, "The requests per minute of the tenant's tier are used up", kindRate, false},
	ReasonTierTokens:           {429, "The tokens per minute of the tenant's tier are used up", kindRate, false},
	ReasonSharedRequests:       {429, "The requests per minute that all tenants share are used up", kindRate, false},
	ReasonSharedTokens:         {429, "The tokens per minute that all tenants share are used up", kindRate, false},
	ReasonHours:                {429, "The tier is served in its hours, or while the pool is idle", kindRate, false},
	ReasonShed:                 {429, "The pool is overloaded and sheds load of this tier", kindRate, true},
	ReasonPaused:               {429, "Background work is paused while the pool is under load", kindRate, true},
	ReasonInternal:             {500, "Something is wrong in the gateway", kindServer, false},

	Reason(batching.InputFailed):   {422, "The function fails on this input", kindInvalid, false},
	Reason(batching.QueueFull):     {429, "The queue is full", kindRate, true},
	Reason(batching.Infeasible):    {429, "The request could not be answered in time", kindRate, true},
	Reason(batching.NoCapacity):    {503, "No worker is alive", kindServer, true},
	Reason(batching.SecondFailure): {503, "Two workers failed while they ran the request", kindServer, false},
	Reason(batching.Draining):      {503, "The batcher is going away", kindServer, true},
	Reason(batching.Expired):       {504, "The deadline passed before the request was answered", kindTimeout, false},
	Reason(batching.Cancelled):     {statusClientClosed, "The client went away", kindInvalid, false},
}

// refusal is why a step of the pipeline ended the request.
type refusal struct {
	reason     Reason
	detail     string        // for people: what exactly, and what to do
	param      string        // the field or header that is at fault, where one is
	retryAfter time.Duration // 429 and 503 only
	exact      bool          // retryAfter is exact: the same request passes then (quota); never earlier
	levels     []quota.Level // of the tenant's limits, where they were asked
}

func refuse(r Reason, format string, args ...any) *refusal {
	return &refusal{reason: r, detail: fmt.Sprintf(format, args...)}
}

// Error makes a refusal an error for tests and logs.
func (r *refusal) Error() string { return string(r.reason) + ": " + r.detail }

func (r *refusal) answer() answer {
	if a, ok := answers[r.reason]; ok {
		return a
	}
	return answers[ReasonInternal]
}

// problem is an RFC 9457 problem detail with the extension members reason and request_id.
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail,omitempty"`
	Reason    Reason `json:"reason"`
	Param     string `json:"param,omitempty"`
	RequestID string `json:"request_id"`
}

// writeProblem answers a refusal in the native API's shape.
func writeProblem(w http.ResponseWriter, requestID string, r *refusal) {
	a := r.answer()
	writeJSON(w, a.status, "application/problem+json", problem{
		Type: "urn:sluice:reason:" + string(r.reason), Title: a.title, Status: a.status, Detail: r.detail, Reason: r.reason,
		Param: r.param, RequestID: requestID,
	})
}

// Bounds of Retry-After in seconds. Below a second clients hammer, above a minute they give up.
const (
	retryMin = time.Second
	retryMax = time.Minute
)

// retryJitter is the part by which waits are spread, so that clients who were refused together do not come
// back together.
const retryJitter = 0.25

// retryHeaders sets Retry-After (whole seconds, rounded up, 1 to 60) and retry-after-ms. A capacity wait is
// spread by +-25 % in both; a quota wait is exact in milliseconds and only ever lengthened in seconds, beyond
// a minute too, since the same request passes at that time and not before. u is uniform in [0,1).
func retryHeaders(h http.Header, r *refusal, u float64) {
	wait := max(r.retryAfter, 0)
	ms := wait
	if r.exact {
		wait = time.Duration(float64(wait) * (1 + retryJitter*u))
	} else {
		wait = time.Duration(float64(max(wait, 10*time.Millisecond)) * (1 - retryJitter + 2*retryJitter*u))
		ms = min(wait, retryMax)
	}
	most := retryMax
	if r.exact {
		most = max(most, r.retryAfter)
	}
	wait = min(max(wait, retryMin), most)
	h.Set("Retry-After", strconv.FormatInt(ceilDiv(wait, time.Second), 10))
	h.Set("Retry-After-Ms", strconv.FormatInt(max(1, ceilDiv(ms, time.Millisecond)), 10))
}

func ceilDiv(d, unit time.Duration) int64 { return int64((d + unit - 1) / unit) }

// quotaHeaders sets the RateLimit fields of draft-ietf-httpapi-ratelimit-headers: what is left (r) and in how
// many seconds all of it is there again (t).
func quotaHeaders(h http.Header, levels []quota.Level) {
	for _, l := range levels {
		h.Add("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=60", l.Of, l.Limit))
		h.Add("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", l.Of, l.Remaining, ceilDiv(l.FullIn, time.Second)))
	}
}

// refusalHeaders sets the headers of a refusal that do not depend on the API.
func refusalHeaders(h http.Header, r *refusal) {
	switch r.answer().status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		retryHeaders(h, r, rand.Float64())
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="sluice"`)
	}
	if r.reason == ReasonBodyTooLarge || r.reason == ReasonBodyTimeout {
		h.Set("Connection", "close") // the rest of the body is not read
	}
	quotaHeaders(h, r.levels)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	buf := buffers.Get().(*bytes.Buffer)
	defer freeBuffer(buf)
	body, err := wire.AppendJSON(buf.AvailableBuffer(), v)
	if err != nil { // only strings and numbers are ever encoded
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	buf.Write(append(body, '\n'))
	h := w.Header() // these names are canonical already
	values := [...]string{contentType, strconv.Itoa(buf.Len())}
	h["Content-Type"], h["Content-Length"] = values[:1:1], values[1:]
	w.WriteHeader(status)
	_, _ = w.Write(buf.Bytes()) // the client may be gone
}

// buffers hold bodies while they are read or written. Large ones are left to the garbage collector.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const keptBuffer = 64 << 10

func freeBuffer(b *bytes.Buffer) {
	if b.Cap() <= keptBuffer {
		b.Reset()
		buffers.Put(b)
	}
}
