package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

func runStatus(ctx context.Context, args []string) error {
	fs := newFlags("status", "")
	l := layoutFlags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	if err := l.resolve(); err != nil {
		return err
	}
	if err := requireHost(); err != nil {
		return err
	}
	if _, err := os.Stat(l.hostRecord()); err != nil {
		return fmt.Errorf("no cluster in %s: start one with `localcluster up`", l.state)
	}
	unhealthy := 0
	table := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tPID\tMEMORY\tHEALTH\tLOG")
	for _, c := range components(*l, "", "", 0) {
		pid, memory, health := "-", "-", "stopped"
		if id, alive := readPID(*l, c.name); alive {
			pid, memory, health = fmt.Sprint(id.PID), residentMemory(id.PID), "healthy"
			if err := c.health(ctx); err != nil {
				health = "unhealthy: " + err.Error()
			}
		}
		if health != "healthy" {
			unhealthy++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.name, pid, memory, health, l.log(c.name))
	}
	table.Flush()
	fmt.Println()
	node, err := getNode(ctx, *l)
	if err != nil {
		fmt.Printf("node %s: %v\n", nodeName, err)
	} else {
		ready, message := node.ready(time.Time{})
		fmt.Printf("node %s: Ready=%t (%s), %s: capacity %s, allocatable %s\n", nodeName, ready, strings.TrimSpace(message),
			gpuResource, orNone(node.Status.Capacity[gpuResource]), orNone(node.Status.Allocatable[gpuResource]))
	}
	if gpus, err := askGPUs(*l, gpuRequest{Op: "list"}); err == nil {
		printGPUs(os.Stdout, gpus)
	}
	fmt.Printf("export KUBECONFIG=%s\n", l.kubeconfig)
	if unhealthy > 0 {
		return errors.New("not every component is healthy: look into its log, then run `localcluster up` again, which starts what is stopped")
	}
	return nil
}

// residentMemory reads the second field of statm, resident pages.
func residentMemory(pid int) string {
	var size, resident int
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return "-"
	}
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		return "-"
	}
	return fmt.Sprintf("%d MiB", resident*os.Getpagesize()>>20)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
