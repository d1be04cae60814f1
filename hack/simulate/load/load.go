// Package load makes the requests of a simulation: from a recorded trace or from a generator.
package load

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Request is one request of a load.
type Request struct {
	At     time.Duration // since the beginning
	Prompt int32         // tokens
	Answer int32         // tokens
	Tier   uint8         // index into the pool's tiers
	Tenant uint32        // number of its tenant within the tier
}

// Load is a list of requests in the order of their arrival.
type Load struct {
	Name     string // what it is, for the report
	Duration time.Duration
	Requests []Request
}

// Mean is the mean rate in requests/s.
func (l Load) Mean() float64 {
	if l.Duration <= 0 {
		return 0
	}
	return float64(len(l.Requests)) / l.Duration.Seconds()
}

// Mix is the share of each tier, highest first. Shares need not add up to 1.
type Mix []float64

// ParseMix reads "enterprise=20,paid=30,free=50"; a tier that is not named gets nothing. The empty string is
// equal shares.
func ParseMix(s string, tiers []string) (Mix, error) {
	m := make(Mix, len(tiers))
	if s == "" {
		for i := range m {
			m[i] = 1
		}
		return m, nil
	}
	sum := 0.0
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(part, "=")
		i := slices.Index(tiers, strings.TrimSpace(name))
		if i < 0 {
			return nil, fmt.Errorf("mix: the pool has no tier %q (it has %s)", name, strings.Join(tiers, ", "))
		}
		share, err := strconv.ParseFloat(value, 64)
		if err != nil || !(share >= 0) {
			return nil, fmt.Errorf("mix: %q is no share of tier %s", value, name)
		}
		m[i] = share
		sum += share
	}
	if sum <= 0 {
		return nil, fmt.Errorf("mix: the shares add up to nothing")
	}
	return m, nil
}

// pick draws a tier.
func (m Mix) pick(r *rand.Rand) uint8 {
	sum := 0.0
	for _, s := range m {
		sum += s
	}
	x := r.Float64() * sum
	for i, s := range m {
		if x < s {
			return uint8(i)
		}
		x -= s
	}
	return uint8(len(m) - 1)
}

// Assign gives every request a tier of the mix and one of that tier's tenants, of which there are tenants[i].
func (l *Load) Assign(m Mix, tenants []int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0x7469657273))
	for i := range l.Requests {
		q := &l.Requests[i]
		q.Tier = m.pick(r)
		if n := tenants[q.Tier]; n > 1 {
			q.Tenant = uint32(r.IntN(n))
		}
	}
}

func (l *Load) sort() {
	slices.SortFunc(l.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
}
