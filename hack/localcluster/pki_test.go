package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"
)

func testLayout(t *testing.T) layout {
	t.Helper()
	l := layout{state: t.TempDir(), binaries: "/opt/k8s", kubeconfig: "/root/kubeconfig"}
	if err := os.MkdirAll(l.path("config"), 0o755); err != nil {
		t.Fatal(err)
	}
	return l
}

func loadLeaf(t *testing.T, l layout, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(l.pki(name+".crt"), l.pki(name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func TestEveryCertificateVerifiesUnderItsOwnAuthorityOnly(t *testing.T) {
	l := testLayout(t)
	now := time.Now()
	if err := writePKI(l, now); err != nil {
		t.Fatal(err)
	}
	for _, spec := range certificates() {
		leaf := loadLeaf(t, l, spec.file)
		for _, ca := range authorities {
			pool := x509.NewCertPool()
			data, err := os.ReadFile(l.pki(ca + ".crt"))
			if err != nil {
				t.Fatal(err)
			}
			pool.AppendCertsFromPEM(data)
			var usages []x509.ExtKeyUsage
			if spec.client {
				usages = append(usages, x509.ExtKeyUsageClientAuth)
			}
			if spec.server {
				usages = append(usages, x509.ExtKeyUsageServerAuth)
			}
			for _, usage := range usages {
				_, err = leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
				if (err == nil) != (ca == spec.ca) {
					t.Errorf("%s under %s, usage %d: %v", spec.file, ca, usage, err)
				}
			}
		}
		if spec.name != leaf.Subject.CommonName {
			t.Errorf("%s names %q, want %q", spec.file, leaf.Subject.CommonName, spec.name)
		}
	}
}

func TestServingCertificatesCoverTheAddressesTheyAreReachedAt(t *testing.T) {
	l := testLayout(t)
	if err := writePKI(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	for file, hosts := range map[string][]string{
		"apiserver":       {nodeIP, apiServiceIP, "127.0.0.1", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		"kubelet-serving": {nodeIP, nodeName},
		"etcd":            {"127.0.0.1"},
	} {
		leaf := loadLeaf(t, l, file)
		for _, host := range hosts {
			if err := leaf.VerifyHostname(host); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

func TestASecondUpKeepsTheCertificates(t *testing.T) {
	l := testLayout(t)
	if err := writePKI(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(l.pki("admin.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := writePKI(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(l.pki("admin.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("the administrator's certificate changed: kubeconfigs in use would stop working")
	}
}

func TestAHalfWrittenPKIIsWrittenAgain(t *testing.T) {
	l := testLayout(t)
	if err := writePKI(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	os.Remove(l.pki("complete"))
	os.Remove(l.pki("scheduler.key"))
	if err := writePKI(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	loadLeaf(t, l, "scheduler")
}

func TestPrivateKeysAreTheOwnersAlone(t *testing.T) {
	l := testLayout(t)
	if err := writePKI(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"service-account", "admin"}, authorities...) {
		info, err := os.Stat(l.pki(name + ".key"))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s.key has mode %v", name, info.Mode().Perm())
		}
	}
}
