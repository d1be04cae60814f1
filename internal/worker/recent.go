package worker

// rememberedBatches is how many batch ids a worker remembers: at 9 batches a second (S + g = 110 ms) the last
// two minutes, far longer than any caller goes on trying.
const rememberedBatches = 1024

// recentIDs remembers the last rememberedBatches ids. The zero value is empty. Not safe for concurrent use.
type recentIDs struct {
	set  map[string]struct{}
	ring []string
	next int
}

func (r *recentIDs) contains(id string) bool {
	_, ok := r.set[id]
	return ok
}

func (r *recentIDs) add(id string) {
	if r.set == nil {
		r.set = make(map[string]struct{}, rememberedBatches)
	}
	if len(r.ring) < rememberedBatches {
		r.ring = append(r.ring, id)
	} else {
		delete(r.set, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % rememberedBatches
	}
	r.set[id] = struct{}{}
}
