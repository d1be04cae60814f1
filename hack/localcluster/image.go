package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nonroot is the user that distroless images made customary; Pod Security "restricted" needs a number, not a name.
const nonroot = "65532:65532"

// An imageSpec is one image to pack: either binaries on an empty base, or a directory tree.
type imageSpec struct {
	reference string
	binaries  []string
	rootfs    string
}

// parseImageSpec reads IMAGE=BINARY[,BINARY...].
func parseImageSpec(arg string) (imageSpec, error) {
	reference, list, ok := strings.Cut(arg, "=")
	if !ok || reference == "" || list == "" || slices.Contains(strings.Split(list, ","), "") {
		return imageSpec{}, fmt.Errorf("%q is not IMAGE=BINARY[,BINARY...]", arg)
	}
	return imageSpec{reference: reference, binaries: strings.Split(list, ",")}, nil
}

// parseRootfsSpec reads IMAGE=DIR.
func parseRootfsSpec(arg string) (imageSpec, error) {
	reference, dir, ok := strings.Cut(arg, "=")
	if !ok || reference == "" || dir == "" {
		return imageSpec{}, fmt.Errorf("%q is not IMAGE=DIR", arg)
	}
	return imageSpec{reference: reference, rootfs: dir}, nil
}

// imageOptions hold for every image of one load.
type imageOptions struct {
	user       string
	entrypoint []string // instead of the first binary
	caBundle   string   // path on this machine; skipped when it does not exist
}

// packImage writes the image's one layer into dir and returns the image. The same input gives the same digest: no
// time of packing goes in, so that loading what has not changed changes nothing.
func packImage(spec imageSpec, o imageOptions, dir string) (v1.Image, error) {
	layer, err := writeLayer(dir, func(w *tar.Writer) error {
		if spec.rootfs != "" {
			return addTree(w, spec.rootfs)
		}
		return addBinaries(w, spec.binaries, o.caBundle)
	})
	if err != nil {
		return nil, fmt.Errorf("packing %s: %w", spec.reference, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", imageArchitecture()
	file.Config.User = o.user
	file.Config.WorkingDir = "/"
	file.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	file.Config.Entrypoint = o.entrypoint
	if spec.rootfs == "" {
		file.Config.Env = append(file.Config.Env, "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt")
		if len(o.entrypoint) == 0 {
			file.Config.Entrypoint = []string{"/" + filepath.Base(spec.binaries[0])}
		}
	}
	return mutate.ConfigFile(image, file)
}

func addBinaries(w *tar.Writer, binaries []string, caBundle string) error {
	passwd := "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"
	for _, dir := range []tar.Header{
		{Name: "etc/", Mode: 0o755}, {Name: "etc/ssl/", Mode: 0o755}, {Name: "etc/ssl/certs/", Mode: 0o755},
		{Name: "home/", Mode: 0o755}, {Name: "home/nonroot/", Mode: 0o755, Uid: 65532, Gid: 65532}, {Name: "tmp/", Mode: 0o1777},
	} {
		dir.Typeflag = tar.TypeDir
		if err := w.WriteHeader(&dir); err != nil {
			return err
		}
	}
	if err := addBytes(w, "etc/passwd", []byte(passwd)); err != nil {
		return err
	}
	if err := addBytes(w, "etc/group", []byte("root:x:0:\nnonroot:x:65532:\n")); err != nil {
		return err
	}
	if bundle, err := os.ReadFile(caBundle); err == nil {
		if err := addBytes(w, "etc/ssl/certs/ca-certificates.crt", bundle); err != nil {
			return err
		}
	}
	for _, path := range binaries {
		if err := addBinary(w, path); err != nil {
			return err
		}
	}
	return nil
}

func addBytes(w *tar.Writer, name string, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

func addBinary(w *tar.Writer, path string) error {
	if err := requireStatic(path); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(path), Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return err
}

// addTree packs a directory as it is: owners, modes, links. What a container gets from its runtime (/proc, /sys,
// /dev) is left empty, and device nodes and sockets are left out.
func addTree(w *tar.Writer, root string) error {
	type inode struct{ dev, ino uint64 }
	written := map[inode]string{}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode()&(os.ModeDevice|os.ModeSocket|os.ModeNamedPipe) != 0 {
			return nil
		}
		target := ""
		if info.Mode()&os.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		header.Name, header.Uname, header.Gname = name, "", ""
		header.Format = tar.FormatPAX
		header.AccessTime, header.ChangeTime = time.Time{}, time.Time{}
		stat := info.Sys().(*syscall.Stat_t)
		if info.IsDir() {
			header.Name += "/"
		} else if stat.Nlink > 1 && info.Mode().IsRegular() {
			id := inode{uint64(stat.Dev), stat.Ino}
			if first, ok := written[id]; ok {
				header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first, 0
				return w.WriteHeader(header)
			}
			written[id] = name
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if info.IsDir() && slices.Contains([]string{"proc", "sys", "dev"}, name) {
			return fs.SkipDir
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(w, file)
		return err
	})
}

// A fileLayer is an uncompressed layer in a file. Compressing would cost more time than the disk it saves: the image
// travels from this machine to this machine.
type fileLayer struct {
	path string
	hash v1.Hash
	size int64
}

func writeLayer(dir string, fill func(*tar.Writer) error) (*fileLayer, error) {
	file, err := os.CreateTemp(dir, "layer-*.tar")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sum := sha256.New()
	w := tar.NewWriter(io.MultiWriter(file, sum))
	if err := errors.Join(fill(w), w.Close()); err != nil {
		return nil, err
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	return &fileLayer{file.Name(), v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}, size}, nil
}

func (l *fileLayer) Digest() (v1.Hash, error)             { return l.hash, nil }
func (l *fileLayer) DiffID() (v1.Hash, error)             { return l.hash, nil }
func (l *fileLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l *fileLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }
func (l *fileLayer) Size() (int64, error)                 { return l.size, nil }
func (l *fileLayer) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }
