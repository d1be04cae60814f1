package main

import (
	"context"
	"slices"
	"testing"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func at(i int) *int { return &i }

func TestGPUFleet(t *testing.T) {
	type step struct {
		request gpuRequest
		changed int // index that changed, -1 for an error
		healthy int
	}
	for name, steps := range map[string][]step{
		"one goes and comes back": {
			{gpuRequest{"lose", at(1)}, 1, 2}, {gpuRequest{"return", at(1)}, 1, 3}},
		"without an index the highest goes and the lowest comes back": {
			{gpuRequest{"lose", nil}, 2, 2}, {gpuRequest{"lose", nil}, 1, 1}, {gpuRequest{"return", nil}, 1, 2}},
		"all may go, no more": {
			{gpuRequest{"lose", nil}, 2, 2}, {gpuRequest{"lose", nil}, 1, 1}, {gpuRequest{"lose", nil}, 0, 0}, {gpuRequest{"lose", nil}, -1, 0}},
		"losing twice is an error":         {{gpuRequest{"lose", at(0)}, 0, 2}, {gpuRequest{"lose", at(0)}, -1, 2}},
		"returning what was never lost":    {{gpuRequest{"return", nil}, -1, 3}, {gpuRequest{"return", at(2)}, -1, 3}},
		"an index out of range is refused": {{gpuRequest{"lose", at(3)}, -1, 3}, {gpuRequest{"lose", at(-1)}, -1, 3}},
		"an unknown action is refused":     {{gpuRequest{"melt", nil}, -1, 3}},
		"list changes nothing":             {{gpuRequest{"list", nil}, 0, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			fleet := newGPUFleet(3)
			for i, s := range steps {
				reply := act(fleet, s.request)
				if (reply.Error != "") != (s.changed < 0) {
					t.Fatalf("step %d: error %q", i, reply.Error)
				}
				if s.changed >= 0 && reply.GPU.Index != s.changed {
					t.Errorf("step %d changed GPU %d, want %d", i, reply.GPU.Index, s.changed)
				}
				if got := countHealthy(reply.GPUs); got != s.healthy {
					t.Errorf("step %d: %d healthy, want %d", i, got, s.healthy)
				}
			}
		})
	}
}

func TestAChangeWakesTheKubeletsStream(t *testing.T) {
	fleet := newGPUFleet(2)
	_, changed := fleet.snapshot()
	if _, err := fleet.lose(nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Fatal("nobody was told")
	}
	gpus, again := fleet.snapshot()
	if deviceList(gpus).Devices[1].Health != deviceplugin.Unhealthy {
		t.Error("the lost GPU is announced as healthy")
	}
	select {
	case <-again:
		t.Error("the new channel is closed already: the stream would spin")
	default:
	}
}

func TestGPUsKeepTheirIDs(t *testing.T) {
	if gpuID(0) != gpuID(0) || gpuID(0) == gpuID(1) {
		t.Error("IDs must differ between devices and not between starts")
	}
}

func TestAllocateNamesTheDevices(t *testing.T) {
	plugin := &gpuPlugin{fleet: newGPUFleet(2)}
	reply, err := plugin.Allocate(t.Context(), &deviceplugin.AllocateRequest{
		ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: []string{"GPU-a", "GPU-b"}}, {DevicesIds: []string{"GPU-c"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"GPU-a,GPU-b", "GPU-c"} {
		if got := reply.ContainerResponses[i].Envs["NVIDIA_VISIBLE_DEVICES"]; got != want {
			t.Errorf("container %d sees %q, want %q", i, got, want)
		}
	}
}

func TestControlSocket(t *testing.T) {
	l := layout{state: t.TempDir()}
	if _, err := askGPUs(l, gpuRequest{Op: "list"}); err == nil {
		t.Error("without a plugin there is no answer")
	}
	ctx, stop := context.WithCancel(t.Context())
	listener, err := listenControl(l.gpuSocket())
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- serveControl(ctx, listener, newGPUFleet(4)) }()
	reply, err := askGPUs(l, gpuRequest{Op: "lose", Index: at(2)})
	if err != nil || reply.GPU.Index != 2 || countHealthy(reply.GPUs) != 3 {
		t.Errorf("got %+v, %v", reply, err)
	}
	if _, err := askGPUs(l, gpuRequest{Op: "lose", Index: at(2)}); err == nil {
		t.Error("the plugin's refusal got lost on the way")
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("serving ended with %v", err)
	}
}

func TestParseGPURequest(t *testing.T) {
	for _, bad := range [][]string{nil, {"melt"}, {"lose", "x"}, {"lose", "-1"}, {"lose", "1", "2"}, {"list", "1"}} {
		if _, err := parseGPURequest(bad); err == nil {
			t.Errorf("%q must be refused", bad)
		}
	}
	got, err := parseGPURequest([]string{"lose", "3"})
	if err != nil || *got.Index != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestPodsGetTheLowestFreeGPUs(t *testing.T) {
	plugin := &gpuPlugin{fleet: newGPUFleet(4)}
	reply, err := plugin.GetPreferredAllocation(t.Context(), &deviceplugin.PreferredAllocationRequest{
		ContainerRequests: []*deviceplugin.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: []string{gpuID(3), gpuID(2), gpuID(1)}, MustIncludeDeviceIDs: []string{gpuID(3)}, AllocationSize: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := reply.ContainerResponses[0].DeviceIDs; !slices.Equal(got, []string{gpuID(3), gpuID(1)}) {
		t.Errorf("got %v, want the required GPU 3 and the lowest free, 1", got)
	}
}
