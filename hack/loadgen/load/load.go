// Package load is an open-loop load generator for the data plane: requests are sent at the times of a
// schedule whatever has or has not been answered, latency counts from the scheduled time, and every answer is
// compared with the answer to its own input.
//
// It has a client of its own because it shares two cores with what it measures. One goroutine writes every
// request when it is due on an idle HTTP/1.1 connection, and one goroutine for each connection reads its
// answer: no goroutine, timer or header map for each request. Against a bare net/http echo server at 10,000
// requests/s it took 45 to 51 us of CPU a request on a busy machine, nearly all of it system calls.
package load

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// An API is how a request and its answer look.
type API string

// APIs.
const (
	// Native is POST /v1/inference {"model","input","parameters"} -> {"output"}.
	Native API = "native"
	// Instances is POST {"instances":[input]} -> {"predictions":[output]}, which other batchers speak.
	Instances API = "instances"
	// Echo is the native request answered with its own body: the floor of what a server can cost.
	Echo API = "echo"
)

// A Tier is one class of clients.
type Tier struct {
	Name   string
	Weight float64 // share of the requests, relative to the other tiers' weights
	Key    string  // sent as Authorization: Bearer, if any
	Header string  // further header lines "Name: value", separated by newlines, if any
}

// A Plan says what to send and when a client stops waiting.
type Plan struct {
	// Targets are host:port. Requests go to them in turn.
	Targets []string
	// TLS says whom to trust as the targets, whose names are those in Targets; nil is plain HTTP.
	TLS      *tls.Config
	API      API
	Path     string // of the request; default /v1/inference, for Instances /v1/models/MODEL:predict
	Model    string // default local
	Schedule Schedule
	Tiers    []Tier // default one, named all

	// Expect is the right output for an input and its max_tokens (0 is not set). Default: the input itself.
	Expect func(input string, maxTokens int) string
	// InputBytes is the length of an input where the schedule gives none. Default 64.
	InputBytes int

	// GiveUp is when a client stops waiting and closes its connection; 0 for never. It is counted from the
	// scheduled time.
	GiveUp time.Duration
	// HangUp is the part of the clients, 0 to 1, that close their connection at a random time within
	// HangUpWithin (default 200 ms) of sending.
	HangUp       float64
	HangUpWithin time.Duration
	// AnswerBound is when a request counts as lost. Default 10 s.
	AnswerBound time.Duration
	// OnTime is the latency up to which an answer counts as on time. Default 500 ms.
	OnTime time.Duration
	// Warmup is the start of the run whose requests stay out of the totals (wrong and lost answers excepted).
	Warmup time.Duration
	// Connections is how many are opened at each target before the run. Default: what 150 ms at the
	// schedule's peak rate need.
	Connections int
	// MaxConnections bounds the connections at any time; a request that finds none ends as NoConnection.
	// Default: one second of the peak rate, at least 1000. More only make a machine that is behind fall
	// further behind: what opens and feeds them is what it lacks.
	MaxConnections int
	Seed           uint64
	// Left, if set, is called from several goroutines when a client hangs up at random. n is the number of its
	// request: InputNumber of its input.
	Left func(n uint64, at time.Time)
	// Progress, if set, is called every second of the run with what is known of the last complete second.
	Progress func(s Second)
}

// withDefaults returns the plan with every zero replaced, or what is wrong with it.
func (p Plan) withDefaults() (Plan, error) {
	switch {
	case len(p.Targets) == 0:
		return p, errors.New("no target")
	case p.Schedule == nil:
		return p, errors.New("no schedule: name phases or a trace")
	case p.HangUp < 0 || p.HangUp > 1:
		return p, fmt.Errorf("hang-up share is %v, want 0 to 1", p.HangUp)
	}
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&p.HangUpWithin, 200*time.Millisecond)
	set(&p.AnswerBound, 10*time.Second)
	set(&p.OnTime, 500*time.Millisecond)
	if p.API == "" {
		p.API = Native
	}
	if p.Model == "" {
		p.Model = "local"
	}
	path, ok := map[API]string{Native: "/v1/inference", Echo: "/v1/inference", Instances: "/v1/models/" + p.Model + ":predict"}[p.API]
	if !ok {
		return p, fmt.Errorf("api %q: want native, instances or echo", p.API)
	}
	if p.Path == "" {
		p.Path = path
	}
	if len(p.Tiers) == 0 {
		p.Tiers = []Tier{{Name: "all", Weight: 1}}
	}
	for _, t := range p.Tiers {
		if !(t.Weight > 0) {
			return p, fmt.Errorf("tier %s: weight is %v, want more than 0", t.Name, t.Weight)
		}
	}
	if p.Expect == nil {
		p.Expect = func(in string, _ int) string { return in }
	}
	if p.InputBytes == 0 {
		p.InputBytes = 64
	}
	if p.Connections == 0 {
		p.Connections = int(0.15*p.Schedule.Peak())/len(p.Targets) + 1
	}
	if p.MaxConnections == 0 {
		p.MaxConnections = max(1000, int(p.Schedule.Peak()))
	}
	return p, nil
}
