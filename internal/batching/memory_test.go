package batching

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"
)

// A request that is over, however it ended, keeps nothing alive.
func TestNothingKeepsAnAnsweredRequestAlive(t *testing.T) {
	w := newWorld(testConfig(), 1, 1)
	var left []weak.Pointer[Ticket]
	submit := func(i int, r Request) *Ticket {
		r.ID, r.Input = fmt.Sprint(i), fmt.Sprint("payload", i)
		x := w.submit(r)
		if x != nil {
			left = append(left, weak.Make(x))
		}
		return x
	}
	for i := range 300 {
		x := submit(i, Request{Tier: i % 3, Flow: fmt.Sprint(i % 100)})
		if i%3 == 0 && x != nil {
			w.core.Cancel(x, Cancelled) // waiting, or running
		}
		w.settle()
	}
	w.run(10 * time.Second)
	w.events = nil // the test's own references
	runtime.GC()
	runtime.GC()
	alive := 0
	for _, p := range left {
		if p.Value() != nil {
			alive++
		}
	}
	if alive > 0 {
		t.Errorf("%d of %d answered requests are still in memory", alive, len(left))
	}
	for _, p := range append(w.problems, baseline(w.core)...) {
		t.Error(p)
	}
	runtime.KeepAlive(w)
}
