package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/tlstest"
	"sluice.dev/sluice/internal/wire"
)

func pairFor(t *testing.T, serial int64, from, to time.Time) (crt, key []byte) {
	t.Helper()
	crt, key, err := tlstest.Pair(serial, from, to)
	must(t, err)
	return crt, key
}

// mount writes a pair as the kubelet does: into a fresh directory, to which a symbolic link is swapped in one step.
func mount(t *testing.T, dir string, crt, key []byte) {
	t.Helper()
	data, err := os.MkdirTemp(dir, "..data-")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(data, certFile), crt, 0o600))
	must(t, os.WriteFile(filepath.Join(data, keyFile), key, 0o600))
	link := filepath.Join(dir, "..tmp")
	must(t, os.Symlink(filepath.Base(data), link))
	must(t, os.Rename(link, filepath.Join(dir, "..data")))
	for _, f := range []string{certFile, keyFile} {
		if err := os.Symlink(filepath.Join("..data", f), filepath.Join(dir, f)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serial is that of the certificate that a handshake would get now, 0 for none.
func serial(c *Certificate) int64 {
	pair, err := c.config().GetCertificate(nil)
	if err != nil {
		return 0
	}
	return pair.Leaf.SerialNumber.Int64()
}

func TestACertificateIsReplacedOnlyByOneThatWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var log bytes.Buffer
		c := NewCertificate(dir, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go c.Run(ctx)
		now := time.Now()
		after := func(what string, want int64, problem string) {
			t.Helper()
			time.Sleep(certificateEvery)
			synctest.Wait()
			s := c.Status()
			if serial(c) != want || s.Problem != problem || (s.Message == "") != (problem == "") {
				t.Errorf("%s: serving %d, want %d; %+v", what, serial(c), want, s)
			}
		}
		after("nothing mounted", 0, wire.TLSMissing)
		waited := make(chan error, 1)
		go func() { waited <- c.Wait(ctx) }()
		crt1, key1 := pairFor(t, 1, now.Add(-time.Hour), now.Add(24*time.Hour))
		crt2, key2 := pairFor(t, 2, now.Add(-time.Hour), now.Add(48*time.Hour))
		mount(t, dir, crt1, key2)
		after("a key of another certificate", 0, wire.TLSInvalid)
		mount(t, dir, crt1, key1)
		after("the first", 1, "")
		if err := <-waited; err != nil {
			t.Error(err)
		}
		mount(t, dir, crt2[:len(crt2)/2], key2)
		after("half a certificate", 1, wire.TLSInvalid)
		old, oldKey := pairFor(t, 3, now.Add(-2*time.Hour), now.Add(-time.Hour))
		mount(t, dir, old, oldKey)
		after("an expired one", 1, wire.TLSInvalid)
		mount(t, dir, crt2, key2)
		after("the second", 2, "")
		if s := c.Status(); s.NotAfter != now.Add(48*time.Hour).Unix() {
			t.Errorf("%+v", s)
		}
		must(t, os.Remove(filepath.Join(dir, certFile)))
		after("removed", 2, wire.TLSMissing)
		must(t, os.Symlink(filepath.Join("..data", certFile), filepath.Join(dir, certFile)))
		after("there again", 2, "")
		time.Sleep(72 * time.Hour)
		mount(t, dir, old, oldKey)
		after("nothing valid is left", 3, "")
		before := strings.Count(log.String(), "cannot be used")
		must(t, os.Remove(filepath.Join(dir, keyFile)))
		time.Sleep(time.Hour)
		if n := strings.Count(log.String(), "cannot be used") - before; n != 1 {
			t.Errorf("one problem of an hour is logged %d times", n)
		}
	})
}

// A new certificate is served to new connections while requests on the old ones go on, over HTTP/2 and HTTP/1.1.
func TestTLSReloadDropsNoConnection(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	crt1, key1 := pairFor(t, 1, now.Add(-time.Hour), now.Add(time.Hour))
	crt2, key2 := pairFor(t, 2, now.Add(-time.Hour), now.Add(time.Hour))
	mount(t, dir, crt1, key1)
	cert := NewCertificate(dir, nil)
	entered, release := make(chan struct{}), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			entered <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, r.Proto)
	})
	p := poolspec.Default()
	p.Gateway.TLS = &poolspec.TLS{Directory: dir}
	l, err := Listen(p, "127.0.0.1:0", "127.0.0.1:0")
	must(t, err)
	if l.Plain != nil {
		t.Fatal("plain HTTP is open")
	}
	front := NewFront(h, l, cert, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- front.Run() }()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(crt1)
	roots.AppendCertsFromPEM(crt2)
	url := "https://" + l.TLS.Addr().String()

	for _, proto := range []string{"HTTP/2.0", "HTTP/1.1"} {
		mount(t, dir, crt1, key1)
		cert.read(time.Now())
		client := newTLSClient(roots, proto)
		var wg sync.WaitGroup
		wg.Go(func() {
			if got, n := client.get(t, url+"/slow"); got != proto || n != 1 {
				t.Errorf("under way: %s with certificate %d", got, n)
			}
		})
		<-entered
		mount(t, dir, crt2, key2)
		cert.read(time.Now())
		if got, n := newTLSClient(roots, proto).get(t, url); got != proto || n != 2 {
			t.Errorf("new connection: %s with certificate %d", got, n)
		}
		release <- struct{}{}
		wg.Wait()
		if _, n := client.get(t, url); n != 1 {
			t.Errorf("%s: the old connection was dropped", proto)
		}
		client.CloseIdleConnections()
	}
	if _, err := http.Get("http://" + l.TLS.Addr().String()); err != nil {
		t.Errorf("plain HTTP on the TLS port: %v", err) // net/http answers 400 to say so
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must(t, front.Drain(ctx))
	must(t, <-ended)
}

type tlsClient struct{ *http.Client }

func newTLSClient(roots *x509.CertPool, proto string) tlsClient {
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP1(proto == "HTTP/1.1")
	t.Protocols.SetHTTP2(proto != "HTTP/1.1")
	return tlsClient{&http.Client{Transport: t}}
}

// get returns the body and the serial number of the server's certificate.
func (c tlsClient) get(t *testing.T, url string) (body string, serial int64) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Error(err)
		return "", 0
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	return string(b), res.TLS.PeerCertificates[0].SerialNumber.Int64()
}

func TestBothPortsWhereThePoolSaysSo(t *testing.T) {
	p := poolspec.Default()
	for _, c := range []struct {
		tls        *poolspec.TLS
		plain, tlS bool
	}{{nil, true, false}, {&poolspec.TLS{Directory: "x"}, false, true}, {&poolspec.TLS{Directory: "x", Plaintext: true}, true, true}} {
		p.Gateway.TLS = c.tls
		l, err := Listen(p, "127.0.0.1:0", "127.0.0.1:0")
		must(t, err)
		if (l.Plain != nil) != c.plain || (l.TLS != nil) != c.tlS || strings.Contains(l.String(), "(TLS)") != c.tlS {
			t.Errorf("%+v: %s", c.tls, l)
		}
		must(t, l.Close())
	}
}
