package load

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// traceTime is the time of a trace, without a zone.
const traceTime = "2006-01-02 15:04:05.9999999"

// ReadTrace reads a CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens.
func ReadTrace(path string) (Load, error) {
	f, err := os.Open(path)
	if err != nil {
		return Load{}, err
	}
	defer func() { _ = f.Close() }() // only read
	l, err := parseTrace(f)
	if err != nil {
		return Load{}, fmt.Errorf("%s: %w", path, err)
	}
	l.Name = "trace " + strings.TrimSuffix(filepath.Base(path), ".csv")
	return l, nil
}

func parseTrace(in io.Reader) (Load, error) {
	var l Load
	rows := csv.NewReader(in)
	rows.ReuseRecord = true
	head, err := rows.Read()
	if err != nil {
		return l, err
	}
	column := map[string]int{}
	for i, name := range head {
		column[strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))] = i
	}
	at, hasAt := column["TIMESTAMP"]
	prompt, hasPrompt := column["ContextTokens"]
	answer, hasAnswer := column["GeneratedTokens"]
	if !hasAt || !hasPrompt || !hasAnswer {
		return l, fmt.Errorf("the columns are %s, want TIMESTAMP, ContextTokens and GeneratedTokens", strings.Join(head, ", "))
	}
	var first time.Time
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return l, err
		}
		line, _ := rows.FieldPos(0)
		t, err := time.Parse(traceTime, row[at])
		if err != nil {
			return l, fmt.Errorf("line %d: %w", line, err)
		}
		p, errP := strconv.ParseInt(row[prompt], 10, 32)
		a, errA := strconv.ParseInt(row[answer], 10, 32)
		if errP != nil || errA != nil || p < 0 || a < 0 {
			return l, fmt.Errorf("line %d: %s and %s are no numbers of tokens", line, row[prompt], row[answer])
		}
		if first.IsZero() {
			first = t
		}
		l.Requests = append(l.Requests, Request{At: t.Sub(first), Prompt: int32(p), Answer: int32(a)})
	}
	if len(l.Requests) == 0 {
		return l, errors.New("the trace is empty")
	}
	l.sort()
	base := l.Requests[0].At // a trace need not be in order
	for i := range l.Requests {
		l.Requests[i].At -= base
	}
	l.Duration = l.Requests[len(l.Requests)-1].At.Truncate(time.Second) + time.Second
	return l, nil
}

// ReplicaJitter is how far copies of an arrival are spread around it.
const ReplicaJitter = 5 * time.Second

// Scale multiplies the rate by factor: every arrival is replicated (a fraction by chance), and each copy
// moves by up to ReplicaJitter to either side. The minutes keep their shape, the seconds become those of many
// independent clients. A factor of 1 leaves the load as it is; below 1 arrivals are left out.
func (l Load) Scale(factor float64, seed uint64) Load {
	if factor == 1 {
		return l
	}
	r := rand.New(rand.NewPCG(seed, 0x7363616c65))
	out := l
	out.Requests = make([]Request, 0, int(float64(len(l.Requests))*factor)+16)
	for _, q := range l.Requests {
		n := int(math.Floor(factor))
		if r.Float64() < factor-math.Floor(factor) {
			n++
		}
		for range n {
			c := q
			if factor > 1 {
				c.At += time.Duration((2*r.Float64() - 1) * float64(ReplicaJitter))
				// Reflected at both ends, so that the edges keep their rate.
				if c.At < 0 {
					c.At = -c.At
				}
				if c.At >= l.Duration {
					c.At = 2*l.Duration - c.At - 1
				}
			}
			out.Requests = append(out.Requests, c)
		}
	}
	out.sort()
	return out
}

// Cut keeps the first d.
func (l Load) Cut(d time.Duration) Load {
	if d <= 0 || d >= l.Duration {
		return l
	}
	n := len(l.Requests)
	for i, q := range l.Requests {
		if q.At >= d {
			n = i
			break
		}
	}
	l.Requests, l.Duration = l.Requests[:n], d
	return l
}
