package batching

import (
	"testing"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// A fleet that was slow for a while (S over every latency target) and is fast again must be found out to be:
// admission must not refuse for ever what it has no means to measure.
func TestSlowFleetThatRecoversIsUsedAgain(t *testing.T) {
	p := poolspec.Default()
	now := time.Unix(0, 0)
	served := 0
	c := NewCore(FromPool(p, "b"), func(t *Ticket) {
		if t.Err == nil {
			served++
		}
	})
	c.SetWorkers(now, []WorkerID{{Addr: "w0"}})
	c.WorkerIdle(now, "w0")

	// One millisecond a step, two requests each: a worker is saturated whenever it takes over 50 ms a batch.
	var running *Batch
	var until time.Time
	service := 700 * time.Millisecond
	step := func() {
		now = now.Add(time.Millisecond)
		if running != nil && !now.Before(until) {
			results := make([]wire.Result, len(running.Tickets))
			for i, x := range running.Tickets {
				results[i] = wire.Result{RequestID: x.ID, Output: "o", Status: wire.StatusOK}
			}
			c.Finish(now, running, Outcome{Kind: Answered, Results: results})
			running = nil
		}
		for range 2 {
			x := &Ticket{Request: Request{ID: "r", Input: "i"}}
			_ = c.Enqueue(now, x)
			if b := c.Next(now); b != nil {
				running, until = b, now.Add(service)
			}
		}
	}
	for range 30_000 {
		step()
	}
	service = 40 * time.Millisecond
	for range 20_000 {
		step()
	}
	served = 0
	for range 5000 {
		step()
	}
	if served < 9000 {
		t.Errorf("five seconds of 2000/s, twenty seconds after the fleet recovered: %d served, want about 10000", served)
	}
}
