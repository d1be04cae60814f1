package quota

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var epoch = time.Unix(1_700_000_000, 0)

const second = time.Second

// reserve asks for a tenant that shares nothing.
func reserve(l *Ledger, now time.Time, tenant string, lim Limits, c Cost) Reply {
	return l.Reserve(now, Ask{Tenant: tenant, Limits: lim, Cost: c})
}

func at(d time.Duration) time.Time { return epoch.Add(d) }

// Over any window w, what is admitted and kept is at most burst + rate*w: with refunds, partial use, idle
// times and bursts at random.
func TestNeverMoreThanBurstPlusRateTimesWindow(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := 1 + r.Int64N(20_000)
		l := NewLedger(epoch, 2*second)
		type event struct {
			at   time.Duration
			kept int64
		}
		type open struct {
			due   time.Duration
			event int
			grant Grant
		}
		var events []event
		var under []open
		now := time.Duration(0)
		for range 1000 {
			now += time.Duration(r.ExpFloat64() * float64(20*time.Millisecond))
			if r.IntN(200) == 0 {
				now += time.Duration(r.IntN(90)) * second // idle: the bucket fills up
			}
			rest := under[:0]
			for _, o := range under {
				if o.due > now {
					rest = append(rest, o)
					continue
				}
				used := o.grant.Cost.Tokens
				switch r.IntN(3) {
				case 0:
					used = 0
				case 1:
					used = r.Int64N(used + 1)
				}
				if o.due < now-8*second {
					used = o.grant.Cost.Tokens // so late that the ledger counts it as spent
				}
				l.Settle(at(now), o.grant, Cost{Tokens: used})
				events[o.event].kept = used
			}
			under = rest
			c := Cost{Tokens: 1 + r.Int64N(limit)}
			if reply := reserve(l, at(now), "t", Limits{TokensPerMinute: limit}, c); reply.Granted {
				events = append(events, event{now, c.Tokens})
				under = append(under, open{now + time.Duration(r.IntN(2000))*time.Millisecond, len(events) - 1, reply.Grant})
			}
		}
		for i := range events {
			sum := int64(0)
			for j := i; j < len(events); j++ {
				sum += events[j].kept
				w := events[j].at - events[i].at
				// sum <= burst + rate*w, in integers: both sides times a minute.
				if left, right := float64(sum-limit)*60e9, float64(limit)*float64(w); left > right*(1+1e-12) {
					t.Fatalf("seed %d: %d admitted in %v under a limit of %d a minute", seed, sum, w, limit)
				}
			}
		}
	}
}

// A tenant that asks all the time gets its whole rate, to the unit: no drift over an hour.
func TestNoDrift(t *testing.T) {
	for _, limit := range []int64{1, 7, 59, 60, 61, 120, 14_000, 99_999_999_999} {
		l := NewLedger(epoch, 2*second)
		cost := max(1, limit/97)
		got, now := int64(0), time.Duration(0)
		for now < time.Hour {
			if reply := reserve(l, at(now), "t", Limits{TokensPerMinute: limit}, Cost{Tokens: cost}); reply.Granted {
				l.Settle(at(now), reply.Grant, Cost{Tokens: cost})
				got += cost
			} else if reply.RetryAfter <= 0 {
				t.Fatalf("limit %d: refused without a wait", limit)
			} else {
				now += reply.RetryAfter
			}
		}
		if want := 61 * limit; got > want || got < want-2*cost {
			t.Errorf("limit %d: %d in an hour, want %d (burst + 60 minutes)", limit, got, want)
		}
	}
}

// RetryAfter is exact: a nanosecond earlier the same request is refused, then it passes.
func TestRetryAfterIsExact(t *testing.T) {
	lim := Limits{RequestsPerMinute: 7, TokensPerMinute: 1000}
	l := NewLedger(epoch, 2*second)
	now := epoch
	for i := range 200 {
		c := Cost{Requests: 1, Tokens: int64(1 + i*37%1000)}
		reply := reserve(l, now, "t", lim, c)
		if reply.Granted {
			l.Settle(now, reply.Grant, c)
			continue
		}
		if early := reserve(l, now.Add(reply.RetryAfter-1), "t", lim, c); early.Granted {
			t.Fatalf("step %d: granted a nanosecond before RetryAfter", i)
		}
		now = now.Add(reply.RetryAfter)
		again := reserve(l, now, "t", lim, c)
		if !again.Granted {
			t.Fatalf("step %d: refused again after RetryAfter: %+v", i, again)
		}
		l.Settle(now, again.Grant, c)
	}
}

func TestCostAboveBurstIsTooLarge(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	lim := Limits{TokensPerMinute: 100}
	if r := reserve(l, epoch, "t", lim, Cost{Tokens: 101}); r.Granted || !r.TooLarge {
		t.Errorf("101 of 100: %+v, want too large", r)
	}
	if r := reserve(l, epoch, "t", lim, Cost{Tokens: 100}); !r.Granted {
		t.Errorf("100 of 100: %+v, want granted", r)
	}
}

