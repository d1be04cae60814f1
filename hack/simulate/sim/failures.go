package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Failures are the kinds of failure and their settings, for the usage text.
const Failures = `worker,at=5m[,n=1]            n workers are lost with their batches; others are started for them
batcher,at=5m[,n=1]           n batchers are lost with the requests that wait there
metrics,at=5m,for=1m          no scrape reaches the operator
operator,at=5m,for=1m         no operator runs; afterwards a new leader goes on
slow,at=5m,for=1m,factor=2    batches take factor times as long`

// Failure is something that goes wrong at a given time.
type Failure struct {
	Kind   string        `json:"kind"`
	At     time.Duration `json:"at"`
	For    time.Duration `json:"for,omitempty"`
	N      int           `json:"n,omitempty"`
	Factor float64       `json:"factor,omitempty"`
}

// String says what happens, for the report.
func (f Failure) String() string {
	switch f.Kind {
	case "worker", "batcher":
		return fmt.Sprintf("%d %s(s) lost", f.N, f.Kind)
	case "metrics":
		return fmt.Sprintf("no metrics for %s", f.For)
	case "operator":
		return fmt.Sprintf("no operator for %s", f.For)
	}
	return fmt.Sprintf("batches take %g times as long for %s", f.Factor, f.For)
}

// ParseFailure reads one failure: see Failures.
func ParseFailure(s string) (Failure, error) {
	kind, rest, _ := strings.Cut(s, ",")
	f := Failure{Kind: kind, N: 1, Factor: 2, At: -1}
	known := map[string][]string{"worker": {"at", "n"}, "batcher": {"at", "n"}, "metrics": {"at", "for"}, "operator": {"at", "for"}, "slow": {"at", "for", "factor"}}
	allowed, ok := known[kind]
	if !ok {
		return f, fmt.Errorf("failure %q: want one of\n%s", s, Failures)
	}
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(part, "=")
		if !slices.Contains(allowed, name) {
			return f, fmt.Errorf("failure %q: unknown setting %q, %s takes %s", s, name, kind, strings.Join(allowed, ", "))
		}
		var err error
		switch name {
		case "at":
			f.At, err = time.ParseDuration(value)
		case "for":
			f.For, err = time.ParseDuration(value)
		case "n":
			f.N, err = strconv.Atoi(value)
		case "factor":
			f.Factor, err = strconv.ParseFloat(value, 64)
		}
		if err != nil {
			return f, fmt.Errorf("failure %q: %s: %w", s, name, err)
		}
	}
	switch {
	case f.At < 0:
		return f, fmt.Errorf("failure %q: at is missing", s)
	case f.N < 1 || !(f.Factor > 0):
		return f, fmt.Errorf("failure %q: n and factor must be positive", s)
	case slices.Contains(allowed, "for") && f.For <= 0:
		return f, fmt.Errorf("failure %q: for is missing", s)
	}
	return f, nil
}

// check refuses failures that come when nobody looks any more.
func (w *world) check(fs []Failure) error {
	for _, f := range fs {
		if f.At >= w.load.Duration {
			return fmt.Errorf("failure %q at %s: the simulation ends at %s", f.Kind, f.At, w.load.Duration)
		}
	}
	return nil
}

// fail makes f happen, and ends it.
func (w *world) fail(f Failure) {
	w.rec.event(w.now, "failure", f.String())
	end := func(do func()) { w.after(f.For, do) }
	switch f.Kind {
	case "worker":
		for range f.N {
			var up []*worker
			for _, x := range w.nodes.workers {
				if x.phase == ready {
					up = append(up, x)
				}
			}
			if len(up) > 0 {
				w.nodes.crash(up[w.rng.IntN(len(up))])
			}
		}
	case "batcher":
		for range min(f.N, len(w.serving)) {
			w.serving[w.rng.IntN(len(w.serving))].die()
			b := w.addBatcher() // by its ReplicaSet
			w.after(w.opt.BatcherStart, b.ready)
		}
	case "metrics":
		w.op.blind = true
		end(func() { w.op.blind = false })
	case "operator":
		w.op.away = true
		end(w.op.restart)
	case "slow":
		w.slow *= f.Factor
		end(func() { w.slow /= f.Factor })
	}
}
