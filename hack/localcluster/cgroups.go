package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
)

const (
	cgroupMount  = "/sys/fs/cgroup"
	cgroup2Magic = 0x63677270
)

// cgroupRoots returns the directories that hold the cluster's cgroups: one on the unified hierarchy, one a mounted
// controller on version 1 (and on the hybrid's unified side, where runc puts containers too).
func cgroupRoots() ([]string, error) {
	if unifiedHierarchy() {
		return []string{filepath.Join(cgroupMount, ownName)}, nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var roots []string
	for _, point := range cgroupMounts(string(mounts)) {
		roots = append(roots, filepath.Join(point, ownName))
	}
	if len(roots) == 0 {
		return nil, errors.New("no cgroup file system is mounted: mount one on /sys/fs/cgroup (on Debian: apt-get install cgroupfs-mount)")
	}
	return roots, nil
}

func unifiedHierarchy() bool {
	var fs syscall.Statfs_t
	return syscall.Statfs(cgroupMount, &fs) == nil && fs.Type == cgroup2Magic
}

// cgroupMounts reads the mount points of cgroup file systems out of a mountinfo, each once: co-mounted controllers
// (cpu,cpuacct) are symlinks to one.
func cgroupMounts(mountinfo string) []string {
	seen := map[string]bool{}
	var points []string
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 || !strings.HasPrefix(after, "cgroup") || seen[fields[4]] {
			continue
		}
		seen[fields[4]] = true
		points = append(points, fields[4])
	}
	return points
}

// makeCgroups creates the root that the kubelet is told to put pods in; it insists that it exists everywhere.
func makeCgroups() error {
	roots, err := cgroupRoots()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot create cgroup: %w (is /sys/fs/cgroup read-only in this container?)", err)
		}
		// On version 1 a new cpuset is empty and takes no process until it gets CPUs and memory nodes.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			parent, err := os.ReadFile(filepath.Join(filepath.Dir(root), file))
			if err != nil || len(strings.TrimSpace(string(parent))) == 0 {
				continue
			}
			if !unifiedHierarchy() {
				_ = os.WriteFile(filepath.Join(root, file), parent, 0o644)
			}
		}
	}
	if unifiedHierarchy() {
		return delegateControllers(roots[0])
	}
	return nil
}

// delegateControllers makes the controllers of the unified hierarchy available below root. A version 2 cgroup that
// holds processes may not hand controllers down; the real root is exempt, a container's is not, and there its
// processes move aside first (kind and k3d do the same).
func delegateControllers(root string) error {
	top := filepath.Join(cgroupMount, "cgroup.subtree_control")
	err := enableControllers(cgroupMount)
	if errors.Is(err, syscall.EBUSY) {
		if err = moveAside(filepath.Join(cgroupMount, "init")); err == nil {
			err = enableControllers(cgroupMount)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot enable cgroup controllers in %s: %w (a container needs a private, writable cgroup namespace)", top, err)
	}
	return enableControllers(root)
}

// podControllers are the ones the kubelet and runc use; those marked true it does not start without.
var podControllers = []struct {
	name     string
	required bool
}{{"cpu", true}, {"cpuset", true}, {"memory", true}, {"pids", true}, {"io", false}, {"hugetlb", false}}

// enableControllers hands controllers down from dir, each by a write of its own: one that fails takes the whole
// write with it.
func enableControllers(dir string) error {
	for _, c := range podControllers {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c.name), 0o644)
		if err != nil && c.required {
			return fmt.Errorf("controller %s: %w", c.name, err)
		}
	}
	return nil
}

func moveAside(leaf string) error {
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		return err
	}
	processes, err := os.ReadFile(filepath.Join(cgroupMount, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(processes)) {
		// A process that ended meanwhile, or a kernel thread, cannot be moved and needs not be.
		_ = os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(pid), 0o644)
	}
	return nil
}

// removeCgroups removes the cluster's trees, children first, and returns those still there.
func removeCgroups() []string {
	roots, err := cgroupRoots()
	if err != nil {
		return nil
	}
	var left []string
	for _, root := range roots {
		for _, dir := range directoriesDeepestFirst(root) {
			_ = os.Remove(dir) // rmdir: the files in it are the kernel's
		}
		if _, err := os.Stat(root); err == nil {
			left = append(left, root)
		}
	}
	return left
}

func directoriesDeepestFirst(root string) []string {
	var dirs []string
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	sort.Slice(dirs, func(i, j int) bool { return len(dirs[i]) > len(dirs[j]) })
	return dirs
}
