package main

import (
	"fmt"
	"strconv"
	"time"
)

// A component is one long-running process of the cluster.
type component struct {
	name   string
	binary string
	args   []string
	health probe
	// needs are the components that must be healthy before this one starts. Starting earlier would work, but each
	// failed attempt costs client-go's backoff, and that is slower than waiting.
	needs []string
}

// startDeadline bounds the wait for one component. The API server takes 5 s alone; 17 s were seen while other builds kept two
// cores at a load of 15.
const startDeadline = 120 * time.Second

// components lists the processes in start order. self is this program, which serves the GPUs and DNS too.
func components(l layout, self, containerd string, gpus int) []component {
	local := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	pki := l.pki
	return []component{
		{
			name: "containerd", binary: containerd,
			args:   []string{"--config", l.conf("containerd.toml")},
			health: unixProbe(l.containerdSocket()),
		},
		{
			name: "etcd", binary: l.binary("etcd"),
			args: []string{
				"--data-dir", l.path("etcd"), "--name", nodeName,
				"--listen-client-urls", "https://" + local(portEtcdClient), "--advertise-client-urls", "https://" + local(portEtcdClient),
				"--listen-peer-urls", "https://" + local(portEtcdPeer), "--initial-advertise-peer-urls", "https://" + local(portEtcdPeer),
				"--initial-cluster", nodeName + "=https://" + local(portEtcdPeer),
				"--cert-file", pki("etcd.crt"), "--key-file", pki("etcd.key"), "--trusted-ca-file", pki("etcd-ca.crt"), "--client-cert-auth",
				"--peer-cert-file", pki("etcd.crt"), "--peer-key-file", pki("etcd.key"), "--peer-trusted-ca-file", pki("etcd-ca.crt"), "--peer-client-cert-auth",
				"--listen-metrics-urls", "http://" + local(portEtcdHealth),
				// Losing the last writes in a power cut is fine for a cluster that is deleted by evening; fsync is
				// most of etcd's latency on a laptop's disk.
				"--unsafe-no-fsync", "--log-level", "warn",
			},
			health: httpProbe("http://" + local(portEtcdHealth) + "/health"),
		},
		{
			name: "kube-apiserver", binary: l.binary("kube-apiserver"), needs: []string{"etcd"},
			args: []string{
				"--bind-address=" + nodeIP, "--advertise-address=" + nodeIP, "--secure-port=" + strconv.Itoa(portAPI),
				"--etcd-servers=https://" + local(portEtcdClient), "--etcd-cafile=" + pki("etcd-ca.crt"),
				"--etcd-certfile=" + pki("etcd-client.crt"), "--etcd-keyfile=" + pki("etcd-client.key"),
				"--cert-dir=" + l.path("pki"), "--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
				"--client-ca-file=" + pki("ca.crt"),
				"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-client-certificate=" + pki("apiserver-kubelet.crt"),
				"--kubelet-client-key=" + pki("apiserver-kubelet.key"), "--kubelet-preferred-address-types=InternalIP",
				"--service-account-issuer=https://kubernetes.default.svc." + clusterDomain,
				"--service-account-key-file=" + pki("service-account.pub"), "--service-account-signing-key-file=" + pki("service-account.key"),
				"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
				"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
				"--requestheader-extra-headers-prefix=X-Remote-Extra-",
				"--proxy-client-cert-file=" + pki("front-proxy.crt"), "--proxy-client-key-file=" + pki("front-proxy.key"),
				"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
				"--service-cluster-ip-range=" + serviceCIDR, "--profiling=false",
			},
			health: apiProbe(l, "/readyz"),
		},
		{
			name: "kube-controller-manager", binary: l.binary("kube-controller-manager"), needs: []string{"kube-apiserver"},
			args: append(clientFlags(l, "controller-manager", portControllerManager),
				"--use-service-account-credentials", "--root-ca-file="+pki("ca.crt"), "--service-account-private-key-file="+pki("service-account.key"),
				"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key")),
			health: httpsProbe(fmt.Sprintf("https://%s/healthz", local(portControllerManager))),
		},
		{
			name: "kube-scheduler", binary: l.binary("kube-scheduler"), needs: []string{"kube-apiserver"},
			args:   clientFlags(l, "scheduler", portScheduler),
			health: httpsProbe(fmt.Sprintf("https://%s/healthz", local(portScheduler))),
		},
		{
			name: "kubelet", binary: l.binary("kubelet"), needs: []string{"kube-apiserver", "containerd"},
			args: []string{
				"--config=" + l.conf("kubelet.json"), "--kubeconfig=" + l.componentConfig("kubelet"),
				"--root-dir=" + l.path("kubelet"), "--cert-dir=" + l.path("pki"),
				"--hostname-override=" + nodeName, "--node-ip=" + nodeIP,
				// The label that NVIDIA's GPU feature discovery sets: manifests select GPU nodes by it.
				"--node-labels=nvidia.com/gpu.present=true",
			},
			health: httpProbe(fmt.Sprintf("http://%s/healthz", local(portKubeletHealth))),
		},
		{
			name: "kube-proxy", binary: l.binary("kube-proxy"), needs: []string{"kube-apiserver"},
			args:   []string{"--config=" + l.conf("proxy.json")},
			health: httpProbe(fmt.Sprintf("http://%s/livez", local(portProxyHealth))),
		},
		{
			name: "gpus", binary: self, needs: []string{"kubelet"},
			args:   []string{"gpus", "--state", l.state, "--count", strconv.Itoa(gpus)},
			health: unixProbe(l.gpuSocket()),
		},
		{
			name: "dns", binary: self, needs: []string{"kube-apiserver"},
			args:   []string{"dns", "--kubeconfig", l.componentConfig("admin")},
			health: dnsProbe(nodeIP + ":53"),
		},
	}
}

// clientFlags are what the controller manager and the scheduler share. One instance needs no leader election, which
// would write a Lease every two seconds and delay a restart by 15.
func clientFlags(l layout, name string, port int) []string {
	config := l.componentConfig(name)
	return []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--cert-dir=" + l.path("pki"),
		"--leader-elect=false", "--profiling=false",
	}
}
