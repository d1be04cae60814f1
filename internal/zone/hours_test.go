package zone

import (
	"testing"
	"time"
)

func TestHours(t *testing.T) {
	at := func(s string) time.Time {
		x, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, c := range []struct {
		schedule, zone string
		duration       time.Duration
		now            string
		open           bool
		left           time.Duration
	}{
		{"0 22 * * *", "UTC", 8 * time.Hour, "2026-03-10T21:59:00Z", false, time.Minute},
		{"0 22 * * *", "UTC", 8 * time.Hour, "2026-03-10T22:00:00Z", true, 8 * time.Hour},
		{"0 22 * * *", "UTC", 8 * time.Hour, "2026-03-11T05:59:59Z", true, time.Second},
		{"0 22 * * *", "UTC", 8 * time.Hour, "2026-03-11T06:00:00Z", false, 16 * time.Hour},
		{"0 22 * * *", "", 8 * time.Hour, "2026-03-11T01:00:00Z", true, 5 * time.Hour},
		// 22:00 in Berlin is 21:00 UTC in winter, 20:00 in summer.
		{"0 22 * * *", "Europe/Berlin", time.Hour, "2026-01-10T21:30:00Z", true, 30 * time.Minute},
		{"0 22 * * *", "Europe/Berlin", time.Hour, "2026-07-10T20:30:00Z", true, 30 * time.Minute},
		{"0 22 * * *", "Europe/Berlin", time.Hour, "2026-07-10T21:30:00Z", false, 22*time.Hour + 30*time.Minute},
		// Weekends alone: Saturday from midnight, two days.
		{"0 0 * * 6,0", "UTC", 24 * time.Hour, "2026-03-14T12:00:00Z", true, 12 * time.Hour},
		{"0 0 * * 6,0", "UTC", 24 * time.Hour, "2026-03-13T12:00:00Z", false, 12 * time.Hour},
		{"30 2 31 2 *", "UTC", time.Hour, "2026-03-13T12:00:00Z", false, never}, // a day that never comes
	} {
		h, err := ParseHours(c.schedule, c.zone, c.duration)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second answer is remembered
			if open, left := h.Open(at(c.now)); open != c.open || left != c.left {
				t.Errorf("%q %s for %v at %s: open %v, %v left, want %v, %v", c.schedule, c.zone, c.duration, c.now, open, left, c.open, c.left)
			}
		}
	}
}

// What is remembered is right at every minute of a week.
func TestHoursRemembersRightly(t *testing.T) {
	h, err := ParseHours("15 1,13 * * 1-5", "America/New_York", 90*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	loc, _ := time.LoadLocation("America/New_York")
	for now := time.Date(2026, 3, 6, 0, 0, 0, 0, time.UTC); now.Before(time.Date(2026, 3, 13, 0, 0, 0, 0, time.UTC)); now = now.Add(time.Minute) {
		l := now.In(loc)
		minute := l.Hour()*60 + l.Minute()
		want := l.Weekday() >= 1 && l.Weekday() <= 5 && (minute >= 75 && minute < 165 || minute >= 795 && minute < 885)
		if open, _ := h.Open(now); open != want {
			t.Fatalf("%s: open %v", l, open)
		}
	}
}

func TestHoursThatMeanNothing(t *testing.T) {
	for _, c := range [][2]string{{"", "UTC"}, {"0 22 * *", "UTC"}, {"0 25 * * *", "UTC"}, {"@daily", "UTC"}, {"0 22 * * *", "Mars/Olympus"}, {"0 5-3 * * *", "UTC"}, {"CRON_TZ=UTC 0 1 * * *", "UTC"}} {
		if _, err := ParseHours(c[0], c[1], time.Hour); err == nil {
			t.Errorf("%q %q was taken", c[0], c[1])
		}
	}
	if _, err := ParseHours("0 1 * * *", "UTC", 0); err == nil {
		t.Error("a window of no length was taken")
	}
}

func TestIdle(t *testing.T) {
	for _, c := range []struct {
		zone     Name
		offered  float64
		capacity float64
		want     bool
	}{{Green, 0, 900, true}, {Green, 89, 900, true}, {Green, 90, 900, false}, {Yellow, 0, 900, false}, {Green, 0, 0, false}} {
		if got := Idle(c.zone, c.offered, c.capacity); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func FuzzHours(f *testing.F) {
	for _, s := range []string{"0 22 * * 1-5", "*/15 * * * *", "30 2 31 2 *", "0 0 29 2 *", "@daily", ""} {
		f.Add(s, "Europe/Berlin", int64(8*time.Hour), int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, schedule, zone string, duration, at int64) {
		h, err := ParseHours(schedule, zone, time.Duration(duration))
		if err != nil {
			return
		}
		now := time.Unix(at%4_000_000_000, 0)
		if _, left := h.Open(now); left <= 0 {
			t.Errorf("%q %q %v at %v: %v left", schedule, zone, time.Duration(duration), now, left)
		}
	})
}
