package gateway

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// deadlineWriter records write deadlines.
type deadlineWriter struct {
	sink
	set []time.Time
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.set = append(w.set, t)
	return nil
}

// Every answer has the write timeout at least and twice that at most, and a busy HTTP/1.1 connection does not
// move its deadline for each.
func TestWriteBoundOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gateway{writeTimeout: 10 * time.Second}
		conn := context.WithValue(context.Background(), writeBoundKey{}, new(time.Time))
		w := &deadlineWriter{}
		answer := func(major int) {
			r, _ := http.NewRequestWithContext(conn, http.MethodPost, "/", nil)
			r.ProtoMajor = major
			g.boundWrite(&exchange{w: w, r: r})
			left := time.Until(w.set[len(w.set)-1])
			if left < g.writeTimeout || left > 2*g.writeTimeout {
				t.Errorf("an answer has %v to be written, want %v to twice that", left, g.writeTimeout)
			}
		}
		for range 35 {
			answer(1)
			time.Sleep(time.Second)
		}
		if n := len(w.set); n < 3 || n > 5 {
			t.Errorf("in 35 s the deadline was set %d times, want about every 10 s", n)
		}
		// Streams of HTTP/2 have deadlines of their own.
		before := len(w.set)
		answer(2)
		answer(2)
		if n := len(w.set) - before; n != 2 {
			t.Errorf("two streams set %d deadlines", n)
		}
	})
}
