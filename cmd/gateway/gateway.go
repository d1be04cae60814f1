package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"strconv"

	"sluice.dev/sluice/internal/discovery"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/process"
	"sluice.dev/sluice/internal/relay"
	"sluice.dev/sluice/internal/wire"
)

// config is what the command line and the environment say.
type config struct {
	process.Config
	batchers []relay.Peer // empty: those that Kubernetes names
}

func parseFlags(args []string, env func(string) string, out io.Writer) (config, error) {
	c := config{}
	fs := flag.NewFlagSet("gateway", flag.ContinueOnError)
	fs.SetOutput(out)
	c.Register(fs, env)
	batchers := fs.String("batchers", "", "batchers instead of those that Kubernetes names: NAME=HOST:PORT of the relay port, separated by commas")
	if err := c.Parse(fs, args); err != nil {
		return c, err
	}
	peers, err := process.ParsePeers("--batchers", *batchers)
	if err != nil {
		return c, err
	}
	for _, p := range peers {
		c.batchers = append(c.batchers, relay.Peer{Name: p.Name, Addr: p.Addr})
	}
	kubernetes := len(c.batchers) == 0
	if kubernetes && !c.InCluster {
		return c, errors.New("no batchers: outside Kubernetes give --batchers NAME=HOST:PORT[,NAME=HOST:PORT]")
	}
	return c, c.Check(kubernetes, "--batchers")
}

// newGateway is a process whose engine is a relay to the batchers.
func newGateway(c config, log *slog.Logger) (*process.Process, error) {
	p := process.New(c.Config, log)
	if err := p.OpenReports("sluice-gateway"); err != nil {
		return nil, err
	}
	client := relay.NewClient(relay.Options{Pool: c.Pool, Name: p.Name(), Log: log})
	p.Parked = func() int { return client.Snapshot().Parked }
	p.Close = client.Close
	if err := p.MakeGateway(gateway.Options{Engine: client, Standalone: true}); err != nil {
		client.Close()
		return nil, err
	}
	p.Gateway.Registry().MustRegister(client)
	p.SetSignal = p.Gateway.SetSignal
	var err error
	if len(c.batchers) == 0 {
		err = p.WatchKubernetes(discovery.Options{Batchers: func(list []discovery.Peer) {
			peers := make([]relay.Peer, 0, len(list))
			for _, b := range list {
				peers = append(peers, relay.Peer{Name: b.Pod, Addr: net.JoinHostPort(b.IP, strconv.Itoa(wire.PortRelay))})
			}
			log.Info("batchers", "ready", len(peers))
			client.SetBatchers(peers)
		}})
	} else if err = p.FromFiles(); err == nil {
		client.SetBatchers(c.batchers)
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	// Ready once every batcher was tried: a client must not get 503 only because its gateway is new.
	watched := p.Synced
	p.Synced = func(ctx context.Context) error { return errors.Join(watched(ctx), client.WaitSettled(ctx)) }
	return p, nil
}
