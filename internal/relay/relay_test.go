package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/rendezvous"
)

const long = 2 * time.Second

// Each request goes to the batcher that rendezvous hashing of its id names; one with a Route to that of the
// Route; a batcher that is no longer named moves only what it owned.
func TestRequestsGoToTheirOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		all := f.add(3)
		names := []string{"b0", "b1", "b2"}
		owner := func(among []string) {
			t.Helper()
			var waiting []<-chan outcome
			for i := range 60 {
				waiting = append(waiting, f.ask(t.Context(), fmt.Sprint("r", i), long))
			}
			for _, w := range waiting {
				o := <-w
				if want := among[rendezvous.Pick(o.id, among)] + ":in-" + o.id; o.err != nil || o.res.Output != want {
					t.Errorf("%s: %q, %v; want %q", o.id, o.res.Output, o.err, want)
				}
			}
		}
		owner(names)
		f.name(all[1])
		owner([]string{"b0", "b2"})
		f.name()
		owner(names)

		var at []string
		for i := range 5 {
			res, err := f.client.Submit(t.Context(), batching.Request{ID: fmt.Sprint("other", i), Route: "key-7"})
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, res.Output[:2])
		}
		if want := names[rendezvous.Pick("key-7", names)]; strings.Join(at, "") != strings.Repeat(want, 5) {
			t.Errorf("one Route went to %v, want %s", at, want)
		}
	})
}

// What comes back over the hop is what the engine said, times and all.
func TestAnswersAreTheEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		b := f.add(1)[0]
		time.Sleep(70 * time.Millisecond)
		o := <-f.ask(t.Context(), "r", long)
		r := o.res
		if o.err != nil || r.Output != "b0:in-r" || r.Usage.PromptTokens != 3 || r.Usage.CompletionTokens != 4 || r.BatchSize != 1 || r.Attempts != 1 ||
			r.Worker != "wb0" || r.BatchID == "" || r.Service != 100*time.Millisecond || r.QueueWait > 40*time.Millisecond || r.QueueWait+r.Service != o.took {
			t.Errorf("%+v, %v after %v", r, o.err, o.took)
		}
		b.batcher.WorkerUnhealthy("wb0", "gone")
		if o := <-f.ask(t.Context(), "r2", long); o.cause() != batching.NoCapacity || o.took != 0 {
			t.Errorf("without workers: %v after %v", o.err, o.took)
		}
	})
}

// The deadline travels as the time that is left: an expired request is answered on time.
func TestDeadlineHoldsAcrossTheHop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		b := f.add(1)[0]
		b.runFor = 450 * time.Millisecond
		first := f.ask(t.Context(), "first", long)
		time.Sleep(50 * time.Millisecond)
		o := <-f.ask(t.Context(), "late", 390*time.Millisecond) // feasible by the prior of 110 ms, not in truth
		if o.cause() != batching.Expired || o.took > 390*time.Millisecond {
			t.Errorf("%v after %v, want expired within 390 ms", o.err, o.took)
		}
		if o := <-first; o.err != nil {
			t.Error(o.err)
		}
	})
}

// A client that leaves takes its request out of the batcher's queue at once, and so does a gateway that dies.
func TestCancelLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		b := f.add(1)[0]
		running := f.ask(t.Context(), "running", long)
		time.Sleep(50 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		waiting := f.ask(ctx, "waiting", long)
		synctest.Wait()
		if n := b.batcher.Snapshot().Depth; n != 1 {
			t.Fatalf("%d wait", n)
		}
		cancel()
		synctest.Wait()
		if o := <-waiting; o.cause() != batching.Cancelled || o.took != 0 {
			t.Errorf("%v after %v", o.err, o.took)
		}
		if s := b.batcher.Snapshot(); s.Depth != 0 || s.Bytes != 0 {
			t.Errorf("still in the queue: %+v", s)
		}
		if o := <-running; o.err != nil {
			t.Error(o.err)
		}
		running = f.ask(t.Context(), "running2", long)
		time.Sleep(50 * time.Millisecond)
		waiting = f.ask(t.Context(), "waiting2", long)
		synctest.Wait()
		if n := b.batcher.Snapshot().Depth; n != 1 {
			t.Fatalf("%d wait", n)
		}
		f.client.Close()
		synctest.Wait()
		if s := b.batcher.Snapshot(); s.Depth != 0 {
			t.Errorf("the gateway is gone and %d still wait", s.Depth)
		}
		<-running
		<-waiting
	})
}

