package fleet

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/internal/wire"
)

// WorkerPhase is where a worker pod is in its life.
type WorkerPhase string

// Phases of a worker.
const (
	WorkerPending       WorkerPhase = "Pending"       // has no node yet, for less than coldStart
	WorkerUnschedulable WorkerPhase = "Unschedulable" // has no node, for longer than coldStart
	WorkerStarting      WorkerPhase = "Starting"      // has a node, not Ready, for less than coldStart since its creation or its restart in place
	WorkerReady         WorkerPhase = "Ready"
	WorkerFailing       WorkerPhase = "Failing"  // has a node, not Ready for longer than coldStart
	WorkerDraining      WorkerPhase = "Draining" // is being deleted
	WorkerEnded         WorkerPhase = "Ended"    // evicted, refused by the kubelet, or finished: the ReplicaSet replaces it
)

// TroubleGPUUnhealthy is the trouble of a worker whose device plugin says that its GPU is unhealthy.
const TroubleGPUUnhealthy = "GPUUnhealthy"

// Worker is one worker pod.
type Worker struct {
	Name  string
	UID   types.UID
	IP    string
	Phase WorkerPhase
	// Trouble is what stands in the way, in a word (Unschedulable, ErrImagePull, CrashLoopBackOff, ...), and
	// Detail what the scheduler, kubelet or runtime say of it. Both are empty where nothing does.
	Trouble, Detail string
	// LostGPU is the device of this worker that its device plugin calls unhealthy, as "resource id"; empty for none.
	// The kubelet lets such a pod run on, and it may serve as well as before.
	LostGPU string
	// ColdStart is the time from creation to Ready; 0 until then. Resolution 1 s.
	ColdStart    time.Duration
	Created      time.Time
	DeletionCost string
}

// Addr is where the worker serves, as batchers write it.
func (w Worker) Addr() string { return net.JoinHostPort(w.IP, strconv.Itoa(wire.PortWorker)) }

// Workers reads the states of worker pods, sorted by name. Ages are by creationTimestamp, the API server's
// clock.
func Workers(pods []corev1.Pod, now time.Time, coldStart time.Duration) []Worker {
	ws := make([]Worker, 0, len(pods))
	for i := range pods {
		ws = append(ws, worker(&pods[i], now, coldStart))
	}
	slices.SortFunc(ws, func(a, b Worker) int { return strings.Compare(a.Name, b.Name) })
	return ws
}

func worker(pod *corev1.Pod, now time.Time, coldStart time.Duration) Worker {
	w := Worker{
		Name: pod.Name, UID: pod.UID, IP: pod.Status.PodIP,
		Created:      pod.CreationTimestamp.Time,
		DeletionCost: pod.Annotations[corev1.PodDeletionCost],
	}
	ready := condition(pod, corev1.PodReady)
	began := pod.CreationTimestamp.Time
	if at := restarted(pod, ready); at.After(began) {
		began = at
	}
	late := now.Sub(began) > coldStart
	scheduled := condition(pod, corev1.PodScheduled)
	switch {
	case pod.DeletionTimestamp != nil:
		w.Phase = WorkerDraining
		return w
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		w.Phase = WorkerEnded
		w.Trouble, w.Detail = orElse(pod.Status.Reason, "Ended"), pod.Status.Message
		return w
	case ready != nil && ready.Status == corev1.ConditionTrue:
		w.Phase = WorkerReady
		w.ColdStart = max(0, ready.LastTransitionTime.Sub(pod.CreationTimestamp.Time))
		if w.LostGPU = unhealthyDevice(pod); w.LostGPU != "" {
			w.Trouble, w.Detail = TroubleGPUUnhealthy, w.LostGPU
		}
		return w
	case pod.Spec.NodeName == "":
		w.Phase = WorkerPending
		if late {
			w.Phase = WorkerUnschedulable
		}
		if scheduled != nil && scheduled.Status == corev1.ConditionFalse {
			w.Trouble, w.Detail = orElse(scheduled.Reason, corev1.PodReasonUnschedulable), scheduled.Message
		}
		return w
	case late:
		w.Phase = WorkerFailing
		w.Trouble, w.Detail = "NotReady", "not Ready within workers.coldStart"
	default:
		w.Phase = WorkerStarting
	}
	if trouble, detail := containerTrouble(pod); trouble != "" {
		w.Trouble, w.Detail = trouble, detail
	}
	if w.LostGPU = unhealthyDevice(pod); w.LostGPU != "" { // whatever else is wrong is likely to come of it
		w.Trouble, w.Detail = TroubleGPUUnhealthy, w.LostGPU
	}
	return w
}

