package fleet

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// scraped is a batcher under a load, scraped every Interval by a manager that is late now and then.
type scraped struct {
	s     series
	now   time.Time // when the next scrape is sent
	count float64
	at    time.Time // of the last report
}

// report scrapes once: the report is made before after the request was sent, and read late after that.
func (c *scraped) report(perSecond float64, before, late time.Duration) float64 {
	made := c.now.Add(before)
	if !c.at.IsZero() {
		c.count += perSecond * made.Sub(c.at).Seconds()
	}
	c.at = made
	c.s.add(c.now, made.Add(late), wire.Stats{StartID: "1", Tiers: []wire.TierStats{{Name: "free", Offered: uint64(c.count)}}})
	c.now = c.now.Add(Interval)
	return c.s.rates.offered
}

// A processor that the manager does not get must not look like load: answers that are read up to 400 ms late
// made rates 20 % wrong, and 219 writes of statuses and zone documents in two minutes of 200 steady pools.
func TestAnswersReadLateAreNoNoise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	c := scraped{now: time.Unix(1000, 0)}
	c.report(1000, time.Millisecond, time.Millisecond)
	c.report(1000, time.Millisecond, time.Millisecond)
	for i := range 1000 {
		var before, late time.Duration
		if r.IntN(2) == 0 {
			before, late = time.Duration(r.IntN(200))*time.Millisecond, time.Duration(r.IntN(400))*time.Millisecond
		}
		if got := c.report(1000, before, late); math.Abs(got-1000) > 50 {
			t.Fatalf("scrape %d, %s on its way and read %s late: %.0f/s of 1000/s", i, before, late, got)
		}
	}
}

// What timing cannot explain is believed at once.
func TestAStepIsSeenOnTheNextScrape(t *testing.T) {
	c := scraped{now: time.Unix(1000, 0)}
	for range 10 {
		c.report(1000, time.Millisecond, 2*time.Millisecond)
	}
	if got := c.report(3000, time.Millisecond, 2*time.Millisecond); math.Abs(got-3000) > 30 {
		t.Errorf("%.0f/s of 3000/s", got)
	}
	if got := c.report(500, time.Millisecond, 300*time.Millisecond); got < 480 || got > 620 {
		t.Errorf("%.0f/s of 500/s, of an answer read 300 ms late", got)
	}
}

// An error within the bounds does not stay: a manager that is always slow finds a small change too.
func TestASlowManagerFindsASmallChange(t *testing.T) {
	c := scraped{now: time.Unix(1000, 0)}
	for range 10 {
		c.report(1000, 100*time.Millisecond, 300*time.Millisecond)
	}
	var got float64
	for range 10 {
		got = c.report(1150, 100*time.Millisecond, 300*time.Millisecond)
	}
	if math.Abs(got-1150) > 30 {
		t.Errorf("%.0f/s of 1150/s after ten scrapes", got)
	}
}
