package batching

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// What a Core remembers of inputs that fail the function. The rule of second attempts alone finds a guilty
// input at the cost of its batch and the few that share its second; one that is sent again and again would
// have that paid each time and, where it takes the process down, a load of the model as well. (Simulated, 10/s
// of it among 3,000/s on four workers: the others lost 24 % of their goodput to one that raises and 98 % to one
// that crashes a worker for 2 s.) So there are three degrees:
//
//   - struck: it was in a batch that failed. A second request with the same input in a failed batch, or a
//     failure for good in small company, makes it
//   - suspected: it runs in batches of its own, so that nobody shares its attempts. An answer clears it; if
//     it fails alone it is
//   - convicted: until its sentence is over it is answered from memory and takes no slot. Then it is
//     suspected again, and the next failure doubles the sentence.
//
// All is forgotten when every worker was replaced: a rollout may have mended the function.
const (
	// firstSentence is long enough that a poison which is sent all the time costs less than its share of
	// slots, and short enough that a function which failed for the world's sake is soon asked again. One that
	// takes its worker down costs minutes of a GPU with each trial: hardSentence.
	firstSentence = 30 * time.Second
	hardSentence  = 10 * time.Minute
	lastSentence  = time.Hour
	// suspectFor is how long a suspicion is remembered without a new failure.
	suspectFor = 10 * time.Minute
	// suspectCompany is how many that failed for good in one batch are suspected at most: of more, too few
	// are guilty for each to be worth a batch of its own.
	suspectCompany = 8
	// poisonsKept bounds the suspected and convicted (400 bytes each), strikesKept the struck (40 bytes): the
	// last 80 full batches that failed.
	poisonsKept = 1024
	strikesKept = 8192
	// detailKept bounds what is kept of a failure's message, in bytes.
	detailKept = 256
)

// poison is an input that is suspected or convicted.
type poison struct {
	key       uint64
	convicted int64         // when
	until     int64         // of the sentence, or of the suspicion
	sentence  time.Duration // 0 while only suspected
	detail    string
}

// serving says that the input is not to be tried now.
func (e *poison) serving(at int64) bool { return e.sentence > 0 && at < e.until }

// over says that nothing is held against the input any more.
func (e *poison) over(at int64) bool {
	if e.sentence > 0 {
		at -= int64(suspectFor)
	}
	return at >= e.until
}

// poisons is the memory. See Config.RememberPoison.
type poisons struct {
	on      bool
	seed    maphash.Seed
	entries map[uint64]*poison
	sweep   int64 // when to look for entries that are over

	struck  map[uint64]uint64 // input -> the failed batch it was in
	strikes []uint64          // the keys of struck, a ring
	oldest  int
	batch   uint64 // counts failed batches: two requests of one batch are one strike

	diverted uint64 // requests taken out of a batch as it formed

	base map[WorkerID]bool // the workers when everything was forgotten last

	convictions uint64 // answered input_failed after an attempt
	refused     uint64 // answered from memory
	latest      string // why the latest of them failed
}

func newPoisons(on bool) poisons {
	return poisons{on: on, seed: maphash.MakeSeed(), entries: map[uint64]*poison{}, struck: map[uint64]uint64{}}
}

// key identifies an input with its parameters, also those that the backend does not take: they cost a
// second conviction at most. The seed is random, so that nobody can make another's input collide with a
// poison. It is never 0.
func (p *poisons) key(r *Request) uint64 { return InputKey(p.seed, r.Input, r.Params) }

// InputKey identifies an input with its parameters, by a seed that nobody else knows.
func InputKey(seed maphash.Seed, input string, params wire.Parameters) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(input)
	if n := params.MaxTokens; n != nil {
		_, _ = h.WriteString("\x00m" + strconv.Itoa(*n))
	}
	if t := params.Temperature; t != nil {
		_, _ = h.WriteString("\x00t" + strconv.FormatUint(math.Float64bits(*t), 16))
	}
	if s := params.Switch; s != nil {
		_, _ = h.WriteString("\x00s" + s.Name + "\x00" + s.Value)
	}
	return h.Sum64() | 1
}

// find returns what is known of an input; nil for nothing, at the cost of a comparison while nothing is known
// of any.
func (p *poisons) find(at int64, r *Request) *poison {
	if len(p.entries) == 0 {
		return nil
	}
	if at >= p.sweep {
		p.drop(at)
	}
	if e := p.entries[p.key(r)]; e != nil && !e.over(at) {
		return e
	}
	return nil
}

// refusal is the answer from memory. That it says from when on the input is tried again tells it from the answer
// after an attempt.
func (p *poisons) refusal(at int64, e *poison) *Error {
	p.refused++
	return &Error{Cause: InputFailed, RetryAfter: time.Duration(e.until - at), Detail: fmt.Sprintf(
		"this input failed the function %v ago and will not be tried for another %v: %s",
		time.Duration(at-e.convicted).Round(time.Second), time.Duration(e.until-at).Round(time.Second), e.detail)}
}

