package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

func runDown(_ context.Context, args []string) error {
	fs := newFlags("down", "")
	l := layoutFlags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	if err := l.resolve(); err != nil {
		return err
	}
	if err := requireHost(); err != nil {
		return err
	}
	return down(*l)
}

// down works from what it finds rather than from what up finished: after a crash, a reboot or half an up, every step
// looks for its own traces and is content when there are none.
func down(l layout) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := checkOwner(l, ownerFile); err != nil {
		return err
	}
	if len(recordedComponents(l)) == 0 && len(leftovers(l)) == 0 {
		fmt.Println("nothing to remove: no cluster in", l.state)
		return nil
	}
	p := &progress{started: time.Now()}
	record, recordErr := readHostRecord(l)

	stopComponents(l, p)
	killed := killPods(l)
	p.step("pods", "%d processes killed", killed)

	sockets := shimSockets(l)
	unmounted := unmountBelow(l.state)
	p.step("mounts", "%d unmounted", unmounted)
	removeNetwork()
	p.step("network", "bridge %s and nftables tables removed", bridgeName)
	for deadline := time.Now().Add(5 * time.Second); len(removeCgroups()) > 0 && time.Now().Before(deadline); {
		// The kernel empties a killed process's cgroup a moment after the process is gone.
		time.Sleep(50 * time.Millisecond)
	}
	p.step("cgroups", "removed")

	if recordErr == nil {
		restoreSysctls(record)
	}
	removeFiles(l, record, sockets)
	p.step("files", "%s removed, sysctls restored", l.state)

	if left := leftovers(l); len(left) > 0 {
		return fmt.Errorf("%d traces are left, remove them by hand:\n  %s", len(left), strings.Join(left, "\n  "))
	}
	fmt.Println("the cluster is gone without a trace")
	return nil
}

// stopOrder: the kubelet first, or it restarts what is being killed; the API server before its etcd.
var stopOrder = []string{"kubelet", "kube-proxy", "gpus", "dns", "kube-scheduler", "kube-controller-manager", "containerd", "kube-apiserver", "etcd"}

func stopComponents(l layout, p *progress) {
	recorded := recordedComponents(l)
	names := slices.Clone(stopOrder)
	for _, name := range recorded {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		id, alive := readPID(l, name)
		if !alive {
			continue
		}
		// An API server drains for up to a minute; its data is about to be deleted, so nobody waits for that.
		stop(id, 2*time.Second)
		p.step(name, "stopped (pid %d)", id.PID)
	}
}

// killPods kills the shims, which are found by the socket of our containerd, and everything in the cluster's cgroups.
// It repeats, because a shim that dies last may just have started a process.
func killPods(l layout) int {
	killed := map[int]bool{}
	for range 50 {
		pids := clusterProcesses(l)
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			killed[pid] = true
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return len(killed)
}

func unmountBelow(dir string) int {
	count := 0
	for range 5 { // mounts stack: one point may hold several
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return count
		}
		points := mountsBelow(string(mounts), dir)
		if len(points) == 0 {
			return count
		}
		for _, point := range points {
			if syscall.Unmount(point, 0) == nil || syscall.Unmount(point, syscall.MNT_DETACH) == nil {
				count++
			}
		}
	}
	return count
}

// ownTables are the nftables tables of kube-proxy and ours, by family.
var ownTables = [][2]string{{"ip", nftablesTable}, {"ip", "kube-proxy"}, {"ip6", "kube-proxy"}}

func removeNetwork() {
	if nft := findProgram("nft"); nft != "" {
		for _, t := range ownTables {
			_ = exec.Command(nft, "delete", "table", t[0], t[1]).Run() // fails when absent
		}
	}
	for _, veth := range bridgePorts() {
		_ = netlink.LinkDel(veth)
	}
	if link, err := netlink.LinkByName(bridgeName); err == nil {
		_ = netlink.LinkDel(link)
	}
}

// bridgePorts are the pods' veth ends; the kernel removes them with their namespace, but not at once.
func bridgePorts() []netlink.Link {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(links, func(x netlink.Link) bool { return x.Attrs().MasterIndex != bridge.Attrs().Index })
}

func restoreSysctls(record hostRecord) {
	for name, value := range record.Sysctls {
		path := "/proc/sys/" + name
		if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) != value {
			_ = os.WriteFile(path, []byte(value), 0o644)
		}
	}
}

func removeFiles(l layout, record hostRecord, sockets []string) {
	for _, s := range sockets {
		_ = os.Remove(s)
	}
	removeMatching("/var/lib/cni/results/*", func(path string) bool {
		data, err := os.ReadFile(path)
		return err == nil && bytes.Contains(data, []byte(l.state+"/"))
	})
	removeMatching("/var/log/containers/*", func(path string) bool {
		to, err := os.Readlink(path)
		return err == nil && strings.HasPrefix(to, l.state+"/")
	})
	_ = os.RemoveAll(l.state)
	_ = os.Remove(ownerFile)
	for _, dir := range record.Created {
		removeEmptyTree(dir)
	}
	if record.Kubeconfig != "" {
		if data, err := os.ReadFile(record.Kubeconfig); err == nil && bytes.Contains(data, []byte(apiURL())) {
			_ = os.Remove(record.Kubeconfig)
		}
	}
}

func removeMatching(pattern string, match func(path string) bool) {
	paths, _ := filepath.Glob(pattern)
	for _, p := range paths {
		if match(p) {
			_ = os.Remove(p)
		}
	}
}

// removeEmptyTree removes a directory that up's components created. Only directories, sockets, empty files (locks) and
// the kubelet's device checkpoint go: if something else has moved in meanwhile, it stays, and so does its directory.
func removeEmptyTree(dir string) {
	if dir == devicePluginDir {
		_ = os.Remove(filepath.Join(dir, "kubelet_internal_checkpoint"))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case entry.IsDir():
			removeEmptyTree(path)
		case entry.Type() == os.ModeSocket || isEmptyFile(entry):
			_ = os.Remove(path)
		}
	}
	_ = os.Remove(dir)
}

func isEmptyFile(entry os.DirEntry) bool {
	info, err := entry.Info()
	return err == nil && info.Mode().IsRegular() && info.Size() == 0
}
