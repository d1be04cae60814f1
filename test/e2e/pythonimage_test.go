package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// The example whose Dockerfile documentation shows, and the interpreter that stands in for its base image.
const (
	pythonExample      = "../../docs/examples/python"
	distributionPython = "/usr/bin/python3"
)

// images that pythonImages makes.
const (
	languageImage    = "sluice.dev/e2e-language:test"    // of the example's Dockerfile
	modelServerImage = "sluice.dev/e2e-modelserver:test" // the base alone; its arguments name the program
)

// pythonImages makes the images of the specs that run Python, without a registry: in place of the
// Dockerfile's base, the Python of this machine's distribution (binary, standard library, the shared
// libraries that they need); then the Dockerfile's own lines, executed as they stand.
func pythonImages(ctx context.Context) {
	GinkgoHelper()
	if !env.local {
		Skip("only the local cluster takes an image without a registry: here, build docs/examples/python and push it")
	}
	if _, err := os.Stat(distributionPython); err != nil {
		Skip("no python3 of the distribution to make an image of: apt-get install python3")
	}
	root := GinkgoT().TempDir()
	copyPython(ctx, root)
	localcluster(ctx, "load", "--rootfs", modelServerImage+"="+root, "--entrypoint", distributionPython)
	user, entrypoint := dockerfile(filepath.Join(pythonExample, "Dockerfile"), root)
	localcluster(ctx, "load", "--rootfs", languageImage+"="+root, "--user", user, "--entrypoint", strings.Join(entrypoint, " "))
}

// pythonFiles prints what an installed Python consists of.
const pythonFiles = `
import glob, json, os, sys, sysconfig
binary = os.path.realpath(sys.executable)
stdlib = sysconfig.get_path("stdlib")
print(json.dumps({"binary": binary, "stdlib": stdlib, "extensions": glob.glob(os.path.join(stdlib, "lib-dynload", "*.so"))}))`

// copyPython copies the distribution's Python into root, at the paths that it has on this machine.
func copyPython(ctx context.Context, root string) {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, distributionPython, "-I", "-c", pythonFiles).Output()
	Expect(err).NotTo(HaveOccurred())
	var python struct {
		Binary, Stdlib string
		Extensions     []string
	}
	Expect(json.Unmarshal(out, &python)).To(Succeed())

	// ldd prints "name => /path (address)" and "/path (address)"; a program without libraries is an error to it.
	out, err = exec.CommandContext(ctx, "ldd", append(python.Extensions, python.Binary)...).Output()
	Expect(err).NotTo(HaveOccurred(), string(out))
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") {
			copyInto(root, word, word, 0o755)
		}
	}
	copyInto(root, python.Binary, python.Binary, 0o755)
	Expect(os.MkdirAll(filepath.Dir(filepath.Join(root, python.Stdlib)), 0o755)).To(Succeed())
	run(ctx, "cp", "--archive", python.Stdlib, filepath.Join(root, python.Stdlib))
	// A third of it is its own tests and a static library.
	heavy, err := filepath.Glob(filepath.Join(root, python.Stdlib, "config-*"))
	Expect(err).NotTo(HaveOccurred())
	for _, dir := range append(heavy, filepath.Join(root, python.Stdlib, "test")) {
		Expect(os.RemoveAll(dir)).To(Succeed())
	}
	if python.Binary != distributionPython {
		Expect(os.Symlink(python.Binary, filepath.Join(root, distributionPython))).To(Succeed())
	}
}

// dockerfile executes a Dockerfile's lines on the tree at root, and returns the user and entrypoint that they
// set. It knows the instructions that the example uses; any other fails the spec, so that what
// documentation shows is what ran.
func dockerfile(path, root string) (user string, entrypoint []string) {
	GinkgoHelper()
	text, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		switch {
		case words[0] == "FROM" && len(words) == 2: // root is that base already
		case words[0] == "COPY" && len(words) == 3:
			copyInto(root, filepath.Join(filepath.Dir(path), words[1]), words[2], 0o644)
		case words[0] == "COPY" && len(words) == 4 && words[1] == "--from=sluice.dev/gpuworker:dev" && words[2] == "/gpuworker":
			copyInto(root, "../../bin/gpuworker", words[3], 0o755) // what the image of that name has there
		case words[0] == "USER" && len(words) == 2:
			user = words[1]
		case words[0] == "ENTRYPOINT":
			Expect(json.Unmarshal([]byte(strings.TrimPrefix(strings.TrimSpace(line), "ENTRYPOINT")), &entrypoint)).To(Succeed(), line)
		default:
			Fail(fmt.Sprintf("%s: this spec does not know how to do %q", path, line))
		}
	}
	Expect(user).NotTo(BeEmpty())
	Expect(entrypoint).NotTo(BeEmpty())
	return user, entrypoint
}

// copyInto copies a file to a path of the image: into a directory when it ends with a slash.
func copyInto(root, from, to string, mode os.FileMode) {
	GinkgoHelper()
	if strings.HasSuffix(to, "/") {
		to += filepath.Base(from)
	}
	data, err := os.ReadFile(from)
	Expect(err).NotTo(HaveOccurred())
	to = filepath.Join(root, to)
	Expect(os.MkdirAll(filepath.Dir(to), 0o755)).To(Succeed())
	Expect(os.WriteFile(to, data, mode)).To(Succeed())
}

func run(ctx context.Context, name string, args ...string) {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s: %s", name, out)
}
