package batching

import (
	"testing"
	"time"

	"sluice.dev/sluice/internal/poolspec"
)

// What the zone sheds is this batcher's load: alone in its fleet, it counts on the whole fleet however much is
// shed before it.
func TestShedRequestsCountForTheShare(t *testing.T) {
	now := time.Unix(0, 0)
	c := NewCore(FromPool(poolspec.Default(), "b"), func(*Ticket) {})
	c.SetWorkers(now, []WorkerID{{Addr: "w0"}, {Addr: "w1"}})
	c.WorkerIdle(now, "w0")
	c.WorkerIdle(now, "w1")
	c.SetFleetLambda(1000) // of which 800 are shed
	for i := range 3000 {
		now = now.Add(time.Millisecond)
		if i%5 == 0 {
			_ = c.Enqueue(now, &Ticket{Request: Request{ID: "r", Input: "i"}})
		} else {
			c.Shed(now)
		}
		for c.Next(now) != nil {
		}
	}
	if s := c.Snapshot(now); s.MuShare < .95*s.Mu {
		t.Errorf("the batcher counts on %.0f/s of %.0f/s", s.MuShare, s.Mu)
	}
}
