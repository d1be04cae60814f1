package batching

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wire"
)

const poisonInput = "poison"

// poisonRun sends innocents a second, and poisons of them beside with one input, to four workers (3,636/s) for
// a minute. A batch with the poison in it fails as kind; a crash or hang takes its worker away for two more
// seconds.
type poisonRun struct {
	good, later float64 // part of the innocents that were served: of all, and of those after 20 s
	ran         int     // batches with a poison in them
	remembered  int     // poisons that were answered from memory
}

func runPoison(t *testing.T, remember bool, kind Kind, innocents, poisons float64) poisonRun {
	cfg := testConfig()
	cfg.RememberPoison = remember
	w := newWorld(cfg, 4, 7)
	if kind != Raised {
		w.recovery = 2 * time.Second
	}
	var r poisonRun
	w.outcome = func(b *Batch) Outcome {
		for _, x := range b.Tickets {
			if x.Input == poisonInput {
				r.ran++
				return Outcome{Kind: kind, Detail: "ValueError: poison"}
			}
		}
		return Outcome{Kind: Answered}
	}
	const run, begins = time.Minute, 20 * time.Second
	sent, sentLater, servedBefore := 0, 0, 0
	arrivals := func(perSecond float64, request func() Request) {
		var next func()
		next = func() {
			if w.now.Sub(w.start) >= run {
				return
			}
			x := &Ticket{Request: request(), Tag: &call{sent: w.now}}
			err := w.core.Enqueue(w.now, x)
			if err != nil && x.Input == poisonInput && err.Cause == InputFailed {
				r.remembered++
			}
			w.after(time.Duration(w.rng.ExpFloat64()/perSecond*1e9), next)
		}
		w.after(time.Duration(w.rng.ExpFloat64()/perSecond*1e9), next)
	}
	arrivals(innocents, func() Request {
		sent++
		if w.now.Sub(w.start) > begins {
			sentLater++
		}
		return Request{ID: fmt.Sprint(sent), Input: fmt.Sprint(sent)}
	})
	if poisons > 0 {
		arrivals(poisons, func() Request { return Request{ID: "p", Input: poisonInput, Flow: "mallory"} })
	}
	w.run(begins)
	servedBefore = w.served + w.core.Parked()
	w.run(run + 5*time.Second)
	for _, p := range w.problems {
		t.Error(p)
	}
	r.good, r.later = float64(w.served)/float64(sent), min(1, float64(w.served-servedBefore)/float64(sentLater))
	return r
}

// A poison of 10/s among 3,000/s has 0.33 % of the slots. Sent again and again it costs the others less than
// that, whether it raises or takes the process down with it; what it costs until it is found out is bounded by
// a few batches.
func TestAPoisonSentAgainAndAgainCostsLessThanItsShareOfSlots(t *testing.T) {
	for _, c := range []struct {
		kind    Kind
		name    string
		atFirst float64 // what finding out may cost, of the minute's goodput
	}{{Raised, "raises", 0.001}, {Crashed, "crashes", 0.04}, {TimedOut, "hangs", 0.1}} {
		const innocents, poisons = 3000.0, 10.0
		share := poisons / (innocents + poisons)
		without := runPoison(t, true, c.kind, innocents, 0)
		with := runPoison(t, true, c.kind, innocents, poisons)
		forgetful := runPoison(t, false, c.kind, innocents, poisons)
		t.Logf("%s: of the others %.3f %% are served without it, %.3f %% with it and %.3f %% from 20 s on (it ran in %d batches, %d of 600 were answered from memory), %.3f %% if nothing were remembered (%d batches)",
			c.name, 100*without.good, 100*with.good, 100*with.later, with.ran, with.remembered, 100*forgetful.good, forgetful.ran)
		if loss := without.later - with.later; loss > share {
			t.Errorf("%s: the others lose %.3f %% of their goodput, the poison's share of slots is %.3f %%", c.name, 100*loss, 100*share)
		}
		if loss := without.good - with.good; loss > c.atFirst {
			t.Errorf("%s: finding out cost %.3f %% of the goodput", c.name, 100*loss)
		}
		if with.remembered < 450 || with.ran > 12 {
			t.Errorf("%s: %d of 600 were answered from memory, %d batches had it in them", c.name, with.remembered, with.ran)
		}
		if forgetful.good >= without.good-share {
			t.Errorf("%s: the test proves nothing: without memory the others lose no more", c.name)
		}
	}
}

