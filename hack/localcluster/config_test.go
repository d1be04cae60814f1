package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func decode(t *testing.T, data []byte, err error) map[string]any {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	return document
}

func TestKubeletConfig(t *testing.T) {
	l := testLayout(t)
	data, err := kubeletConfig(l, 7)
	got := decode(t, data, err)
	for field, want := range map[string]any{
		"failCgroupV1": false, "failSwapOn": false, "cgroupDriver": "cgroupfs", "serializeImagePulls": false,
		"makeIPTablesUtilChains": false, "oomScoreAdj": 7.0, "cgroupRoot": "/" + ownName, "readOnlyPort": 0.0,
		"imageGCHighThresholdPercent": 100.0, "containerRuntimeEndpoint": "unix://" + l.containerdSocket(),
	} {
		if got[field] != want {
			t.Errorf("%s = %v, want %v", field, got[field], want)
		}
	}
	// A path outside the state directory would survive down.
	for _, field := range []string{"podLogsDir", "volumePluginDir", "tlsCertFile"} {
		if path, _ := got[field].(string); !strings.HasPrefix(path, l.state+"/") {
			t.Errorf("%s = %q lies outside the state directory", field, path)
		}
	}
}

func TestProxyConfigLeavesConntrackToTheHost(t *testing.T) {
	data, err := proxyConfig(testLayout(t), 0)
	got := decode(t, data, err)
	if got["mode"] != "nftables" {
		t.Errorf("mode = %v", got["mode"])
	}
	conntrack := got["conntrack"].(map[string]any)
	if conntrack["maxPerCore"] != 0.0 || conntrack["min"] != 0.0 {
		t.Errorf("conntrack = %v: nf_conntrack_max of the host would change", conntrack)
	}
}

func TestContainerdConfig(t *testing.T) {
	l := testLayout(t)
	for _, test := range []struct {
		name    string
		options containerdOptions
		want    []string
	}{
		{"sandbox", containerdOptions{CNIBinDir: "/usr/lib/cni", RestrictOOMScore: true},
			[]string{"restrict_oom_score_adj = true", `snapshotter = "overlayfs"`, `bin_dir = "/usr/lib/cni"`}},
		{"in a container", containerdOptions{CNIBinDir: "/opt/cni/bin", NativeSnapshotter: true},
			[]string{"restrict_oom_score_adj = false", `snapshotter = "native"`, `bin_dir = "/opt/cni/bin"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			data, err := containerdConfig(l, test.options)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range append(test.want, `sandbox_image = "`+pauseImage+`"`, `address = "`+l.containerdSocket()+`"`, "netns_mounts_under_state_dir = true") {
				if !strings.Contains(string(data), want) {
					t.Errorf("no %q in\n%s", want, data)
				}
			}
		})
	}
}

func TestCNIConfigMakesTheNodeThePodsGateway(t *testing.T) {
	data, err := cniConfig(testLayout(t))
	plugin := decode(t, data, err)["plugins"].([]any)[0].(map[string]any)
	if plugin["bridge"] != bridgeName || plugin["isGateway"] != true || plugin["ipMasq"] != false {
		t.Errorf("plugin = %v", plugin)
	}
}

func TestKubeconfigIsReadByTheClientLibrary(t *testing.T) {
	l := testLayout(t)
	if err := writePKI(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := writeKubeconfigs(l); err != nil {
		t.Fatal(err)
	}
	for name := range kubeconfigUsers {
		config, err := clientcmd.BuildConfigFromFlags("", l.componentConfig(name))
		if err != nil {
			t.Fatal(err)
		}
		if config.Host != apiURL() || len(config.CertData) == 0 || len(config.KeyData) == 0 || len(config.CAData) == 0 {
			t.Errorf("%s: %+v", name, config.Host)
		}
		if info, _ := os.Stat(l.componentConfig(name)); info.Mode().Perm() != 0o600 {
			t.Errorf("%s holds a key and has mode %v", name, info.Mode().Perm())
		}
	}
}

func TestComponentsStartAfterWhatTheyNeed(t *testing.T) {
	list := components(testLayout(t), "/localcluster", "/usr/bin/containerd", 3)
	var seen []string
	for _, c := range list {
		for _, need := range c.needs {
			if !slices.Contains(seen, need) {
				t.Errorf("%s needs %s, which does not come before it", c.name, need)
			}
		}
		seen = append(seen, c.name)
		if !slices.Contains(stopOrder, c.name) {
			t.Errorf("down has no place for %s", c.name)
		}
	}
}

func TestComponentsAreFoundWithoutTheirPidfile(t *testing.T) {
	l := testLayout(t)
	for _, c := range components(l, "/bin/localcluster", "/usr/bin/containerd", 3) {
		cmdline := []byte(strings.Join(append([]string{c.binary}, c.args...), "\x00") + "\x00")
		if !isOwnComponent(cmdline, l.state) {
			t.Errorf("%s is not recognised by %q", c.name, cmdline)
		}
		if isOwnComponent(cmdline, "/var/lib/other") {
			t.Errorf("%s is taken for another cluster's", c.name)
		}
	}
	if isOwnComponent([]byte("less\x00"+l.log("kubelet")+"\x00"), l.state) {
		t.Error("a pager would be killed")
	}
}
