package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/internal/wire"
)

// Names of the files in a Secret of type kubernetes.io/tls, and so in its volume.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

// certificateEvery is how often the files are looked at. Two small reads; the kubelet itself brings a new Secret
// within a minute. Reading beats watching here: the kubelet swaps a symbolic link two levels up, which a watch of
// the files does not see.
const certificateEvery = 2 * time.Second

// Certificate is the pair in a directory, read again when it changes. Connections that are open keep what they were
// opened with. A pair that cannot be used (key and certificate do not belong together, half written, expired while
// the present one is valid) never replaces one that can. Safe for concurrent use.
type Certificate struct {
	dir string
	log *slog.Logger

	mu       sync.Mutex
	pair     *tls.Certificate // nil: none yet
	crt, key []byte           // as they were last read, good or not
	problem  string           // why the files are not what is served; "" for they are
	state    string           // wire.TLSMissing or TLSInvalid, with problem
	reloads  uint64
	failures uint64
	ready    chan struct{} // closed once there is a pair
}

// NewCertificate reads the directory; Run goes on reading it. That there is nothing usable yet is not an error:
// handshakes fail until there is, and Wait waits for it.
func NewCertificate(dir string, log *slog.Logger) *Certificate {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Certificate{dir: dir, log: log, ready: make(chan struct{})}
	c.read(time.Now())
	return c
}

// Run looks at the files until ctx is done.
func (c *Certificate) Run(ctx context.Context) {
	tick := time.NewTicker(certificateEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			c.read(now)
		}
	}
}

// Wait returns when there is a pair to serve, or with ctx's error.
func (c *Certificate) Wait(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// config is the TLS of the public port: TLS 1.2 or 1.3 with Go's choice of ciphers.
func (c *Certificate) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.pair == nil {
			return nil, errors.New("there is no certificate yet: " + c.problem)
		}
		return c.pair, nil
	}}
}

func (c *Certificate) read(now time.Time) {
	crt, errCrt := os.ReadFile(filepath.Join(c.dir, certFile))
	key, errKey := os.ReadFile(filepath.Join(c.dir, keyFile))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(errCrt, errKey); err != nil {
		state := wire.TLSInvalid
		if errors.Is(err, fs.ErrNotExist) {
			state = wire.TLSMissing
		}
		c.crt, c.key = nil, nil
		c.refuse(state, err)
		return
	}
	if c.crt != nil && bytes.Equal(crt, c.crt) && bytes.Equal(key, c.key) {
		return
	}
	c.crt, c.key = crt, key
	pair, err := c.usable(crt, key, now)
	if err != nil {
		c.refuse(wire.TLSInvalid, err)
		return
	}
	if c.pair == nil {
		close(c.ready)
	} else {
		c.reloads++
	}
	c.pair, c.problem, c.state = pair, "", ""
	c.log.Info("certificate loaded", "directory", c.dir, "subject", pair.Leaf.Subject.String(), "dnsNames", pair.Leaf.DNSNames, "notAfter", pair.Leaf.NotAfter)
}

// usable reads a pair. One that is not valid now is taken only where there is none that is: a client that checks
// refuses it, and says why better than a handshake that fails.
func (c *Certificate) usable(crt, key []byte, now time.Time) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return nil, err
	}
	valid := func(p *tls.Certificate) bool { return !now.Before(p.Leaf.NotBefore) && now.Before(p.Leaf.NotAfter) }
	if c.pair != nil && valid(c.pair) && !valid(&pair) {
		return nil, fmt.Errorf("the new certificate is valid from %s to %s, not now", pair.Leaf.NotBefore.UTC().Format(time.RFC3339), pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return &pair, nil
}

// refuse notes a problem, and logs it when it is another than the last.
func (c *Certificate) refuse(state string, err error) {
	if problem := err.Error(); problem != c.problem {
		c.problem, c.state = problem, state
		c.failures++
		c.log.Error("the certificate cannot be used", "directory", c.dir, "error", err, "servingAnOlderOne", c.pair != nil)
	}
}

// Status is what the operator is told.
func (c *Certificate) Status() *wire.TLSStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &wire.TLSStatus{Problem: c.state, Message: c.problem}
	if c.pair != nil {
		s.NotBefore, s.NotAfter = c.pair.Leaf.NotBefore.Unix(), c.pair.Leaf.NotAfter.Unix()
	}
	return s
}

// Describe implements prometheus.Collector.
func (c *Certificate) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

var (
	descNotAfter = desc(metricCertNotAfter, "When the certificate that is served ends, in Unix seconds; 0 while there is none.")
	descReloads  = desc(metricCertReloads, "Certificates that replaced another one.")
	descFailures = desc(metricCertFailures, "Certificates that could not be used; the last good one is served on.")
)

// Collect implements prometheus.Collector.
func (c *Certificate) Collect(ch chan<- prometheus.Metric) {
	s := c.Status()
	c.mu.Lock()
	reloads, failures := c.reloads, c.failures
	c.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(descNotAfter, prometheus.GaugeValue, float64(s.NotAfter))
	ch <- prometheus.MustNewConstMetric(descReloads, prometheus.CounterValue, float64(reloads))
	ch <- prometheus.MustNewConstMetric(descFailures, prometheus.CounterValue, float64(failures))
}