// poisonRig is one request at a time on two workers; the inputs in bad fail.
type poisonRig struct {
	*world
	bad   map[string]bool
	sizes []int
	n     int
}

func newPoisonRig(workers int) *poisonRig {
	r := &poisonRig{world: newWorld(testConfig(), workers, 3), bad: map[string]bool{}}
	r.outcome = func(b *Batch) Outcome {
		r.sizes = append(r.sizes, len(b.Tickets))
		for _, x := range b.Tickets {
			if r.bad[x.Input] {
				return Outcome{Kind: Raised, Detail: "ValueError: " + x.Input}
			}
		}
		return Outcome{Kind: Answered}
	}
	return r
}

// ask submits inputs together, waits for all answers and returns their causes ("" for an answer).
func (r *poisonRig) ask(inputs ...string) []Cause {
	var out []Cause
	var waits []*Ticket
	for _, in := range inputs {
		r.n++
		x := &Ticket{Request: Request{ID: fmt.Sprint(r.n), Input: in}, Tag: &call{sent: r.now}}
		if err := r.core.Enqueue(r.now, x); err != nil {
			x.Err = err
		}
		waits = append(waits, x)
	}
	r.settle()
	r.run(r.now.Sub(r.start) + 3*time.Second)
	for _, x := range waits {
		if x.Err == nil {
			out = append(out, "")
		} else {
			out = append(out, x.Err.Cause)
		}
	}
	return out
}

func TestAConvictedInputIsNotTriedUntilItsSentenceIsOver(t *testing.T) {
	r := newPoisonRig(2)
	r.ask("a")
	r.ask("b") // both workers have answered
	r.bad["x"] = true
	if got := r.ask("x"); got[0] != InputFailed {
		t.Fatalf("x: %v", got)
	}
	ran := len(r.sizes)
	err := r.core.Poisoned(r.now, "x", wire.Parameters{})
	if err == nil || err.Cause != InputFailed || !strings.Contains(err.Detail, "ValueError: x") || !strings.Contains(err.Detail, "another 2") {
		t.Fatalf("the answer from memory is %v, want its reason and when it is tried again", err)
	}
	if got := r.ask("x"); got[0] != InputFailed || len(r.sizes) != ran {
		t.Errorf("x again: %v, %d batches ran", got, len(r.sizes)-ran)
	}
	if n := 5; r.core.Poisoned(r.now, "x", wire.Parameters{MaxTokens: &n}) != nil {
		t.Error("the same text with other parameters was refused")
	}
	if r.core.Poisoned(r.now, "y", wire.Parameters{}) != nil {
		t.Error("another input was refused")
	}
	if s := r.core.Snapshot(r.now); s.Poisoned != 1 || s.PoisonRefused != 2 || s.LatestPoison != "ValueError: x" {
		t.Errorf("snapshot: %d convicted, %d from memory, latest %q", s.Poisoned, s.PoisonRefused, s.LatestPoison)
	}

	r.now = r.now.Add(firstSentence)
	delete(r.bad, "x") // somebody mended the function
	if got := r.ask("x"); got[0] != "" {
		t.Errorf("after the sentence: %v", got)
	}
	if len(r.core.poisons.entries) != 0 {
		t.Error("an input that was answered is still remembered")
	}
}

func TestTheNextSentenceIsTwiceAsLong(t *testing.T) {
	r := newPoisonRig(2)
	r.bad["x"] = true
	for want := firstSentence; ; want = min(2*want, lastSentence) {
		r.ask("a", "b")
		r.ask("c")
		r.ask("d")
		began := r.now
		if got := r.ask("x"); got[0] != InputFailed {
			t.Fatalf("sentence of %v: %v", want, got)
		}
		for _, e := range r.core.poisons.entries {
			if e.sentence != want || e.until != e.convicted+int64(want) {
				t.Fatalf("a sentence of %v that lasts %v, want %v", e.sentence, time.Duration(e.until-e.convicted), want)
			}
		}
		if want == lastSentence {
			return
		}
		r.now = began.Add(want + 5*time.Second)
	}
}

