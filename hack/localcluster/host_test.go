package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestParseStatCountsFieldsAfterTheName(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20"
	for _, name := range []string{"(etcd)", "(a b)", "(evil) S 9)"} {
		state, start, err := parseStat([]byte("17 " + name + rest))
		if err != nil || state != 'S' || start != 4242 {
			t.Errorf("%s: state %c, start %d, %v", name, state, start, err)
		}
	}
	if _, _, err := parseStat([]byte("17 (etcd) S")); err == nil {
		t.Error("a short line must be refused")
	}
}

func TestAReusedPIDIsNotTheRecordedProcess(t *testing.T) {
	self, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !self.alive() {
		t.Error("this process is alive")
	}
	older, rebooted := self, self
	older.Start--
	rebooted.Boot = "another boot"
	if older.alive() || rebooted.alive() {
		t.Error("a process with the same PID was taken for the recorded one and would be killed")
	}
}

func TestCgroupMounts(t *testing.T) {
	mountinfo := `30 1 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
33 1 0:29 / /srv rw - ext4 /dev/cgroup rw
`
	want := []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"}
	if got := cgroupMounts(mountinfo); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestInClusterCgroup(t *testing.T) {
	for content, want := range map[string]bool{
		"4:memory:/sluice-localcluster/kubepods/besteffort/podx/y\n0::/\n": true,
		"0::/sluice-localcluster/kubepods/podx\n":                          true,
		"0::/user.slice/sluice-localcluster/x\n":                           false,
		"0::/sluice-localcluster-other/x\n":                                false,
		"0::/\n":                                                           false,
	} {
		if got := inClusterCgroup(content); got != want {
			t.Errorf("%q: %t", content, got)
		}
	}
}

func TestMountsBelowAreListedDeepestFirst(t *testing.T) {
	mountinfo := `40 1 0:1 / /var/lib/x rw - tmpfs tmpfs rw
41 40 0:2 / /var/lib/x/a rw - tmpfs tmpfs rw
42 41 0:3 / /var/lib/x/a/b\040c rw - tmpfs tmpfs rw
43 1 0:4 / /var/lib/xy/z rw - tmpfs tmpfs rw
`
	want := []string{"/var/lib/x/a/b c", "/var/lib/x/a"}
	if got := mountsBelow(mountinfo, "/var/lib/x"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHasCapability(t *testing.T) {
	const all, without = "CapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n", "CapEff:\t000001fffeffffff\n"
	if !hasCapability(all, capSysResource) || hasCapability(without, capSysResource) || hasCapability("", capSysResource) {
		t.Error("CAP_SYS_RESOURCE is bit 24 of CapEff")
	}
}

func TestOverlapping(t *testing.T) {
	for prefix, want := range map[string]bool{
		"10.213.4.1/24": true, "10.214.0.9/32": true, "10.0.0.5/8": true,
		"10.88.0.1/16": false, "192.168.1.2/24": false, "::1/128": false, "nonsense": false,
	} {
		if got := overlapping(prefix); got != want {
			t.Errorf("%s: %t", prefix, got)
		}
	}
}

func TestRemoveEmptyTreeKeepsWhatSomeoneElsePutThere(t *testing.T) {
	root := t.TempDir()
	empty, used := filepath.Join(root, "empty"), filepath.Join(root, "used")
	for _, dir := range []string{filepath.Join(empty, "a", "b"), filepath.Join(used, "a")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(used, "a", "precious")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	removeEmptyTree(empty)
	removeEmptyTree(used)
	if _, err := os.Stat(empty); err == nil {
		t.Error("the empty tree is still there")
	}
	if _, err := os.Stat(file); err != nil {
		t.Error("a file of someone else is gone")
	}
}

func TestSelectTargets(t *testing.T) {
	got, err := selectTargets("kubectl,etcd")
	if err != nil || len(got) != 2 || got[0].name != "etcd" {
		t.Errorf("got %v, %v: want build order", got, err)
	}
	if _, err := selectTargets("etcd,kubeadm"); err == nil {
		t.Error("an unknown binary must be refused")
	}
}

func TestLinkerFlags(t *testing.T) {
	const want = "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
	if got := linkerFlags("v1.37.2"); got != want {
		t.Errorf("got %s", got)
	}
}

func TestDispatchNamesAnUnknownCommand(t *testing.T) {
	if err := dispatch(t.Context(), []string{"upp"}); err == nil {
		t.Error("a typing error must not pass")
	}
	if err := dispatch(t.Context(), []string{"down", "--state", t.TempDir(), "now"}); err == nil {
		t.Error("a stray argument must not pass: down deletes")
	}
}

func TestDownOfAnotherClusterIsRefused(t *testing.T) {
	running, other := testLayout(t), testLayout(t)
	owner := filepath.Join(t.TempDir(), "owner")
	if err := checkOwner(other, owner); err != nil {
		t.Errorf("nobody owns the machine: %v", err)
	}
	if err := takeOwnership(running, owner); err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(other, owner); err != nil {
		t.Errorf("an owner whose state is gone is none: %v", err)
	}
	if err := os.WriteFile(running.hostRecord(), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(running, owner); err != nil {
		t.Errorf("the owner itself is refused: %v", err)
	}
	if err := checkOwner(other, owner); err == nil {
		t.Error("down would pull the bridge from under a running cluster")
	}
}
