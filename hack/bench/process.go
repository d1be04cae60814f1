package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child of the benchmark. It dies with the benchmark.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *bytes.Buffer // of standard error, read after the process has ended
	done chan struct{}
	err  error // set before done is closed
}

// start runs a program whose standard error is kept for the case that it fails.
func start(name string, env []string, program string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(program, args...), log: new(bytes.Buffer), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.log
	p.cmd.Stdout = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ended says whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop asks the process to end and kills it if it has not within grace.
func (p *process) stop(grace time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // one that a scenario stopped
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// ticksPerSecond is USER_HZ, the unit of /proc/PID/stat, 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// cpu is the CPU that the process has used, user and system, as getrusage counts it: the kernel scales both
// sources to the exact run time of the scheduler; /proc rounds to 10 ms, 0.2 % of ten seconds at half a core.
func (p *process) cpu() (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything; the fields after it do not.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0, errors.New("short /proc/PID/stat")
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * (time.Second / ticksPerSecond), errors.Join(err1, err2)
}

// rssMB is the resident memory of the process, in MiB.
func (p *process) rssMB() float64 {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "status"))
	for line := range strings.SplitSeq(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb / 1024
		}
	}
	return 0
}

// freeAddr is a loopback address that nobody listens on now.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func freeAddrs(n int) ([]string, error) {
	var out []string
	for range n {
		a, err := freeAddr()
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// pollClient asks children for their state. It keeps few connections: it must not load what is measured.
var pollClient = &http.Client{Timeout: 2 * time.Second}

// untilOK waits until a GET of the URL answers 200, at most ten seconds, or the process ends.
func (p *process) untilOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := pollClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended (%v) before it was ready: %s", p.name, p.err, tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail is the end of a log.
func tail(b *bytes.Buffer) string {
	const most = 2000
	s := b.String()
	if len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return s
}
