package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/worker"
)

// exactBackend makes every batch take exactly so long, as a GPU does. Go's timers are read with epoll_wait's
// milliseconds and fire 0.7 ms late at the median, which a simulated GPU would lose of each 100: a timer of the
// kernel's fires within some tens of microseconds. The backend under it must be faster.
type exactBackend struct {
	worker.Backend
	takes time.Duration
}

func (b exactBackend) Load(ctx context.Context) (worker.Instance, error) {
	inst, err := b.Backend.Load(ctx)
	if err != nil {
		return nil, err
	}
	timer, err := newKernelTimer()
	if err != nil {
		return nil, err
	}
	return &exactInstance{Instance: inst, timer: timer, takes: b.takes}, nil
}

type exactInstance struct {
	worker.Instance
	timer *kernelTimer
	takes time.Duration
}

func (i *exactInstance) Run(ctx context.Context, b worker.Batch) (worker.Output, error) {
	start := time.Now()
	out, err := i.Instance.Run(ctx, b)
	if err == nil {
		err = i.timer.sleep(i.takes - time.Since(start))
	}
	return out, err
}

func (i *exactInstance) Close() error {
	return firstError(i.Instance.Close(), i.timer.file.Close())
}

// kernelTimer is a timerfd(2): the runtime's poller waits for it as for a socket. One may sleep at a time.
type kernelTimer struct {
	mu   sync.Mutex
	fd   int
	file *os.File
}

func newKernelTimer() (*kernelTimer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	return &kernelTimer{fd: fd, file: os.NewFile(uintptr(fd), "timerfd")}, nil
}

func (t *kernelTimer) sleep(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := unix.TimerfdSettime(t.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil); err != nil {
		return fmt.Errorf("timerfd: %w", err)
	}
	var expirations [8]byte
	_, err := t.file.Read(expirations[:])
	return err
}
