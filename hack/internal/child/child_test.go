package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// start runs a shell script, which is gone at the end of the test.
func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Command{Name: "the script", Program: "/bin/sh", Args: []string{"-c", script}, Env: []string{"GREETING=hello"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// says waits until the process has written a word.
func says(t *testing.T, p *Process, word string) {
	t.Helper()
	for tick := time.NewTicker(time.Millisecond); !strings.Contains(p.tail.String(), word); <-tick.C {
		if err := p.Ended(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAProcessThatEndsByItselfLeavesItsLastWords(t *testing.T) {
	p := start(t, `echo $GREETING; echo words >&2; exit 3`)
	<-p.done
	err := p.Ended()
	if err == nil {
		t.Fatal("it has not ended")
	}
	for _, want := range []string{"the script", "exit status 3", "hello", "words"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %q", want, err)
		}
	}
	if _, err := p.RSSMB(); err == nil || !strings.Contains(err.Error(), "words") {
		t.Errorf("the memory of a process that is gone: %v", err)
	}
	if err := p.UntilOK(t.Context(), "http://127.0.0.1:1/"); err == nil || !strings.Contains(err.Error(), "words") {
		t.Errorf("waiting for a process that is gone: %v", err)
	}
}

func TestOutputGoesToAFileIfOneIsGiven(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(Command{Name: "x", Program: "/bin/sh", Args: []string{"-c", "echo out; echo err >&2"}, Output: f})
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	<-p.done
	if b, _ := os.ReadFile(path); string(b) != "out\nerr\n" {
		t.Errorf("the file has %q", b)
	}
}

// A frozen process is woken to hear that it must stop; one that does not listen is killed.
func TestStopEndsEveryProcess(t *testing.T) {
	polite := start(t, `trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done`)
	says(t, polite, "up") // the trap is set
	if err := polite.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	polite.Stop(time.Minute)
	if err := polite.Ended(); err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("the polite one: %v", err)
	}
	deaf := start(t, `trap '' TERM; echo up; while :; do sleep 0.01; done`)
	says(t, deaf, "up")
	deaf.Stop(10 * time.Millisecond)
	if err := deaf.Ended(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the deaf one: %v", err)
	}
}

func TestWhatProcSays(t *testing.T) {
	p := start(t, `exec sleep 60`)
	if mb, err := p.RSSMB(); err != nil || mb <= 0 || mb > 100 {
		t.Errorf("%v MiB, %v", mb, err)
	}
	if cpu, err := p.CPU(); err != nil || cpu < 0 || cpu > time.Second {
		t.Errorf("%v, %v", cpu, err)
	}
	if err := p.Ended(); err != nil {
		t.Errorf("it runs: %v", err)
	}
	cpu, err := cpuOf([]byte("7 (a ) b) R 1 2 3 4 5 6 7 8 9 10 150 50 0 0"))
	if err != nil || cpu != 2*time.Second {
		t.Errorf("%v, %v, want 2 s", cpu, err)
	}
	for _, bad := range []string{"", "7 (a", "7 (a) R 1", "7 (a) R 1 2 3 4 5 6 7 8 9 10 x 50 0 0"} {
		if _, err := cpuOf([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if mb, err := rssOf([]byte("Name:\tx\nVmRSS:\t    2048 kB\n")); err != nil || mb != 2 {
		t.Errorf("%v MiB, %v, want 2", mb, err)
	}
	if _, err := rssOf([]byte("Name:\tx\n")); err == nil {
		t.Error("memory of a process that has none")
	}
}

func TestRealtimeProcessesRunFirst(t *testing.T) {
	p := start(t, `exec sleep 60`)
	if err := p.Realtime(); errors.Is(err, os.ErrPermission) {
		t.Skipf("needs CAP_SYS_NICE: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	attr, err := unix.SchedGetAttr(p.cmd.Process.Pid, 0)
	if err != nil || attr.Policy != unix.SCHED_FIFO {
		t.Errorf("its policy is %+v, %v", attr, err)
	}
	p.Kill()
	if err := p.Realtime(); err == nil {
		t.Error("no error for a process that is gone")
	}
}

func TestOnlyTheEndOfALongOutputIsKept(t *testing.T) {
	var l tail
	for i := range 10_000 {
		fmt.Fprintln(&l, i)
	}
	if s := l.String(); len(s) != tailKept+3 || !strings.HasPrefix(s, "...") || !strings.HasSuffix(s, "9998\n9999\n") {
		t.Errorf("kept %d bytes: %q", len(s), s)
	}
}

func TestFreeAddressesDiffer(t *testing.T) {
	addrs, err := FreeAddrs(50)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, a := range addrs {
		seen[a] = true
	}
	if len(seen) != 50 {
		t.Errorf("%d different ones of 50", len(seen))
	}
}

func TestAProgramThatIsNotThereIsNamed(t *testing.T) {
	_, err := Start(Command{Name: "ghost", Program: "/no/such/program"})
	if err == nil || !strings.Contains(err.Error(), "start ghost") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
