// Package child runs the programs that a benchmark measures: each dies with the benchmark, tells its last words when
// it ends by itself, and is looked at through /proc meanwhile. Linux only.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Command says what to run.
type Command struct {
	Name    string // for messages
	Program string
	Args    []string
	Env     []string // beside the benchmark's own
	// Output takes both streams of the program's output in place of a tail in memory; Close is the caller's.
	Output *os.File
}

// Process is a program that was started. Its methods are safe for concurrent use.
type Process struct {
	Name string

	cmd  *exec.Cmd
	tail tail
	done chan struct{}
	err  error // set before done is closed
}

// Start starts the program. The kernel kills it when the benchmark ends, however that ends.
func Start(c Command) (*Process, error) {
	p := &Process{Name: c.Name, cmd: exec.Command(c.Program, c.Args...), done: make(chan struct{})}
	var out io.Writer = &p.tail
	if c.Output != nil {
		out = c.Output
	}
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Ended is nil while the process runs; afterwards it says how it ended and the last of what it wrote.
func (p *Process) Ended() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s has ended (%s): %s", p.Name, how, p.tail.String())
}

// Signal sends the process a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Stop asks the process to end, kills it if it has not within grace, and returns once it is gone.
func (p *Process) Stop(grace time.Duration) {
	_ = p.Signal(syscall.SIGCONT) // a frozen one would not hear of it
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
}

// Kill ends the process as a crash would and returns once it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

const (
	readyWithin = 10 * time.Second
	readyPoll   = 20 * time.Millisecond
)

// pollClient keeps few connections: it must not load what is measured.
var pollClient = &http.Client{Timeout: 2 * time.Second}

// UntilOK waits until a GET of the URL answers 200, at most ten seconds; it is an error when the process ends before.
func (p *Process) UntilOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		err := get(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("not ready: %w", p.Ended())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.Name, err)
		case <-time.After(readyPoll):
		}
	}
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := pollClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// tail keeps the last tailKept bytes that were written to it.
type tail struct {
	mu  sync.Mutex
	cut bool
	b   []byte
}

const tailKept = 2000

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if over := len(t.b) - tailKept; over > 0 {
		t.b, t.cut = append(t.b[:0], t.b[over:]...), true
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut {
		return "..." + string(t.b)
	}
	return string(t.b)
}

// FreeAddrs are n loopback addresses that nobody listens on now, all different.
func FreeAddrs(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // at the end: a port that is closed may be handed out again
		out = append(out, l.Addr().String())
	}
	return out, nil
}
