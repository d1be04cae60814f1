package gateway

import (
	"fmt"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/zone"
)

// newHours returns the hours of each tier, nil for one without.
func newHours(p poolspec.Pool) ([]*zone.Hours, error) {
	out := make([]*zone.Hours, len(p.Tiers))
	for i, t := range p.Tiers {
		if t.Hours == nil {
			continue
		}
		h, err := zone.ParseHours(t.Hours.Schedule, t.Hours.TimeZone, t.Hours.Duration.D())
		if err != nil {
			return nil, fmt.Errorf("tiers[%d].hours: %w", i, err)
		}
		out[i] = h
	}
	return out, nil
}

// checkHours refuses an Internal tier outside its hours unless the pool is idle. It is no demand: the pool is
// not made larger for it.
func (g *Gateway) checkHours(x *exchange) *refusal {
	h := g.hours[x.caller.tier]
	if h == nil {
		return nil
	}
	open, left := h.Open(x.wall)
	if open || g.zone.view(time.Now()).idle {
		return nil
	}
	r := refuse(ReasonHours, "tier %s is served in its hours, which begin in %v, or while the pool is idle", g.pool.Tiers[x.caller.tier].Name, left.Round(time.Second))
	r.retryAfter = left // at most a minute is said: by then the pool may be idle
	return r
}
