package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Both files lie outside the state directory, which down deletes. The owner file names the state directory of the
// cluster that holds the machine's bridge, cgroups and tables: down of another one must not pull them from under it.
const (
	lockFile  = "/run/" + ownName + ".lock"
	ownerFile = "/run/" + ownName + ".state"
)

// lock keeps two runs of up or down apart; the kernel frees it when its holder dies.
func lock() (unlock func(), err error) {
	file, err := os.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		file.Close()
		return nil, errors.New("another localcluster up or down is at work: wait for it to end")
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("locking %s: %w", lockFile, err)
	}
	return func() { os.Remove(lockFile); file.Close() }, nil
}

// checkOwner fails when the machine's cluster is another one. An owner whose directory is gone is none.
func checkOwner(l layout, file string) error {
	data, err := os.ReadFile(file)
	owner := layout{state: strings.TrimSpace(string(data))}
	if err != nil || owner.state == l.state {
		return nil
	}
	if _, err := os.Stat(owner.hostRecord()); err != nil {
		return nil
	}
	return fmt.Errorf("this machine's cluster has its state in %[1]s: say --state %[1]s (one cluster runs on a machine at a time)", owner.state)
}

func takeOwnership(l layout, file string) error {
	return os.WriteFile(file, []byte(l.state+"\n"), 0o644)
}
