package python

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

func TestDeathInMidBatchIsNoticedAndNamed(t *testing.T) {
	source := `
import ctypes, os, signal
def f(inputs):
    if inputs[0] == "segfault": ctypes.string_at(0)
    if inputs[0] == "exit": os._exit(7)
    if inputs[0] == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if inputs[0] == "nonsense": os.write(4, b"\x00\x00\x00\x02[]")
    if inputs[0] == "forged": os.write(4, b'\x00\x00\x00\x1c{"id":99,"outputs":["evil"]}')
    if inputs[0] == "huge": os.write(4, b"\xff\xff\xff\xff")
    return inputs
`
	for kind, want := range map[string]string{
		"segfault": "segmentation fault", "exit": "exit status 7", "kill": "signal: killed", "nonsense": "frame", "huge": "4294967295 bytes",
		"forged": "an answer to batch 99 came back for batch 1",
	} {
		t.Run(kind, func(t *testing.T) {
			c, _ := module(t, source)
			i := load(t, c)
			_, err := run(i, kind)
			wantError(t, err, wire.CodeBackend, want)
			if !dead(i) {
				t.Error("Run returned before Done was closed: another batch could be sent to a dead process")
			}
		})
	}
}

func TestHangIsKilledWithEverythingItStarted(t *testing.T) {
	c, book := module(t, `
import os, subprocess, time
def f(inputs):
    with open(inputs[0], "w") as fifo:
        subprocess.Popen(["sleep", "100000"], stdout=fifo)
    print("hanging now")
    while True: time.sleep(1000)
`)
	fifo := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	i := load(t, c)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := i.Run(ctx, worker.Batch{Inputs: []string{fifo}})
		ended <- err
	}()
	alive, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	book.wait(t, "hanging now")
	cancel(errors.New("the batch took too long"))
	wantError(t, <-ended, wire.CodeBackend, "took too long")
	if !dead(i) {
		t.Error("the process lives")
	}
	// The pipe ends when the last process that could write to it is gone.
	if _, err := io.ReadAll(alive); err != nil {
		t.Error(err)
	}
}

func TestCrashTakesWhatItStartedWithIt(t *testing.T) {
	c, _ := module(t, `
import os, signal, subprocess
def f(inputs):
    with open(inputs[0], "w") as fifo:
        subprocess.Popen(["sleep", "100000"], stdout=fifo)
    os.kill(os.getpid(), signal.SIGSEGV)
`)
	fifo := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	i := load(t, c)
	ended := make(chan error, 1)
	go func() {
		_, err := run(i, fifo)
		ended <- err
	}()
	alive, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, <-ended, wire.CodeBackend, "segmentation fault")
	if _, err := io.ReadAll(alive); err != nil {
		t.Error(err)
	}
}

func TestDeathBetweenBatchesIsNoticed(t *testing.T) {
	c, _ := module(t, "def f(inputs):\n    return inputs\n")
	i := load(t, c)
	if err := syscall.Kill(i.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-i.Done()
	if !strings.Contains(i.Err().Error(), "killed") {
		t.Errorf("why: %v", i.Err())
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
}

func TestLoadThatIsGivenUpLeavesNoProcess(t *testing.T) {
	c, book := module(t, "import time\nprint('importing', flush=True)\ntime.sleep(100000)\n")
	b, _ := New(c)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.Load(ctx)
		ended <- err
	}()
	book.wait(t, "importing")
	cancel(errors.New("loading took too long"))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "loading took too long") {
		t.Errorf("got %v", err)
	}
}

func TestLongLinesAreCutInPieces(t *testing.T) {
	book := &logBook{seen: make(chan string, 1)}
	l := newLineLog(slog.New(slog.NewTextHandler(book, nil)), "stdout")
	_, _ = fmt.Fprint(l, "one\n\ntwo", strings.Repeat("x", 2*maxLine), "\nthree")
	l.flush()
	if n := strings.Count(book.String(), "stream=stdout"); n != 5 {
		t.Errorf("%d lines logged, want one, two+x, x, the rest and three", n)
	}
}