// What failed for good in company is run by itself the next time, so that it is found out and takes nobody
// with it; what was innocent is cleared.
func TestASuspectRunsInABatchOfItsOwn(t *testing.T) {
	r := newPoisonRig(1)
	r.core.cfg.MaxRetries = 0 // the first failure is the last, so company is certain
	r.ask("a")
	r.bad["x"] = true
	for _, c := range r.ask("x", "innocent") {
		if c != SecondFailure && c != InputFailed {
			t.Fatalf("x and its company: %v", c)
		}
	}
	r.core.cfg.MaxRetries = 1
	if n := len(r.core.poisons.entries); n == 0 {
		t.Fatal("nobody is suspected")
	}
	r.sizes = nil
	got := r.ask("x", "innocent", "b", "c")
	if got[0] != InputFailed || got[1] != "" || got[2] != "" || got[3] != "" {
		t.Errorf("x, innocent, b, c: %v, want only x to fail", got)
	}
	if len(r.core.poisons.entries) != 1 {
		t.Errorf("%d inputs are remembered, want x alone", len(r.core.poisons.entries))
	}
}

// A worker that fails whatever it gets convicts nobody for good: what it failed is tried again.
func TestAWorkerThatHasNotWorkedProvesNothing(t *testing.T) {
	r := newPoisonRig(1)
	r.bad["a"], r.bad["b"] = true, true
	for _, in := range []string{"a", "b"} {
		if got := r.ask(in); got[0] != InputFailed {
			t.Fatalf("%s: %v", in, got)
		}
		if err := r.core.Poisoned(r.now, in, wire.Parameters{}); err != nil {
			t.Errorf("%s is remembered although the worker never answered anything: %v", in, err)
		}
	}
}

// The failures of one input do not make a broken worker of the only one that it fails on; those of others do.
func TestAWorkerIsBrokenOnlyIfItFailsWithDifferentInputs(t *testing.T) {
	r := newPoisonRig(1)
	r.ask("a")
	r.bad["x"] = true
	r.core.cfg.MaxRetries = 0
	r.ask("x", "innocent") // in company, so nothing is proven
	r.core.cfg.MaxRetries = 1
	if got := r.ask("x"); got[0] != InputFailed || r.core.Poisoned(r.now, "x", wire.Parameters{}) == nil {
		t.Errorf("x failed in three batches in a row, alone in two: %v, and it is not remembered", got)
	}
	r.bad["y"] = true // the worker fails whatever it gets
	if got := r.ask("y"); got[0] != InputFailed || r.core.Poisoned(r.now, "y", wire.Parameters{}) != nil {
		t.Errorf("y after x, and nothing was answered between: %v, and it is remembered", got)
	}
}

func TestARolloutForgetsEverything(t *testing.T) {
	r := newPoisonRig(2)
	r.ask("a")
	r.bad["x"] = true
	if got := r.ask("x"); got[0] != InputFailed || r.core.Poisoned(r.now, "x", wire.Parameters{}) == nil {
		t.Fatalf("x: %v, and not remembered", got)
	}
	worker := func(name string) WorkerID { return WorkerID{Addr: name, Pod: "of " + name} }
	r.core.SetWorkers(r.now, []WorkerID{{Addr: "w1"}, worker("new")})
	if r.core.Poisoned(r.now, "x", wire.Parameters{}) == nil {
		t.Error("forgotten while a worker is left that x failed on")
	}
	r.core.SetWorkers(r.now, nil) // an empty list is no rollout
	if r.core.Poisoned(r.now, "x", wire.Parameters{}) == nil {
		t.Error("forgotten although nobody was replaced")
	}
	r.core.SetWorkers(r.now, []WorkerID{worker("new"), worker("newer")})
	if err := r.core.Poisoned(r.now, "x", wire.Parameters{}); err != nil {
		t.Errorf("every worker was replaced, and still: %v", err)
	}
}

