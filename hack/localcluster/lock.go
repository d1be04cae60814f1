package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lock keeps two runs of up or down apart. The lock lies outside the state directory, which down deletes; the kernel
// frees it when its holder dies.
func lock() (unlock func(), err error) {
	path := "/run/" + ownName + ".lock"
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
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
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { os.Remove(path); file.Close() }, nil
}
