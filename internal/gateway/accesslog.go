package gateway

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// accessLog writes a line for a part of the served requests and for each that was not served, of each kind at most
// perSecond a second, and says how many the bound left out: a log must not cost more than the requests it tells of,
// and a flood of refusals must not push out the answers, nor the other way. It never says what was asked, nor a key.
type accessLog struct {
	log     *slog.Logger
	percent uint32 // of the served
	served  lineRate
	refused lineRate
}

// lineRate admits at most perSecond lines a second.
type lineRate struct {
	perSecond int

	mu      sync.Mutex
	second  time.Time
	written int
	skipped uint64
}

// take says whether a line may be written now, and how many were left out since the last.
func (l *lineRate) take(now time.Time) (skipped uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.second) >= time.Second {
		l.second, l.written = now, 0
	}
	if l.written >= l.perSecond {
		l.skipped++
		return 0, false
	}
	l.written++
	skipped, l.skipped = l.skipped, 0
	return skipped, true
}

// wants says whether the request gets a line, and how many of its kind were left out before it.
func (l *accessLog) wants(served bool) (skipped uint64, ok bool) {
	rate := &l.refused
	if served {
		if l.percent < 100 && rand.Uint32N(100) >= l.percent {
			return 0, false
		}
		rate = &l.served
	}
	if l.log == nil || rate.perSecond <= 0 {
		return 0, false
	}
	return rate.take(time.Now())
}

func (l *accessLog) write(g *Gateway, x *exchange, ref *refusal, latency time.Duration) {
	skipped, ok := l.wants(ref == nil)
	if !ok {
		return
	}
	status, reason := x.outcome(ref)
	attrs := make([]slog.Attr, 0, 15)
	if ref != nil {
		attrs = append(attrs, slog.String("detail", ref.detail))
	} else {
		attrs = append(attrs, slog.Float64("queue_wait_ms", ms(x.result.QueueWait)), slog.Int("batch_size", x.result.BatchSize),
			slog.Int("attempts", x.result.Attempts), slog.String("batch_id", x.result.BatchID), slog.String("worker", x.result.Worker))
	}
	if x.degraded != nil && ref == nil {
		attrs = append(attrs, slog.Any("degraded", x.degradedList()))
	}
	attrs = append(attrs, slog.String("request_id", x.id), slog.String("api", x.codec.name()), slog.String("tenant", g.tenantName(x)),
		slog.String("tier", g.tierName(x)), slog.Int("status", status), slog.String("reason", string(reason)), slog.Float64("latency_ms", ms(latency)),
		slog.Bool("retry", x.retry), slog.Uint64("skipped", skipped))
	if id := x.trace.TraceID(); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	l.log.LogAttrs(x.r.Context(), slog.LevelInfo, "request", attrs...)
}
