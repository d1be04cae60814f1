package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice.dev/sluice/internal/process"
	"sluice.dev/sluice/internal/wire"
)

// config is what the command line and the environment say.
type config struct {
	process.Config
	relayListen  string
	workers      []string // addresses; empty: from Kubernetes, or simulated
	simulate     int
	simulateTime time.Duration
}

// kubernetes says that workers, tenants and the zone come from the Kubernetes API.
func (c config) kubernetes() bool { return c.simulate == 0 && len(c.workers) == 0 }

func parseFlags(args []string, env func(string) string, out io.Writer) (config, error) {
	c := config{}
	fs := flag.NewFlagSet("batcher", flag.ContinueOnError)
	fs.SetOutput(out)
	c.Register(fs, env)
	fs.StringVar(&c.relayListen, "relay-listen", "", fmt.Sprintf("address for standalone gateways (default: :%d in Kubernetes, none outside)", wire.PortRelay))
	workers := fs.String("workers", "", "worker URLs, separated by commas, instead of those that Kubernetes names")
	fs.IntVar(&c.simulate, "simulate-workers", 0, "run this many simulated workers in this process")
	fs.DurationVar(&c.simulateTime, "simulate-service-time", 0, "time of a simulated batch (default: the pool's inferenceTime)")
	if err := c.Parse(fs, args); err != nil {
		return c, err
	}
	for w := range strings.SplitSeq(*workers, ",") {
		if w = strings.TrimSpace(w); w != "" {
			c.workers = append(c.workers, w)
		}
	}
	return c, c.check()
}

func (c *config) check() error {
	switch {
	case c.simulate < 0 || c.simulate > 1000:
		return fmt.Errorf("--simulate-workers is %d, want 0 to 1000", c.simulate)
	case c.simulate > 0 && len(c.workers) > 0:
		return errors.New("--workers and --simulate-workers exclude each other")
	case c.kubernetes() && !c.InCluster:
		return errors.New("no workers: outside Kubernetes give --simulate-workers N or --workers URL,URL")
	case c.simulateTime < 0:
		return errors.New("--simulate-service-time must not be negative")
	}
	if c.relayListen == "" && c.kubernetes() {
		c.relayListen = fmt.Sprintf(":%d", wire.PortRelay)
	}
	if c.simulateTime == 0 {
		c.simulateTime = c.Pool.Batching.InferenceTime.D()
	}
	return c.Check(c.kubernetes(), "--workers or --simulate-workers")
}
