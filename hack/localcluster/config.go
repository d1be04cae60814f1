package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"
)

// kubeconfigUsers maps each kubeconfig in the state directory to the certificate it carries.
var kubeconfigUsers = map[string]string{
	"kubelet":            "kubelet",
	"controller-manager": "controller-manager",
	"scheduler":          "scheduler",
	"proxy":              "proxy",
	"admin":              "admin",
}

// kubeconfig renders a self-contained kubeconfig. JSON, because it is YAML too and needs no library.
func kubeconfig(ca, certificate, key []byte) ([]byte, error) {
	b64 := base64.StdEncoding.EncodeToString
	const name = ownName
	return json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": map[string]any{
			"server": apiURL(), "certificate-authority-data": b64(ca)}}},
		"users": []any{map[string]any{"name": name, "user": map[string]any{
			"client-certificate-data": b64(certificate), "client-key-data": b64(key)}}},
		"contexts": []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": name}}},
	}, "", "  ")
}

func apiURL() string { return fmt.Sprintf("https://%s:%d", nodeIP, portAPI) }

func writeKubeconfigs(l layout) error {
	ca, err := os.ReadFile(l.pki("ca.crt"))
	if err != nil {
		return err
	}
	for name, cert := range kubeconfigUsers {
		certificate, err := os.ReadFile(l.pki(cert + ".crt"))
		if err != nil {
			return err
		}
		key, err := os.ReadFile(l.pki(cert + ".key"))
		if err != nil {
			return err
		}
		document, err := kubeconfig(ca, certificate, key)
		if err != nil {
			return err
		}
		if _, err := writeChanged(l.componentConfig(name), document, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubeletConfig renders a KubeletConfiguration for a node that shares a small machine with other work.
func kubeletConfig(l layout, oomScoreAdj int) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": nodeIP, "port": portKubelet, "healthzBindAddress": "127.0.0.1", "healthzPort": portKubeletHealth,
		"readOnlyPort":             0,
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true}, "x509": map[string]any{"clientCAFile": l.pki("ca.crt")}},
		"authorization":            map[string]any{"mode": "Webhook"},
		"tlsCertFile":              l.pki("kubelet-serving.crt"),
		"tlsPrivateKeyFile":        l.pki("kubelet-serving.key"),
		"containerRuntimeEndpoint": "unix://" + l.containerdSocket(),
		"clusterDomain":            clusterDomain,
		"clusterDNS":               []string{nodeIP},
		"podLogsDir":               l.path("pod-logs"),
		"volumePluginDir":          l.path("volume-plugins"),
		// cgroupfs on both cgroup versions: the systemd driver needs a systemd that is PID 1, which containers and
		// many CI machines do not have. A root of our own keeps pods out of another kubelet's tree.
		"cgroupDriver": "cgroupfs", "cgroupRoot": "/" + ownName, "failCgroupV1": false,
		"failSwapOn": false,
		// The score that this process already has: lowering it needs CAP_SYS_RESOURCE, which sandboxes lack.
		"oomScoreAdj": oomScoreAdj,
		// iptables chains of the kubelet would stay behind; nothing here uses them.
		"makeIPTablesUtilChains": false,
		"registerNode":           true, "maxPods": 250, "serializeImagePulls": false,
		// A lost GPU shows in the node's status within this time.
		"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "1m",
		// Images come from no registry: whatever the collector removed could not be pulled again. 100 switches it off.
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		// A developer's disk is often over 85 % full and must not evict pods for it.
		"evictionHard": map[string]any{"memory.available": "50Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%"},
	}, "", "  ")
}

// proxyConfig renders a KubeProxyConfiguration. Conntrack limits of 0 leave the host's sysctls as they are.
func proxyConfig(l layout, oomScoreAdj int) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": "nftables", "clientConnection": map[string]any{"kubeconfig": l.componentConfig("proxy")},
		"hostnameOverride": nodeName, "bindAddress": nodeIP,
		"clusterCIDR": podCIDR, "detectLocalMode": "ClusterCIDR", "oomScoreAdj": oomScoreAdj,
		"healthzBindAddress": fmt.Sprintf("127.0.0.1:%d", portProxyHealth),
		"metricsBindAddress": fmt.Sprintf("127.0.0.1:%d", portProxyMetrics),
		"conntrack":          map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}, "", "  ")
}

// cniConfig renders the pod network. ipMasq is off because that plugin writes iptables rules which outlive a crash:
// our own nftables table masquerades instead, and one command removes it.
func cniConfig(l layout) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"cniVersion": "0.4.0", "name": ownName,
		"plugins": []any{map[string]any{
			"type": "bridge", "bridge": bridgeName, "isGateway": true, "ipMasq": false, "hairpinMode": true,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": l.path("cni-addresses"),
				"ranges": []any{[]any{map[string]any{"subnet": podCIDR, "gateway": nodeIP}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	}, "", "  ")
}

// nftablesRules masquerades what pods send out of the cluster. The first two statements make it idempotent.
func nftablesRules() string {
	return fmt.Sprintf(`table ip %[1]s {}
delete table ip %[1]s
table ip %[1]s {
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr %[2]s ip daddr != %[2]s oifname != "%[3]s" masquerade
  }
}
`, nftablesTable, podCIDR, bridgeName)
}

const nftablesTable = "sluice_localcluster"

// A containerdOptions is what differs between machines.
type containerdOptions struct {
	CNIBinDir         string
	RestrictOOMScore  bool
	NativeSnapshotter bool
}

var containerdTemplate = template.Must(template.New("containerd").Parse(`# Written by localcluster up.
version = 2
root = "{{.State}}/containerd/root"
state = "{{.State}}/containerd/state"
# opt would create /opt/containerd; the snapshotters probe tools and file systems that are not used.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = "{{.Socket}}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Pause}}"
  restrict_oom_score_adj = {{.RestrictOOMScore}}
  # Not below /run/netns: everything to unmount lies in the state directory.
  netns_mounts_under_state_dir = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.CNIBinDir}}"
    conf_dir = "{{.State}}/config/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{{if .NativeSnapshotter}}native{{else}}overlayfs{{end}}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{{.State}}/containerd/runc"
`))

func containerdConfig(l layout, o containerdOptions) ([]byte, error) {
	var out strings.Builder
	err := containerdTemplate.Execute(&out, struct {
		containerdOptions
		State, Socket, Pause string
	}{o, l.state, l.containerdSocket(), pauseImage})
	return []byte(out.String()), err
}
