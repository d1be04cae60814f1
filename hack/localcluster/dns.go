package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// runDNS serves the cluster's names on the node's address. A real CoreDNS would be one more image and minutes of
// building; pods here need A records of Services and nothing else.
func runDNS(ctx context.Context, args []string) error {
	fs := newFlags("dns", "")
	kubeconfig := fs.String("kubeconfig", "", "kubeconfig with rights to watch services and endpointslices")
	address := fs.String("listen", nodeIP+":53", "address to serve UDP and TCP on")
	if err := fs.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services().Lister()
	slices := factory.Discovery().V1().EndpointSlices().Lister()
	records := nameRecords{
		service: func(namespace, name string) (*corev1.Service, error) { return services.Services(namespace).Get(name) },
		endpoints: func(namespace, name string) ([]*discoveryv1.EndpointSlice, error) {
			return slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name}))
		},
		upstream: hostResolver(nodeIP),
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	packets, err := net.ListenPacket("udp", *address)
	if err != nil {
		return fmt.Errorf("cannot serve DNS: %w (another DNS server listening on every address? let it bind to its own)", err)
	}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { packets.Close(); listener.Close() })
	failed := make(chan error, 2)
	go func() { failed <- servePackets(ctx, packets, records) }()
	go func() { failed <- serveStreams(ctx, listener, records) }()
	err = <-failed
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// maxPacket is what a resolver that says nothing of EDNS accepts over UDP (RFC 1035); more comes by TCP.
const maxPacket = 512

func servePackets(ctx context.Context, packets net.PacketConn, records nameRecords) error {
	for {
		buffer := make([]byte, 4096)
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return err
		}
		go func() {
			reply, err := answer(ctx, buffer[:n], records, maxPacket)
			if err != nil {
				log.Printf("dns: %s: %v", from, err)
				return
			}
			_, _ = packets.WriteTo(reply, from)
		}()
	}
}

func serveStreams(ctx context.Context, listener net.Listener, records nameRecords) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			connection.SetDeadline(time.Now().Add(10 * time.Second))
			for serveStreamQuery(ctx, connection, records) == nil {
			}
		}()
	}
}

func serveStreamQuery(ctx context.Context, connection io.ReadWriter, records nameRecords) error {
	var length uint16
	if err := binary.Read(connection, binary.BigEndian, &length); err != nil {
		return err
	}
	query := make([]byte, length)
	if _, err := io.ReadFull(connection, query); err != nil {
		return err
	}
	reply, err := answer(ctx, query, records, 65535)
	if err != nil {
		return err
	}
	_, err = connection.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
	return err
}

// answer builds the reply to one query. limit is the longest message the transport carries: a longer one is cut to
// its header with the truncated bit, and the resolver asks again by TCP.
func answer(ctx context.Context, query []byte, records nameRecords, limit int) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	found, err := records.lookup(ctx, question.Name.String())
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{ID: header.ID, Response: true, RecursionDesired: header.RecursionDesired,
			RecursionAvailable: true, Authoritative: inClusterDomain(question.Name.String())},
		Questions: []dnsmessage.Question{question},
	}
	switch {
	case errors.Is(err, errNoSuchName):
		reply.RCode = dnsmessage.RCodeNameError
	case err != nil:
		reply.RCode = dnsmessage.RCodeServerFailure
	case question.Type == dnsmessage.TypeA || question.Type == dnsmessage.TypeALL:
		for _, ip := range found {
			var a dnsmessage.AResource
			copy(a.A[:], ip.To4())
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: recordTTL}, Body: &a})
		}
	}
	packed, err := reply.Pack()
	if err == nil && len(packed) > limit {
		reply.Answers, reply.Truncated = nil, true
		packed, err = reply.Pack()
	}
	return packed, err
}
