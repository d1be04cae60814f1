package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"sluice.dev/sluice/hack/internal/child"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
	"sluice.dev/sluice/internal/worker/backends/simulated"
)

// serveWorkers serves one simulated worker at each address, all in this process: thirteen processes would
// cost the two cores more switching than the work itself.
//
// A file in starts gets the start of every item: see startLog.
func serveWorkers(ctx context.Context, addrs []string, starts string) error {
	failed := make(chan error, len(addrs))
	var log *startLog
	if starts != "" {
		f, err := os.Create(starts)
		if err != nil {
			return err
		}
		log = &startLog{w: bufio.NewWriter(f)}
	}
	for _, a := range addrs {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return err
		}
		backend := worker.Backend(exactBackend{simulated.New(simulated.Config{}), serviceTime})
		if log != nil {
			backend = loggedBackend{backend, log}
		}
		w := worker.New(backend, worker.Options{MaxBatch: maxBatch, SkipWarmUp: true, PredictAPI: true})
		go func() { _ = w.Run(ctx) }()
		go func() { failed <- worker.NewHTTPServer(w).Serve(l) }()
	}
	return <-failed
}

// work is what workers have done: truth from the other side of the batcher.
type work struct {
	batches, items, busyMs uint64
	alive                  int
}

func (a work) minus(b work) work {
	return work{batches: a.batches - b.batches, items: a.items - b.items, busyMs: a.busyMs - b.busyMs, alive: a.alive}
}

// workerState asks one worker.
func workerState(addr string) (wire.WorkerState, error) {
	var st wire.WorkerState
	err := getJSON("http://"+addr+wire.PathWorkerState, &st)
	return st, err
}

// stateClient asks workers for their state. It keeps few connections: it must not load what is measured.
var stateClient = &http.Client{Timeout: 2 * time.Second}

func getJSON(url string, into any) error {
	resp, err := stateClient.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// workerFleet is the simulated GPU pool: all workers in one process, or, where a scenario kills some, each a
// gpuworker process of its own.
type workerFleet struct {
	addrs     []string
	processes []*child.Process // one, or one for each address
	bin       binaries
	past      work // of processes that were replaced
}

func startWorkers(ctx context.Context, n int, separate bool, bin binaries, starts string) (*workerFleet, error) {
	addrs, err := child.FreeAddrs(n)
	if err != nil {
		return nil, err
	}
	f := &workerFleet{addrs: addrs, bin: bin}
	if !separate {
		var env []string
		if bin.realtime { // one thread that runs Go at a time: it must not keep everybody from every processor
			env = append(env, "GOMAXPROCS=1")
		}
		p, err := child.Start(child.Command{Name: "workers", Env: env, Program: bin.self, Args: []string{"workers", strings.Join(addrs, ","), starts}})
		if err != nil {
			return nil, err
		}
		f.first(p)
		f.processes = append(f.processes, p)
		for _, a := range addrs {
			if err := p.UntilOK(ctx, "http://"+a+wire.PathReadyz); err != nil {
				f.stop()
				return nil, err
			}
		}
		return f, nil
	}
	f.processes = make([]*child.Process, n)
	for i := range addrs {
		if err := f.startOne(ctx, i); err != nil {
			f.stop()
			return nil, err
		}
	}
	return f, nil
}

// startOne starts the worker at the i-th address and waits until it is ready.
func (f *workerFleet) startOne(ctx context.Context, i int) error {
	args := []string{"--listen", f.addrs[i], "--service-time", serviceTime.String(), "--max-batch", fmt.Sprint(maxBatch), "--skip-warmup"}
	p, err := child.Start(child.Command{Name: fmt.Sprintf("worker %d", i), Program: f.bin.gpuworker, Args: args})
	if err != nil {
		return err
	}
	f.processes[i] = p
	return p.UntilOK(ctx, "http://"+f.addrs[i]+wire.PathReadyz)
}

// first lets a worker run before everything else, where that is allowed. On one machine with the rest of the benchmark
// it would wait for a processor longer than for the network between two machines: with two processors 0.8 % of each
// batch, which a fleet that is full loses. Only where all workers are one process: of several, two whose garbage
// collectors wait for a thread of their own have both processors for ever, as equals in real time do not take turns.
func (f *workerFleet) first(p *child.Process) {
	if !f.bin.realtime {
		return
	}
	if err := p.Realtime(); err != nil {
		fmt.Fprintf(os.Stderr, "%v: the figures count the workers' waits for a processor (-realtime=false says that you know)\n", err)
	}
}

// remember keeps the counters of the i-th worker, which is about to go.
func (f *workerFleet) remember(i int) {
	if st, err := workerState(f.addrs[i]); err == nil {
		f.past.batches += st.Batches
		f.past.items += st.Items
		f.past.busyMs += st.BusyMs
	}
}

// done sums up what all workers have done so far.
func (f *workerFleet) done() work {
	w := f.past
	for _, a := range f.addrs {
		if st, err := workerState(a); err == nil {
			w.batches += st.Batches
			w.items += st.Items
			w.busyMs += st.BusyMs
			w.alive++
		}
	}
	return w
}

func (f *workerFleet) stop() {
	for _, p := range f.processes {
		if p != nil {
			p.Kill()
		}
	}
}
