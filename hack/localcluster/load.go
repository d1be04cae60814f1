package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// repeated collects a flag that may be given several times.
type repeated []string

func (r *repeated) String() string     { return strings.Join(*r, " ") }
func (r *repeated) Set(s string) error { *r = append(*r, s); return nil }

// A loadRequest is a parsed command line of load.
type loadRequest struct {
	images  []imageSpec
	options imageOptions
	tar     string
}

func runLoad(ctx context.Context, args []string) error {
	fs := newFlags("load", "IMAGE=BINARY[,BINARY...] ...")
	l := layoutFlags(fs)
	var rootfs repeated
	fs.Var(&rootfs, "rootfs", "IMAGE=DIR: pack a directory tree (may be repeated)")
	tarFile := fs.String("tar", "", "write a docker-loadable archive to this file instead of importing (for docker load, kind load image-archive)")
	user := fs.String("user", nonroot, "user of the image; a tree usually keeps the default too")
	entrypoint := fs.String("entrypoint", "", "entrypoint, words separated by spaces, instead of the first binary")
	caBundle := fs.String("ca-certificates", "/etc/ssl/certs/ca-certificates.crt", "CA bundle to put into images of binaries, if it exists")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := l.resolve(); err != nil {
		return err
	}
	request, err := parseLoad(fs.Args(), rootfs)
	if err != nil {
		return err
	}
	request.tar = *tarFile
	request.options = imageOptions{user: *user, entrypoint: strings.Fields(*entrypoint), caBundle: *caBundle}
	if request.tar == "" {
		if err := requireHost(); err != nil {
			return fmt.Errorf("%w (or write an archive with --tar FILE)", err)
		}
	}
	return load(ctx, *l, request)
}

func parseLoad(binaries, rootfs []string) (loadRequest, error) {
	var request loadRequest
	for _, arg := range binaries {
		spec, err := parseImageSpec(arg)
		if err != nil {
			return request, err
		}
		request.images = append(request.images, spec)
	}
	for _, arg := range rootfs {
		spec, err := parseRootfsSpec(arg)
		if err != nil {
			return request, err
		}
		request.images = append(request.images, spec)
	}
	if len(request.images) == 0 {
		return request, errors.New("nothing to load: give IMAGE=BINARY, for example sluice.dev/manager:dev=bin/manager")
	}
	return request, nil
}

// load packs the images and imports them into the cluster's containerd, or writes them to an archive.
func load(ctx context.Context, l layout, request loadRequest) error {
	started := time.Now()
	scratch, err := os.MkdirTemp("", "localcluster-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	images := map[name.Tag]v1.Image{}
	for _, spec := range request.images {
		tag, err := name.NewTag(spec.reference, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("image %q: %w (write it in full, for example sluice.dev/manager:dev)", spec.reference, err)
		}
		if images[tag], err = packImage(spec, request.options, scratch); err != nil {
			return err
		}
	}
	archive := request.tar
	if archive == "" {
		archive = filepath.Join(scratch, "images.tar")
	}
	if err := tarball.MultiWriteToFile(archive, images); err != nil {
		return fmt.Errorf("writing %s: %w", archive, err)
	}
	if request.tar == "" {
		if err := importArchive(ctx, l, archive); err != nil {
			return err
		}
	}
	for _, spec := range request.images {
		fmt.Printf("%s %s\n", map[bool]string{true: "loaded", false: "packed"}[request.tar == ""], spec.reference)
	}
	if request.tar != "" {
		fmt.Printf("wrote %s in %s: docker load -i %[1]s, or kind load image-archive %[1]s\n", request.tar, time.Since(started).Round(time.Millisecond))
	} else {
		fmt.Printf("in %s; pods use it with imagePullPolicy IfNotPresent or Never\n", time.Since(started).Round(time.Millisecond))
	}
	return nil
}

func importArchive(ctx context.Context, l layout, archive string) error {
	if err := unixProbe(l.containerdSocket())(ctx); err != nil {
		return fmt.Errorf("the cluster's containerd does not answer (%w): run `localcluster up` first, or write an archive with --tar FILE", err)
	}
	args := []string{"--address", l.containerdSocket(), "--namespace", "k8s.io", "images", "import"}
	if needsNativeSnapshotter(l.state) {
		args = append(args, "--snapshotter", "native")
	}
	cmd := exec.CommandContext(ctx, findProgram("ctr"), append(args, archive)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr images import: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// loadPauseImage gives every pod's sandbox its image; without it not one pod starts.
func loadPauseImage(ctx context.Context, l layout) error {
	scratch, err := os.MkdirTemp("", "localcluster-pause-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	image, err := packImage(imageSpec{reference: pauseImage, binaries: []string{l.binary("pause")}}, imageOptions{user: nonroot}, scratch)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(pauseImage)
	if err != nil {
		return err
	}
	archive := filepath.Join(scratch, "pause.tar")
	if err := tarball.WriteToFile(archive, tag, image); err != nil {
		return err
	}
	return importArchive(ctx, l, archive)
}

// requireStatic refuses a dynamically linked binary: on an empty base it fails at start with "no such file or
// directory", which names the binary and means its missing loader.
func requireStatic(path string) error {
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s is no Linux binary (%w): build it with GOOS=linux CGO_ENABLED=0 go build", path, err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is dynamically linked and cannot run on an empty base: build it with CGO_ENABLED=0, or pack a tree with --rootfs", path)
		}
	}
	return nil
}

func imageArchitecture() string { return runtime.GOARCH }
