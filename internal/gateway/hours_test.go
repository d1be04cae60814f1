package gateway

import (
	"strconv"
	"testing"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/zone"
)

// internalTier makes the free tier Internal, from 22:00 to 06:00. A test's clock begins at midnight UTC.
func internalTier(p *poolspec.Pool) {
	p.Tiers[2].Background = true
	p.Tiers[2].Hours = &poolspec.Hours{Schedule: "0 22 * * *", Duration: poolspec.Duration(8 * time.Hour), TimeZone: "UTC"}
}

// An Internal tier is served in its hours; outside them only while there is hardly any interactive work.
func TestInternalTierHasHours(t *testing.T) {
	inFake(t, internalTier, func(t *testing.T, r *rig, e *fakeEngine) {
		e.set(func(s *batching.Snapshot) { // what Internal has waiting does not matter
			s.Tiers = []batching.TierSnapshot{{}, {}, {Queued: 500}}
			s.Depth = 500
		})
		busy := func() { // over a tenth of the capacity in interactive requests
			r.Gateway.identity.defaultTier = 0
			for range 200 {
				r.post(t, "/v1/inference", hello)
				time.Sleep(10 * time.Millisecond)
			}
			r.Gateway.identity.defaultTier = 2
		}
		busy()
		if w := r.post(t, "/v1/inference", hello); w.Code != 200 {
			t.Errorf("at midnight: %d %s", w.Code, w.Body)
		}
		time.Sleep(6*time.Hour - time.Minute - 4*time.Second)
		busy()
		if w := r.post(t, "/v1/inference", hello); w.Code != 200 {
			t.Errorf("at 05:59: %d %s", w.Code, w.Body)
		}
		time.Sleep(time.Minute)
		busy()
		w := r.post(t, "/v1/inference", hello)
		w.want(429, "outside_hours")
		if s, _ := strconv.Atoi(w.Header().Get("Retry-After")); s < 45 || s > 60 {
			t.Errorf("Retry-After %d, want about the longest", s)
		}
		offered := r.Stats().Tiers[2].Offered
		time.Sleep(5 * time.Second)
		if w := r.post(t, "/v1/inference", hello); w.Code != 200 {
			t.Errorf("idle at noon, with internal work waiting: %d %s", w.Code, w.Body)
		}
		if offered != 2 {
			t.Errorf("%d offered: a refusal outside the hours is no demand", offered)
		}
		busy()
		r.post(t, "/v1/inference", hello).want(429, "outside_hours")
		// Near the opening the wait is the time until then.
		now := time.Now().UTC()
		time.Sleep(time.Date(now.Year(), now.Month(), now.Day(), 21, 59, 48, 0, time.UTC).Sub(now))
		busy()
		w = r.post(t, "/v1/inference", hello)
		w.want(429, "outside_hours")
		if s, _ := strconv.Atoi(w.Header().Get("Retry-After")); s < 7 || s > 13 {
			t.Errorf("Retry-After %d ten seconds before the window opens", s)
		}
		// In the hours it still pauses in Yellow, as Background does.
		time.Sleep(time.Minute)
		r.SetSignal(signal(zone.Yellow, zone.ReasonBacklogHigh, 0))
		r.post(t, "/v1/inference", hello).want(429, "background_paused")
	})
}

// What Background and Internal tiers have waiting is nobody's backlog: it moves no zone.
func TestBackgroundQueueMovesNoZone(t *testing.T) {
	inFake(t, func(p *poolspec.Pool) { p.Tiers[2].Background = true }, func(t *testing.T, r *rig, e *fakeEngine) {
		e.set(func(s *batching.Snapshot) {
			s.Tiers = []batching.TierSnapshot{{}, {}, {Queued: 5000}}
			s.Depth, s.Backlog = 5000, 5*time.Second
		})
		time.Sleep(2 * time.Second)
		if w := r.post(t, "/v1/inference", hello); w.Code != 200 || r.Stats().Zone != "Green" {
			t.Errorf("%d, zone %s", w.Code, r.Stats().Zone)
		}
		e.set(func(s *batching.Snapshot) { s.Tiers[0].Queued = 500 })
		time.Sleep(2 * time.Second)
		if z := r.Stats().Zone; z != "Yellow" {
			t.Errorf("zone %s with an interactive backlog of 555 ms", z)
		}
	})
}