// A batcher dies with requests waiting and running: each is sent once more, to another, and answered; none
// gets another's answer.
func TestDeathReroutesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		all := f.add(2)
		var waiting []<-chan outcome
		for i := range 40 {
			waiting = append(waiting, f.ask(t.Context(), fmt.Sprint("r", i), long))
		}
		time.Sleep(20 * time.Millisecond)
		for i := range 40 {
			waiting = append(waiting, f.ask(t.Context(), fmt.Sprint("s", i), long))
		}
		time.Sleep(30 * time.Millisecond)
		all[0].kill()
		moved := 0
		for _, w := range waiting {
			o := <-w
			if o.err != nil || o.res.Output != "b1:in-"+o.id {
				t.Errorf("%s: %q, %v", o.id, o.res.Output, o.err)
			}
			if rendezvous.Pick(o.id, []string{"b0", "b1"}) == 0 {
				moved++
			}
		}
		if n := f.client.rerouted.Load(); moved == 0 || n != uint64(moved) {
			t.Errorf("%d re-routes, %d requests were the dead batcher's", n, moved)
		}
	})
}

// The second batcher dies too: a clean failure, no third attempt.
func TestSecondDeathIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		all := f.add(3)
		w := f.ask(t.Context(), "r", long)
		for range 2 {
			time.Sleep(50 * time.Millisecond)
			for _, b := range all {
				if b.batcher.Snapshot().Parked > 0 && b.up() {
					b.kill()
					break
				}
			}
		}
		o := <-w
		if o.cause() != batching.SecondFailure || o.took != 100*time.Millisecond {
			t.Errorf("%v after %v", o.err, o.took)
		}
		total := 0
		for _, b := range all {
			total += len(b.ran())
		}
		if total > 2 {
			t.Errorf("ran %d times", total)
		}
	})
}

// A re-route keeps the request's deadline: what cannot be done in time any more is no success.
func TestRerouteKeepsTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		for _, b := range f.add(2) {
			b.runFor = 250 * time.Millisecond
		}
		w := f.ask(t.Context(), "r", 300*time.Millisecond)
		time.Sleep(240 * time.Millisecond)
		for _, b := range f.batchers {
			if len(b.ran()) > 0 {
				b.kill()
			}
		}
		o := <-w
		if o.cause() != batching.SecondFailure && o.cause() != batching.Expired || o.took > 300*time.Millisecond {
			t.Errorf("%v after %v", o.err, o.took)
		}
	})
}

// Batchers that refuse connections or are leaving cost a request nothing: with one of five left it is served,
// and its re-route is still there.
func TestRefusalSpendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		all := f.add(5)
		for _, b := range all[:2] {
			b.kill()
		}
		for _, b := range all[2:4] {
			go func() { _ = b.batcher.Drain(context.Background()) }() // admits nothing; its gateways were not told
		}
		synctest.Wait()
		var waiting []<-chan outcome
		for i := range 50 {
			waiting = append(waiting, f.ask(t.Context(), fmt.Sprint("r", i), long))
		}
		for _, w := range waiting {
			if o := <-w; o.err != nil || !strings.HasPrefix(o.res.Output, "b4:") {
				t.Errorf("%s: %q, %v", o.id, o.res.Output, o.err)
			}
		}
		if n := f.client.rerouted.Load(); n != 0 {
			t.Errorf("%d re-routes were spent", n)
		}
		all[4].kill()
		synctest.Wait()
		o := <-f.ask(t.Context(), "none", long)
		if o.cause() != batching.NoCapacity || o.took != 0 {
			t.Errorf("nobody takes it: %v after %v", o.err, o.took)
		}
	})
}

// A batcher that is frozen (its node is lost, say) is given up after a second, and its requests go elsewhere.
func TestSilentBatcherIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		all := f.add(2)
		thaw := all[0].freeze()
		defer thaw()
		var waiting []<-chan outcome
		for i := range 20 {
			waiting = append(waiting, f.ask(t.Context(), fmt.Sprint("r", i), long))
		}
		for _, w := range waiting {
			o := <-w
			if o.err != nil || !strings.HasPrefix(o.res.Output, "b1:") || o.took > deadAfter+300*time.Millisecond {
				t.Errorf("%s: %q, %v after %v", o.id, o.res.Output, o.err, o.took)
			}
		}
	})
}

// One that is frozen for less time than that loses nothing; but a request whose deadline passes meanwhile is
// answered a moment after it, not when the batcher wakes up.
func TestFrozenBatcherCannotHoldADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		b := f.add(1)[0]
		thaw := b.freeze()
		short, patient := f.ask(t.Context(), "short", 300*time.Millisecond), f.ask(t.Context(), "patient", long)
		o := <-short
		if o.cause() != batching.Expired || o.took != 300*time.Millisecond+lateBy {
			t.Errorf("%v after %v", o.err, o.took)
		}
		time.Sleep(300 * time.Millisecond)
		thaw()
		if o := <-patient; o.err != nil {
			t.Error(o.err)
		}
	})
}

