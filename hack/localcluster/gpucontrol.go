package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"text/tabwriter"
	"time"
)

// A gpuRequest is one line of JSON on the control socket, a gpuReply the one that answers it.
type gpuRequest struct {
	Op    string `json:"op"`
	Index *int   `json:"index,omitempty"`
}

type gpuReply struct {
	Error string `json:"error,omitempty"`
	GPU   gpu    `json:"gpu"`  // the one that changed
	GPUs  []gpu  `json:"gpus"` // all of them
}

func runGPU(ctx context.Context, args []string) error {
	fs := newFlags("gpu", "list | lose [N] | return [N]")
	l := layoutFlags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := l.resolve(); err != nil {
		return err
	}
	request, err := parseGPURequest(fs.Args())
	if err != nil {
		return err
	}
	if err := requireHost(); err != nil {
		return err
	}
	reply, err := askGPUs(*l, request)
	if err != nil {
		return err
	}
	if request.Op == "list" {
		printGPUs(os.Stdout, reply)
		return nil
	}
	fmt.Printf("GPU %d (%s) healthy=%t\n", reply.GPU.Index, reply.GPU.ID, reply.GPU.Healthy)
	return awaitAllocatable(ctx, *l, countHealthy(reply.GPUs))
}

func parseGPURequest(args []string) (gpuRequest, error) {
	const usage = "use `localcluster gpu list`, `gpu lose [N]` or `gpu return [N]`"
	if len(args) == 0 {
		return gpuRequest{}, errors.New(usage)
	}
	request := gpuRequest{Op: args[0]}
	switch {
	case request.Op != "list" && request.Op != "lose" && request.Op != "return":
		return request, fmt.Errorf("unknown action %q: %s", request.Op, usage)
	case len(args) == 1:
		return request, nil
	case len(args) > 2 || request.Op == "list":
		return request, fmt.Errorf("too many arguments: %s", usage)
	}
	index, err := strconv.Atoi(args[1])
	if err != nil || index < 0 {
		return request, fmt.Errorf("%q is no GPU's index: %s", args[1], usage)
	}
	request.Index = &index
	return request, nil
}

// awaitAllocatable returns once the node's status shows the change, so that a script may go on from there.
func awaitAllocatable(ctx context.Context, l layout, healthy int) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		node, err := getNode(ctx, l)
		if err == nil && node.Status.Allocatable[gpuResource] == strconv.Itoa(healthy) {
			fmt.Printf("node %s: allocatable %s=%d\n", nodeName, gpuResource, healthy)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the GPU changed but node %s does not show allocatable %s=%d yet: see `localcluster status`", nodeName, gpuResource, healthy)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func countHealthy(gpus []gpu) int {
	n := 0
	for _, g := range gpus {
		if g.Healthy {
			n++
		}
	}
	return n
}

func printGPUs(w io.Writer, reply gpuReply) {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "GPU\tID\tHEALTHY")
	for _, g := range reply.GPUs {
		fmt.Fprintf(table, "%d\t%s\t%t\n", g.Index, g.ID, g.Healthy)
	}
	table.Flush()
}

func askGPUs(l layout, request gpuRequest) (gpuReply, error) {
	var reply gpuReply
	connection, err := net.DialTimeout("unix", l.gpuSocket(), 2*time.Second)
	if err != nil {
		return reply, fmt.Errorf("the GPU plugin does not answer (%w): is the cluster up? See `localcluster status`", err)
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(5 * time.Second))
	if err := json.NewEncoder(connection).Encode(request); err != nil {
		return reply, err
	}
	if err := json.NewDecoder(connection).Decode(&reply); err != nil {
		return reply, err
	}
	if reply.Error != "" {
		return reply, errors.New(reply.Error)
	}
	return reply, nil
}

// listenControl replaces the socket that a killed plugin left.
func listenControl(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", socket)
}

// serveControl answers on the control socket until ctx ends.
func serveControl(ctx context.Context, listener net.Listener, fleet *gpuFleet) error {
	context.AfterFunc(ctx, func() { listener.Close() })
	for {
		connection, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go answerControl(connection, fleet)
	}
}

func answerControl(connection net.Conn, fleet *gpuFleet) {
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(5 * time.Second))
	var request gpuRequest
	if err := json.NewDecoder(connection).Decode(&request); err != nil {
		return // a health probe connects and says nothing
	}
	_ = json.NewEncoder(connection).Encode(act(fleet, request))
}

// act carries out one request.
func act(fleet *gpuFleet, request gpuRequest) gpuReply {
	var reply gpuReply
	var err error
	switch request.Op {
	case "list":
	case "lose":
		reply.GPU, err = fleet.lose(request.Index)
	case "return":
		reply.GPU, err = fleet.giveBack(request.Index)
	default:
		err = fmt.Errorf("unknown action %q", request.Op)
	}
	if err != nil {
		reply.Error = err.Error()
	}
	reply.GPUs, _ = fleet.snapshot()
	return reply
}
