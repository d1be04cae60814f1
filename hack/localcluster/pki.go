package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// certificateLifetime outlives any development cluster. Nothing rotates: down and up issue new ones.
const certificateLifetime = 365 * 24 * time.Hour

// A certificateSpec is one leaf certificate: who it names and which authority signs it.
type certificateSpec struct {
	file     string // file name without extension in the pki directory
	ca       string
	name     string // common name: the user, for a client
	groups   []string
	dnsNames []string
	ips      []string
	server   bool
	client   bool
}

// Three authorities, because each is a door of its own: whoever holds a certificate signed by the cluster's must not
// thereby read etcd, nor speak for any user as the aggregation layer's front proxy may.
var authorities = []string{"ca", "etcd-ca", "front-proxy-ca"}

// certificates lists every leaf of the cluster. Client names are the ones that Kubernetes' built-in RBAC bindings expect.
func certificates() []certificateSpec {
	return []certificateSpec{
		{file: "etcd", ca: "etcd-ca", name: "etcd", ips: []string{"127.0.0.1"}, server: true, client: true},
		{file: "etcd-client", ca: "etcd-ca", name: "kube-apiserver", client: true},
		{file: "front-proxy", ca: "front-proxy-ca", name: "front-proxy-client", client: true},
		{file: "apiserver", ca: "ca", name: "kube-apiserver", server: true,
			dnsNames: []string{"localhost", nodeName, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain},
			ips:      []string{"127.0.0.1", nodeIP, apiServiceIP}},
		{file: "apiserver-kubelet", ca: "ca", name: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}, client: true},
		{file: "kubelet-serving", ca: "ca", name: "system:node:" + nodeName, groups: []string{"system:nodes"}, dnsNames: []string{nodeName}, ips: []string{nodeIP}, server: true},
		{file: "kubelet", ca: "ca", name: "system:node:" + nodeName, groups: []string{"system:nodes"}, client: true},
		{file: "controller-manager", ca: "ca", name: "system:kube-controller-manager", client: true},
		{file: "scheduler", ca: "ca", name: "system:kube-scheduler", client: true},
		{file: "proxy", ca: "ca", name: "system:kube-proxy", client: true},
		{file: "admin", ca: "ca", name: "localcluster-admin", groups: []string{"system:masters"}, client: true},
	}
}

// writePKI creates what is missing and leaves what exists: a second up must not lock out the people who hold the
// first one's kubeconfig.
func writePKI(l layout, now time.Time) error {
	if err := os.MkdirAll(l.path("pki"), 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(l.pki("complete")); err == nil {
		return nil
	}
	signers := map[string]*signer{}
	for _, name := range authorities {
		s, err := newAuthority(name, now)
		if err != nil {
			return err
		}
		signers[name] = s
		if err := writePair(l, name, s.certificate.Raw, s.key); err != nil {
			return err
		}
	}
	for _, spec := range certificates() {
		der, key, err := signers[spec.ca].issue(spec, now)
		if err != nil {
			return fmt.Errorf("certificate %s: %w", spec.file, err)
		}
		if err := writePair(l, spec.file, der, key); err != nil {
			return err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeKeyPair(l, "service-account", key); err != nil {
		return err
	}
	return os.WriteFile(l.pki("complete"), nil, 0o600)
}

type signer struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(name string, now time.Time) (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: ownName + " " + name},
		NotBefore:             now.Add(-time.Minute),
		NotAfter:              now.Add(certificateLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &signer{certificate, key}, err
}

func (s *signer) issue(spec certificateSpec, now time.Time) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: spec.name, Organization: spec.groups},
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(certificateLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		DNSNames:     spec.dnsNames,
	}
	for _, ip := range spec.ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	if spec.server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if spec.client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.certificate, key.Public(), s.key)
	return der, key, err
}

func writePair(l layout, name string, der []byte, key crypto.PrivateKey) error {
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(l.pki(name+".crt"), certificate, 0o644); err != nil {
		return err
	}
	return writeKey(l.pki(name+".key"), key)
}

// writeKeyPair writes a bare key pair: service account tokens are verified with a public key, not a certificate.
func writeKeyPair(l layout, name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if err := os.WriteFile(l.pki(name+".pub"), public, 0o644); err != nil {
		return err
	}
	return writeKey(l.pki(name+".key"), key)
}

func writeKey(path string, key crypto.PrivateKey) error {
	// SEC 1 ("EC PRIVATE KEY"), the form that every Kubernetes component reads for ECDSA.
	der, err := x509.MarshalECPrivateKey(key.(*ecdsa.PrivateKey))
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
