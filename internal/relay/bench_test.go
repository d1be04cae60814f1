package relay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// parking lets those who come within 10 ms leave together 100 ms later, as batches do.
type parking struct {
	mu    sync.Mutex
	gates []chan struct{}
}

func newParking(b *testing.B) *parking {
	p := &parking{}
	for range 11 {
		p.gates = append(p.gates, make(chan struct{}))
	}
	tick := time.NewTicker(10 * time.Millisecond)
	b.Cleanup(tick.Stop)
	go func() {
		for range tick.C {
			p.mu.Lock()
			close(p.gates[0])
			p.gates = append(p.gates[1:], make(chan struct{}))
			p.mu.Unlock()
		}
	}()
	return p
}

func (p *parking) Submit(ctx context.Context, r batching.Request) (batching.Result, error) {
	p.mu.Lock()
	g := p.gates[len(p.gates)-1]
	p.mu.Unlock()
	select {
	case <-g:
		return batching.Result{Output: r.Input, BatchSize: 100, Attempts: 1, BatchID: "batcher-0-12345678-1", Worker: "10.0.0.1:9000"}, nil
	case <-ctx.Done():
		return batching.Result{}, &batching.Error{Cause: batching.Cancelled}
	}
}

func (p *parking) Snapshot() batching.Snapshot { return batching.Snapshot{Live: 13, Mu: 12871} }

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHop is what a hop costs, both ends together, in CPU time, while 1,000 requests wait about 100 ms each:
// 9,500/s. The same requests go over the relay, as HTTP/1.1 requests on kept connections, and as HTTP/2 streams.
func BenchmarkHop(b *testing.B) {
	const waiting = 1000
	input := strings.Repeat("x", 70)
	drive := func(b *testing.B, call func(i int) error) {
		var wg sync.WaitGroup
		next := make(chan int, waiting)
		for range waiting {
			wg.Go(func() {
				for i := range next {
					if err := call(i); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		for i := range 2 * waiting { // connections, pools
			next <- i
		}
		before, began := cpuTime(), time.Now()
		b.ResetTimer()
		for i := range b.N {
			next <- i
		}
		close(next)
		wg.Wait()
		b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-us/op")
		b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "op/s")
	}
	b.Run("relay", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s := NewServer(newParking(b), []string{"enterprise", "paid", "free"}, nil, slog.New(slog.DiscardHandler))
		go func() { _ = s.Serve(l) }()
		defer s.Close()
		c := NewClient(Options{Pool: poolspec.Default(), Name: "g"})
		defer c.Close()
		c.SetBatchers([]Peer{{Name: "b", Addr: l.Addr().String()}})
		if err := c.WaitSettled(b.Context()); err != nil {
			b.Fatal(err)
		}
		drive(b, func(i int) error {
			_, err := c.Submit(b.Context(), batching.Request{ID: fmt.Sprint("r-", i), Flow: "f", Input: input})
			return err
		})
	})
	for _, h2 := range []bool{false, true} {
		name := "http1"
		if h2 {
			name = "http2"
		}
		b.Run(name, func(b *testing.B) {
			protocols := new(http.Protocols)
			protocols.SetHTTP1(!h2)
			protocols.SetUnencryptedHTTP2(h2)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			engine := newParking(b)
			s := &http.Server{Protocols: protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 2 * waiting}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				var q wire.Submission
				if err := wire.Decode(body, &q); err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
				res, err := engine.Submit(r.Context(), batching.Request{ID: q.RequestID, Input: q.Input})
				out, _ := wire.AppendJSON(nil, answerOf(res, err))
				_, _ = w.Write(out)
			})}
			go func() { _ = s.Serve(l) }()
			defer s.Close()
			client := &http.Client{Transport: &http.Transport{Protocols: protocols, MaxIdleConnsPerHost: 2 * waiting, DisableCompression: true,
				HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 2 * waiting}}}
			defer client.CloseIdleConnections()
			drive(b, func(i int) error {
				body, _ := wire.AppendJSON(nil, wire.Submission{RequestID: fmt.Sprint("r-", i), Tier: "enterprise", Flow: "f", Input: input, RemainingUs: 2e6})
				res, err := client.Post("http://"+l.Addr().String(), "application/json", strings.NewReader(string(body)))
				if err != nil {
					return err
				}
				defer res.Body.Close()
				raw, err := io.ReadAll(res.Body)
				if err != nil {
					return err
				}
				var a wire.SubmissionAnswer
				return wire.Decode(raw, &a)
			})
		})
	}
}
