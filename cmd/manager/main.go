// Command manager is the operator: it runs the pools of a cluster (or of some namespaces).
package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/controller"
)

// leaderElectionID is the name of the Lease that the leader holds.
const leaderElectionID = "sluice-controller-manager"

// Rates of the client towards the API server. A steady fleet writes nothing; a burst comes when many pools
// are created at once, a dozen objects each.
const (
	clientQPS   = 200
	clientBurst = 400
)

// flags are what the manager is started with; the environment gives defaults where a Deployment is easier to
// patch there.
type flags struct {
	metricsAddr   string
	metricsSecure bool
	probeAddr     string
	pprofAddr     string
	leaderElect   bool
	namespaces    string
	operator      controller.Options
	logLevel      slog.Level
}

func parse(args []string) (flags, error) {
	var f flags
	set := flag.NewFlagSet("manager", flag.ContinueOnError)
	set.StringVar(&f.metricsAddr, "metrics-bind-address", ":8443", "address of the metrics; 0 serves none")
	set.BoolVar(&f.metricsSecure, "metrics-secure", true, "serve metrics over TLS to those whom the API server authorizes")
	set.StringVar(&f.probeAddr, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	set.StringVar(&f.pprofAddr, "pprof-bind-address", "0", "address of /debug/pprof, without authentication; 0 serves none")
	set.BoolVar(&f.leaderElect, "leader-elect", true, "act only while holding the Lease "+leaderElectionID)
	set.StringVar(&f.namespaces, "namespaces", os.Getenv("WATCH_NAMESPACES"), "comma-separated namespaces to act in; empty for all")
	set.StringVar(&f.operator.WorkerImage, "worker-image", env("SLUICE_WORKER_IMAGE", "sluice.dev/gpuworker:dev"), "image of workers of pools that name none")
	set.StringVar(&f.operator.BatcherImage, "batcher-image", env("SLUICE_BATCHER_IMAGE", "sluice.dev/batcher:dev"), "image of batchers of pools that name none")
	set.StringVar(&f.operator.GatewayImage, "gateway-image", env("SLUICE_GATEWAY_IMAGE", "sluice.dev/gateway:dev"), "image of standalone gateways of pools that name none")
	set.StringVar(&f.operator.Namespace, "operator-namespace", env("POD_NAMESPACE", "sluice-system"), "namespace of the operator: pools' NetworkPolicies admit it")
	set.TextVar(&f.logLevel, "log-level", slog.LevelInfo, "DEBUG, INFO, WARN or ERROR")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return f, nil
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func main() {
	f, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(2)
	}
	log := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: f.logLevel}))
	ctrl.SetLogger(log)
	klog.SetLogger(log) // client-go, leader election
	if err := run(f); err != nil {
		ctrl.Log.Error(err, "the operator ends")
		os.Exit(1)
	}
}

func run(f flags) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))

	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config.QPS, config.Burst = clientQPS, clientBurst

	caches := controller.CacheOptions()
	if f.namespaces != "" {
		caches.DefaultNamespaces = map[string]cache.Config{}
		for ns := range strings.SplitSeq(f.namespaces, ",") {
			caches.DefaultNamespaces[strings.TrimSpace(ns)] = cache.Config{}
		}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		Cache:  caches,
		// A reconcile that follows a write sees it: no decision is taken twice because a cache is late. The
		// option does not work with caches of several namespaces; there a late cache costs a write that changes nothing.
		Client:                        client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: ptr.To(len(caches.DefaultNamespaces) < 2)}},
		Metrics:                       metricsOptions(f),
		HealthProbeBindAddress:        f.probeAddr,
		PprofBindAddress:              f.pprofAddr,
		LeaderElection:                f.leaderElect,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       f.operator.Namespace,
		LeaderElectionReleaseOnCancel: true, // the process ends right after the manager, see main
	})
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	if err := controller.Setup(mgr, f.operator); err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("healthz", healthz.Ping), mgr.AddReadyzCheck("readyz", healthz.Ping)); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// metricsOptions protect the metrics: TLS, and a TokenReview and SubjectAccessReview for each scraper.
func metricsOptions(f flags) metricsserver.Options {
	o := metricsserver.Options{BindAddress: f.metricsAddr, SecureServing: f.metricsSecure}
	if f.metricsSecure {
		o.FilterProvider = filters.WithAuthenticationAndAuthorization
		// HTTP/2 off: its stream resets have been a cheap way to load a server.
		o.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}
	}
	return o
}
