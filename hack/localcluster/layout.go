package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
)

// Everything the cluster owns on the host carries this name: cgroup, CNI network, nftables table.
const ownName = "sluice-localcluster"

const (
	nodeName      = "sluice-local"
	clusterDomain = "cluster.local"

	// The bridge is both the pods' gateway and the node's address. An interface of our own makes the cluster
	// independent of the machine's: it works with only a loopback, and survives a change of network. It is a bridge
	// because pods need one anyway and some kernels lack the dummy driver.
	bridgeName = "sluice0"
	nodeIP     = "10.213.0.1"
	nodeCIDR   = "10.213.0.1/16"
	podCIDR    = "10.213.0.0/16"

	serviceCIDR  = "10.214.0.0/16"
	apiServiceIP = "10.214.0.1" // always the first address of serviceCIDR

	defaultState = "/var/lib/" + ownName
	pauseImage   = "sluice.dev/pause:local"
)

// Ports stay clear of the ones a usual Kubernetes, kind or etcd on the same machine would take.
const (
	portAPI               = 16443
	portEtcdClient        = 12379
	portEtcdPeer          = 12380
	portEtcdHealth        = 12381
	portControllerManager = 20257
	portScheduler         = 20259
	portKubelet           = 20250
	portKubeletHealth     = 20248
	portProxyHealth       = 20256
	portProxyMetrics      = 20249
)

// devicePluginDir is fixed in the kubelet's source whatever its --root-dir (k8s.io/kubelet deviceplugin/v1beta1).
const devicePluginDir = "/var/lib/kubelet/device-plugins"

// A layout says where one cluster keeps its files.
type layout struct {
	state      string // everything the cluster writes, removed by down
	binaries   string // what build made
	kubeconfig string // for the person; components have their own in the state directory
}

func (l layout) path(elem ...string) string {
	return filepath.Join(append([]string{l.state}, elem...)...)
}
func (l layout) binary(name string) string       { return filepath.Join(l.binaries, name) }
func (l layout) pki(name string) string          { return l.path("pki", name) }
func (l layout) conf(name string) string         { return l.path("config", name) }
func (l layout) log(component string) string     { return l.path("logs", component+".log") }
func (l layout) containerdSocket() string        { return l.path("containerd", "containerd.sock") }
func (l layout) gpuSocket() string               { return l.path("gpu.sock") }
func (l layout) componentConfig(n string) string { return l.conf(n + ".kubeconfig") }

// layoutFlags adds the flags that place a cluster. Relative defaults are taken from the repository's root, so that
// the program does the same from every folder of the checkout.
func layoutFlags(fs *flag.FlagSet) *layout {
	root, err := repositoryRoot()
	if err != nil {
		root = "."
	}
	l := &layout{}
	fs.StringVar(&l.state, "state", defaultState, "directory for everything the cluster writes")
	fs.StringVar(&l.binaries, "dir", filepath.Join(root, "bin", "k8s"), "directory of the binaries that build made")
	fs.StringVar(&l.kubeconfig, "kubeconfig", filepath.Join(root, "bin", "localcluster.kubeconfig"), "kubeconfig to write")
	return l
}

// resolve makes the paths absolute: components are started with the state directory as their working directory.
func (l *layout) resolve() error {
	for _, p := range []*string{&l.state, &l.binaries, &l.kubeconfig} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	// A unix socket's path holds 107 bytes; the longest below the state directory takes 40.
	if len(l.state) > 60 {
		return errors.New("--state is longer than 60 characters: unix sockets below it would not fit, choose a shorter one")
	}
	return nil
}

// repositoryRoot looks upwards from the working directory, then from the program, for this module.
func repositoryRoot() (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for {
			if _, err := os.Stat(filepath.Join(dir, "hack", "localcluster", "go.mod")); err == nil {
				return dir, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", errors.New("cannot find hack/localcluster/go.mod above this folder: run localcluster inside the checkout")
}
