package batching

import "math"

const (
	rateBuckets = 10
	rateBucket  = int64(1e8) // 100 ms
)

// rate counts arrivals over the last second, in ten buckets: exact, no decay constant to explain, and a
// step is felt whole after a second. It begins at zero, as after a pause: a first request is not a rate.
type rate struct {
	buckets [rateBuckets]uint32
	sum     uint32
	current int64 // number of the bucket that counts now
}

func (r *rate) advance(at int64) {
	n := at / rateBucket
	if n <= r.current {
		return
	}
	if n-r.current >= rateBuckets {
		r.buckets, r.sum, r.current = [rateBuckets]uint32{}, 0, n
		return
	}
	for r.current < n {
		r.current++
		b := &r.buckets[r.current%rateBuckets]
		r.sum -= *b
		*b = 0
	}
}

func (r *rate) add(at int64) {
	r.advance(at)
	r.buckets[r.current%rateBuckets]++
	r.sum++
}

// perSecond returns arrivals a second: over the nine full buckets and the part of the current one.
func (r *rate) perSecond(at int64) float64 {
	r.advance(at)
	span := at - (r.current-rateBuckets+1)*rateBucket
	return float64(r.sum) * 1e9 / float64(span)
}

// jump is how many of the newest full buckets may show a step before the whole second does.
const jump = 2

// rising returns perSecond, or the rate of the last 50 to 300 ms when that is higher by more than its own Poisson
// noise: a step up is believed at once, a fall is not. Who is told how long he will wait behind others must not be
// told by a second in which they had hardly begun to come.
func (r *rate) rising(at int64) float64 {
	most := r.perSecond(at)
	n, span := 0.0, at-r.current*rateBucket
	for k := range min(r.current, jump) + 1 {
		n += float64(r.buckets[(r.current-k)%rateBuckets])
		// A burst of one moment is no rate.
		most = max(most, (n-math.Sqrt(n))*1e9/float64(max(span, rateBucket/2)))
		span += rateBucket
	}
	return most
}
