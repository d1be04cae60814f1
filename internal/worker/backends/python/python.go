// Package python runs a team's own Python function as the backend of a worker: module:function, a list of
// strings in, a list of as many strings out, in a supervised subprocess. The function is not changed: what it
// prints goes to the log, what it raises is an application error, and if it hangs or crashes only the
// subprocess is killed and started again.
package python

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

// DefaultInterpreter is looked for in PATH.
const DefaultInterpreter = "python3"

// protocolVersion is the runner's; both are of one binary, so a mismatch is a defect.
const protocolVersion = 1

//go:embed runner.py
var runner string

var functionName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$`)

// Config names the function and the interpreter.
type Config struct {
	// Function is module:function.
	Function string
	// Interpreter is a path, such as that of a virtual environment's python, or a name in PATH.
	Interpreter string
	// Path is the directory in which modules are looked for first. Empty is the working directory.
	Path string
	// Log gets what the function prints, line by line. Nil discards.
	Log *slog.Logger
}

// Check says what is wrong with a configuration.
func (c Config) Check() error {
	if !functionName.MatchString(c.Function) {
		return fmt.Errorf("the Python function is %q, want module:function", c.Function)
	}
	return nil
}

// New returns the backend. The interpreter is looked for at each load.
func New(c Config) (worker.Backend, error) {
	if c.Interpreter == "" {
		c.Interpreter = DefaultInterpreter
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &backend{config: c}, c.Check()
}

type backend struct{ config Config }

// Load implements worker.Backend: it starts the process and waits until the module is imported.
func (b *backend) Load(ctx context.Context) (worker.Instance, error) {
	p, err := start(b.config)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { p.kill(context.Cause(ctx)) })
	defer stop()
	hello, err := readFrame(p.replies)
	switch {
	case err != nil:
		return nil, fmt.Errorf("python ended before it was ready: %w", p.end(err))
	case hello.Fatal != nil:
		p.kill(nil)
		<-p.done
		return nil, fmt.Errorf("%s can't be loaded: %s", b.config.Function, hello.Fatal)
	case hello.Version != protocolVersion:
		return nil, p.end(fmt.Errorf("the runner speaks version %d, want %d", hello.Version, protocolVersion))
	case !stop():
		return nil, p.end(context.Cause(ctx)) // too late: it is being killed
	}
	b.config.Log.Info("python function loaded", "function", b.config.Function, "python", hello.Python,
		"pid", p.pid, "takes_parameters", hello.Parameters)
	return &instance{process: p, parameters: hello.Parameters}, nil
}

type instance struct {
	*process
	parameters bool
	lastID     uint64
}

// Run implements worker.Instance. Python can't be made to leave a running function, so a batch that outlasts
// ctx kills the process.
func (i *instance) Run(ctx context.Context, b worker.Batch) (worker.Output, error) {
	i.lastID++
	req := request{ID: i.lastID, Inputs: b.Inputs}
	if i.parameters {
		req.Parameters = itemParameters(b)
	}
	stop := context.AfterFunc(ctx, func() { i.kill(context.Cause(ctx)) })
	defer stop()
	err := writeFrame(i.requests, req)
	var r reply
	if err == nil {
		r, err = readFrame(i.replies)
	}
	if err == nil && r.ID != req.ID {
		err = fmt.Errorf("an answer to batch %d came back for batch %d", r.ID, req.ID)
	}
	switch {
	case err != nil:
		return worker.Output{}, worker.Backendf("%v", i.end(err))
	case r.Error != nil:
		return worker.Output{}, worker.Applicationf("%s", r.Error)
	case r.Contract != "":
		return worker.Output{}, worker.Backendf("%s", r.Contract)
	}
	return worker.Output{Outputs: r.Outputs}, nil
}

// itemParameters is one dictionary for each input: empty where nothing is set.
func itemParameters(b worker.Batch) any {
	if b.ItemParams == nil {
		return make([]wire.Parameters, len(b.Inputs))
	}
	if !slices.ContainsFunc(b.ItemParams, func(p wire.Parameters) bool { return p.Switch != nil }) {
		return b.ItemParams
	}
	list := make([]map[string]any, len(b.ItemParams))
	for i, p := range b.ItemParams {
		list[i] = p.Map()
	}
	return list
}

// ParamsMode implements worker.Instance.
func (i *instance) ParamsMode() string {
	if i.parameters {
		return worker.ParamsItem
	}
	return worker.ParamsNone
}

// Done implements worker.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Err implements worker.Instance. It is valid after Done.
func (i *instance) Err() error { return i.err }

// errClosed is why a process that was asked to leave ended.
var errClosed = errors.New("closed")
