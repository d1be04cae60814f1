// Command localcluster runs a real single-node Kubernetes on one Linux machine without Docker: every binary is
// built from Go modules, the node comes from Debian packages, and `down` leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// A command is one verb of the program. run gets the arguments after the verb.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string) error
}

var commands = []command{
	{"build", "build etcd, Kubernetes and the pause binary from Go modules (minutes the first time, then cached)", runBuild},
	{"up", "start the cluster and write its kubeconfig", runUp},
	{"down", "stop the cluster and remove every trace of it", runDown},
	{"status", "show components, health, node and GPUs", runStatus},
	{"load", "pack static binaries or a directory tree into images and import them", runLoad},
	{"gpu", "list | lose [N] | return [N]: make a simulated GPU fail or come back", runGPU},
	{"gpus", "serve the simulated GPU device plugin in the foreground (up starts it)", runGPUs},
	{"dns", "serve cluster DNS in the foreground (up starts it)", runDNS},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	err := dispatch(ctx, os.Args[1:])
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "localcluster:", err)
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		usage()
		return nil
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(ctx, args[1:])
		}
	}
	return fmt.Errorf("unknown command %q: run `localcluster help` for the list", args[0])
}

func usage() {
	fmt.Println("localcluster runs a real single-node Kubernetes without Docker.")
	fmt.Println()
	fmt.Println("Usage: localcluster COMMAND [flags]   (localcluster COMMAND -h shows the flags)")
	fmt.Println()
	for _, c := range commands {
		fmt.Printf("  %-7s %s\n", c.name, c.summary)
	}
}

// newFlags returns a flag set whose errors name the command that was asked for.
func newFlags(name, positional string) *flag.FlagSet {
	fs := flag.NewFlagSet("localcluster "+name, flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: localcluster %s [flags] %s\n", name, positional)
		fs.PrintDefaults()
	}
	return fs
}

// noArguments reports positional arguments where a command takes none: a mistyped flag must not be ignored.
func noArguments(fs *flag.FlagSet) error {
	if fs.NArg() > 0 {
		return fmt.Errorf("%s takes no argument, got %q", fs.Name(), fs.Args())
	}
	return nil
}
