package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/rendezvous"
)

// Benchmarks of a process as a whole run a part of themselves in a process of its own: this binary, told by a
// variable what to be.
const partVariable = "SLUICE_BENCH_PART"

// TestPartOfABenchmark is such a part; it ends when its standard input does.
func TestPartOfABenchmark(t *testing.T) {
	what, argument, _ := strings.Cut(os.Getenv(partVariable), "=")
	switch what {
	case "":
		t.Skip("a part of benchmarks")
	case "owner":
		serveOwner(t, argument)
	case "encoding":
		loadEncoding(t, argument)
	default:
		t.Fatal("no such part: " + what)
	}
}

// part starts one and returns the first line that it prints, and what ends it and returns its CPU time.
func part(b *testing.B, what string) (line string, end func() time.Duration) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestPartOfABenchmark$", "-test.count=1")
	cmd.Env = append(os.Environ(), partVariable+"="+what)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	r := bufio.NewReader(out)
	if line, err = r.ReadString('\n'); err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line), sync.OnceValue(func() time.Duration {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, r)
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	})
}

// serveOwner is the gateway that keeps the buckets.
func serveOwner(t *testing.T, name string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	NewFleetQuota(name, 2*time.Second).routes(mux)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = s.Serve(l) }()
	fmt.Println(l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Close()
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSharedBudget reserves and settles 10,000 requests a second of 1,000 tenants under limits of their own and
// one that they share: three gateways in this process ask the one, in another process, that keeps all buckets.
//
//	go test ./internal/gateway -run xxx -bench SharedBudget -benchtime 10s
//
// owner-% and askers-% are of one processor: the owner's whole process; the three gateways with the load itself.
func BenchmarkSharedBudget(b *testing.B) {
	const gateways, rate, tenants = 3, 10_000, 1_000
	names := make([]string, gateways+1)
	for i := range names {
		names[i] = fmt.Sprint("gw-", i)
	}
	for i := 0; rendezvous.Pick(budgetKey, names) != 0; i++ { // the first keeps the budget
		names[0] = fmt.Sprint("owner-", i)
	}
	addr, end := part(b, "owner="+names[0])
	defer end()
	peers := []Peer{{Name: names[0], Addr: addr}}
	for i := range gateways {
		peers = append(peers, Peer{Name: names[i+1], Addr: fmt.Sprint("192.0.2.1:", i+1)}) // nobody asks them
	}
	var fleet []*FleetQuota
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(b.Context())
	defer running.Wait()
	defer stop()
	for i := range gateways {
		f := NewFleetQuota(names[i+1], 2*time.Second)
		f.SetPeers(peers)
		running.Go(func() { f.Run(ctx) })
		fleet = append(fleet, f)
	}
	var refused, fallback atomic.Uint64
	latency := make([]time.Duration, b.N)
	ask := func(i int) {
		f, began := fleet[i%gateways], time.Now()
		r := f.Reserve(b.Context(), began, quota.Ask{
			Tenant: fmt.Sprint("tenant-", i%tenants), Limits: quota.Limits{RequestsPerMinute: 1200, TokensPerMinute: 140_000}, Tier: "paid",
			PoolLimits: quota.Limits{TokensPerMinute: 1_000_000_000}, Cost: quota.Cost{Requests: 1, Tokens: 150},
		})
		latency[i] = time.Since(began)
		if r.Fallback {
			fallback.Add(1)
		}
		if !r.Granted {
			refused.Add(1)
			return
		}
		f.Settle(time.Now(), r.Grant, quota.Cost{Requests: 1, Tokens: 120})
	}
	var wg sync.WaitGroup
	before := cpuTime()
	b.ResetTimer()
	began := time.Now()
	for i := 0; i < b.N; {
		for due := int(time.Since(began).Seconds()*rate) + 1; i < min(due, b.N); i++ {
			n := i
			wg.Go(func() { ask(n) })
		}
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
	b.StopTimer()
	took := time.Since(began)
	askers := cpuTime() - before
	slices.Sort(latency)
	b.ReportMetric(100*end().Seconds()/took.Seconds(), "owner-%")
	b.ReportMetric(100*askers.Seconds()/took.Seconds(), "askers-%")
	b.ReportMetric(float64(b.N)/took.Seconds(), "reservations/s")
	b.ReportMetric(float64(latency[len(latency)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(latency[len(latency)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(float64(refused.Load()), "refused")
	b.ReportMetric(float64(fallback.Load()), "fallbacks")
}

// rss is the resident memory of this process in bytes, after everything that is free was given back.
func rss(t *testing.T) int {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	_, rest, _ := bytes.Cut(status, []byte("VmRSS:"))
	fields := strings.Fields(string(rest))
	kib, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// loadEncoding prints what the first request with an encoding costs: bytes and milliseconds.
func loadEncoding(t *testing.T, encoding string) {
	before := rss(t)
	c, err := newTokenCounter(encoding)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.count("the quick brown fox")
	took := time.Since(began)
	fmt.Println(rss(t)-before, took.Milliseconds())
	runtime.KeepAlive(c)
}

// BenchmarkTokenEncodingMemory says what an encoding of tokens takes in memory once the first request was counted.
//
//	go test ./internal/gateway -run xxx -bench TokenEncodingMemory -benchtime 3x
func BenchmarkTokenEncodingMemory(b *testing.B) {
	for _, encoding := range []string{"o200k_base", "cl100k_base", "p50k_base", "r50k_base"} {
		b.Run(encoding, func(b *testing.B) {
			var kept, took int
			for range b.N {
				line, end := part(b, "encoding="+encoding)
				var k, ms int
				if _, err := fmt.Sscan(line, &k, &ms); err != nil {
					b.Fatalf("%q: %v", line, err)
				}
				kept, took = max(kept, k), max(took, ms)
				end()
			}
			b.ReportMetric(float64(kept)/(1<<20), "MiB")
			b.ReportMetric(float64(took), "ms-first")
		})
	}
}
