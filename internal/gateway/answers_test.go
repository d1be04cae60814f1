package gateway

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/quota"
)

// The table, row by row: what a client, a proxy and a pager see of every cause. A change here is a change of
// the API. Overload is 429: a proxy takes 503 for an outage.
func TestAnswers(t *testing.T) {
	want := map[Reason]struct {
		status int
		kind   string
	}{
		"invalid_json":           {400, "invalid_request_error"},
		"unknown_field":          {400, "invalid_request_error"},
		"invalid_request":        {400, "invalid_request_error"},
		"invalid_header":         {400, "invalid_request_error"},
		"empty_input":            {400, "invalid_request_error"},
		"unsupported_parameter":  {400, "invalid_request_error"},
		"missing_key":            {401, "authentication_error"},
		"wrong_key":              {401, "authentication_error"},
		"expired_key":            {401, "authentication_error"},
		"untrusted_source":       {401, "authentication_error"},
		"missing_tenant":         {401, "authentication_error"},
		"unknown_tier":           {403, "permission_error"},
		"not_found":              {404, "not_found_error"},
		"unknown_model":          {404, "not_found_error"},
		"method_not_allowed":     {405, "invalid_request_error"},
		"body_timeout":           {408, "timeout_error"},
		"input_too_large":        {413, "invalid_request_error"},
		"body_too_large":         {413, "invalid_request_error"},
		"cost_above_burst":       {413, "invalid_request_error"},
		"unsupported_media_type": {415, "invalid_request_error"},
		"input_failed":           {422, "invalid_request_error"},
		"quota_requests":         {429, "rate_limit_error"},
		"quota_tokens":           {429, "rate_limit_error"},
		"tier_quota_requests":    {429, "rate_limit_error"},
		"tier_quota_tokens":      {429, "rate_limit_error"},
		"shared_quota_requests":  {429, "rate_limit_error"},
		"shared_quota_tokens":    {429, "rate_limit_error"},
		"outside_hours":          {429, "rate_limit_error"},
		"shed":                   {429, "rate_limit_error"},
		"background_paused":      {429, "rate_limit_error"},
		"queue_full":             {429, "rate_limit_error"},
		"infeasible":             {429, "rate_limit_error"},
		"cancelled":              {499, "invalid_request_error"},
		"internal":               {500, "server_error"},
		"no_capacity":            {503, "server_error"},
		"second_failure":         {503, "server_error"},
		"draining":               {503, "server_error"},
		"expired":                {504, "timeout_error"},
	}
	for reason, w := range want {
		a, ok := answers[reason]
		if !ok || a.status != w.status || a.kind != w.kind || a.title == "" {
			t.Errorf("%s: %+v, want %d %s", reason, a, w.status, w.kind)
		}
		h := http.Header{}
		refusalHeaders(h, &refusal{reason: reason})
		retry := w.status == 429 || w.status == 503
		if has := h.Get("Retry-After") != "" && h.Get("retry-after-ms") != ""; has != retry {
			t.Errorf("%s (%d): Retry-After %q, retry-after-ms %q", reason, w.status, h.Get("Retry-After"), h.Get("retry-after-ms"))
		}
		if has := h.Get("WWW-Authenticate") != ""; has != (w.status == 401) {
			t.Errorf("%s (%d): WWW-Authenticate %q", reason, w.status, h.Get("WWW-Authenticate"))
		}
	}
	for reason := range answers {
		if _, ok := want[reason]; !ok {
			t.Errorf("%s has an answer that no test knows", reason)
		}
	}
	for _, c := range []batching.Cause{batching.QueueFull, batching.Infeasible, batching.NoCapacity, batching.SecondFailure, batching.Draining, batching.Expired, batching.InputFailed, batching.Cancelled} {
		if _, ok := answers[Reason(c)]; !ok {
			t.Errorf("the batcher's cause %s has no answer", c)
		}
	}
}

func TestRetryHeaders(t *testing.T) {
	for _, c := range []struct {
		name    string
		wait    time.Duration
		exact   bool
		u       float64
		seconds int
		millis  int
	}{
		{"capacity, least jitter", 8 * time.Second, false, 0, 6, 6000},
		{"capacity, most jitter", 8 * time.Second, false, 1, 10, 10000},
		{"a wait below a second", 100 * time.Millisecond, false, .5, 1, 100},
		{"an unknown wait", 0, false, .5, 1, 10},
		{"a wait of an hour", time.Hour, false, .5, 60, 60000},
		{"quota never comes earlier", 8 * time.Second, true, 0, 8, 8000},
		{"quota is spread to later only", 8 * time.Second, true, 1, 10, 8000},
		{"quota rounds up", 8*time.Second + 1, true, 0, 9, 8001},
		{"a whole minute", time.Minute, true, 1, 60, 60000},
	} {
		h := http.Header{}
		retryHeaders(h, &refusal{retryAfter: c.wait, exact: c.exact}, c.u)
		s, _ := strconv.Atoi(h.Get("Retry-After"))
		ms, _ := strconv.Atoi(h.Get("retry-after-ms"))
		if s != c.seconds || ms != c.millis {
			t.Errorf("%s: %d s, %d ms, want %d and %d", c.name, s, ms, c.seconds, c.millis)
		}
	}
}

func TestRateLimitHeaders(t *testing.T) {
	h := http.Header{}
	quotaHeaders(h, []quota.Level{{Of: quota.Requests, Limit: 120, Remaining: 119, FullIn: 500 * time.Millisecond}, {Of: quota.Tokens, Limit: 14000, Remaining: 0, FullIn: time.Minute}})
	want := []string{`"requests";r=119;t=1`, `"tokens";r=0;t=60`}
	if got := h.Values("RateLimit"); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("RateLimit %q", got)
	}
	if got := h.Values("RateLimit-Policy"); len(got) != 2 || got[0] != `"requests";q=120;w=60` || got[1] != `"tokens";q=14000;w=60` {
		t.Errorf("RateLimit-Policy %q", got)
	}
}
