package batching

const (
	rateBuckets = 10
	rateBucket  = int64(1e8) // 100 ms
)

// rate counts arrivals over the last second, in ten buckets: exact, no decay constant to explain, and a
// step is felt whole after a second.
type rate struct {
	buckets [rateBuckets]uint32
	sum     uint32
	current int64 // number of the bucket that counts now
	first   int64 // time of the first arrival, to start without a bias
	started bool
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
	if !r.started {
		r.started, r.first, r.current = true, at, at/rateBucket
	}
	r.advance(at)
	r.buckets[r.current%rateBuckets]++
	r.sum++
}

// perSecond returns arrivals a second: over the nine full buckets and the part of the current one.
func (r *rate) perSecond(at int64) float64 {
	if !r.started {
		return 0
	}
	r.advance(at)
	span := at - (r.current-rateBuckets+1)*rateBucket
	span = min(span, max(at-r.first, rateBucket))
	return float64(r.sum) * 1e9 / float64(max(span, rateBucket))
}
