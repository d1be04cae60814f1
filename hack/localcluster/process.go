package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A processID names one process for good: PIDs are reused, and after a reboot a pidfile may name a stranger. The
// start time in clock ticks tells two processes of one boot apart, the boot id two boots.
type processID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"startTicks"`
	Boot  string `json:"bootId"`
}

func identify(pid int) (processID, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return processID{}, err
	}
	state, start, err := parseStat(stat)
	if err != nil {
		return processID{}, err
	}
	if state == 'Z' {
		return processID{}, fmt.Errorf("process %d has exited", pid)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return processID{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, err
}

// parseStat reads state and start time of /proc/PID/stat. The command's name, in parentheses, may hold spaces and
// parentheses itself: fields are counted after the last one.
func parseStat(stat []byte) (state byte, start uint64, err error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, errors.New("unexpected /proc/PID/stat")
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 {
		return 0, 0, errors.New("unexpected /proc/PID/stat")
	}
	start, err = strconv.ParseUint(fields[19], 10, 64) // field 22 of the file, starttime
	return fields[0][0], start, err
}

func (p processID) alive() bool {
	now, err := identify(p.PID)
	return err == nil && now == p
}

func (l layout) pidFile(component string) string { return l.path("run", component+".pid") }

func readPID(l layout, component string) (processID, bool) {
	var id processID
	data, err := os.ReadFile(l.pidFile(component))
	if err != nil || json.Unmarshal(data, &id) != nil {
		return processID{}, false
	}
	return id, id.alive()
}

// recordedComponents are those with a pidfile, whether alive or not: also ones that a newer version no longer starts.
func recordedComponents(l layout) []string {
	files, _ := filepath.Glob(l.pidFile("*"))
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".pid"))
	}
	return names
}

// start runs a component in a session of its own, so that it outlives this program and its terminal. The returned
// channel closes when the process exits while this program still runs.
func start(l layout, c component) (processID, <-chan struct{}, error) {
	log, err := os.OpenFile(l.log(c.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return processID{}, nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.binary, c.args...)
	cmd.Dir = l.state
	cmd.Stdout, cmd.Stderr = log, log
	// A clean environment: proxy settings would send the components' own traffic away, and NOTIFY_SOCKET or
	// LISTEN_FDS of a surrounding unit confuse containerd.
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + l.state}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return processID{}, nil, err
	}
	exited := make(chan struct{})
	go func() { cmd.Wait(); close(exited) }()
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		return id, exited, fmt.Errorf("%s exited at once:\n%s", c.name, logTail(l, c.name))
	}
	data, err := json.Marshal(id)
	if err != nil {
		return id, exited, err
	}
	return id, exited, os.WriteFile(l.pidFile(c.name), data, 0o644)
}

// stop ends a process politely, then by force. It never signals a process that is not the recorded one.
func stop(id processID, grace time.Duration) {
	if !id.alive() {
		return
	}
	syscall.Kill(id.PID, syscall.SIGTERM)
	if waitGone(id, grace) {
		return
	}
	syscall.Kill(id.PID, syscall.SIGKILL)
	waitGone(id, 5*time.Second)
}

func waitGone(id processID, patience time.Duration) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if !id.alive() {
			return true
		}
	}
	return !id.alive()
}

// logTail returns the end of a component's log, for the error that says it failed.
func logTail(l layout, component string) string {
	data, err := os.ReadFile(l.log(component))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(lines) > 15 {
		lines = lines[len(lines)-15:]
	}
	return "  " + strings.Join(lines, "\n  ") + "\n  (whole log: " + l.log(component) + ")"
}
