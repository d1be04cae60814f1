package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"

	"k8s.io/klog/v2"

	"sluice.dev/sluice/internal/gateway"
)

// Main is a program: it runs until SIGTERM or SIGINT ends ctx; a second signal kills. err is what reading the
// flags gave.
func Main(name string, err error, run func(ctx context.Context, log *slog.Logger) error) {
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(2)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	klog.SetSlogLogger(log) // of the Kubernetes client
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, log); err != nil {
		log.Error(name+" ends", "error", err)
		os.Exit(1)
	}
}

// profile writes a CPU profile to the file until the returned function is called; no file, no profile.
func profile(file string) (stop func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("--cpu-profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, fmt.Errorf("--cpu-profile: %w", errors.Join(err, f.Close()))
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// Run is the life of a process: it writes the CPU profile that was asked for, opens the ports, lets build make the
// process, and serves until ctx is done. When build fails the ports are left to the end of the program.
func (c *Config) Run(ctx context.Context, build func() (*Process, error)) error {
	stop, err := profile(c.CPUProfile)
	if err != nil {
		return err
	}
	defer stop()
	public, internal, err := c.Open()
	if err != nil {
		return err
	}
	p, err := build()
	if err != nil {
		return err
	}
	return p.Serve(ctx, public, internal)
}

// Open opens the public ports that the pool asks for, and the internal one.
func (c *Config) Open() (public gateway.Listeners, internal net.Listener, err error) {
	if public, err = gateway.Listen(c.Pool, c.Listen, c.TLSListen); err != nil {
		return public, nil, err
	}
	if internal, err = net.Listen("tcp", c.InternalListen); err != nil {
		return gateway.Listeners{}, nil, errors.Join(err, public.Close())
	}
	return public, internal, nil
}
