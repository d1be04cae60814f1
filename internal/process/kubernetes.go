package process

import (
	"fmt"
	"net"
	"strconv"

	"k8s.io/client-go/rest"

	"sluice.dev/sluice/internal/discovery"
	"sluice.dev/sluice/internal/gateway"
	"sluice.dev/sluice/internal/wire"
)

// WatchKubernetes lets tenants, the zone and the gateways that share the limits come from the API server, and
// what else o names.
func (p *Process) WatchKubernetes(o discovery.Options) error {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("in-cluster configuration: %w", err)
	}
	cfg.QPS = -1 // a handful of watches needs no limit
	o.REST, o.Namespace, o.Pool, o.Log = cfg, p.Config.Namespace, p.Config.Pool.Name, p.Log
	o.Gateways, o.Signal = p.setGateways, p.SetSignal
	if p.Config.Pool.Gateway.Auth != "None" {
		o.Tenants = p.Tenants.Set
	}
	w, err := discovery.New(o)
	if err != nil {
		return err
	}
	p.Sources = append(p.Sources, w.Run)
	p.Synced = w.WaitSynced
	return nil
}

// setGateways takes those whom the pool's Service names. They keep the tenants' limits. A process that is not
// among them although others are should get no new connections: it is not ready yet, or the pool was given
// standalone gateways, or they were taken from it.
func (p *Process) setGateways(list []discovery.Peer) {
	peers := make([]gateway.Peer, 0, len(list))
	named := false
	for _, x := range list {
		peers = append(peers, gateway.Peer{Name: x.Pod, Addr: net.JoinHostPort(x.IP, strconv.Itoa(wire.PortInternal))})
		named = named || x.Pod == p.Name()
	}
	p.Quota.SetPeers(peers)
	p.Gateway.SendElsewhere(len(list) > 0 && !named)
}
