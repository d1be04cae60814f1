package zone

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	_ "time/tzdata" // the images have no time zone database

	"github.com/robfig/cron/v3"
)

// Hours is a window that opens by a cron schedule and stays open for a while: when an Internal tier is
// admitted though the pool is not idle. Safe for concurrent use.
type Hours struct {
	schedule cron.Schedule
	duration time.Duration
	last     atomic.Pointer[opening]
}

// opening is what holds from one instant up to another.
type opening struct {
	from, until time.Time
	open        bool
}

// ParseHours reads a schedule of five fields (minute, hour, day of month, month, day of week) by the clock of
// an IANA time zone. An empty zone is UTC.
func ParseHours(schedule, timeZone string, duration time.Duration) (*Hours, error) {
	loc, err := time.LoadLocation(timeZone)
	if err != nil {
		return nil, fmt.Errorf("timeZone: %w", err)
	}
	s, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(schedule)
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok || duration <= 0 || strings.Contains(schedule, "=") { // a zone has one place to stand in
		return nil, fmt.Errorf("schedule %q with duration %v opens no window", schedule, duration)
	}
	spec.Location = loc
	return &Hours{schedule: spec, duration: duration}, nil
}

// never stands for "no opening is known": the schedule names a day that does not exist.
const never = 24 * time.Hour

// Open says whether the window is open, and the time until that changes.
func (h *Hours) Open(now time.Time) (open bool, left time.Duration) {
	if o := h.last.Load(); o != nil && !now.Before(o.from) && now.Before(o.until) {
		return o.open, o.until.Sub(now)
	}
	o := opening{from: now}
	// The first opening after now - duration is the earliest that can still be open. (+1: an opening exactly
	// duration ago is over.)
	switch next := h.schedule.Next(now.Add(-h.duration)); {
	case next.IsZero():
		o.until = now.Add(never)
	case next.After(now):
		o.until = next
	default:
		o.open, o.until = true, next.Add(h.duration)
	}
	h.last.Store(&o)
	return o.open, o.until.Sub(now)
}

// idlePercent is the part of its capacity under which a pool counts as idle: a tenth of a full batch now and
// then is nobody's work delayed.
const idlePercent = 10

// Idle says that a pool has so little interactive work that Internal tiers are admitted outside their hours:
// Green, and the interactive requests offered a second are under a tenth of the capacity.
func Idle(n Name, interactiveOffered, capacity float64) bool {
	return n == Green && interactiveOffered*100 < capacity*idlePercent
}
