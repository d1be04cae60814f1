package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// fakeBackend is scripted by its functions; zero ones load at once and echo after 100 ms.
type fakeBackend struct {
	load func(n int) error // n counts from 1
	run  func(ctx context.Context, i *fakeInstance, b Batch) (Output, error)

	mu      sync.Mutex
	loads   []time.Time
	closed  int
	running int
	spoilt  bool // closed with a batch running
	current *fakeInstance
}

func (f *fakeBackend) Load(ctx context.Context) (Instance, error) {
	f.mu.Lock()
	f.loads = append(f.loads, time.Now())
	n := len(f.loads)
	f.mu.Unlock()
	if f.load != nil {
		if err := f.load(n); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	i := &fakeInstance{backend: f, done: make(chan struct{})}
	f.mu.Lock()
	f.current = i
	f.mu.Unlock()
	return i, nil
}

// loadTimes says when the loads were.
func (f *fakeBackend) loadTimes() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.loads)
}

func (f *fakeBackend) addRunning(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running += n
}

// closes is the number of instances that were closed.
func (f *fakeBackend) closes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

func (f *fakeBackend) instance() *fakeInstance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

type fakeInstance struct {
	backend *fakeBackend
	done    chan struct{}
	once    sync.Once
	err     error
}

func (i *fakeInstance) Run(ctx context.Context, b Batch) (Output, error) {
	i.backend.addRunning(1)
	defer i.backend.addRunning(-1)
	if i.backend.run != nil {
		return i.backend.run(ctx, i, b)
	}
	return echoAfter(ctx, 100*time.Millisecond, b)
}

func (i *fakeInstance) die(err error) error {
	i.once.Do(func() { i.err = err; close(i.done) })
	return err
}

func (i *fakeInstance) ParamsMode() string    { return ParamsItem }
func (i *fakeInstance) Done() <-chan struct{} { return i.done }
func (i *fakeInstance) Err() error            { return i.err }
func (i *fakeInstance) MemoryBytes() uint64   { return 4096 }
func (i *fakeInstance) Close() error {
	i.backend.mu.Lock()
	defer i.backend.mu.Unlock()
	i.backend.closed++
	i.backend.spoilt = i.backend.spoilt || i.backend.running > 0
	return nil
}

func echoAfter(ctx context.Context, d time.Duration, b Batch) (Output, error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return Output{Outputs: b.Inputs}, nil
	case <-ctx.Done():
		return Output{}, context.Cause(ctx)
	}
}

// startWorker runs a worker until the test ends.
func startWorker(t *testing.T, b Backend, o Options) *Server {
	t.Helper()
	s := New(b, o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return s
}

func batchBody(id string, inputs ...string) string {
	req := wire.BatchRequest{BatchID: id}
	for i, in := range inputs {
		req.Requests = append(req.Requests, wire.Item{RequestID: fmt.Sprint("r", i), Input: in})
	}
	b, err := json.Marshal(req)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// answer is what a call got: err, or one of ok and problem.
type answer struct {
	status  int
	ok      wire.BatchResponse
	problem wire.Problem
	err     error
}

func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%d %s %s", a.status, a.problem.Code, a.problem.Message)
}

func post(ctx context.Context, h http.Handler, path, body string) answer {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://w"+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	resp, err := InProcess{"w": h}.RoundTrip(r)
	if err != nil {
		return answer{err: err}
	}
	var buf bytes.Buffer
	_, _ = buf.ReadFrom(resp.Body)
	a := answer{status: resp.StatusCode}
	if resp.StatusCode == http.StatusOK {
		a.err = json.Unmarshal(buf.Bytes(), &a.ok)
	} else if json.Unmarshal(buf.Bytes(), &a.problem) != nil {
		a.err = errors.New(buf.String())
	}
	return a
}

func send(h http.Handler, id string, inputs ...string) answer {
	return post(context.Background(), h, wire.PathBatch, batchBody(id, inputs...))
}

// sendLater sends and returns a channel that gets the answer.
func sendLater(ctx context.Context, h http.Handler, id string, inputs ...string) <-chan answer {
	c := make(chan answer, 1)
	go func() { c <- post(ctx, h, wire.PathBatch, batchBody(id, inputs...)) }()
	return c
}

func readyStatus(h http.Handler) int {
	r, _ := http.NewRequest(http.MethodGet, "http://w"+wire.PathReadyz, nil)
	resp, err := InProcess{"w": h}.RoundTrip(r)
	if err != nil {
		return 0
	}
	return resp.StatusCode
}

func wantRefusal(t *testing.T, a answer, status int, code, inMessage string) {
	t.Helper()
	if a.status != status || a.problem.Code != code || !strings.Contains(a.problem.Message, inMessage) {
		t.Fatalf("got %v, want %d %s with %q", a, status, code, inMessage)
	}
}

func wantEcho(t *testing.T, a answer, inputs ...string) {
	t.Helper()
	if a.status != http.StatusOK || len(a.ok.Results) != len(inputs) {
		t.Fatalf("got %v with %d results, want 200 with %d", a, len(a.ok.Results), len(inputs))
	}
	for i, in := range inputs {
		r := a.ok.Results[i]
		if r.Output != in || r.RequestID != fmt.Sprint("r", i) || r.Status != wire.StatusOK {
			t.Fatalf("result %d is %+v, want output %q of r%d", i, r, in, i)
		}
	}
}

// counter reads a metric of the worker; label values in any order after its name.
func counter(t *testing.T, s *Server, name string, values ...string) float64 {
	t.Helper()
	families, err := s.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metric:
		for _, m := range f.GetMetric() {
			for i, l := range m.GetLabel() {
				if i >= len(values) || l.GetValue() != values[i] {
					continue metric
				}
			}
			switch {
			case m.GetCounter() != nil:
				return m.GetCounter().GetValue()
			case m.GetHistogram() != nil:
				return float64(m.GetHistogram().GetSampleCount())
			}
			return m.GetGauge().GetValue()
		}
	}
	return 0
}
