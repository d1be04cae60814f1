package load

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// An Arrival is one request of a schedule.
type Arrival struct {
	// At is when the request is due, counted from the start of the run. Latency is measured from here, not
	// from when the generator found time to send: a generator that falls behind must not hide it.
	At time.Duration
	// InputBytes is the length of the input, 0 for the plan's own.
	InputBytes int
	// MaxTokens goes into the request's parameters, 0 for none.
	MaxTokens int
}

// A Schedule yields arrivals in order of time. It is used by one goroutine.
type Schedule interface {
	// Next returns the next arrival; false when the schedule is over.
	Next() (Arrival, bool)
	// Length is when the last phase ends.
	Length() time.Duration
	// Peak is the highest rate, in requests per second: connections are opened ahead from it.
	Peak() float64
}

// A Phase is a stretch of time whose rate goes in a straight line from From to To, in requests per second.
type Phase struct {
	From, To float64
	For      time.Duration
}

// ParsePhases reads "100rps:30s,1500rps:60s"; a ramp is written "100-1500rps:60s". Rates are 0 to 1e6 and
// durations positive.
func ParsePhases(s string) ([]Phase, error) {
	var phases []Phase
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		rate, length, ok := strings.Cut(part, ":")
		rate, isRate := strings.CutSuffix(rate, "rps")
		if !ok || !isRate {
			return nil, fmt.Errorf("phase %q: want RATErps:DURATION or FROM-TOrps:DURATION, such as 100rps:30s", part)
		}
		d, err := time.ParseDuration(length)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("phase %q: %q is no positive duration", part, length)
		}
		from, to, ramp := strings.Cut(rate, "-")
		if !ramp {
			to = from
		}
		p := Phase{For: d}
		var err1, err2 error
		p.From, err1 = strconv.ParseFloat(from, 64)
		p.To, err2 = strconv.ParseFloat(to, 64)
		if err := errors.Join(err1, err2); err != nil || !(p.From >= 0 && p.From <= 1e6 && p.To >= 0 && p.To <= 1e6) {
			return nil, fmt.Errorf("phase %q: rates must be between 0 and 1,000,000 requests/s", part)
		}
		phases = append(phases, p)
	}
	return phases, nil
}

// poisson draws the arrivals of a Poisson process whose rate follows the phases.
type poisson struct {
	phases []Phase
	rng    *rand.Rand
	i      int
	began  time.Duration // of phase i
	in     time.Duration // into phase i
}

// Poisson returns an open-loop schedule: what arrives does not depend on what was answered. Equal seeds give
// equal schedules.
func Poisson(phases []Phase, seed uint64) Schedule {
	return &poisson{phases: phases, rng: rand.New(rand.NewPCG(seed, 0x5105ce))}
}

func (p *poisson) Next() (Arrival, bool) {
	for p.i < len(p.phases) {
		ph := p.phases[p.i]
		// The integral of the rate between two arrivals is exponential with mean 1. With the rate r at the
		// last arrival and slope k, it is r·x + k·x²/2; solve for x.
		e := p.rng.ExpFloat64()
		k := (ph.To - ph.From) / ph.For.Seconds()
		r := ph.From + k*p.in.Seconds()
		x := solve(r, k, e)
		if next := p.in + time.Duration(x*float64(time.Second)); x <= ph.For.Seconds() && next < ph.For {
			p.in = next
			return Arrival{At: p.began + next}, true
		}
		// No arrival before the phase ends. The process has no memory, so the next phase starts afresh.
		p.began, p.in, p.i = p.began+ph.For, 0, p.i+1
	}
	return Arrival{}, false
}

// solve returns the x >= 0 with r·x + k·x²/2 = e, +Inf if there is none.
func solve(r, k, e float64) float64 {
	if k == 0 {
		return e / r // +Inf for r = 0
	}
	d := r*r + 2*k*e
	if d < 0 {
		return math.Inf(1)
	}
	// The form that does not cancel for small k.
	return 2 * e / (r + math.Sqrt(d))
}

func (p *poisson) Length() (d time.Duration) {
	for _, ph := range p.phases {
		d += ph.For
	}
	return d
}

func (p *poisson) Peak() (r float64) {
	for _, ph := range p.phases {
		r = max(r, ph.From, ph.To)
	}
	return r
}

// recorded replays arrivals that were read from a trace.
type recorded struct {
	arrivals []Arrival
	length   time.Duration
	peak     float64
	i        int
}

// bytesPerToken turns a trace's ContextTokens into the length of an input. It is the estimate that the data
// plane itself uses where no tokenizer is configured.
const bytesPerToken = 4

// Trace reads a CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens and replays it speed times as
// fast, at most limit long (0 for all of it). maxInput cuts inputs, in bytes.
func Trace(r io.Reader, speed float64, limit time.Duration, maxInput int) (Schedule, error) {
	if speed <= 0 {
		return nil, fmt.Errorf("trace speed is %v, want more than 0", speed)
	}
	rows := csv.NewReader(r)
	rows.ReuseRecord = true
	head, err := rows.Read()
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	if strings.Join(head, ",") != "TIMESTAMP,ContextTokens,GeneratedTokens" {
		return nil, fmt.Errorf("trace: the first line is %q, want TIMESTAMP,ContextTokens,GeneratedTokens", strings.Join(head, ","))
	}
	out := &recorded{}
	var first time.Time
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		line, _ := rows.FieldPos(0)
		at, err1 := time.Parse("2006-01-02 15:04:05.9999999", row[0])
		in, err2 := strconv.Atoi(row[1])
		gen, err3 := strconv.Atoi(row[2])
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("trace line %d: %w", line, err)
		}
		if first.IsZero() {
			first = at
		}
		a := Arrival{At: time.Duration(float64(at.Sub(first)) / speed), InputBytes: min(max(in*bytesPerToken, 1), maxInput), MaxTokens: gen}
		if n := len(out.arrivals); n > 0 && a.At < out.arrivals[n-1].At {
			return nil, fmt.Errorf("trace line %d: the time goes backwards", line)
		}
		if limit > 0 && a.At >= limit {
			break
		}
		out.arrivals = append(out.arrivals, a)
		out.length = a.At
	}
	second, n := time.Duration(-1), 0.0
	for _, a := range out.arrivals {
		if s := a.At.Truncate(time.Second); s != second {
			second, n = s, 0
		}
		n++
		out.peak = max(out.peak, n)
	}
	return out, nil
}

func (t *recorded) Next() (Arrival, bool) {
	if t.i >= len(t.arrivals) {
		return Arrival{}, false
	}
	t.i++
	return t.arrivals[t.i-1], true
}

func (t *recorded) Length() time.Duration { return t.length }
func (t *recorded) Peak() float64         { return t.peak }
