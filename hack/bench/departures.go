package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"sluice.dev/sluice/hack/loadgen/load"
	"sluice.dev/sluice/internal/worker"
)

// newsTravels is how long the news that a client hung up may take to the queue: the end of a connection, the
// server's reader, the request's goroutine. An item that starts within this time after its client left was on
// its way already.
const newsTravels = 5 * time.Millisecond

// departures are the clients that hung up at random. Safe for concurrent use.
type departures struct {
	mu   sync.Mutex
	left map[uint64]time.Time
}

func (d *departures) add(n uint64, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		d.left = map[uint64]time.Time{}
	}
	d.left[n] = at
}

// inBatch reads a start log and counts the items whose client hung up after they had started, or so shortly
// before that the batcher could not know.
func (d *departures) inBatch(file string) (n uint64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := bufio.NewReader(f)
	for {
		var rec [16]byte
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		left, ok := d.left[binary.LittleEndian.Uint64(rec[:])]
		started := time.Unix(0, int64(binary.LittleEndian.Uint64(rec[8:])))
		if ok && started.Before(left.Add(newsTravels)) {
			n++
		}
	}
}

// startLog writes when every item of a load generator's requests started to run: 16 bytes each, the number of
// the request and the time in Unix nanoseconds. Generator and workers are on one machine and read one clock.
type startLog struct {
	mu sync.Mutex
	w  *bufio.Writer
}

func (l *startLog) add(at time.Time, inputs []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, in := range inputs {
		n, err := load.InputNumber(in)
		if err != nil {
			continue // not of the load generator
		}
		var rec [16]byte
		binary.LittleEndian.PutUint64(rec[:], n)
		binary.LittleEndian.PutUint64(rec[8:], uint64(at.UnixNano()))
		if _, err := l.w.Write(rec[:]); err != nil {
			return err
		}
	}
	return l.w.Flush()
}

// loggedBackend is a backend whose batches are logged.
type loggedBackend struct {
	worker.Backend
	log *startLog
}

// Load implements worker.Backend.
func (b loggedBackend) Load(ctx context.Context) (worker.Instance, error) {
	i, err := b.Backend.Load(ctx)
	return loggedInstance{i, b.log}, err
}

type loggedInstance struct {
	worker.Instance
	log *startLog
}

// Run implements worker.Instance.
func (i loggedInstance) Run(ctx context.Context, b worker.Batch) (worker.Output, error) {
	if err := i.log.add(time.Now(), b.Inputs); err != nil {
		return worker.Output{}, err
	}
	return i.Instance.Run(ctx, b)
}
