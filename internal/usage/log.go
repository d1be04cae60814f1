package usage

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// DefaultBuffer is how many records may wait for the writer: about 3 MB, a second at 8,000 requests/s.
	DefaultBuffer = 8192
	// flushBytes is when lines are written although more records wait. Only whole lines are written.
	flushBytes = 32 << 10
	// complainEvery is how often a failing writer is logged.
	complainEvery = time.Minute
)

// Names of metrics, and the values of the label reason.
const (
	metricWritten = "sluice_usage_records_written_total"
	metricDropped = "sluice_usage_records_dropped_total"

	droppedFull  = "buffer_full"
	droppedWrite = "write_failed"
)

// Log writes records. Safe for concurrent use. A nil *Log is switched off: Add does nothing.
type Log struct {
	w       io.Writer
	log     *slog.Logger
	records chan Record
	stop    chan struct{}
	done    chan struct{}

	written, full, failed atomic.Uint64
	complained            time.Time
}

// NewLog returns a Log that writes to w from a goroutine of its own, and holds at most buffer records (0:
// DefaultBuffer). Close it. log is told of failing writes, at most once a minute; nil discards.
func NewLog(w io.Writer, buffer int, log *slog.Logger) *Log {
	if buffer < 1 {
		buffer = DefaultBuffer
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &Log{w: w, log: log, records: make(chan Record, buffer), stop: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

// Add hands over a record. It never blocks: a record that does not fit is dropped and counted. Those of requests
// that were not served may only fill half of the buffer, so that a flood of refusals cannot displace what is paid
// for.
func (l *Log) Add(r Record) {
	if l == nil {
		return
	}
	if r.Outcome != OutcomeServed && len(l.records) >= cap(l.records)/2 {
		l.full.Add(1)
		return
	}
	select {
	case l.records <- r:
	default:
		l.full.Add(1)
	}
}

// Close writes what is buffered and returns, at the latest with ctx and its error. Nothing may be added any more;
// what is, may be lost.
func (l *Log) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	close(l.stop)
	select {
	case <-l.done:
		return nil
	case <-ctx.Done(): // the writer hangs
		return ctx.Err()
	}
}

func (l *Log) run() {
	defer close(l.done)
	lines, n := make([]byte, 0, flushBytes+4096), 0
	flush := func() {
		if n > 0 {
			l.write(lines, n)
		}
		lines, n = lines[:0], 0
	}
	add := func(r Record) {
		lines = appendLine(lines, &r)
		if n++; len(lines) >= flushBytes {
			flush()
		}
	}
	for {
		select {
		case r := <-l.records:
			add(r)
			continue
		default:
		}
		flush() // nobody waits: what is there leaves
		select {
		case r := <-l.records:
			add(r)
		case <-l.stop:
			for {
				select {
				case r := <-l.records:
					add(r)
				default:
					flush()
					return
				}
			}
		}
	}
}

func (l *Log) write(lines []byte, n int) {
	if _, err := l.w.Write(lines); err != nil {
		l.failed.Add(uint64(n))
		if now := time.Now(); now.Sub(l.complained) >= complainEvery {
			l.complained = now
			l.log.Error("usage records could not be written and are lost", "records", n, "error", err)
		}
		return
	}
	l.written.Add(uint64(n))
}

// Describe implements prometheus.Collector.
func (l *Log) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(l, ch) }

var (
	descWritten = prometheus.NewDesc(metricWritten, "Usage records written.", nil, nil)
	descDropped = prometheus.NewDesc(metricDropped, "Usage records lost, because the buffer was full or the write failed.", []string{"reason"}, nil)
)

// Collect implements prometheus.Collector.
func (l *Log) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descWritten, prometheus.CounterValue, float64(l.written.Load()))
	ch <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(l.full.Load()), droppedFull)
	ch <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(l.failed.Load()), droppedWrite)
}
