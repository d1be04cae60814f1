package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// staticBinary builds the pause program: the smallest binary this module has.
func staticBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pause")
	cmd := exec.Command("go", "build", "-o", path, "./pause")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func layerEntries(t *testing.T, image v1.Image) map[string]tar.Header {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	reader, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	entries := map[string]tar.Header{}
	for r := tar.NewReader(reader); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		entries[header.Name] = *header
	}
}

func TestABinaryImageRunsAsNonrootOnAnEmptyBase(t *testing.T) {
	binary := staticBinary(t)
	bundle := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(bundle, []byte("certificates"), 0o644); err != nil {
		t.Fatal(err)
	}
	image, err := packImage(imageSpec{reference: "sluice.dev/x:dev", binaries: []string{binary}}, imageOptions{user: nonroot, caBundle: bundle}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.Config.User != "65532:65532" || !slices.Equal(file.Config.Entrypoint, []string{"/pause"}) || file.OS != "linux" {
		t.Errorf("config = %+v", file.Config)
	}
	entries := layerEntries(t, image)
	for name, mode := range map[string]int64{"pause": 0o755, "etc/passwd": 0o644, "etc/ssl/certs/ca-certificates.crt": 0o644, "tmp/": 0o1777} {
		if h, ok := entries[name]; !ok || h.Mode != mode {
			t.Errorf("%s: present %t, mode %o", name, ok, h.Mode)
		}
	}
}

func TestPackingTwiceGivesTheSameDigest(t *testing.T) {
	spec := imageSpec{reference: "sluice.dev/x:dev", binaries: []string{staticBinary(t)}}
	var digests []v1.Hash
	for range 2 {
		image, err := packImage(spec, imageOptions{user: nonroot}, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		digest, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	if digests[0] != digests[1] {
		t.Error("a load of unchanged binaries would change the image")
	}
}

func TestWhatCannotRunOnAnEmptyBaseIsRefused(t *testing.T) {
	script := filepath.Join(t.TempDir(), "run.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{script, "/bin/sh", "/nonexistent"} {
		if err := requireStatic(path); err == nil {
			t.Errorf("%s was accepted", path)
		}
	}
}

func TestATreeKeepsLinksAndModesAndLeavesTheKernelsFilesOut(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"bin", "proc/1", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	python := filepath.Join(root, "bin", "python3")
	err := errors.Join(
		os.WriteFile(python, []byte("elf"), 0o755),
		os.Link(python, filepath.Join(root, "bin", "python3.11")),
		os.Symlink("python3", filepath.Join(root, "bin", "python")),
		os.WriteFile(filepath.Join(root, "proc", "1", "maps"), nil, 0o444),
	)
	if err != nil {
		t.Fatal(err)
	}
	image, err := packImage(imageSpec{reference: "sluice.dev/worker:dev", rootfs: root}, imageOptions{user: nonroot, entrypoint: []string{"/bin/python3", "-m", "worker"}}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	entries := layerEntries(t, image)
	if h := entries["bin/python3"]; h.Mode != 0o755 || h.Typeflag != tar.TypeReg {
		t.Errorf("python3: %+v", h)
	}
	if h := entries["bin/python3.11"]; h.Typeflag != tar.TypeLink || h.Linkname != "bin/python3" {
		t.Errorf("the hard link became %+v", h)
	}
	if h := entries["bin/python"]; h.Typeflag != tar.TypeSymlink || h.Linkname != "python3" {
		t.Errorf("the symlink became %+v", h)
	}
	if _, ok := entries["proc/"]; !ok {
		t.Error("/proc is missing, runc mounts there")
	}
	if _, ok := entries["proc/1/"]; ok {
		t.Error("the inside of /proc was packed")
	}
	file, err := image.ConfigFile()
	if err != nil || !slices.Equal(file.Config.Entrypoint, []string{"/bin/python3", "-m", "worker"}) {
		t.Errorf("entrypoint %v, %v", file.Config.Entrypoint, err)
	}
}

func TestTheArchiveIsReadBackByItsTag(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "images.tar")
	request := loadRequest{images: []imageSpec{{reference: "sluice.dev/x:dev", binaries: []string{staticBinary(t)}}}, options: imageOptions{user: nonroot}, tar: archive}
	if err := load(t.Context(), layout{}, request); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("sluice.dev/x:dev")
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := layerEntries(t, image)["pause"]; !ok {
		t.Error("the binary is missing")
	}
}

func TestParseLoad(t *testing.T) {
	got, err := parseLoad([]string{"sluice.dev/a:dev=bin/a,bin/b"}, []string{"sluice.dev/p:dev=/tree"})
	if err != nil || len(got.images) != 2 || !slices.Equal(got.images[0].binaries, []string{"bin/a", "bin/b"}) || got.images[1].rootfs != "/tree" {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range [][2][]string{{nil, nil}, {{"a"}, nil}, {{"=x"}, nil}, {{"a="}, nil}, {{"a=x,"}, nil}, {nil, {"a="}}} {
		if _, err := parseLoad(bad[0], bad[1]); err == nil {
			t.Errorf("%q must be refused", bad)
		}
	}
	short := loadRequest{images: []imageSpec{{reference: "manager", binaries: []string{"x"}}}, tar: filepath.Join(t.TempDir(), "x.tar")}
	if err := load(t.Context(), layout{}, short); err == nil {
		t.Error("a short name means another registry to each tool and must be refused")
	}
}
