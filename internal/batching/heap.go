package batching

// deadlines is a binary heap of tickets by a time, smallest first. Unlike container/heap it keeps the time
// beside the pointer (no cache miss in a comparison) and calls nothing through an interface: with 5,000
// waiting, a push of the usual ever-later deadline is one comparison.
type deadlines struct {
	entries []entry
	pos     func(*Ticket) *int32
}

type entry struct {
	at int64
	t  *Ticket
}

func urgentPos(t *Ticket) *int32 { return &t.urgentPos }
func expiryPos(t *Ticket) *int32 { return &t.expiryPos }

func (h *deadlines) min() *entry {
	if len(h.entries) == 0 {
		return nil
	}
	return &h.entries[0]
}

func (h *deadlines) push(t *Ticket, at int64) {
	h.entries = append(h.entries, entry{at, t})
	h.up(len(h.entries) - 1)
}

// remove takes t out, if it is there.
func (h *deadlines) remove(t *Ticket) {
	i := int(*h.pos(t))
	if i < 0 {
		return
	}
	*h.pos(t) = -1
	last := len(h.entries) - 1
	moved := h.entries[last]
	h.entries[last] = entry{} // the slice must not keep a ticket alive
	h.entries = h.entries[:last]
	if i == last {
		return
	}
	h.entries[i] = moved
	*h.pos(moved.t) = int32(i)
	h.down(i)
	h.up(int(*h.pos(moved.t)))
}

func (h *deadlines) up(i int) {
	e := h.entries[i]
	for i > 0 {
		parent := (i - 1) / 2
		if h.entries[parent].at <= e.at {
			break
		}
		h.entries[i] = h.entries[parent]
		*h.pos(h.entries[i].t) = int32(i)
		i = parent
	}
	h.entries[i] = e
	*h.pos(e.t) = int32(i)
}

func (h *deadlines) down(i int) {
	e := h.entries[i]
	for {
		child := 2*i + 1
		if child >= len(h.entries) {
			break
		}
		if r := child + 1; r < len(h.entries) && h.entries[r].at < h.entries[child].at {
			child = r
		}
		if e.at <= h.entries[child].at {
			break
		}
		h.entries[i] = h.entries[child]
		*h.pos(h.entries[i].t) = int32(i)
		i = child
	}
	h.entries[i] = e
	*h.pos(e.t) = int32(i)
}

// shrink gives memory back after a burst.
func (h *deadlines) shrink() {
	if len(h.entries) == 0 && cap(h.entries) > 1024 {
		h.entries = nil
	}
}
