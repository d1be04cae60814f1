package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// clusterProcesses finds the processes that belong to the cluster without a pidfile.
func clusterProcesses(l layout) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cgroups, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if inClusterCgroup(string(cgroups)) || isOwnShim(cmdline, l.containerdSocket()) || isOwnComponent(cmdline, l.state) {
			if _, err := identify(pid); err == nil { // not a zombie, which nothing can kill
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func inClusterCgroup(procCgroup string) bool {
	for line := range strings.Lines(procCgroup) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
		if path == ownName || strings.HasPrefix(path, ownName+"/") {
			return true
		}
	}
	return false
}

func isOwnShim(cmdline []byte, socket string) bool {
	args := strings.Split(string(cmdline), "\x00")
	return strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") && slices.Contains(args, socket)
}

// isOwnComponent finds components whose pidfile was lost: all of them name a file below the state directory. The
// program's name is checked too, so that an editor or a pager open on such a file lives on.
func isOwnComponent(cmdline []byte, state string) bool {
	args := strings.Split(string(cmdline), "\x00")
	known := slices.Contains(stopOrder, filepath.Base(args[0])) || (len(args) > 1 && slices.Contains(stopOrder, args[1]))
	return known && strings.Contains(string(cmdline), state+"/") || (known && slices.Contains(args, state))
}

// shimSockets reads where the shims listen: /run/containerd/s/HASH, outside our state whatever the configuration says.
func shimSockets(l layout) []string {
	files, _ := filepath.Glob(l.path("containerd/state/io.containerd.runtime.v2.task/*/*/address"))
	var sockets []string
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil {
			sockets = append(sockets, strings.TrimPrefix(strings.TrimSpace(string(data)), "unix://"))
		}
	}
	return sockets
}

// mountsBelow lists mount points under dir, deepest first.
func mountsBelow(mountinfo, dir string) []string {
	var points []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(fields[4])
		if strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	slices.Reverse(points)
	return points
}

// leftovers looks at the host again and names everything of the cluster that is still there.
func leftovers(l layout) []string {
	var left []string
	for _, pid := range clusterProcesses(l) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		left = append(left, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name))))
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for _, m := range mountsBelow(string(mounts), l.state) {
			left = append(left, "mount "+m)
		}
	}
	if _, err := netlink.LinkByName(bridgeName); err == nil {
		left = append(left, "interface "+bridgeName)
	}
	if nft := findProgram("nft"); nft != "" {
		for _, t := range ownTables {
			if exec.Command(nft, "list", "table", t[0], t[1]).Run() == nil {
				left = append(left, "nftables table "+t[0]+" "+t[1])
			}
		}
	}
	for _, c := range removeCgroups() {
		left = append(left, "cgroup "+c)
	}
	if _, err := os.Stat(l.state); err == nil {
		left = append(left, "directory "+l.state)
	}
	return left
}
