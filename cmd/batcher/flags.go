package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// config is what the command line and the environment say.
type config struct {
	pool            poolspec.Pool
	listen          string
	internalListen  string
	workers         []string // addresses; empty: from Kubernetes, or simulated
	simulate        int
	simulateTime    time.Duration
	tenantsFile     string
	zoneFile        string
	peers           []gateway.Peer
	linger          time.Duration
	accessPerSecond int
	pprof           bool
	cpuProfile      string

	pod, podUID, namespace string
}

// kubernetes says that workers, tenants and the zone come from the Kubernetes API.
func (c config) kubernetes() bool { return c.simulate == 0 && len(c.workers) == 0 }

func parseFlags(args []string, env func(string) string, out io.Writer) (config, error) {
	c := config{pod: env("POD_NAME"), podUID: env("POD_UID"), namespace: env("POD_NAMESPACE")}
	fs := flag.NewFlagSet("batcher", flag.ContinueOnError)
	fs.SetOutput(out)
	pool := fs.String("pool", "", "the pool document (JSON) that the operator writes; default: a pool \"local\" that needs no key")
	fs.StringVar(&c.listen, "listen", fmt.Sprintf(":%d", wire.PortPublic), "address of the public API")
	fs.StringVar(&c.internalListen, "internal-listen", fmt.Sprintf(":%d", wire.PortInternal), "address of stats, probes and metrics")
	workers := fs.String("workers", "", "worker URLs, separated by commas, instead of those that Kubernetes names")
	fs.IntVar(&c.simulate, "simulate-workers", 0, "run this many simulated workers in this process")
	fs.DurationVar(&c.simulateTime, "simulate-service-time", 0, "time of a simulated batch (default: the pool's inferenceTime)")
	fs.StringVar(&c.tenantsFile, "tenants", "", "outside Kubernetes: a JSON file, a list of {\"name\", \"tier\", \"keys\": [sha256, ...], \"limits\"}")
	fs.StringVar(&c.zoneFile, "zone-file", "", "outside Kubernetes: a file with the zone document, read again when it changes")
	peers := fs.String("peers", "", "outside Kubernetes: the batchers that share the tenants' limits, this one included: NAME=HOST:PORT of the internal port, separated by commas; POD_NAME says which is this one")
	fs.DurationVar(&c.linger, "linger", 5*time.Second, "after SIGTERM: how long requests are still accepted, until everybody knows that this batcher leaves")
	fs.IntVar(&c.accessPerSecond, "access-log-per-second", 10, "most lines of the access log in a second; 0: none")
	fs.BoolVar(&c.pprof, "pprof", false, "serve /debug/pprof/ on the internal port")
	fs.StringVar(&c.cpuProfile, "cpu-profile", "", "write a CPU profile of the whole run to this file")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	if fs.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	c.pool = poolspec.Default()
	if *pool != "" {
		p, err := poolspec.Decode(*pool)
		if err != nil {
			return c, fmt.Errorf("--pool: %w", err)
		}
		c.pool = p
	}
	if c.namespace == "" {
		c.namespace = c.pool.Namespace
	}
	for w := range strings.SplitSeq(*workers, ",") {
		if w = strings.TrimSpace(w); w != "" {
			c.workers = append(c.workers, w)
		}
	}
	for p := range strings.SplitSeq(*peers, ",") {
		if p == "" {
			continue
		}
		name, addr, ok := strings.Cut(p, "=")
		if _, _, err := net.SplitHostPort(addr); !ok || name == "" || err != nil {
			return c, fmt.Errorf("--peers: %q is not NAME=HOST:PORT", p)
		}
		c.peers = append(c.peers, gateway.Peer{Name: name, Addr: addr})
	}
	return c, c.check(env)
}

func (c *config) check(env func(string) string) error {
	inCluster := env("KUBERNETES_SERVICE_HOST") != ""
	switch {
	case c.simulate < 0 || c.simulate > 1000:
		return fmt.Errorf("--simulate-workers is %d, want 0 to 1000", c.simulate)
	case c.simulate > 0 && len(c.workers) > 0:
		return errors.New("--workers and --simulate-workers exclude each other")
	case c.kubernetes() && !inCluster:
		return errors.New("no workers: outside Kubernetes give --simulate-workers N or --workers URL,URL")
	case c.kubernetes() && (c.tenantsFile != "" || c.zoneFile != "" || len(c.peers) > 0):
		return errors.New("--tenants, --zone-file and --peers are for outside Kubernetes: with --workers or --simulate-workers")
	case c.linger < 0 || c.accessPerSecond < 0 || c.simulateTime < 0:
		return errors.New("--linger, --access-log-per-second and --simulate-service-time must not be negative")
	case c.pool.Gateway.Auth == "Keys" && !c.kubernetes() && c.tenantsFile == "":
		return errors.New("the pool wants keys: outside Kubernetes give --tenants FILE")
	}
	if c.simulateTime == 0 {
		c.simulateTime = c.pool.Batching.InferenceTime.D()
	}
	return nil
}

// readTenants reads the file of --tenants.
func readTenants(path string) ([]gateway.Tenant, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--tenants: %w", err)
	}
	tenants, err := gateway.DecodeTenants(raw)
	if err != nil {
		return nil, fmt.Errorf("--tenants %s: %w", path, err)
	}
	return tenants, nil
}
