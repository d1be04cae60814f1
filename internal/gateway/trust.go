package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
)

// targetKey names a pool that is rerouted to, by the way in which it is asked.
type targetKey struct{ pool, caFile, serverName string }

func keyOf(s poolspec.Step) targetKey {
	k := targetKey{pool: s.Pool}
	if s.TLS != nil {
		k.caFile, k.serverName = s.TLS.CAFile, s.TLS.ServerName
	}
	return k
}

// rerouteTarget is another pool, whom to trust as it, and what is wrong with it. Safe for concurrent use.
type rerouteTarget struct {
	pool  string
	trust *poolspec.Trust // nil: plain HTTP
	log   *slog.Logger    // may be nil

	mu      sync.Mutex
	client  *http.Client // with trust: that of the certificates last read, nil before there were any
	pem     []byte
	looked  time.Time
	problem string // of the certificates: wire.RerouteCAMissing or RerouteCAInvalid
	message string

	misfit   string // why requests did not help, since the last that did; "": they do
	misfitAt time.Time
}

// misfitFor is how long a misfit is told without a new one: nobody may ask the other pool again.
const misfitFor = 5 * time.Minute

// misfit is an error that comes again with the next request: the other pool is not there, not trusted, or does not know
// the model or the caller. That it has no place just now is none.
type misfit struct{ error }

// broken is the error of a call that got no whole answer: a misfit unless the request's own end was the cause.
// Without the URL, and without the addresses of an open connection, which would make each another one.
func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	if o := (*net.OpError)(nil); errors.As(err, &o) && o.Op != "dial" {
		err = o.Err
	}
	return misfit{err}
}

// at returns the client that trusts whom the file names now. A file that is gone or broken never replaces one that
// was good.
func (t *rerouteTarget) at(now time.Time) (*http.Client, error) {
	if t.trust == nil {
		return t.client, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.look(now)
	if t.pem == nil {
		return nil, errors.New(t.message) // told as a problem of the certificates
	}
	return t.client, nil
}

// look reads the file, at most every certificateEvery. t.mu is held.
func (t *rerouteTarget) look(now time.Time) {
	if !t.looked.IsZero() && now.Sub(t.looked) < certificateEvery {
		return
	}
	t.looked = now
	pem, err := os.ReadFile(t.trust.CAFile)
	if err == nil && t.pem != nil && bytes.Equal(pem, t.pem) {
		t.problem, t.message = "", ""
		return
	}
	roots := x509.NewCertPool()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.refuse(wire.RerouteCAMissing, err)
		return
	case err == nil && !roots.AppendCertsFromPEM(pem):
		err = fmt.Errorf("%s has no certificate", t.trust.CAFile)
		fallthrough
	case err != nil:
		t.refuse(wire.RerouteCAInvalid, err)
		return
	}
	if t.pem != nil {
		t.client.CloseIdleConnections()
	}
	t.client = newRerouteClient(&tls.Config{RootCAs: roots, ServerName: t.trust.ServerName, MinVersion: tls.VersionTLS12})
	t.pem, t.problem, t.message = pem, "", ""
}

func (t *rerouteTarget) refuse(problem string, err error) {
	if t.log != nil && t.message != err.Error() {
		t.log.Error("another pool cannot be asked: nobody is trusted as it", "pool", t.pool, "error", err, "trustingAnOlderOne", t.pem != nil)
	}
	t.problem, t.message = problem, err.Error()
}

// note keeps what became of a request to the other pool.
func (t *rerouteTarget) note(now time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var m misfit
	switch {
	case err == nil:
		t.misfit = ""
	case !errors.As(err, &m):
	case t.misfit == "":
		t.misfit, t.misfitAt = m.Error(), now
		if t.log != nil {
			t.log.Warn("another pool does not serve what is handed to it", "pool", t.pool, "error", m.error)
		}
	default:
		t.misfitAt = now // the first of a row is told: the next may be the same in other words
	}
}

// status is what is wrong, nil for nothing.
func (t *rerouteTarget) status(now time.Time) *wire.RerouteProblem {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.trust != nil {
		t.look(now)
	}
	switch {
	case t.problem != "":
		return &wire.RerouteProblem{Pool: t.pool, Problem: t.problem, Message: t.message}
	case t.misfit != "" && now.Sub(t.misfitAt) < misfitFor:
		return &wire.RerouteProblem{Pool: t.pool, Problem: wire.RerouteFailing, Message: t.misfit}
	}
	t.misfit = ""
	return nil
}

// problems are what is wrong with the other pools, by name.
func (r *rerouter) problems(now time.Time) (out []wire.RerouteProblem) {
	for _, t := range r.targets {
		if p := t.status(now); p != nil {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b wire.RerouteProblem) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Message, b.Message))
	})
	return out
}
