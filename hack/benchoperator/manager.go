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

// manager is one process of the operator. It dies with the benchmark.
type manager struct {
	name    string
	cmd     *exec.Cmd
	metrics string // URL
	log     string // a file
	done    chan struct{}
}

// memoryLimit is the GOMEMLIMIT of config/manager.
const memoryLimit = "400MiB"

// startManager starts an operator as config/manager does, with plain metrics on a free port.
func startManager(binary, dir, name string, s *apiServer, args ...string) (*manager, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	m := &manager{name: name, metrics: "http://" + addr + "/metrics", log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(m.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.cmd = exec.Command(binary, append([]string{
		"--leader-elect", "--operator-namespace=" + operatorNamespace,
		"--metrics-bind-address=" + addr, "--metrics-secure=false", "--health-probe-bind-address=0",
	}, args...)...)
	m.cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "GOMEMLIMIT="+memoryLimit, "POD_NAMESPACE="+operatorNamespace)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the operator: %w", err)
	}
	go func() {
		_ = m.cmd.Wait()
		close(m.done)
	}()
	return m, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// stop asks the operator to end, which gives its Lease back, and kills it after half a minute.
func (m *manager) stop() {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.done:
	case <-time.After(30 * time.Second):
		m.kill()
	}
}

// kill ends the operator as a crash would: its Lease stays until it lapses.
func (m *manager) kill() {
	_ = m.cmd.Process.Kill()
	<-m.done
}

// alive is an error when the operator has ended by itself.
func (m *manager) alive() error {
	select {
	case <-m.done:
		b, _ := os.ReadFile(m.log)
		lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
		last := lines[max(0, len(lines)-5):]
		return fmt.Errorf("operator %s has ended: %s", m.name, bytes.Join(last, []byte("\n")))
	default:
		return nil
	}
}

// errorsLogged counts the lines of level ERROR that all operators have written into dir, and shows the first
// of each.
func errorsLogged(dir string) (int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return 0, err
	}
	total := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return 0, err
		}
		n := 0
		for l := range strings.Lines(string(b)) {
			if strings.Contains(l, `"level":"ERROR"`) {
				if n == 0 {
					say("%s: %s", filepath.Base(f), strings.TrimSpace(l))
				}
				n++
			}
		}
		total += n
	}
	return total, nil
}

// rssMB is the resident memory now, in MiB.
func (m *manager) rssMB() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	if err != nil {
		return 0, errors.Join(m.alive(), err)
	}
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kb / 1024, err
		}
	}
	return 0, errors.New("no VmRSS in /proc")
}

// ticksPerSecond is USER_HZ, the unit of /proc/PID/stat: 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// cpuSeconds is the CPU that the process has used, user and system.
func (m *manager) cpuSeconds() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid))
	if err != nil {
		return 0, errors.Join(m.alive(), err)
	}
	// The name may contain spaces; user and system time are the 14th and 15th field, the name the 2nd.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	return (user + system) / ticksPerSecond, errors.Join(err1, err2)
}

// sum adds up all samples of one of the operator's metrics that have the label values, given in pairs.
func (m *manager) sum(ctx context.Context, name string, labels ...string) (float64, error) {
	samples, err := scrape(ctx, http.DefaultClient, m.metrics, name)
	if err != nil {
		return 0, errors.Join(m.alive(), err)
	}
	total := 0.0
next:
	for _, s := range samples {
		for i := 0; i < len(labels); i += 2 {
			if s.labels[labels[i]] != labels[i+1] {
				continue next
			}
		}
		total += s.value
	}
	return total, nil
}

// reconciles is how often pools were reconciled.
func (m *manager) reconciles(ctx context.Context) (float64, error) {
	return m.sum(ctx, "controller_runtime_reconcile_total", "controller", "inferencepool")
}
