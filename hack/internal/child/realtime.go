package child

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Realtime gives every thread of the process, and those that they start from now on, the least real-time priority:
// it runs as soon as it can, whatever else the processors have to do. That needs CAP_SYS_NICE; errors.Is with
// os.ErrPermission tells that it is missing.
func (p *Process) Realtime() error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	tasks := fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid)
	done := map[string]bool{}
	for before := -1; before < len(done); { // until no thread is new: a thread inherits from the one that starts it
		before = len(done)
		threads, err := os.ReadDir(tasks)
		if err != nil {
			return fmt.Errorf("threads of %s: %w", p.Name, err)
		}
		for _, t := range threads {
			if done[t.Name()] {
				continue
			}
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				return fmt.Errorf("threads of %s: %w", p.Name, err)
			}
			err = unix.SchedSetAttr(id, &attr, 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("real-time priority for %s: %w", p.Name, err)
			}
			done[t.Name()] = true
		}
	}
	return nil
}
