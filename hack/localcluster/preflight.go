package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// A nodeProgram is something the node runs that is no Go module, with the Debian package that carries it.
type nodeProgram struct {
	names []string // any of these paths or commands
	pkg   string
}

// CNI plugins lie in /usr/lib/cni on Debian and Ubuntu, in /opt/cni/bin where a vendor's containerd came with them.
var cniDirectories = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

var nodePrograms = []nodeProgram{
	{[]string{"containerd"}, "containerd"},
	{[]string{"ctr"}, "containerd"},
	{[]string{"runc"}, "runc"},
	{[]string{"nft"}, "nftables"},
	{[]string{"/usr/lib/cni/bridge", "/opt/cni/bin/bridge", "/usr/libexec/cni/bridge"}, "containernetworking-plugins"},
}

// systemPath is where the node's programs are looked up: a person's PATH often lacks sbin.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findProgram returns the path of a node program, or "".
func findProgram(names ...string) string {
	for _, name := range names {
		if filepath.IsAbs(name) {
			if _, err := os.Stat(name); err == nil {
				return name
			}
			continue
		}
		for _, dir := range filepath.SplitList(systemPath) {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
				return path
			}
		}
	}
	return ""
}

func findCNIDirectory() string {
	for _, dir := range cniDirectories {
		if findProgram(filepath.Join(dir, "bridge")) != "" {
			return dir
		}
	}
	return ""
}

// requireHost checks what no package can bring.
func requireHost() error {
	if runtime.GOOS != "linux" {
		return errors.New("a node needs Linux: elsewhere use kind, or point KUBECONFIG at a cluster you have")
	}
	if os.Geteuid() != 0 {
		return errors.New("a node needs root (namespaces, cgroups, nftables): run it again with sudo")
	}
	if _, err := os.Stat("/dev/kmsg"); err != nil {
		return errors.New("/dev/kmsg is missing, the kubelet reads it: in a container, create it with `ln -s /dev/console /dev/kmsg`")
	}
	return nil
}

func missingPackages() []string {
	var packages []string
	for _, p := range nodePrograms {
		if findProgram(p.names...) == "" && !strings.Contains(" "+strings.Join(packages, " ")+" ", " "+p.pkg+" ") {
			packages = append(packages, p.pkg)
		}
	}
	return packages
}

// installPackages brings the missing packages with apt-get, or says what to install where there is none.
func installPackages(ctx context.Context, packages []string, report func(string)) error {
	apt := findProgram("apt-get")
	if apt == "" {
		return fmt.Errorf("missing on this machine: %s (Debian's package names). Install them with your package manager, the CNI plugins in one of %s, and try again",
			strings.Join(packages, ", "), strings.Join(cniDirectories, ", "))
	}
	for _, args := range [][]string{{"update", "-q"}, append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...)} {
		report("apt-get " + strings.Join(args, " "))
		cmd := exec.CommandContext(ctx, apt, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s failed: %w\n%s\nInstall by hand: apt-get install %s", args[0], err, output.String(), strings.Join(packages, " "))
		}
	}
	if still := missingPackages(); len(still) > 0 {
		return fmt.Errorf("apt-get succeeded but programs of %s are not in %s", strings.Join(still, ", "), systemPath)
	}
	return nil
}

// checkCollisions refuses a machine that is a Kubernetes node already, or whose network overlaps the cluster's.
func checkCollisions(l layout) error {
	if _, ours := readPID(l, "kubelet"); !ours {
		if connection, err := net.Dial("unix", devicePluginDir+"/kubelet.sock"); err == nil {
			connection.Close()
			return fmt.Errorf("another kubelet runs on this machine (%s/kubelet.sock answers): use its cluster through KUBECONFIG, or stop it first", devicePluginDir)
		}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		if i.Name == bridgeName {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			return err
		}
		for _, a := range addresses {
			if overlapping(a.String()) {
				return fmt.Errorf("%s has address %s, inside the cluster's %s or %s: the cluster cannot run beside that network", i.Name, a, podCIDR, serviceCIDR)
			}
		}
	}
	return nil
}

// overlapping says whether an interface's prefix and one of the cluster's share addresses.
func overlapping(prefix string) bool {
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return false
	}
	return p.Masked().Overlaps(netip.MustParsePrefix(podCIDR)) || p.Masked().Overlaps(netip.MustParsePrefix(serviceCIDR))
}

// checkPorts finds a port taken by someone else before the component that needs it fails with less to say.
func checkPorts(l layout) error {
	owners := map[string][]int{
		"etcd": {portEtcdClient, portEtcdPeer, portEtcdHealth}, "kube-controller-manager": {portControllerManager},
		"kube-scheduler": {portScheduler}, "kubelet": {portKubeletHealth}, "kube-proxy": {portProxyHealth, portProxyMetrics},
	}
	for name, ports := range owners {
		if _, running := readPID(l, name); running {
			continue
		}
		for _, port := range ports {
			listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("port %d on 127.0.0.1, which %s needs, is taken: find its owner with `ss -ltnp sport = :%d`; a crashed cluster's leftovers go with `localcluster down`", port, name, port)
			}
			if err != nil {
				return err
			}
			listener.Close()
		}
	}
	return nil
}

const capSysResource = 24

// lacksResourceCapability says whether CAP_SYS_RESOURCE is missing, as in many sandboxes: without it no process may
// lower an oom_score_adj, and containerd must not try.
func lacksResourceCapability() bool {
	status, err := os.ReadFile("/proc/self/status")
	return err != nil || !hasCapability(string(status), capSysResource)
}

func hasCapability(procStatus string, bit uint) bool {
	for line := range strings.Lines(procStatus) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && mask&(1<<bit) != 0
		}
	}
	return false
}

func ownOOMScoreAdj() int {
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return score
}

const overlayMagic = 0x794c7630

// needsNativeSnapshotter says whether overlayfs cannot be used below dir: the kernel refuses an overlay as the upper
// layer of an overlay, which is what a container's own root usually is.
func needsNativeSnapshotter(dir string) bool {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err == nil && fs.Type == overlayMagic {
		return true
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	return err == nil && !strings.Contains(string(filesystems), "\toverlay\n")
}
