package quota

import (
	"math"
	"math/bits"
	"time"
)

// minute is the period of every limit, in nanoseconds.
const minute = uint64(time.Minute)

// bucket holds up to one minute's worth of units and refills continuously. Its arithmetic is exact: a level
// in whole units plus a fraction in units of 1/minute, so nothing drifts however often it is asked.
//
// held is what was reserved and not settled yet. The bucket refills only while level + held < burst, so a
// refund can never lift it over its burst. That is what makes the bound hold with refunds: in a window w
// beginning at t, what is admitted and kept is at most level(t) + held(t) + refill(w) <= burst + rate*w.
type bucket struct {
	rate  int64 // units a minute, and the burst; 0: unlimited
	level int64 // whole units; below 0 is a debt, when more was used than reserved
	frac  uint64
	held  int64
	last  time.Time
}

// limitTo changes the limit. A new bucket begins full.
func (b *bucket) limitTo(now time.Time, perMinute int64) {
	if b.rate == perMinute {
		return
	}
	b.refill(now)
	if b.rate == 0 {
		b.level, b.frac = perMinute-b.held, 0
	}
	b.rate, b.last = perMinute, now
	if room := b.rate - b.held; b.level > room {
		b.level, b.frac = room, 0
	}
}

func (b *bucket) refill(now time.Time) {
	dt := now.Sub(b.last)
	if dt <= 0 {
		return
	}
	b.last = now
	room := b.rate - b.held
	if b.level >= room {
		b.frac = 0
		return
	}
	hi, lo := bits.Mul64(uint64(dt), uint64(b.rate))
	lo, carry := bits.Add64(lo, b.frac, 0)
	hi += carry
	if hi >= minute { // more than 2^64 units: longer than any limit lasts
		b.level, b.frac = room, 0
		return
	}
	gain, frac := bits.Div64(hi, lo, minute)
	if gain >= uint64(room-b.level) {
		b.level, b.frac = room, 0
		return
	}
	b.level += int64(gain)
	b.frac = frac
}

// wait is how long it takes until n units are there if nobody else takes any. Exact, rounded up to a
// nanosecond. n must be at most the burst.
func (b *bucket) wait(n int64) time.Duration {
	if b.level >= n {
		return 0
	}
	return b.flow(n - b.level)
}

// flow is how long n units take to flow in, rounded up to a nanosecond.
func (b *bucket) flow(n int64) time.Duration {
	hi, lo := bits.Mul64(uint64(n), minute)
	lo, borrow := bits.Sub64(lo, b.frac, 0)
	hi -= borrow
	lo, carry := bits.Add64(lo, uint64(b.rate)-1, 0)
	hi += carry
	if hi >= uint64(b.rate) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(b.rate))
	return time.Duration(min(q, math.MaxInt64))
}

func (b *bucket) take(n int64) {
	b.level -= n
	b.held += n
}

// release counts n of what is held as spent.
func (b *bucket) release(n int64) { b.held = max(0, b.held-n) }

// settle gives back what a reservation of n did not use. The debt is bounded by one burst. Without a limit
// there is nothing to settle.
func (b *bucket) settle(n, used int64) {
	b.release(n)
	if b.rate == 0 {
		return
	}
	b.level += n - used
	if b.level < -b.rate {
		b.level = -b.rate
	}
}

func (b *bucket) full() bool { return b.rate == 0 || (b.held == 0 && b.level >= b.rate) }