// restarted is when the pod began to start again because a container that had served ended; zero for a pod
// that never served. One that crashes again before it is Ready has not served since, so a crash loop is not a
// start for ever: its last run began after the pod lost its readiness.
func restarted(pod *corev1.Pod, ready *corev1.PodCondition) time.Time {
	var latest time.Time
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		ended, again := c.LastTerminationState.Terminated, c.State.Running
		if c.State.Terminated != nil {
			ended, again = c.State.Terminated, nil // the kubelet has not started it again yet
		}
		if ended == nil || ready == nil || ended.StartedAt.After(ready.LastTransitionTime.Time) {
			continue
		}
		at := ended.FinishedAt.Time
		if again != nil {
			at = again.StartedAt.Time
		}
		if at.After(latest) {
			latest = at
		}
	}
	return latest
}

// harmless are waiting reasons that every pod passes through.
var harmless = map[string]bool{"ContainerCreating": true, "PodInitializing": true, "": true}

// containerTrouble is the first waiting reason of a container that says more than that it is on its way,
// with how it ended the last time.
func containerTrouble(pod *corev1.Pod) (reason, detail string) {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && !harmless[w.Reason] {
			detail = w.Message
			if t := c.LastTerminationState.Terminated; t != nil {
				detail = strings.TrimSpace(fmt.Sprintf("container %s ended with exit code %d (%s) %s", c.Name, t.ExitCode, t.Reason, firstLine(t.Message)))
			}
			return w.Reason, detail
		}
	}
	return "", ""
}

// unhealthyDevice is the first device of a pod that its device plugin calls unhealthy. Clusters without the
// feature ResourceHealthStatus (on by default from Kubernetes 1.36) report none; kubelets up to 1.37 report none
// of a sidecar's devices.
func unhealthyDevice(pod *corev1.Pod) string {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, r := range c.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				if d.Health == corev1.ResourceHealthStatusUnhealthy {
					return fmt.Sprintf("%s %s", r.Name, d.ResourceID)
				}
			}
		}
	}
	return ""
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}

// Targets are the batchers and standalone gateways to scrape: Ready, not leaving, sorted by name. With unready also
// those that run and are not Ready: a gateway without its certificate says so, and nothing else that it says counts.
func Targets(batchers, gateways []corev1.Pod, unready bool) []Target {
	ts := running(batchers, unready)
	for _, t := range running(gateways, unready) {
		t.Gateway = true
		ts = append(ts, t)
	}
	return ts
}

// Serving are those of the pods that are Ready and not leaving, sorted by name.
func Serving(pods []corev1.Pod) []Target { return running(pods, false) }

func running(pods []corev1.Pod, unready bool) []Target {
	var ts []Target
	for i := range pods {
		p := &pods[i]
		if p.DeletionTimestamp != nil || p.Status.PodIP == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		c := condition(p, corev1.PodReady)
		ready := c != nil && c.Status == corev1.ConditionTrue
		if ready || unready && p.Status.Phase == corev1.PodRunning {
			ts = append(ts, Target{Name: p.Name, UID: p.UID, IP: p.Status.PodIP, Unready: !ready})
		}
	}
	slices.SortFunc(ts, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
	return ts
}

// BatcherTrouble is what keeps batchers from becoming Ready, of the first that has any.
func BatcherTrouble(pods []corev1.Pod) (pod, reason, detail string) {
	for i := range pods {
		p := &pods[i]
		if p.DeletionTimestamp != nil {
			continue
		}
		if reason, detail := containerTrouble(p); reason != "" {
			return p.Name, reason, detail
		}
		if c := condition(p, corev1.PodScheduled); p.Spec.NodeName == "" && c != nil && c.Status == corev1.ConditionFalse {
			return p.Name, orElse(c.Reason, corev1.PodReasonUnschedulable), c.Message
		}
	}
	return "", "", ""
}

func condition(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
