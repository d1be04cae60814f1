package load

import (
	"math/bits"
	"sync"
	"time"
)

// An Outcome is how one request ended, as its client saw it. Every request has exactly one.
type Outcome uint8

// Outcomes.
const (
	Served       Outcome = iota // 200 with the right output
	Wrong                       // 200 with anything else: another's answer, a null, half an answer
	Refused                     // 429
	Unavailable                 // 503
	Expired                     // 504
	OtherStatus                 // any other status
	Lost                        // connected, but the connection ended or the bound passed without an answer
	NoConnection                // could not connect
	GaveUp                      // the client's patience ended first
	HungUp                      // the client was told to hang up at random, and did
	outcomes
)

// histogram counts latencies in buckets of which 2^(precision-1) share an octave of nanoseconds, so a
// quantile is exact to that part of its value.
type histogram struct {
	precision uint
	counts    []uint32
	n         uint64
}

func newHistogram(precision uint) *histogram { return &histogram{precision: precision} }

func (h *histogram) add(d time.Duration) {
	v := uint64(max(d, 1))
	i := int(v) // below 2^precision every value has a bucket of its own
	if e := uint(bits.Len64(v)); e > h.precision {
		shift := e - h.precision // v>>shift is between half and 2·half
		i = int(shift)<<(h.precision-1) + int(v>>shift)
	}
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]uint32, i+1-len(h.counts))...)
	}
	h.counts[i]++
	h.n++
}

// quantile returns the upper edge of the bucket that holds the q-quantile, 0 <= q <= 1; 0 if nothing was
// added.
func (h *histogram) quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := uint64(q * float64(h.n))
	rank = min(rank, h.n-1)
	var seen uint64
	for i, c := range h.counts {
		if seen += uint64(c); seen > rank {
			if i < 1<<h.precision {
				return time.Duration(i)
			}
			shift := uint(i)>>(h.precision-1) - 1
			m := uint64(i) - uint64(shift)<<(h.precision-1)
			return time.Duration((m+1)<<shift - 1)
		}
	}
	return 0
}

// merge adds all that o has counted. Both must be of one precision.
func (h *histogram) merge(o *histogram) {
	if len(o.counts) > len(h.counts) {
		h.counts = append(h.counts, make([]uint32, len(o.counts)-len(h.counts))...)
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
}

// second is what became of the requests of one tier that were due within one second.
type second struct {
	sent     uint64
	outcomes [outcomes]uint64
	served   *histogram // made when first needed: most seconds of most runs have few
}

// tierRecord is the record of one tier. Its methods may be called from several goroutines.
type tierRecord struct {
	mu       sync.Mutex
	from     time.Duration // what was due earlier is warm-up: kept per second, not in the totals
	seconds  []second
	outcomes [outcomes]uint64 // since from, except Wrong and Lost: of the whole run
	sent     uint64
	onTime   uint64 // served within the on-time bound
	served   *histogram
	shed     *histogram
	reasons  map[string]uint64 // "status reason" of every answer but 200
}

// Precisions: totals to 0.2 %, seconds to 1.6 % (a soak keeps hundreds of them).
const (
	totalPrecision  = 10
	secondPrecision = 7
)

func newTierRecord(from time.Duration) *tierRecord {
	return &tierRecord{from: from, served: newHistogram(totalPrecision), shed: newHistogram(totalPrecision), reasons: map[string]uint64{}}
}

// add records the end of a request that was due at due and ended latency later. reason is for every answer
// but 200.
func (t *tierRecord) add(due, latency, onTime time.Duration, o Outcome, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := int(due / time.Second)
	for i >= len(t.seconds) {
		t.seconds = append(t.seconds, second{})
	}
	s := &t.seconds[i]
	s.sent++
	s.outcomes[o]++
	if o == Served {
		if s.served == nil {
			s.served = newHistogram(secondPrecision)
		}
		s.served.add(latency)
	}
	measured := due >= t.from
	if measured || o == Wrong || o == Lost {
		t.outcomes[o]++
	}
	if !measured {
		return
	}
	t.sent++
	switch o {
	case Served:
		t.served.add(latency)
		if latency <= onTime {
			t.onTime++
		}
	case Refused:
		t.shed.add(latency)
	}
	if reason != "" {
		t.reasons[reason]++
	}
}
