package python

import (
	"bytes"
	"os"
	"strconv"
)

// MemoryBytes implements worker.MemoryReporter: the resident memory of the process and of all it started
// (its process group), from /proc. Pages that they share count once for each.
func (p *process) MemoryBytes() uint64 {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	var pages uint64
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		if group, rss, ok := parseStat(stat); ok && group == p.pid {
			pages += rss
		}
	}
	return pages * uint64(os.Getpagesize())
}

// parseStat takes the process group (field 5) and the resident pages (field 24) from a /proc/PID/stat. The
// name in field 2 may hold blanks and parentheses, so the fields are counted after the last ")".
func parseStat(stat []byte) (group int, rss uint64, ok bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, 0, false
	}
	f := bytes.Fields(stat[i+1:])
	if len(f) < 22 {
		return 0, 0, false
	}
	group, err1 := strconv.Atoi(string(f[2]))
	rss, err2 := strconv.ParseUint(string(f[21]), 10, 64)
	return group, rss, err1 == nil && err2 == nil
}
