package gateway

import (
	"log/slog"
	"sync"
	"time"
)

// accessLog writes at most perSecond lines a second and says how many it left out: a log must not cost more
// than the requests it tells of. It never says what was asked, nor a key.
type accessLog struct {
	log       *slog.Logger
	perSecond int

	mu      sync.Mutex
	second  time.Time
	written int
	skipped uint64
}

// take says whether a line may be written now, and how many were left out since the last.
func (l *accessLog) take(now time.Time) (skipped uint64, ok bool) {
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

func (l *accessLog) write(g *Gateway, x *exchange, ref *refusal, latency time.Duration) {
	if l.log == nil || l.perSecond <= 0 {
		return
	}
	skipped, ok := l.take(time.Now())
	if !ok {
		return
	}
	tier, status, reason := "", 200, ReasonOK
	if x.caller.tier >= 0 {
		tier = g.pool.Tiers[x.caller.tier].Name
	}
	attrs := make([]slog.Attr, 0, 14)
	if ref != nil {
		status, reason = ref.answer().status, ref.reason
		attrs = append(attrs, slog.String("detail", ref.detail))
	} else {
		attrs = append(attrs, slog.Float64("queue_wait_ms", ms(x.result.QueueWait)), slog.Int("batch_size", x.result.BatchSize),
			slog.Int("attempts", x.result.Attempts), slog.String("batch_id", x.result.BatchID), slog.String("worker", x.result.Worker))
	}
	attrs = append(attrs, slog.String("request_id", x.id), slog.String("api", x.codec.name()), slog.String("tenant", x.caller.tenant),
		slog.String("tier", tier), slog.Int("status", status), slog.String("reason", string(reason)), slog.Float64("latency_ms", ms(latency)),
		slog.Bool("retry", x.retry), slog.Uint64("skipped", skipped))
	l.log.LogAttrs(x.r.Context(), slog.LevelInfo, "request", attrs...)
}
