package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	pluginSocket = ownName + "-gpu.sock"
	// kubeletPoll is how soon a restarted kubelet is noticed. A stat a second costs nothing; a file watch would have
	// to be set up again each time the kubelet empties or recreates the directory.
	kubeletPoll = time.Second
)

func runGPUs(ctx context.Context, args []string) error {
	fs := newFlags("gpus", "")
	l := layoutFlags(fs)
	count := fs.Int("count", 8, "number of simulated devices")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := noArguments(fs); err != nil {
		return err
	}
	if *count < 0 || *count > maxGPUs {
		return fmt.Errorf("--count must be 0..%d", maxGPUs)
	}
	if err := l.resolve(); err != nil {
		return err
	}
	fleet := newGPUFleet(*count)
	control, err := listenControl(l.gpuSocket())
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- serveControl(ctx, control, fleet) }()
	go func() { failed <- serveKubelet(ctx, fleet) }()
	return <-failed
}

// serveKubelet keeps the plugin registered. A starting kubelet removes every socket in the directory and forgets its
// plugins: a changed registration socket therefore means serving and registering from the start.
func serveKubelet(ctx context.Context, fleet *gpuFleet) error {
	for ctx.Err() == nil {
		kubelet, err := os.Stat(filepath.Join(devicePluginDir, "kubelet.sock"))
		if err == nil {
			err = servePluginUntilRestart(ctx, fleet, kubelet)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			log.Printf("device plugin: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(kubeletPoll):
		}
	}
	return nil
}

func servePluginUntilRestart(ctx context.Context, fleet *gpuFleet, kubelet os.FileInfo) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	socket := filepath.Join(devicePluginDir, pluginSocket)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	deviceplugin.RegisterDevicePluginServer(server, &gpuPlugin{fleet: fleet, done: ctx.Done()})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := register(ctx); err != nil {
		return fmt.Errorf("registering with the kubelet: %w", err)
	}
	log.Printf("registered %s with the kubelet", gpuResource)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return err
		case <-time.After(kubeletPoll):
		}
		now, err := os.Stat(filepath.Join(devicePluginDir, "kubelet.sock"))
		_, own := os.Stat(socket)
		if err != nil || own != nil || !os.SameFile(now, kubelet) || !now.ModTime().Equal(kubelet.ModTime()) {
			log.Print("the kubelet restarted")
			return nil
		}
	}
}

func register(ctx context.Context) error {
	connection, err := grpc.NewClient("unix://"+devicePluginDir+"/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	// The kubelet dials back before it answers, and tries for 10 s if it removed our socket just now, while starting.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err = deviceplugin.NewRegistrationClient(connection).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: pluginSocket, ResourceName: gpuResource,
	})
	return err
}

// A gpuPlugin answers the kubelet as NVIDIA's device plugin does, for devices that do not exist.
type gpuPlugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	fleet *gpuFleet
	done  <-chan struct{}
}

func (p *gpuPlugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// GetPreferredAllocation hands out the lowest free devices. Left alone, the kubelet picks in the random order of a
// map, and nobody could say which GPU to lose to hit a pod, or to spare one.
func (p *gpuPlugin) GetPreferredAllocation(_ context.Context, request *deviceplugin.PreferredAllocationRequest) (*deviceplugin.PreferredAllocationResponse, error) {
	gpus, _ := p.fleet.snapshot()
	response := &deviceplugin.PreferredAllocationResponse{}
	for _, c := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &deviceplugin.ContainerPreferredAllocationResponse{
			DeviceIDs: lowest(gpus, c.AvailableDeviceIDs, c.MustIncludeDeviceIDs, int(c.AllocationSize)),
		})
	}
	return response, nil
}

// lowest returns size devices: those that must be in it, then the available ones from GPU 0 up.
func lowest(gpus []gpu, available, required []string, size int) []string {
	chosen := slices.Clone(required)
	for _, g := range gpus {
		if len(chosen) < size && slices.Contains(available, g.ID) && !slices.Contains(chosen, g.ID) {
			chosen = append(chosen, g.ID)
		}
	}
	return chosen
}

func (p *gpuPlugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	for {
		gpus, changed := p.fleet.snapshot()
		if err := stream.Send(deviceList(gpus)); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-p.done:
			return nil
		}
	}
}

func deviceList(gpus []gpu) *deviceplugin.ListAndWatchResponse {
	response := &deviceplugin.ListAndWatchResponse{}
	for _, g := range gpus {
		health := deviceplugin.Healthy
		if !g.Healthy {
			health = deviceplugin.Unhealthy
		}
		response.Devices = append(response.Devices, &deviceplugin.Device{ID: g.ID, Health: health})
	}
	return response
}

// Allocate sets what the NVIDIA container runtime reads. No such runtime is here; a worker may read it all the same.
func (p *gpuPlugin) Allocate(_ context.Context, request *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	response := &deviceplugin.AllocateResponse{}
	for _, c := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(c.DevicesIds, ",")},
		})
	}
	return response, nil
}
