package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func testRecords(endpoints int) nameRecords {
	services := map[string]corev1.ServiceSpec{
		"ml/llm":     {ClusterIP: "10.214.0.7"},
		"ml/workers": {ClusterIP: corev1.ClusterIPNone},
		"ml/outside": {Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"},
	}
	return nameRecords{
		service: func(namespace, name string) (*corev1.Service, error) {
			spec, ok := services[namespace+"/"+name]
			if !ok {
				return nil, errNoSuchName
			}
			return &corev1.Service{Spec: spec}, nil
		},
		endpoints: func(namespace, name string) ([]*discoveryv1.EndpointSlice, error) {
			slice := &discoveryv1.EndpointSlice{}
			for i := range endpoints {
				host, ready := fmt.Sprintf("worker-%d", i), i != 1
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprintf("10.213.1.%d", i)}, Hostname: &host, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
			}
			return []*discoveryv1.EndpointSlice{slice}, nil
		},
		upstream: func(_ context.Context, name string) ([]net.IP, error) {
			if name == "example.org." {
				return []net.IP{net.ParseIP("192.0.2.1")}, nil
			}
			return nil, errNoSuchName
		},
	}
}

func ask(t *testing.T, records nameRecords, name string, kind dnsmessage.Type, limit int) (dnsmessage.Message, []string) {
	t.Helper()
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 42, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	packed, err := query.Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply, err := answer(t.Context(), packed, records, limit)
	if err != nil {
		t.Fatal(err)
	}
	var message dnsmessage.Message
	if err := message.Unpack(reply); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, a := range message.Answers {
		addresses = append(addresses, net.IP(a.Body.(*dnsmessage.AResource).A[:]).String())
	}
	return message, addresses
}

func TestDNSAnswers(t *testing.T) {
	const a, aaaa = dnsmessage.TypeA, dnsmessage.TypeAAAA
	for _, test := range []struct {
		name string
		kind dnsmessage.Type
		code dnsmessage.RCode
		want []string
	}{
		{"llm.ml.svc.cluster.local.", a, 0, []string{"10.214.0.7"}},
		{"LLM.ml.svc.Cluster.local.", a, 0, []string{"10.214.0.7"}},
		// The name exists, it just has no IPv6 address: "no such name" would make resolvers give up on IPv4 too.
		{"llm.ml.svc.cluster.local.", aaaa, 0, nil},
		{"workers.ml.svc.cluster.local.", a, 0, []string{"10.213.1.0", "10.213.1.2"}}, // not the one that is not ready
		{"worker-1.workers.ml.svc.cluster.local.", a, 0, []string{"10.213.1.1"}},
		{"10-213-1-2.workers.ml.svc.cluster.local.", a, 0, []string{"10.213.1.2"}},
		{"outside.ml.svc.cluster.local.", a, 0, []string{"192.0.2.1"}},
		{"example.org.", a, 0, []string{"192.0.2.1"}},
		{"nowhere.ml.svc.cluster.local.", a, dnsmessage.RCodeNameError, nil},
		{"worker-9.workers.ml.svc.cluster.local.", a, dnsmessage.RCodeNameError, nil},
		{"llm.cluster.local.", a, dnsmessage.RCodeNameError, nil},
		{"example.org.ml.svc.cluster.local.", a, dnsmessage.RCodeNameError, nil}, // the search path tries this first
		{"nowhere.example.", a, dnsmessage.RCodeNameError, nil},
	} {
		message, got := ask(t, testRecords(3), test.name, test.kind, maxPacket)
		if message.RCode != test.code || !slices.Equal(got, test.want) || message.ID != 42 {
			t.Errorf("%s %v: %v %v, want %v %v", test.name, test.kind, message.RCode, got, test.code, test.want)
		}
	}
}

func TestAnAnswerTooLongForUDPIsTruncatedAndWholeOverTCP(t *testing.T) {
	records := testRecords(100)
	const name = "workers.ml.svc.cluster.local."
	if message, got := ask(t, records, name, dnsmessage.TypeA, maxPacket); !message.Truncated || len(got) != 0 {
		t.Errorf("truncated=%t with %d addresses", message.Truncated, len(got))
	}
	if message, got := ask(t, records, name, dnsmessage.TypeA, 65535); message.Truncated || len(got) != 99 {
		t.Errorf("truncated=%t with %d addresses, want 99", message.Truncated, len(got))
	}
}

func TestHasNameserver(t *testing.T) {
	for config, want := range map[string]bool{
		"nameserver 192.0.2.53\n": true, "nameserver 10.213.0.1\n": false, "search x\n": false, "": false,
	} {
		if got := hasNameserver(config, "10.213.0.1"); got != want {
			t.Errorf("%q: %t", config, got)
		}
	}
}