// Both buckets or none: a request refused for tokens must not cost a request.
func TestBothOrNone(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	lim := Limits{RequestsPerMinute: 2, TokensPerMinute: 100}
	if r := reserve(l, epoch, "t", lim, Cost{Requests: 1, Tokens: 100}); !r.Granted {
		t.Fatal(r)
	}
	for range 5 {
		if r := reserve(l, epoch, "t", lim, Cost{Requests: 1, Tokens: 50}); r.Granted || r.Of != Tokens {
			t.Fatalf("%+v, want refused for tokens", r)
		}
	}
	r := reserve(l, epoch.Add(30*second), "t", lim, Cost{Requests: 1, Tokens: 50})
	if !r.Granted {
		t.Fatalf("%+v, want granted", r)
	}
}

// What was used beyond the reservation is owed; what was not used is there again.
func TestSettle(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	lim := Limits{TokensPerMinute: 600}
	remaining := func() int64 {
		for _, x := range reserve(l, epoch, "t", lim, Cost{}).Levels {
			return x.Remaining
		}
		return -1
	}
	g := reserve(l, epoch, "t", lim, Cost{Tokens: 100}).Grant
	if got := remaining(); got != 500 {
		t.Errorf("after reserving 100 of 600: %d left", got)
	}
	l.Settle(epoch, g, Cost{Tokens: 30})
	if got := remaining(); got != 570 {
		t.Errorf("after using 30: %d left, want 570", got)
	}
	l.Settle(epoch, reserve(l, epoch, "t", lim, Cost{Tokens: 10}).Grant, Cost{Tokens: 600})
	if got := remaining(); got != 0 {
		t.Errorf("in debt: %d left, want 0", got)
	}
	if r := reserve(l, epoch, "t", lim, Cost{Tokens: 1}); r.Granted || r.RetryAfter != 3100*time.Millisecond {
		t.Errorf("a debt of 30 at 10 a second: %+v, want a wait of 3.1 s for one more", r)
	}
}

// A gateway that dies never settles: its reservations must not close the gate for ever.
func TestReservationsThatNobodySettlesAreSpent(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	lim := Limits{RequestsPerMinute: 60}
	var grants []Grant
	for range 60 {
		grants = append(grants, reserve(l, epoch, "t", lim, Cost{Requests: 1}).Grant)
	}
	n := 0
	for ; reserve(l, at(70*second), "t", lim, Cost{Requests: 1}).Granted; n++ {
	}
	if n < 59 {
		t.Errorf("70 s later %d requests pass, want a full bucket again", n)
	}
	l.Settle(at(70*second), grants[0], Cost{})
	if reserve(l, at(70*second), "t", lim, Cost{Requests: 1}).Granted {
		t.Error("a refund that came after the reservation was counted as spent gave something back")
	}
}

// The ledger keeps the accounts of tenants that are active, and no others.
func TestMemoryIsBounded(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	lim := Limits{RequestsPerMinute: 60}
	for i := range 10_000 {
		now := at(time.Duration(i) * 100 * time.Millisecond)
		c := Cost{Requests: 1}
		l.Settle(now, reserve(l, now, fmt.Sprint("tenant-", i), lim, c).Grant, c)
		if i%100 == 0 && l.Len() > 200 {
			t.Fatalf("%d accounts after %d tenants of which 20 asked within the last 2 s", l.Len(), i)
		}
	}
	if r := reserve(l, epoch, "unlimited", Limits{}, Cost{Requests: 1, Tokens: 1 << 40}); !r.Granted || r.Grant.Slot != 0 {
		t.Errorf("a tenant without limits: %+v", r)
	}
}

// A limit that is lowered holds at once; one that is raised lets more in over time, not at once.
func TestLimitChanges(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	take := func(now time.Time, limit int64) (n int) {
		for reserve(l, now, "t", Limits{RequestsPerMinute: limit}, Cost{Requests: 1}).Granted {
			n++
		}
		return n
	}
	if n := take(epoch, 60); n != 60 {
		t.Fatalf("%d, want the burst of 60", n)
	}
	if n := take(epoch, 600); n != 0 {
		t.Errorf("raised to 600: %d more at once, want 0", n)
	}
	if n := take(at(second), 600); n != 10 {
		t.Errorf("a second later %d, want 10", n)
	}
	if n := take(at(120*second), 6); n != 6 {
		t.Errorf("lowered to 6: %d, want 6", n)
	}
}

func TestShare(t *testing.T) {
	if got := (Limits{RequestsPerMinute: 10, TokensPerMinute: 7}).Share(3); got != (Limits{4, 3}) {
		t.Errorf("%+v", got)
	}
	if got := (Limits{RequestsPerMinute: 1}).Share(5); got != (Limits{1, 0}) {
		t.Errorf("%+v: a share must be limited where the whole is, and only there", got)
	}
}
