package python

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	// closeGrace is how long an idle process may take to leave (atexit hooks, CUDA teardown).
	closeGrace = 5 * time.Second
	// outputGrace is how long the log waits, after the process has ended, for those that inherited its output.
	outputGrace = time.Second
)

// process is one run of the runner. It leads its own process group, so that what the function starts dies
// with it, and a Ctrl-C in a terminal reaches only the worker.
type process struct {
	cmd      *exec.Cmd
	pid      int
	requests *os.File // the runner's descriptor 3
	replies  *bufio.Reader
	answers  *os.File // the runner's descriptor 4

	mu     sync.Mutex
	exited bool  // the pid may be another's now
	reason error // why it was killed

	done chan struct{} // closed when the process is gone
	err  error         // why it ended; set before done is closed
}

func start(c Config) (*process, error) {
	childIn, requests, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answers, childOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, childIn.Close(), requests.Close())
	}
	// -u: prints reach the log when they are made, and those before a crash are not lost in a buffer.
	// faulthandler: the Python stack of a segmentation fault goes to the log.
	cmd := exec.Command(c.Interpreter, "-u", "-X", "faulthandler", "-c", runner, c.Function, c.Path)
	cmd.ExtraFiles = []*os.File{childIn, childOut}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = outputGrace
	stdout := newLineLog(c.Log, "stdout")
	stderr := newLineLog(c.Log, "stderr")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err = cmd.Start()
	_, _ = childIn.Close(), childOut.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", c.Interpreter, err), requests.Close(), answers.Close())
	}
	p := &process{
		cmd: cmd, pid: cmd.Process.Pid, requests: requests, answers: answers,
		replies: bufio.NewReaderSize(answers, 64<<10), done: make(chan struct{}),
	}
	go p.wait(stdout, stderr)
	return p, nil
}

// wait reaps the process, and whatever it started and left behind.
func (p *process) wait(logs ...*lineLog) {
	err := p.cmd.Wait()
	p.mu.Lock()
	p.exited = true
	reason := p.reason
	p.mu.Unlock()
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	go reap(p.pid)
	for _, l := range logs {
		l.flush()
	}
	switch {
	case reason != nil:
		p.err = reason
	case p.cmd.ProcessState != nil:
		p.err = fmt.Errorf("the Python process ended in mid-life: %s", p.cmd.ProcessState)
	default:
		p.err = fmt.Errorf("the Python process was lost: %w", err)
	}
	_ = p.requests.Close()
	// Last words may still be in the pipe (why a load failed).
	time.AfterFunc(outputGrace, func() { _ = p.answers.Close() })
	close(p.done)
}

// reap takes the orphans of a killed process group when this process is the init of its container, to which
// orphans fall. Anywhere else there are none (ECHILD).
func reap(pgid int) {
	for {
		if _, err := syscall.Wait4(-pgid, nil, 0, nil); err != nil && err != syscall.EINTR {
			return
		}
	}
}

// kill ends the process group and unblocks everybody who reads from or writes to it. The first reason is
// kept.
func (p *process) kill(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason == nil {
		p.reason = reason
	}
	if !p.exited {
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	}
	// A process that a function forked may hold the other ends open.
	_, _ = p.requests.Close(), p.answers.Close()
}

// end makes sure that a process with which the conversation failed is gone, and says why it ended. A
// process that died by itself says more than the broken pipe.
func (p *process) end(err error) error {
	if broken := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrClosed) ||
		errors.Is(err, syscall.EPIPE); !broken {
		p.kill(err) // it lives and talks nonsense
	}
	t := time.NewTimer(2 * outputGrace)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C: // it lives with closed pipes
		p.kill(err)
		<-p.done
	}
	return p.err
}

// Close implements worker.Instance: the runner leaves when its requests end.
func (p *process) Close() error {
	p.mu.Lock()
	if p.reason == nil {
		p.reason = errClosed
	}
	_ = p.requests.Close()
	p.mu.Unlock()
	t := time.NewTimer(closeGrace)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.kill(errClosed)
		<-p.done
	}
	return nil
}

// maxLine bounds one line in the log; longer ones are cut in pieces.
const maxLine = 16 << 10

// lineLog is an io.Writer that logs what is written, line by line.
type lineLog struct {
	log  *slog.Logger
	name string
	part []byte
}

func newLineLog(l *slog.Logger, name string) *lineLog { return &lineLog{log: l, name: name} }

// Write implements io.Writer. It never fails: the function must not notice a full log.
func (l *lineLog) Write(b []byte) (int, error) {
	for _, c := range b {
		if c == '\n' || len(l.part) == maxLine {
			l.flush()
			if c == '\n' {
				continue
			}
		}
		l.part = append(l.part, c)
	}
	return len(b), nil
}

func (l *lineLog) flush() {
	if len(l.part) > 0 {
		l.log.Info("python", "stream", l.name, "line", string(l.part))
		l.part = l.part[:0]
	}
}
