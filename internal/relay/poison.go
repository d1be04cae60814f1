package relay

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/wire"
)

// What a gateway keeps of inputs that a batcher refuses from memory: without it every one of a flood of them would
// count as load of the gateway, whose zone would shed others for it, and as demand, for which the operator would add
// workers that get nothing to do.
const (
	// poisonTrust is how long a batcher's word is taken. Then the next such request asks again, which takes no slot
	// there: a function that was mended is noticed within that time.
	poisonTrust = 5 * time.Second
	// poisonsKept bounds the inputs (300 bytes each).
	poisonsKept = 1024
)

// poisons are the inputs that batchers refused from memory. Safe for concurrent use.
type poisons struct {
	seed    maphash.Seed
	some    atomic.Bool // there are any: else nobody hashes an input
	refused atomic.Uint64

	mu      sync.Mutex
	entries map[uint64]poison
}

type poison struct {
	until  time.Time
	detail string
}

func newPoisons() *poisons {
	return &poisons{seed: maphash.MakeSeed(), entries: map[uint64]poison{}}
}

// Poisoned answers an input that a batcher refused from memory a moment ago, nil for every other.
func (c *Client) Poisoned(input string, params wire.Parameters) *batching.Error {
	p := c.poisons
	if !p.some.Load() {
		return nil
	}
	key, now := batching.InputKey(p.seed, input, params), time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.entries[key]
	if !ok {
		return nil
	}
	if !now.Before(e.until) {
		delete(p.entries, key)
		p.some.Store(len(p.entries) > 0)
		return nil
	}
	p.refused.Add(1)
	return &batching.Error{Cause: batching.InputFailed, Detail: e.detail, RetryAfter: e.until.Sub(now)}
}

// add keeps what a batcher said, if it was from memory.
func (p *poisons) add(now time.Time, r *batching.Request, e *batching.Error) {
	if e.Cause != batching.InputFailed || e.RetryAfter <= 0 {
		return
	}
	key := batching.InputKey(p.seed, r.Input, r.Params)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.entries[key]; !known && len(p.entries) >= poisonsKept {
		p.drop(now)
		if len(p.entries) >= poisonsKept {
			return // it asks its batcher each time
		}
	}
	p.entries[key] = poison{until: now.Add(min(e.RetryAfter, poisonTrust)), detail: e.Detail}
	p.some.Store(true)
}

// drop forgets what is over. p.mu is held.
func (p *poisons) drop(now time.Time) {
	for key, e := range p.entries {
		if !now.Before(e.until) {
			delete(p.entries, key)
		}
	}
}
