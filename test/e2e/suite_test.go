// Package e2e runs Sluice on a real Kubernetes: kubelets, GPUs from a device plugin, pods. `make e2e` brings
// the cluster, builds the images, installs the operator and runs it. Everything is done as a user would, with
// manifests and HTTP requests; load comes from a pod inside the cluster, so any cluster will do.
package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sluice.dev/sluice/api/v1alpha1"
)

// env is the cluster that the suite runs on. It is set once, before the first spec.
var env struct {
	config     *rest.Config
	http       *http.Client // speaks to the API server with the kubeconfig's identity
	client     client.Client
	clientset  *kubernetes.Clientset
	kubectl    string
	kubeconfig string
	image      func(name string) string
	local      bool // the cluster of hack/localcluster: GPUs can be lost by command
}

func TestE2E(t *testing.T) {
	if os.Getenv("SLUICE_KUBECTL") == "" {
		t.Skip("no cluster: run `make e2e`, which brings one up and installs the operator")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(90 * time.Second)
	SetDefaultEventuallyPollingInterval(500 * time.Millisecond)
	EnforceDefaultTimeoutsWhenUsingContexts() // else a context without a deadline means for ever
	suite, reporter := GinkgoConfiguration()
	suite.Timeout = 40 * time.Minute
	RunSpecs(t, "Sluice on a real Kubernetes", suite, reporter)
}

var _ = BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(GinkgoLogr)
	env.kubectl = os.Getenv("SLUICE_KUBECTL")
	env.kubeconfig = os.Getenv("KUBECONFIG")
	env.local = os.Getenv("SLUICE_CLUSTER") == "local"
	env.image = func(name string) string {
		return fmt.Sprintf("%s/%s:%s", os.Getenv("IMAGE_PREFIX"), name, os.Getenv("TAG"))
	}

	var err error
	env.config, err = clientcmd.BuildConfigFromFlags("", env.kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	env.config.QPS = -1 // no limit of our own
	env.http, err = rest.HTTPClientFor(env.config)
	Expect(err).NotTo(HaveOccurred())
	scheme := clientgoscheme.Scheme
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	env.client, err = client.New(env.config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	env.clientset, err = kubernetes.NewForConfig(env.config)
	Expect(err).NotTo(HaveOccurred())
})
