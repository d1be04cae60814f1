// Package oip runs batches on a model server beside the worker that speaks the Open Inference Protocol v2
// over HTTP (Triton, KServe, MLServer): POST /v2/models/{model}/infer with one BYTES tensor in and one out.
// Parameters travel with the batch, as the protocol has them per request.
package oip

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sluice.dev/sluice/internal/worker"
)

// Defaults of a Config.
const (
	DefaultURL    = "http://127.0.0.1:8000"
	DefaultInput  = "text_input"
	DefaultOutput = "text_output"
)

const (
	// pollEvery is how often readiness is asked for: a load is noticed, and a lost server given up, within
	// a second or three.
	pollEvery = time.Second
	// pollTimeout bounds one such question.
	pollTimeout = time.Second
	// pollFailures in a row give an idle server up.
	pollFailures = 3
)

// Config says where the model is.
type Config struct {
	URL   string // base address of the server
	Model string // the model's name
	Input string // name of the BYTES tensor that takes the inputs
	// Output is the name of the BYTES tensor that returns the outputs.
	Output string
	// Transport carries the calls. Nil is a transport of its own without proxies.
	Transport http.RoundTripper
}

// Check says what is wrong with a configuration.
func (c Config) Check() error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return fmt.Errorf("the model server's address is %q, want http://host:port", c.URL)
	case c.Model == "":
		return errors.New("the model's name is empty")
	case c.Input == "" || c.Output == "":
		return errors.New("the names of the tensors must not be empty")
	}
	return nil
}

// New returns the backend.
func New(c Config) (worker.Backend, error) {
	if c.Transport == nil {
		// One call runs at a time, and readiness beside it. The server may close an idle connection when it
		// likes and the POST on it would fail, so none is kept longer than servers usually keep them (5 s is
		// the shortest default among them).
		c.Transport = &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 4 * time.Second}
	}
	c.URL = strings.TrimSuffix(c.URL, "/")
	return &backend{config: c, client: &http.Client{Transport: c.Transport}}, c.Check()
}

type backend struct {
	config Config
	client *http.Client
}

// Load implements worker.Backend: it waits until the server and the model are ready, and reads the shape that
// the model wants.
func (b *backend) Load(ctx context.Context) (worker.Instance, error) {
	for {
		err := b.ready(ctx)
		if err == nil {
			break
		}
		if !sleep(ctx, pollEvery) {
			return nil, fmt.Errorf("the model server is not ready: %w", err)
		}
	}
	columns, err := b.inputRank(ctx)
	if err != nil {
		return nil, err
	}
	i := &instance{backend: b, columns: columns, done: make(chan struct{}), closing: make(chan struct{}), pollDone: make(chan struct{})}
	go i.poll()
	return i, nil
}

// ready asks the server and the model.
func (b *backend) ready(ctx context.Context) error {
	for _, path := range []string{"/v2/health/ready", b.modelPath() + "/ready"} {
		status, _, err := b.get(ctx, path)
		if err != nil {
			return err
		}
		if status/100 != 2 {
			return fmt.Errorf("%s answers %d", path, status)
		}
	}
	return nil
}

func (b *backend) modelPath() string { return "/v2/models/" + url.PathEscape(b.config.Model) }

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
