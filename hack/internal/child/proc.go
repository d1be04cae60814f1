package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is USER_HZ, the unit of /proc/PID/stat: 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// CPU is the processor time that the process has used, user and system, as getrusage counts it: the kernel scales
// both sources to the exact run time of the scheduler; /proc rounds to 10 ms, 0.2 % of ten seconds at half a core.
func (p *Process) CPU() (time.Duration, error) {
	b, err := p.read("stat")
	if err != nil {
		return 0, err
	}
	return cpuOf(b)
}

// cpuOf reads /proc/PID/stat. The name in parentheses may hold anything; the fields after it do not: user and system
// time are the 14th and 15th of the line, the name the 2nd.
func cpuOf(stat []byte) (time.Duration, error) {
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 13 {
		return 0, errors.New("unexpected /proc/PID/stat")
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * (time.Second / ticksPerSecond), errors.Join(err1, err2)
}

// RSSMB is the resident memory now, in MiB.
func (p *Process) RSSMB() (float64, error) {
	b, err := p.read("status")
	if err != nil {
		return 0, err
	}
	return rssOf(b)
}

func rssOf(status []byte) (float64, error) {
	for l := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(l, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 64)
			return kb / 1024, err
		}
	}
	return 0, errors.New("no VmRSS in /proc/PID/status") // of a process that has ended and was not waited for
}

func (p *Process) read(file string) ([]byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, file))
	if err != nil {
		return nil, errors.Join(p.Ended(), err)
	}
	return b, nil
}
