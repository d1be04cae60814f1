// Package simulated is a GPU that does not exist: it sleeps for a service time whatever the batch size, and
// answers each input with itself, so that every answer can be checked. Failures, crashes and hangs come at
// the rates that one asks for.
package simulated

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
	"unicode/utf8"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

// Config is a simulated GPU. The zero value answers at once and never fails.
type Config struct {
	// ServiceTime is the time of a batch, spread evenly by JitterPercent (0-100) to both sides.
	ServiceTime   time.Duration
	JitterPercent int
	// StartDelay is the time that a load takes, the first and every later one.
	StartDelay time.Duration
	// FailPermille, CrashPermille and HangPermille say how many of a thousand batches end by an application
	// error, by a crash in mid-batch, or not at all. They add up to at most 1,000.
	FailPermille, CrashPermille, HangPermille int
	// Crash is what a crash does: a process exits here. Nil cuts the connection (worker.ErrReset), and the
	// instance is loaded again, as a worker in the same process needs it.
	Crash func()
	// Seed makes the jitter and the failures repeatable. 0 is a random seed.
	Seed uint64
}

// New returns the backend.
func New(c Config) worker.Backend {
	seed := c.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &backend{config: c, rand: rand.New(rand.NewPCG(seed, seed))}
}

type backend struct {
	config Config
	mu     sync.Mutex // rand serves the old instance and the new one
	rand   *rand.Rand
}

// Load implements worker.Backend.
func (b *backend) Load(ctx context.Context) (worker.Instance, error) {
	if err := sleep(ctx, b.config.StartDelay); err != nil {
		return nil, err
	}
	return &instance{backend: b, done: make(chan struct{})}, nil
}

type instance struct {
	backend *backend
	done    chan struct{}
	err     error // set before done is closed
}

// A batch's fate is drawn when it starts.
type fate int

const (
	fateOK fate = iota
	fateFail
	fateCrash
	fateHang
)

func (b *backend) draw() (time.Duration, fate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.config
	d := c.ServiceTime
	if c.JitterPercent > 0 {
		spread := float64(c.JitterPercent) / 100
		d = time.Duration(float64(d) * (1 + spread*(2*b.rand.Float64()-1)))
	}
	switch n := b.rand.IntN(1000); {
	case n < c.CrashPermille:
		return d / 2, fateCrash
	case n < c.CrashPermille+c.HangPermille:
		return d, fateHang
	case n < c.CrashPermille+c.HangPermille+c.FailPermille:
		return d, fateFail
	}
	return d, fateOK
}

// Run implements worker.Instance. A warm-up batch never fails: the rates are those of the clients' batches.
func (i *instance) Run(ctx context.Context, b worker.Batch) (worker.Output, error) {
	d, f := i.backend.draw()
	if b.ID == worker.WarmUpID {
		f = fateOK
	}
	if f == fateHang {
		<-ctx.Done()
		return worker.Output{}, i.die(context.Cause(ctx))
	}
	if err := sleep(ctx, d); err != nil {
		return worker.Output{}, i.die(err)
	}
	switch f {
	case fateCrash:
		if i.backend.config.Crash != nil {
			i.backend.config.Crash()
		}
		return worker.Output{}, i.die(worker.ErrReset)
	case fateFail:
		return worker.Output{}, worker.Applicationf("simulated failure of the function")
	}
	return echo(b), nil
}

func (i *instance) die(err error) error {
	i.err = err
	close(i.done)
	return err
}

// echo answers each input with itself, cut to max_tokens of 4 bytes where that is set: so a parameter that
// reached the GPU can be seen.
func echo(b worker.Batch) worker.Output {
	out := worker.Output{Outputs: make([]string, len(b.Inputs)), Usage: make([]wire.Usage, len(b.Inputs))}
	for i, in := range b.Inputs {
		o := in
		if b.ItemParams != nil && b.ItemParams[i].MaxTokens != nil {
			o = Cut(in, *b.ItemParams[i].MaxTokens)
		}
		out.Outputs[i] = o
		out.Usage[i] = worker.EstimateUsage(in, o)
	}
	return out
}

// Cut returns the longest prefix of s that has at most maxTokens tokens of 4 bytes and splits no character.
func Cut(s string, maxTokens int) string {
	n := max(0, maxTokens)
	if n >= worker.EstimateTokens(s) {
		return s
	}
	n *= worker.BytesPerToken
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// ParamsMode implements worker.Instance.
func (i *instance) ParamsMode() string { return worker.ParamsItem }

// Done implements worker.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Err implements worker.Instance.
func (i *instance) Err() error { return i.err }

// Close implements worker.Instance.
func (i *instance) Close() error { return nil }

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Check says what is wrong with a configuration.
func (c Config) Check() error {
	if c.JitterPercent < 0 || c.JitterPercent > 100 {
		return errors.New("the jitter must be 0 to 100 percent")
	}
	if c.FailPermille < 0 || c.CrashPermille < 0 || c.HangPermille < 0 || c.FailPermille+c.CrashPermille+c.HangPermille > 1000 {
		return errors.New("the permilles of failures, crashes and hangs must be at least 0 and at most 1000 together")
	}
	return nil
}
