package batching

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
