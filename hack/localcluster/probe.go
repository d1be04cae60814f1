package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// A probe returns nil when a component answers as it should.
type probe func(ctx context.Context) error

// probeTimeout bounds one try, so that a component that accepts and never answers does not hide the next step.
const probeTimeout = 2 * time.Second

func unixProbe(path string) probe {
	return func(ctx context.Context) error {
		dialer := net.Dialer{Timeout: probeTimeout}
		connection, err := dialer.DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		return connection.Close()
	}
}

func httpProbe(url string) probe {
	return requestProbe(func() (*http.Client, error) { return &http.Client{Timeout: probeTimeout}, nil }, url)
}

// httpsProbe accepts any certificate: the controller manager and the scheduler sign their own at start, and only a
// health bit is read.
func httpsProbe(url string) probe {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	return requestProbe(func() (*http.Client, error) { return &http.Client{Timeout: probeTimeout, Transport: transport}, nil }, url)
}

func apiProbe(l layout, path string) probe {
	return requestProbe(func() (*http.Client, error) { return apiClient(l) }, apiURL()+path)
}

func requestProbe(client func() (*http.Client, error), url string) probe {
	return func(ctx context.Context) error {
		c, err := client()
		if err != nil {
			return err
		}
		_, err = get(ctx, c, url)
		return err
	}
}

func dnsProbe(address string) probe {
	return func(ctx context.Context) error {
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp", address)
		}}
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+clusterDomain+".")
		return err
	}
}

// apiClient speaks to the API server as the administrator.
func apiClient(l layout) (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(l.pki("admin.crt"), l.pki("admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(l.pki("ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &http.Client{Timeout: probeTimeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool},
		// Each call makes its own client; kept connections would pile up.
		DisableKeepAlives: true,
	}}, nil
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return body, nil
}

// A nodeStatus is the part of a Node that up, status and gpu report.
type nodeStatus struct {
	Status struct {
		Conditions []struct {
			Type, Status, Message string
			LastHeartbeatTime     time.Time
		}
		Capacity    map[string]string
		Allocatable map[string]string
	}
}

func getNode(ctx context.Context, l layout) (nodeStatus, error) {
	var node nodeStatus
	client, err := apiClient(l)
	if err != nil {
		return node, err
	}
	body, err := get(ctx, client, apiURL()+"/api/v1/nodes/"+nodeName)
	if err != nil {
		return node, err
	}
	return node, json.Unmarshal(body, &node)
}

// ready says whether the node takes pods, and if not why. A status written before since is none: after a kubelet's
// crash the API server shows the old one, GPUs included.
func (n nodeStatus) ready(since time.Time) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && c.LastHeartbeatTime.Before(since) {
			return false, "the kubelet has not reported since it started"
		}
		if c.Type == "Ready" {
			return c.Status == "True", c.Message
		}
	}
	return false, "the kubelet has not registered the node yet"
}
