package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sluice.dev/sluice/hack/internal/child"
)

// manager is one process of the operator.
type manager struct {
	*child.Process
	metrics string // URL
	log     string // a file
}

// memoryLimit is the GOMEMLIMIT of config/manager.
const memoryLimit = "400MiB"

// leaveWithin is for an operator that is asked to end: it gives its Lease back.
const leaveWithin = 30 * time.Second

// startManager starts an operator as config/manager does, with plain metrics on a free port.
func startManager(binary, dir, name string, s *apiServer, args ...string) (*manager, error) {
	addrs, err := child.FreeAddrs(1)
	if err != nil {
		return nil, err
	}
	m := &manager{metrics: "http://" + addrs[0] + "/metrics", log: filepath.Join(dir, name+".log")}
	log, err := os.Create(m.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.Process, err = child.Start(child.Command{
		Name: "operator " + name, Program: binary, Output: log,
		Args: append([]string{
			"--leader-elect", "--operator-namespace=" + operatorNamespace,
			"--metrics-bind-address=" + addrs[0], "--metrics-secure=false", "--health-probe-bind-address=0",
		}, args...),
		Env: []string{"KUBECONFIG=" + s.kubeconfig, "GOMEMLIMIT=" + memoryLimit, "POD_NAMESPACE=" + operatorNamespace},
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// alive is an error when the operator has ended by itself.
func (m *manager) alive() error {
	ended := m.Ended()
	if ended == nil {
		return nil
	}
	b, _ := os.ReadFile(m.log)
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	last := lines[max(0, len(lines)-5):]
	return fmt.Errorf("%w%s", ended, bytes.Join(last, []byte("\n")))
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
