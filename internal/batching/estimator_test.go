package batching

import (
	"testing"
	"time"
)

const testMs = int64(time.Millisecond)

func newEstimator() *estimator {
	return &estimator{prior: 110 * testMs}
}

func TestThePriorHoldsUntilTwentySamples(t *testing.T) {
	e := newEstimator()
	for i := range int64(19) {
		e.add(i*50*testMs, 60*testMs, 100, 100)
	}
	if e.p50() != 110*testMs || e.timeout(500*time.Millisecond) != 500*time.Millisecond {
		t.Fatalf("p50 %d, timeout %v after 19", e.p50(), e.timeout(500*time.Millisecond))
	}
	e.add(19*50*testMs, 60*testMs, 80, 100)
	if e.p50() != 60*testMs || e.timeout(500*time.Millisecond) != 180*time.Millisecond {
		t.Fatalf("p50 %d, timeout %v after 20", e.p50(), e.timeout(500*time.Millisecond))
	}
}

func TestOutliersDoNotMoveTheEstimate(t *testing.T) {
	e := newEstimator()
	for i := range int64(200) {
		d := 100 * testMs
		if i%100 == 50 {
			d = 480 * testMs
		}
		e.add(i*50*testMs, d, 100, 100)
	}
	if e.p50() != 100*testMs || e.p99() != 100*testMs {
		t.Fatalf("p50 %d p99 %d", e.p50(), e.p99())
	}
}

func TestASlowDownIsFeltWithinASecond(t *testing.T) {
	for _, workers := range []int64{1, 4, 13} {
		e := newEstimator()
		at := int64(0)
		for range 100 {
			at += 100 * testMs / workers
			e.add(at, 100*testMs, 100, 100)
		}
		began := at
		for e.p50() < 290*testMs {
			at += 300 * testMs / workers
			e.add(at, 300*testMs, 100, 100)
			if at-began > 1000*testMs {
				t.Fatalf("%d workers: p50 %d after %d ms", workers, e.p50()/testMs, (at-began)/testMs)
			}
		}
	}
}

// Timeouts are samples too: else a fleet that became four times slower would time out for ever.
func TestTheTimeoutGrowsToASlowerFleet(t *testing.T) {
	cfg := testConfig()
	cfg.InferenceTimeout = 2 * time.Second
	w := newWorld(cfg, 4, 3)
	slow := false
	w.service = func(int) time.Duration {
		if slow {
			return 400 * time.Millisecond
		}
		return 100 * time.Millisecond
	}
	w.outcome = func(b *Batch) Outcome {
		if d := w.service(len(b.Tickets)); d > b.Timeout {
			return Outcome{Kind: TimedOut, Detail: "slow"}
		}
		return Outcome{Kind: Answered}
	}
	w.poisson(3500, 20*time.Second, func(int) Request { return Request{} })
	w.at(w.start.Add(5*time.Second), func() { slow = true })
	w.run(10 * time.Second)
	before := w.served
	w.run(20 * time.Second)
	got := float64(w.served-before) / 10
	t.Logf("served %.0f/s of 1000 after the fleet became slow; p99 %v", got, w.core.Snapshot(w.now).ServiceP99)
	if got < 900 {
		t.Errorf("served %.0f/s", got)
	}
}

// A function whose time grows with the batch: S is that of full batches, whatever the small ones take.
func TestTimeThatGrowsWithTheBatch(t *testing.T) {
	w := newWorld(testConfig(), 4, 3)
	w.service = func(n int) time.Duration { return time.Duration(20+n) * time.Millisecond }
	w.poisson(5000, 10*time.Second, func(int) Request { return Request{Deadline: w.now.Add(500 * time.Millisecond)} })
	w.run(10 * time.Second)
	s := w.core.Snapshot(w.now)
	rate := float64(w.served) / 10
	t.Logf("S %v, mu %.0f, served %.0f/s of %.0f, late %d", s.ServiceP50, s.Mu, rate, 4*100/0.12, w.late)
	if s.ServiceP50 != 120*time.Millisecond || rate < 0.95*4*100/0.12 || w.late > w.items/200 {
		t.Errorf("S %v, served %.0f/s, late %d", s.ServiceP50, rate, w.late)
	}
}

// While no batch is full, small ones that take longer than S says are proof that S is wrong.
func TestSmallBatchesLiftAPriorThatIsTooLow(t *testing.T) {
	e := newEstimator()
	for i := range int64(30) {
		e.add(i*100*testMs, 300*testMs, 3, 100)
	}
	if e.p50() != 300*testMs {
		t.Errorf("p50 %d ms", e.p50()/testMs)
	}
	for i := range int64(30) {
		e.add((30+i)*100*testMs, 10*testMs, 3, 100)
	}
	if e.p50() != 110*testMs {
		t.Errorf("p50 %d ms: small fast batches prove nothing about full ones", e.p50()/testMs)
	}
}

// The capacity follows workers that come and go at once.
func TestCapacityFollowsWorkers(t *testing.T) {
	w := newWorld(testConfig(), 4, 1)
	per := w.core.Snapshot(w.now).Mu / 4
	w.core.WorkerUnhealthy(w.now, "w1", "x")
	w.core.WorkerDraining(w.now, "w2")
	w.core.WorkerBusy(w.now, "w3", time.Second)
	if s := w.core.Snapshot(w.now); s.Live != 2 || s.Mu != 2*per {
		t.Errorf("%d live, mu %f", s.Live, s.Mu)
	}
	w.workers(0)
	if s := w.core.Snapshot(w.now); s.Live != 0 || s.Mu != 0 || s.Backlog != 0 {
		t.Errorf("%+v", s)
	}
	if w.submit(Request{}) != nil || w.causes[0][NoCapacity] != 1 {
		t.Errorf("%v", w.causes[0])
	}
}

func TestTheShareOfABatcher(t *testing.T) {
	w := newWorld(testConfig(), 10, 1)
	w.poisson(1000, 3*time.Second, func(int) Request { return Request{} })
	w.run(3 * time.Second)
	all := w.core.Snapshot(w.now).Mu
	for _, c := range []struct {
		name          string
		given, fleet  float64
		batchers      int
		share, muPart float64
	}{
		{"nothing known", 0, 0, 0, 1, 1},
		{"one of four", 0, 0, 4, 0.25, 0.25},
		{"own over fleet", 0, 100_000, 4, 0.01, 0.01},
		{"alone, whatever the fleet's count says", 0, 100_000, 1, 1, 1},
		{"more than the fleet's stale count", 0, 500, 2, 1, 1},
		{"the signal's share", 0.3, 100_000, 4, 0.3, 0.3},
		{"what the others leave is more", 0.3, 0.5 * all, 4, 0.3, 1 - 0.5*0.7},
	} {
		w.core.SetShare(c.given)
		w.core.SetFleetLambda(c.fleet)
		w.core.SetBatchers(c.batchers)
		share, mu := w.core.share(w.core.at(w.now)), w.core.Snapshot(w.now).MuShare/all
		if share < c.share*0.9 || share > c.share*1.1 || mu < c.muPart*0.9 || mu > c.muPart*1.1 {
			t.Errorf("%s: share %.3f, mu %.3f; want %.3f, %.3f", c.name, share, mu, c.share, c.muPart)
		}
	}
}
