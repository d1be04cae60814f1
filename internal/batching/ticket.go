package batching

import "sluice.dev/sluice/internal/wire"

// state of a Ticket.
type state uint8

const (
	fresh   state = iota
	queued        // in the queues
	running       // in a batch at a worker
	done          // answered
)

// Ticket is one request inside a Core, from Enqueue until the Core's done function was called with it. The
// caller owns the memory before and after, and may use a Ticket again once Reset.
type Ticket struct {
	Request
	// Result and Err are the answer, once done: Err nil means Result holds.
	Result Result
	Err    *Error
	// Tag is the caller's own.
	Tag any

	state     state
	abandoned bool // cancelled while running: nobody waits for the answer
	attempts  int
	retry     bool   // queued for a second attempt
	avoid     string // address of the worker that failed it
	suspect   uint64 // its key among the poisons while it is suspected, else 0

	// Times are nanoseconds since the Core's epoch.
	arrival, enqueued, deadline int64
	// effective is deadline, but at least arrival + 2S: what the dispatch rule looks at, else one
	// impatient client would force batches of one on everybody.
	effective int64

	group                *group
	flow                 *flow
	links                [kinds]links
	urgentPos, expiryPos int32 // in the heaps, -1 for not there

	// The Batcher's: its one-shot signal, and who is answered after this one.
	ready chan struct{}
	next  *Ticket
}

// Reset makes a done Ticket fit for another request.
func (t *Ticket) Reset() {
	ready := t.ready
	*t = Ticket{ready: ready}
}

// bytes is what the ticket counts against the bound on bytes.
func (t *Ticket) bytes() int64 { return int64(len(t.Input)) }

// paramKey is what must agree in a batch: parameters, when the backend takes them per batch, and the input
// where it is suspected to be a poison.
type paramKey struct {
	suspect         uint64
	hasMax, hasTemp bool
	maxTokens       int
	temperature     float64
	set             wire.Switch
}

// groupKey is the key of the group that t waits in.
func groupKey(mode string, t *Ticket) paramKey {
	k := keyOf(mode, t.Params)
	k.suspect = t.suspect
	return k
}

func keyOf(mode string, p wire.Parameters) paramKey {
	var k paramKey
	if mode != ParamsBatch {
		return k
	}
	if p.MaxTokens != nil {
		k.hasMax, k.maxTokens = true, *p.MaxTokens
	}
	// A NaN would never equal itself and its group never be found again.
	if p.Temperature != nil && *p.Temperature == *p.Temperature {
		k.hasTemp, k.temperature = true, *p.Temperature
	}
	if p.Switch != nil {
		k.set = *p.Switch
	}
	return k
}

// parameters returns the wire form of k, nil when nothing is set.
func (k paramKey) parameters() *wire.Parameters {
	if !k.hasMax && !k.hasTemp && k.set == (wire.Switch{}) {
		return nil
	}
	p := &wire.Parameters{}
	if k.hasMax {
		p.MaxTokens = &k.maxTokens
	}
	if k.hasTemp {
		p.Temperature = &k.temperature
	}
	if k.set != (wire.Switch{}) {
		p.Switch = &k.set
	}
	return p
}
