package load

import (
	"container/heap"
	"time"
)

// expiry ends the waiting of one call at one time.
type expiry struct {
	at      time.Duration
	conn    *conn
	serial  uint64
	outcome Outcome
}

// expiryHeap orders expiries by time.
type expiryHeap []expiry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *expiryHeap) Push(x any)        { *h = append(*h, x.(expiry)) }
func (h *expiryHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = expiry{}
	*h = old[:len(old)-1]
	return x
}

// watch notes when the call's waiting ends.
func (r *run) watch(c *conn, cl call, serial uint64, hangUp time.Duration) {
	bound, o := r.bound()
	r.patience = append(r.patience, expiry{at: cl.due + bound, conn: c, serial: serial, outcome: o})
	if hangUp > 0 {
		heap.Push(&r.expiries, expiry{at: time.Since(r.began) + hangUp, conn: c, serial: serial, outcome: HungUp})
	}
}

// expire ends the waiting of every call whose time has come and drops what has ended by itself. It returns
// the time of the next one; false when no call waits.
func (r *run) expire(now time.Duration) (next time.Duration, waiting bool) {
	for len(r.expiries) > 0 && r.expiries[0].at <= now {
		e := heap.Pop(&r.expiries).(expiry)
		r.abandon(e.conn, e.serial, e.outcome)
	}
	for len(r.patience) > 0 {
		e := r.patience[0]
		if e.at > now && e.conn.carries(e.serial) {
			break
		}
		r.abandon(e.conn, e.serial, e.outcome)
		r.patience[0] = expiry{}
		r.patience = r.patience[1:]
	}
	if len(r.patience) == 0 {
		return 0, false
	}
	next = r.patience[0].at
	if len(r.expiries) > 0 {
		next = min(next, r.expiries[0].at)
	}
	return next, true
}

// carries says whether the call is still waited for.
func (c *conn) carries(serial uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy && c.serial == serial
}
