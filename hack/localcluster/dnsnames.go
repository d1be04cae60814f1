package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// recordTTL is short, as CoreDNS' is: a headless Service's addresses change with its pods.
const recordTTL = 5

var errNoSuchName = errors.New("no such name")

// nameRecords resolves names: those of the cluster from its objects, all others upstream.
type nameRecords struct {
	service   func(namespace, name string) (*corev1.Service, error)
	endpoints func(namespace, service string) ([]*discoveryv1.EndpointSlice, error)
	upstream  func(ctx context.Context, name string) ([]net.IP, error)
}

func inClusterDomain(name string) bool {
	name = strings.ToLower(name)
	return name == clusterDomain+"." || strings.HasSuffix(name, "."+clusterDomain+".")
}

// lookup returns the IPv4 addresses of a fully qualified name. No address and no error means that the name exists.
func (r nameRecords) lookup(ctx context.Context, name string) ([]net.IP, error) {
	if !inClusterDomain(name) {
		return r.upstream(ctx, name)
	}
	rest, ok := strings.CutSuffix(strings.ToLower(name), ".svc."+clusterDomain+".")
	if !ok {
		return nil, errNoSuchName
	}
	switch parts := strings.Split(rest, "."); len(parts) {
	case 2:
		return r.serviceAddresses(ctx, parts[1], parts[0])
	case 3:
		return r.podAddresses(parts[2], parts[1], parts[0])
	default:
		return nil, errNoSuchName
	}
}

func (r nameRecords) serviceAddresses(ctx context.Context, namespace, name string) ([]net.IP, error) {
	service, err := r.service(namespace, name)
	if err != nil {
		return nil, errNoSuchName // a lister has no other error
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return r.upstream(ctx, strings.TrimSuffix(service.Spec.ExternalName, ".")+".")
	}
	if service.Spec.ClusterIP != corev1.ClusterIPNone {
		return []net.IP{net.ParseIP(service.Spec.ClusterIP)}, nil
	}
	return r.matchingEndpoints(namespace, name, service.Spec.PublishNotReadyAddresses, func(discoveryv1.Endpoint, string) bool { return true })
}

// podAddresses resolves HOSTNAME.SERVICE.NAMESPACE, the name of one pod behind a headless Service; a pod without a
// hostname goes by its address with dashes.
func (r nameRecords) podAddresses(namespace, service, host string) ([]net.IP, error) {
	addresses, err := r.matchingEndpoints(namespace, service, true, func(e discoveryv1.Endpoint, address string) bool {
		return (e.Hostname != nil && *e.Hostname == host) || strings.ReplaceAll(address, ".", "-") == host
	})
	if err == nil && len(addresses) == 0 {
		err = errNoSuchName
	}
	return addresses, err
}

func (r nameRecords) matchingEndpoints(namespace, service string, notReady bool, match func(discoveryv1.Endpoint, string) bool) ([]net.IP, error) {
	slices, err := r.endpoints(namespace, service)
	if err != nil {
		return nil, err
	}
	var addresses []net.IP
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			for _, a := range e.Addresses {
				if (ready || notReady) && match(e, a) {
					addresses = append(addresses, net.ParseIP(a))
				}
			}
		}
	}
	return addresses, nil
}

// hostResolver asks the machine's own resolvers. Where there are none, or only this server itself, every outside name
// is unknown at once: a timeout would make each lookup with a search path take seconds.
func hostResolver(self string) func(context.Context, string) ([]net.IP, error) {
	config, err := os.ReadFile("/etc/resolv.conf")
	if err != nil || !hasNameserver(string(config), self) {
		return func(context.Context, string) ([]net.IP, error) { return nil, errNoSuchName }
	}
	return func(ctx context.Context, name string) ([]net.IP, error) {
		addresses, err := net.DefaultResolver.LookupIP(ctx, "ip4", name)
		var failure *net.DNSError
		if errors.As(err, &failure) && failure.IsNotFound {
			return nil, errNoSuchName
		}
		return addresses, err
	}
}

func hasNameserver(resolvConf, except string) bool {
	for line := range strings.Lines(resolvConf) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "nameserver" && fields[1] != except {
			return true
		}
	}
	return false
}