// A rollout of batchers: told to leave, each gets no new request, answers what it has, and goes; requests all
// the while, nothing lost, no re-route spent.
func TestRolloutLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		old := f.add(2)
		ctx, stop := context.WithCancel(t.Context())
		var waiting []<-chan outcome
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			for i := 0; ctx.Err() == nil; i++ {
				waiting = append(waiting, f.ask(t.Context(), fmt.Sprint("r", i), long))
				time.Sleep(5 * time.Millisecond)
			}
		}()
		for _, b := range old {
			f.add(1)
			time.Sleep(200 * time.Millisecond)
			b.server.Leaving() // SIGTERM
			synctest.Wait()
			before := b.server.Relayed()
			time.Sleep(300 * time.Millisecond) // the linger: the Service forgets it
			f.name(b)
			if n := b.server.Relayed(); n != before {
				t.Errorf("%s got %d more requests after it said that it leaves", b.peer.Name, n-before)
			}
			if err := b.batcher.Drain(ctx); err != nil {
				t.Error(err)
			}
			if err := b.server.Drain(ctx); err != nil {
				t.Error(err)
			}
			f.mu.Lock()
			delete(f.batchers, b.peer.Addr)
			f.mu.Unlock()
			b.batcher.Close()
		}
		stop()
		<-loaded
		for _, w := range waiting {
			if o := <-w; o.err != nil || !strings.HasSuffix(o.res.Output, ":in-"+o.id) {
				t.Errorf("%s: %q, %v", o.id, o.res.Output, o.err)
			}
		}
		if n := f.client.rerouted.Load(); n != 0 {
			t.Errorf("%d re-routes were spent", n)
		}
	})
}

// A batcher of another rollout does not know the tier: another one does, and the tier's index is not guessed.
func TestTierOfAnotherRollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		all := f.add(2)
		all[0].kill()
		synctest.Wait()
		all[0].mu.Lock()
		all[0].down = false
		all[0].mu.Unlock()
		all[0].server = NewServer(all[0].batcher, []string{"gold", "silver"}, nil, all[0].server.log)
		l := &listener{b: all[0], closed: make(chan struct{})}
		go func() { _ = all[0].server.Serve(l) }()
		time.Sleep(redialLast)
		for i := range 20 {
			if o := <-f.ask(t.Context(), fmt.Sprint("r", i), long); o.err != nil || !strings.HasPrefix(o.res.Output, "b1:") {
				t.Errorf("%q, %v", o.res.Output, o.err)
			}
		}
	})
}

// A batcher that comes back is used again.
func TestReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		b := f.add(1)[0]
		b.kill()
		synctest.Wait()
		if o := <-f.ask(t.Context(), "down", long); o.cause() != batching.NoCapacity {
			t.Errorf("%v", o.err)
		}
		b.mu.Lock()
		b.down = false
		b.mu.Unlock()
		b.serve()
		time.Sleep(2 * redialLast)
		if o := <-f.ask(t.Context(), "up", long); o.err != nil {
			t.Error(o.err)
		}
	})
}

// A gateway's view is its share of the fleet: load over capacity and backlog are those of all batchers, however
// unevenly the gateways are loaded, and a worker that is lost is felt within 50 ms.
func TestSnapshotIsTheShareOfTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t)
		all := f.add(2)
		for _, b := range all { // both see both workers
			b.batcher.SetWorkers([]batching.WorkerID{{Addr: "w1"}, {Addr: "w2"}})
			b.batcher.WorkerIdle("w1")
			b.batcher.WorkerIdle("w2")
		}
		other := NewClient(Options{Pool: poolspec.Default(), Name: "other", Dial: f.dial})
		defer other.Close()
		other.SetBatchers([]Peer{all[0].peer, all[1].peer})
		for range 300 { // 100/s here, 300/s at the other gateway, all shed
			f.client.Shed()
			for range 3 {
				other.Shed()
			}
			time.Sleep(10 * time.Millisecond)
		}
		s := f.client.Snapshot()
		mu := all[0].batcher.Snapshot().Mu
		if s.Live != 2 || s.Mu != mu || s.Lambda < 90 || s.Lambda > 110 || s.MuShare < 0.23*mu || s.MuShare > 0.27*mu {
			t.Errorf("%+v, mu %v", s, mu)
		}
		if s.ServiceP50 != f.client.prior {
			t.Errorf("S is %v, want the prior %v", s.ServiceP50, f.client.prior)
		}
		for _, b := range all {
			b.batcher.WorkerUnhealthy("w1", "reset")
			b.batcher.WorkerUnhealthy("w2", "reset")
		}
		time.Sleep(50 * time.Millisecond)
		if s := f.client.Snapshot(); s.Live != 0 || s.Mu != 0 {
			t.Errorf("the workers are gone: %+v", s)
		}
	})
}