func TestPoisonMemoryIsBounded(t *testing.T) {
	p := newPoisons(true)
	for i := range 4 * strikesKept {
		x := &Ticket{Request: Request{Input: fmt.Sprint(i)}}
		p.failed(int64(i), x, false, 100)
		p.convict(int64(i), x, strings.Repeat("é", detailKept), true, false)
	}
	if len(p.entries) != poisonsKept || len(p.struck) > strikesKept {
		t.Errorf("%d entries and %d strikes, the bounds are %d and %d", len(p.entries), len(p.struck), poisonsKept, strikesKept)
	}
	last := &Request{Input: fmt.Sprint(4*strikesKept - 1)}
	if e := p.find(4*strikesKept, last); e == nil || len(e.detail) > detailKept {
		t.Errorf("the newest entry is %+v", e)
	}
	at := int64(firstSentence + 3*suspectFor)
	if p.find(at, last) != nil || len(p.entries) != 0 {
		t.Errorf("%d entries outlived sentence and suspicion", len(p.entries))
	}
}

// Batchers do not tell each other. What that costs is bounded: of an input that is sent again once it was answered each
// batcher runs at most two requests with 1 + MaxRetries attempts each, until its sentence is over.
func TestEachBatcherFindsOutByItselfAtABoundedCost(t *testing.T) {
	// Each batcher has its turn every 3 s, more than a request's timeout; the end comes before that of a sentence.
	const batchers, innocents, every, end = 3, 600.0, time.Second, 25 * time.Second
	for _, kind := range []Kind{Raised, Crashed} {
		worst, most := 0, 0
		for seed := range uint64(8) {
			var worlds []*world
			for i := range batchers {
				cfg := testConfig()
				cfg.ID = fmt.Sprint("b", i)
				w := newWorld(cfg, 6, 100*seed+uint64(i))
				w.core.SetBatchers(batchers)
				worlds = append(worlds, w)
			}
			run := share(&pool{map[string]time.Time{}}, worlds, time.Millisecond, 101*time.Millisecond)
			ran, refused := make([]int, batchers), make([]int, batchers)
			for i, w := range worlds {
				healthy := w.outcome
				w.outcome = func(b *Batch) Outcome {
					o := healthy(b)
					for _, x := range b.Tickets {
						if o.Kind == Answered && x.Input == poisonInput {
							ran[i]++
							return Outcome{Kind: kind, Detail: "ValueError: poison"}
						}
					}
					return o
				}
				w.poisson(innocents, end, func(int) Request { return Request{} })
				for k := 1 + i; time.Duration(k)*every < end; k += batchers {
					w.after(time.Duration(k)*every, func() {
						x := &Ticket{Request: Request{ID: "p", Input: poisonInput, Flow: "mallory"}, Tag: &call{sent: w.now}}
						if err := w.core.Enqueue(w.now, x); err != nil && err.Cause == InputFailed {
							refused[i]++
						}
					})
				}
			}
			run(end + 3*time.Second)
			sum := 0
			for i, w := range worlds {
				if bound := 2 * (1 + w.core.cfg.MaxRetries); ran[i] > bound {
					t.Errorf("kind %d, seed %d: batcher %d ran the poison in %d batches, the bound is %d", kind, seed, i, ran[i], bound)
				}
				if refused[i] < 4 {
					t.Errorf("kind %d, seed %d: batcher %d answered %d of 8 from memory", kind, seed, i, refused[i])
				}
				for _, p := range w.problems {
					t.Error(p)
				}
				sum, most = sum+ran[i], max(most, ran[i])
			}
			worst = max(worst, sum)
		}
		t.Logf("kind %d: at most %d batches in one batcher, %d in all %d", kind, most, worst, batchers)
		if most < 2 {
			t.Error("the test proves nothing: a first conviction takes two attempts")
		}
	}
}
