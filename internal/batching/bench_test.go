package batching

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkAdmission measures decisions a second with 5,000 requests waiting in 100 flows of three tiers:
// each iteration admits one request and cancels it. The goal is 200,000 a second.
func BenchmarkAdmission(b *testing.B) {
	cfg := testConfig()
	cfg.MaxDepth = 10_000
	for i := range cfg.Tiers {
		cfg.Tiers[i].LatencyTarget, cfg.Tiers[i].Timeout = time.Hour, time.Hour
	}
	c := NewCore(cfg, func(*Ticket) {})
	now := time.Now()
	ids := []WorkerID{}
	for i := range 16 {
		ids = append(ids, WorkerID{Addr: fmt.Sprint("w", i)})
	}
	c.SetWorkers(now, ids)
	for _, id := range ids {
		c.WorkerIdle(now, id.Addr)
	}
	flows := make([]string, 100)
	for i := range flows {
		flows[i] = fmt.Sprint("tenant-", i)
	}
	admit := func(i int, t *Ticket) {
		t.Request = Request{ID: "r", Tier: i % 3, Flow: flows[i%len(flows)], Input: "some input"}
		if err := c.Enqueue(now, t); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 5000 + 16*100 { // the workers take their part and stay busy
		admit(i, &Ticket{})
		c.Next(now)
		now = now.Add(time.Millisecond)
	}
	if c.depth < 5000 || c.idle > 0 {
		b.Fatalf("%d waiting, %d idle", c.depth, c.idle)
	}
	t := &Ticket{}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		now = now.Add(time.Millisecond)
		admit(i, t)
		c.Next(now)
		c.Wake(now)
		c.Cancel(t, Cancelled)
		t.Reset()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}

// BenchmarkCore measures a request's whole way through the core at the design load, in virtual time.
func BenchmarkCore(b *testing.B) {
	w := newWorld(testConfig(), 13, 1)
	w.poisson(10000, time.Duration(float64(b.N)/10000*1e9), func(int) Request { return Request{} })
	b.ReportAllocs()
	b.ResetTimer()
	w.run(time.Duration(float64(b.N)/10000*1e9) + time.Second)
	b.ReportMetric(float64(w.served)/b.Elapsed().Seconds(), "requests/s")
}
