// Package process is what the two programs with a gateway inside (batcher and gateway) have in common: flags,
// files that stand in for Kubernetes, and the life from the first listener to the last answer.
package process

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// Config is what the command line and the environment say.
type Config struct {
	Pool            poolspec.Pool
	Listen          string // address of the public API
	TLSListen       string // of the same over TLS, where the pool says so
	InternalListen  string
	TenantsFile     string
	ZoneFile        string
	Peers           []gateway.Peer
	PoolURLs        map[string]string // of other pools, by name; nil in Kubernetes: their Services
	Linger          time.Duration
	AccessPerSecond int
	Pprof           bool
	CPUProfile      string

	// Of the pod that the process runs in; empty outside Kubernetes.
	Pod, PodUID, Namespace string
	// InCluster says that there is a Kubernetes API to ask.
	InCluster bool

	pool, peers, poolURLs string // flags, before they are read
}

// Register defines the flags of c on fs and reads what the environment says.
func (c *Config) Register(fs *flag.FlagSet, env func(string) string) {
	c.Pod, c.PodUID, c.Namespace = env("POD_NAME"), env("POD_UID"), env("POD_NAMESPACE")
	c.InCluster = env("KUBERNETES_SERVICE_HOST") != ""
	fs.StringVar(&c.pool, "pool", "", "the pool document (JSON) that the operator writes; default: a pool \"local\" that needs no key")
	fs.StringVar(&c.Listen, "listen", fmt.Sprintf(":%d", wire.PortPublic), "address of the public API")
	fs.StringVar(&c.TLSListen, "tls-listen", fmt.Sprintf(":%d", wire.PortTLS), "address of the public API over TLS, where the pool document has gateway.tls")
	fs.StringVar(&c.InternalListen, "internal-listen", fmt.Sprintf(":%d", wire.PortInternal), "address of stats, probes and metrics")
	fs.StringVar(&c.TenantsFile, "tenants", "", "outside Kubernetes: a JSON file, a list of {\"name\", \"tier\", \"keys\": [sha256, ...], \"limits\"}")
	fs.StringVar(&c.ZoneFile, "zone-file", "", "outside Kubernetes: a file with the zone document, read again when it changes")
	fs.StringVar(&c.peers, "peers", "", "outside Kubernetes: the gateways that share the tenants' limits, this one included: NAME=HOST:PORT of the internal port, separated by commas; POD_NAME says which is this one")
	fs.StringVar(&c.poolURLs, "pool-urls", "", "outside Kubernetes: other pools that a degrade ladder reroutes to: NAME=URL, separated by commas")
	fs.DurationVar(&c.Linger, "linger", 5*time.Second, "after SIGTERM: how long requests are still accepted, until everybody knows that this process leaves")
	fs.IntVar(&c.AccessPerSecond, "access-log-per-second", 10, "most lines of the access log in a second, of served requests and of others each, unless the pool document says; 0: none")
	fs.BoolVar(&c.Pprof, "pprof", false, "serve /debug/pprof/ on the internal port")
	fs.StringVar(&c.CPUProfile, "cpu-profile", "", "write a CPU profile of the whole run to this file")
}

// Parse parses args with fs, on which Register was called, and reads what is not a plain value.
func (c *Config) Parse(fs *flag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	c.Pool = poolspec.Default()
	if c.pool != "" {
		p, err := poolspec.Decode(c.pool)
		if err != nil {
			return fmt.Errorf("--pool: %w", err)
		}
		c.Pool = p
	}
	if c.Namespace == "" {
		c.Namespace = c.Pool.Namespace
	}
	for p := range strings.SplitSeq(c.poolURLs, ",") {
		if p == "" {
			continue
		}
		name, base, ok := strings.Cut(p, "=")
		if u, err := url.Parse(base); !ok || name == "" || err != nil || u.Host == "" {
			return fmt.Errorf("--pool-urls: %q is not NAME=URL", p)
		}
		if c.PoolURLs == nil {
			c.PoolURLs = map[string]string{}
		}
		c.PoolURLs[name] = base
	}
	var err error
	c.Peers, err = ParsePeers("--peers", c.peers)
	return err
}

// Check says what the flags cannot mean together. kubernetes says that tenants, peers and the zone come from
// the Kubernetes API; instead names the flags that make the process run without it.
func (c *Config) Check(kubernetes bool, instead string) error {
	switch {
	case kubernetes && (c.TenantsFile != "" || c.ZoneFile != "" || len(c.Peers) > 0 || c.PoolURLs != nil):
		return fmt.Errorf("--tenants, --zone-file, --peers and --pool-urls are for outside Kubernetes: with %s", instead)
	case c.Linger < 0 || c.AccessPerSecond < 0:
		return errors.New("--linger and --access-log-per-second must not be negative")
	case c.Pool.Gateway.Auth == "Keys" && !kubernetes && c.TenantsFile == "":
		return errors.New("the pool wants keys: outside Kubernetes give --tenants FILE")
	}
	return nil
}

// ParsePeers reads NAME=HOST:PORT,... of a flag.
func ParsePeers(flagName, list string) ([]gateway.Peer, error) {
	var peers []gateway.Peer
	for p := range strings.SplitSeq(list, ",") {
		if p == "" {
			continue
		}
		name, addr, ok := strings.Cut(p, "=")
		if _, _, err := net.SplitHostPort(addr); !ok || name == "" || err != nil {
			return nil, fmt.Errorf("%s: %q is not NAME=HOST:PORT", flagName, p)
		}
		peers = append(peers, gateway.Peer{Name: name, Addr: addr})
	}
	return peers, nil
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
