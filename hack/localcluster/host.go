package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// A hostRecord remembers what the host looked like before up, so that down can put it back. It is written before
// the first change: a crash in between must not lose the old values.
type hostRecord struct {
	Sysctls    map[string]string `json:"sysctls"`
	Created    []string          `json:"created"` // directories outside the state directory that were not there
	Kubeconfig string            `json:"kubeconfig"`
}

// Sysctls that the kubelet sets when it starts, and those that up sets for forwarding between pods.
var changedSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	"net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables",
	// kube-proxy in nftables mode reads these; listed because a version that sets them must not leave them changed.
	"net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_tcp_be_liberal", "net/ipv4/conf/all/route_localnet",
}

// requiredSysctls are the ones up sets itself. Bridged packets must pass nftables too: without it the answer of a pod
// to a pod that called it through a Service goes straight back over the bridge, from an address nobody asked.
var requiredSysctls = map[string]string{
	"net/ipv4/ip_forward":                "1",
	"net/bridge/bridge-nf-call-iptables": "1",
}

// Directories outside the state directory whose paths are fixed in the kubelet, libcni, containerd's shim and mount(8).
var fixedDirectories = []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/run/containerd", "/opt/containerd", "/run/netns", "/run/mount"}

func (l layout) hostRecord() string { return l.path("host.json") }

func readHostRecord(l layout) (hostRecord, error) {
	var r hostRecord
	data, err := os.ReadFile(l.hostRecord())
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// recordHost writes the record once; a later up must not take the changed values for the original ones.
func recordHost(l layout) error {
	if _, err := os.Stat(l.hostRecord()); err == nil {
		return nil
	}
	r := hostRecord{Sysctls: map[string]string{}, Kubeconfig: l.kubeconfig}
	for _, name := range changedSysctls {
		if value, err := os.ReadFile("/proc/sys/" + name); err == nil {
			r.Sysctls[name] = strings.TrimSpace(string(value))
		}
	}
	for _, dir := range fixedDirectories {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			r.Created = append(r.Created, dir)
		}
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(l.hostRecord(), data, 0o644)
}

// loadModules is best effort: a kernel with everything built in, or a container, has no modprobe to run.
func loadModules() {
	modprobe := findProgram("modprobe")
	if modprobe == "" {
		return
	}
	for _, module := range []string{"overlay", "bridge", "br_netfilter", "veth", "nf_tables", "nf_conntrack", "nft_masq"} {
		_ = exec.Command(modprobe, "-q", module).Run()
	}
}

func setSysctls() error {
	for name, value := range requiredSysctls {
		path := "/proc/sys/" + name
		if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == value {
			continue
		}
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return fmt.Errorf("cannot set sysctl %s=%s: %w (load the module br_netfilter, or allow sysctls in this container)", strings.ReplaceAll(name, "/", "."), value, err)
		}
	}
	return nil
}

// setUpBridge creates the node's interface, or finds it from a crashed run.
func setUpBridge() error {
	link, err := netlink.LinkByName(bridgeName)
	if err != nil {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = bridgeName
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
			return fmt.Errorf("cannot create bridge %s: %w", bridgeName, err)
		}
		if link, err = netlink.LinkByName(bridgeName); err != nil {
			return err
		}
	}
	address, err := netlink.ParseAddr(nodeCIDR)
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("cannot give %s to %s: %w", nodeCIDR, bridgeName, err)
	}
	return netlink.LinkSetUp(link)
}

func applyNFTables() error {
	cmd := exec.Command(findProgram("nft"), "-f", "-")
	cmd.Stdin = strings.NewReader(nftablesRules())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft cannot add table %s: %w: %s", nftablesTable, err, bytes.TrimSpace(out))
	}
	return nil
}

// configOwner names the component that reads a file only when it starts.
var configOwner = map[string]string{"kubelet.json": "kubelet", "proxy.json": "kube-proxy", "containerd.toml": "containerd"}

// writeConfigs renders every configuration file. A file that would not change is not touched: kube-proxy exits, and
// containerd reloads, on any write. A component whose file did change, by an upgrade, is stopped to start afresh.
func writeConfigs(l layout) error {
	for _, dir := range []string{"config/cni", "logs", "run", "pod-logs", "volume-plugins", "containerd"} {
		if err := os.MkdirAll(l.path(dir), 0o755); err != nil {
			return err
		}
	}
	if err := writeKubeconfigs(l); err != nil {
		return err
	}
	files := map[string]func() ([]byte, error){
		"kubelet.json": func() ([]byte, error) { return kubeletConfig(l, ownOOMScoreAdj()) },
		"proxy.json":   func() ([]byte, error) { return proxyConfig(l, ownOOMScoreAdj()) },
		"containerd.toml": func() ([]byte, error) {
			return containerdConfig(l, containerdOptions{
				CNIBinDir: findCNIDirectory(), RestrictOOMScore: lacksResourceCapability(), NativeSnapshotter: needsNativeSnapshotter(l.state),
			})
		},
		"cni/10-" + ownName + ".conflist": func() ([]byte, error) { return cniConfig(l) },
	}
	for name, render := range files {
		data, err := render()
		if err != nil {
			return fmt.Errorf("rendering %s: %w", name, err)
		}
		changed, err := writeChanged(l.conf(name), data, 0o644)
		if err != nil {
			return err
		}
		if id, alive := readPID(l, configOwner[name]); changed && alive {
			stop(id, 5*time.Second)
		}
	}
	return nil
}

// writeChanged replaces a file whose content differs, in one step so that a watching process never reads half of it.
func writeChanged(path string, data []byte, mode os.FileMode) (changed bool, err error) {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return false, nil
	}
	// The name starts with a dot and has no known extension: containerd loads every *.conflist of its directory.
	scratch := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(scratch, data, mode); err != nil {
		return false, err
	}
	return true, os.Rename(scratch, path)
}