// failed notes that t was in the batch that failed, with doomed requests that failed for good, itself among
// them if spent. It may make t a suspect.
func (p *poisons) failed(at int64, t *Ticket, spent bool, doomed int) {
	if !p.on {
		return
	}
	key := p.key(&t.Request)
	if _, known := p.entries[key]; !known && (!spent || doomed > suspectCompany) {
		// After a first attempt its strike is there already.
		if t.attempts > 0 || !p.strike(key) {
			return
		}
	}
	if e := p.entry(key); e.sentence == 0 { // what ran while another was convicted must not prolong its sentence
		e.until = at + int64(suspectFor)
	}
	t.suspect = key
}

// strike notes a failure of an input and says whether it had one in an earlier batch.
func (p *poisons) strike(key uint64) (again bool) {
	if batch, ok := p.struck[key]; ok {
		return batch != p.batch
	}
	if len(p.strikes) < strikesKept {
		p.strikes = append(p.strikes, key)
	} else {
		delete(p.struck, p.strikes[p.oldest])
		p.strikes[p.oldest] = key
		p.oldest = (p.oldest + 1) % strikesKept
	}
	p.struck[key] = p.batch
	return false
}

// inEach returns the inputs that were in every failed batch of w's streak, b's with it. One of them may be guilty; with
// none left the fault is the worker's or the world's: a worker whose GPU is broken, or a function that fails for
// the world's sake, must not make a poison of whatever they meet.
func (p *poisons) inEach(w *worker, b *Batch) []uint64 {
	if !p.on {
		return nil
	}
	keys := make([]uint64, 0, len(b.Tickets))
	for _, t := range b.Tickets {
		if key := p.key(&t.Request); w.streak == 0 || slices.Contains(w.common, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// repeated says that t is a suspect that was convicted before: one more failure alone is enough.
func (p *poisons) repeated(t *Ticket) bool {
	e := p.entries[t.suspect]
	return e != nil && e.sentence > 0
}

// convict notes a verdict; proven says that it is remembered too, hard that the input takes workers down.
func (p *poisons) convict(at int64, t *Ticket, detail string, proven, hard bool) {
	p.convictions++
	p.latest = clip(detail)
	if !p.on || !proven {
		return
	}
	e := p.entry(p.key(&t.Request))
	if e.convicted == at && e.sentence > 0 {
		return // several requests with this input ran in one batch
	}
	first := firstSentence
	if hard {
		first = hardSentence
	}
	e.sentence = min(max(2*e.sentence, first), lastSentence)
	e.convicted, e.until, e.detail = at, at+int64(e.sentence), p.latest
}

// clear forgets an input that was answered.
func (p *poisons) clear(t *Ticket) {
	if t.suspect != 0 {
		delete(p.entries, t.suspect)
		delete(p.struck, t.suspect) // its place in the ring is taken by a later strike
	}
}

func (p *poisons) entry(key uint64) *poison {
	e := p.entries[key]
	if e == nil {
		if len(p.entries) >= poisonsKept {
			p.makeRoom()
		}
		e = &poison{key: key}
		p.entries[key] = e
	}
	return e
}

// makeRoom drops what would be over first. It is called at most once a failed request.
func (p *poisons) makeRoom() {
	var first *poison
	for _, e := range p.entries {
		if first == nil || e.until < first.until {
			first = e
		}
	}
	delete(p.entries, first.key)
}

// drop forgets what is over, at most once in suspectFor.
func (p *poisons) drop(at int64) {
	for key, e := range p.entries {
		if e.over(at) {
			delete(p.entries, key)
		}
	}
	p.sweep = at + int64(suspectFor)
}

// workers are those of now. When none of those that were there last is left, everything is forgotten.
func (p *poisons) workers(ids []WorkerID) {
	for _, id := range ids {
		if p.base[id] {
			return
		}
	}
	if len(ids) == 0 {
		return
	}
	p.base = make(map[WorkerID]bool, len(ids))
	for _, id := range ids {
		p.base[id] = true
	}
	clear(p.entries)
	clear(p.struck)
	p.strikes, p.oldest = nil, 0
}

func clip(s string) string {
	return strings.Clone(strings.ToValidUTF8(s[:min(len(s), detailKept)], ""))
}

// Poisoned answers an input that is known to fail the function, nil for every other. Enqueue asks it too; a
// gateway asks before it counts the request as load.
func (c *Core) Poisoned(now time.Time, input string, params wire.Parameters) *Error {
	at := c.at(now)
	if e := c.poisons.find(at, &Request{Input: input, Params: params}); e != nil && e.serving(at) {
		return c.poisons.refusal(at, e)
	}
	return nil
}

// divert takes a waiting request out of the batch that it was about to join, if its input was suspected or
// convicted while it waited.
func (c *Core) divert(at int64, t *Ticket) bool {
	e := c.poisons.find(at, &t.Request)
	switch {
	case e == nil || t.suspect == e.key:
		return false
	case e.serving(at):
		c.unlink(t)
		c.finish(t, c.poisons.refusal(at, e))
	default:
		c.unlink(t)
		t.suspect = e.key
		c.push(t)
	}
	c.poisons.diverted++
	return true
}
