package main

import (
	"crypto/sha256"
	"fmt"
	"sync"
)

const (
	gpuResource = "nvidia.com/gpu"
	// maxGPUs bounds --count; a real node has at most 16.
	maxGPUs = 64
)

// A gpu is one simulated device.
type gpu struct {
	Index   int    `json:"index"`
	ID      string `json:"id"`
	Healthy bool   `json:"healthy"`
}

// A gpuFleet is the node's devices. All methods are safe for concurrent use.
type gpuFleet struct {
	mu      sync.Mutex
	gpus    []gpu
	changed chan struct{} // closed and replaced at each change
}

func newGPUFleet(count int) *gpuFleet {
	f := &gpuFleet{changed: make(chan struct{})}
	for i := range count {
		f.gpus = append(f.gpus, gpu{Index: i, ID: gpuID(i), Healthy: true})
	}
	return f
}

// gpuID looks like a real UUID of nvidia-smi -L and is the same at every start: pods that hold a device keep it when
// the plugin restarts.
func gpuID(index int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", ownName, index))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// snapshot returns the devices and a channel that closes when they are no longer up to date.
func (f *gpuFleet) snapshot() ([]gpu, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]gpu(nil), f.gpus...), f.changed
}

// lose makes a device unhealthy: the one with that index, or with none given the highest that is healthy: pods get
// the lowest first (GetPreferredAllocation), so that one is free unless the node is full.
func (f *gpuFleet) lose(index *int) (gpu, error) {
	return f.set(index, false, func(n int) []int {
		order := make([]int, n)
		for i := range order {
			order[i] = n - 1 - i
		}
		return order
	})
}

// giveBack makes a lost device healthy again: the one with that index, or the lowest that is lost.
func (f *gpuFleet) giveBack(index *int) (gpu, error) {
	return f.set(index, true, func(n int) []int {
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		return order
	})
}

func (f *gpuFleet) set(index *int, healthy bool, order func(n int) []int) (gpu, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := map[bool]string{true: "healthy", false: "lost"}[healthy]
	if index == nil {
		for _, i := range order(len(f.gpus)) {
			if f.gpus[i].Healthy != healthy {
				index = &i
				break
			}
		}
		if index == nil {
			return gpu{}, fmt.Errorf("all %d GPUs are %s already", len(f.gpus), state)
		}
	}
	if *index < 0 || *index >= len(f.gpus) {
		return gpu{}, fmt.Errorf("there is no GPU %d, the node has 0..%d", *index, len(f.gpus)-1)
	}
	if f.gpus[*index].Healthy == healthy {
		return gpu{}, fmt.Errorf("GPU %d is %s already", *index, state)
	}
	f.gpus[*index].Healthy = healthy
	close(f.changed)
	f.changed = make(chan struct{})
	return f.gpus[*index], nil
}
