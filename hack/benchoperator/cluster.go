package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"sluice.dev/sluice/api/v1alpha1"
)

// Namespaces of the pools and of the operator. All pools share one: the operator's cache is searched by
// namespace, so this is the case that costs most.
const (
	poolNamespace     = "bench"
	operatorNamespace = "sluice-system"
)

// apiServer is a real etcd and kube-apiserver, without any of Kubernetes' controllers.
type apiServer struct {
	env        *envtest.Environment
	client     client.WithWatch
	http       *http.Client
	config     *rest.Config
	kubeconfig string // a file
	scheme     *runtime.Scheme
}

// startAPIServer starts etcd and kube-apiserver from KUBEBUILDER_ASSETS; dir takes the kubeconfig.
func startAPIServer(ctx context.Context, dir string) (*apiServer, error) {
	s := &apiServer{scheme: runtime.NewScheme(), kubeconfig: filepath.Join(dir, "kubeconfig")}
	utilruntime.Must(clientgoscheme.AddToScheme(s.scheme))
	utilruntime.Must(v1alpha1.AddToScheme(s.scheme))
	s.env = &envtest.Environment{
		CRDDirectoryPaths:        []string{filepath.Join("config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 5 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	// envtest's own range has room for 254 Services.
	s.env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/16")
	var err error
	if s.config, err = s.env.Start(); err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	if err := s.connect(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *apiServer) connect(ctx context.Context) error {
	s.config.QPS = -1 // the benchmark plays many kubelets at once
	var err error
	if s.client, err = client.NewWithWatch(s.config, client.Options{Scheme: s.scheme}); err != nil {
		return err
	}
	if s.http, err = rest.HTTPClientFor(s.config); err != nil {
		return err
	}
	for _, name := range []string{poolNamespace, operatorNamespace} {
		if err := s.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	return os.WriteFile(s.kubeconfig, s.env.KubeConfig, 0o600)
}

func (s *apiServer) stop() {
	if err := s.env.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-operator: stop the API server:", err)
	}
}

// writes are the writing requests that the API server has answered, by verb and resource. Leases are left
// out: leader election and the API server's own identity renew them for ever.
func (s *apiServer) writes(ctx context.Context) (map[string]float64, error) {
	samples, err := scrape(ctx, s.http, strings.TrimRight(s.config.Host, "/")+"/metrics", "apiserver_request_total")
	if err != nil {
		return nil, err
	}
	byWhat := map[string]float64{}
	for _, m := range samples {
		switch m.labels["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		default:
			continue
		}
		what := m.labels["resource"]
		if what == "leases" {
			continue
		}
		if sub := m.labels["subresource"]; sub != "" {
			what += "/" + sub
		}
		byWhat[m.labels["verb"]+" "+what] += m.value
	}
	return byWhat, nil
}

// grown is what counters grew by, those that did.
func grown(before, after map[string]float64) (sum float64, by map[string]float64) {
	by = map[string]float64{}
	for k, v := range after {
		if d := v - before[k]; d > 0 {
			by[k] = d
			sum += d
		}
	}
	return sum, by
}

// sample is one line of a page of metrics.
type sample struct {
	labels map[string]string
	value  float64
}

// line matches a sample with or without labels; values with spaces in quotes do not occur in those read here.
var (
	line  = regexp.MustCompile(`^([a-z_:]+)(?:\{(.*)\})? (\S+)`)
	label = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
)

// scrape reads the samples of one metric from a page in the Prometheus text format.
func scrape(ctx context.Context, c *http.Client, url, name string) ([]sample, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	var samples []sample
	for l := range strings.Lines(string(page)) {
		if !strings.HasPrefix(l, name) {
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil || m[1] != name {
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", url, l, err)
		}
		s := sample{labels: map[string]string{}, value: v}
		for _, kv := range label.FindAllStringSubmatch(m[2], -1) {
			s.labels[kv[1]] = kv[2]
		}
		samples = append(samples, s)
	}
	return samples, nil
}
