package fleet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStatesOfWorkers(t *testing.T) {
	const coldStart = time.Minute
	now := time.Unix(1_000_000, 0)
	waiting := func(reason string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "worker", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "m"}}}}
	}
	unhealthy := []corev1.ContainerStatus{{AllocatedResourcesStatus: []corev1.ResourceStatus{{
		Name: "nvidia.com/gpu", Resources: []corev1.ResourceHealth{{ResourceID: "gpu-3", Health: corev1.ResourceHealthStatusUnhealthy}},
	}}}}
	// restart lets the container run again since one instant, its last run have begun at another, and the pod be
	// not Ready since a third.
	restart := func(p *corev1.Pod, again, ran, unready time.Time) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(unready)}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "worker", RestartCount: 1,
			State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(again)}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(ran), FinishedAt: metav1.NewTime(again.Add(-time.Second))}},
		}}
	}
	for _, c := range []struct {
		name    string
		age     time.Duration
		change  func(*corev1.Pod)
		phase   WorkerPhase
		trouble string
	}{
		{"just created", 0, func(p *corev1.Pod) { p.Spec.NodeName = "" }, WorkerPending, ""},
		{"no node yet", 30 * time.Second, func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no GPU"}}
		}, WorkerPending, "Unschedulable"},
		{"no node for longer than coldStart", 2 * time.Minute, func(p *corev1.Pod) { p.Spec.NodeName = "" }, WorkerUnschedulable, ""},
		{"loads", 30 * time.Second, func(*corev1.Pod) {}, WorkerStarting, ""},
		{"loads, by the kubelet's words", 30 * time.Second, func(p *corev1.Pod) { p.Status.ContainerStatuses = waiting("ContainerCreating") }, WorkerStarting, ""},
		{"loads for longer than coldStart", 2 * time.Minute, func(*corev1.Pod) {}, WorkerFailing, "NotReady"},
		{"no image", 30 * time.Second, func(p *corev1.Pod) { p.Status.ContainerStatuses = waiting("ErrImagePull") }, WorkerStarting, "ErrImagePull"},
		{"crashes", 2 * time.Minute, func(p *corev1.Pod) { p.Status.ContainerStatuses = waiting("CrashLoopBackOff") }, WorkerFailing, "CrashLoopBackOff"},
		{"a sidecar without an image", time.Second, func(p *corev1.Pod) { p.Status.InitContainerStatuses = waiting("InvalidImageName") }, WorkerStarting, "InvalidImageName"},
		{"serves", 2 * time.Minute, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}}
		}, WorkerReady, ""},
		{"serves on a GPU that fails", 2 * time.Minute, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			p.Status.ContainerStatuses = unhealthy
		}, WorkerReady, TroubleGPUUnhealthy},
		{"fails on a GPU that fails", time.Hour, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = unhealthy
			p.Status.ContainerStatuses[0].State = waiting("CrashLoopBackOff")[0].State
		}, WorkerFailing, TroubleGPUUnhealthy},
		{"its sidecar's GPU fails", time.Hour, func(p *corev1.Pod) { p.Status.InitContainerStatuses = unhealthy }, WorkerFailing, TroubleGPUUnhealthy},
		{"served and was restarted in place", time.Hour, func(p *corev1.Pod) {
			restart(p, now.Add(-30*time.Second), now.Add(-time.Hour), now.Add(-31*time.Second))
		}, WorkerStarting, ""},
		{"served, was restarted in place and does not come back", time.Hour, func(p *corev1.Pod) { restart(p, now.Add(-2*time.Minute), now.Add(-time.Hour), now.Add(-2*time.Minute)) }, WorkerFailing, "NotReady"},
		{"served and waits to be restarted", time.Hour, func(p *corev1.Pod) {
			restart(p, now.Add(-10*time.Second), now.Add(-time.Hour), now.Add(-10*time.Second))
			p.Status.ContainerStatuses[0].State = waiting("CrashLoopBackOff")[0].State
		}, WorkerStarting, "CrashLoopBackOff"},
		{"served long ago and crashes since", time.Hour, func(p *corev1.Pod) {
			restart(p, now.Add(-30*time.Second), now.Add(-50*time.Second), now.Add(-20*time.Minute))
		}, WorkerFailing, "NotReady"},
		{"never served and crashes", time.Hour, func(p *corev1.Pod) {
			restart(p, now.Add(-30*time.Second), now.Add(-50*time.Second), now.Add(-time.Hour))
		}, WorkerFailing, "NotReady"},
		{"leaves, though Ready", 2 * time.Minute, func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: now}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}, WorkerDraining, ""},
		{"refused by the kubelet: its GPU is gone", time.Second, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "UnexpectedAdmissionError"
		}, WorkerEnded, "UnexpectedAdmissionError"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "w", CreationTimestamp: metav1.NewTime(now.Add(-c.age))}, Spec: corev1.PodSpec{NodeName: "n"}}
			c.change(&p)
			w := Workers([]corev1.Pod{p}, now, coldStart)[0]
			if w.Phase != c.phase || w.Trouble != c.trouble {
				t.Errorf("%s %q, want %s %q", w.Phase, w.Trouble, c.phase, c.trouble)
			}
			if lost := c.trouble == TroubleGPUUnhealthy; lost != (w.LostGPU == "nvidia.com/gpu gpu-3") {
				t.Errorf("lost GPU %q", w.LostGPU)
			}
		})
	}
}

func TestColdStartIsFromCreationToReady(t *testing.T) {
	created := time.Unix(1_000_000, 0)
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(created.Add(42 * time.Second))}}},
	}
	if w := Workers([]corev1.Pod{p}, created.Add(time.Hour), time.Minute)[0]; w.ColdStart != 42*time.Second {
		t.Errorf("%v", w.ColdStart)
	}
}

func TestOnlyReadyBatchersThatStayAreScraped(t *testing.T) {
	pod := func(name, ip string, ready corev1.ConditionStatus, leaving bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{PodIP: ip, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
		if leaving {
			p.DeletionTimestamp = &metav1.Time{}
		}
		return p
	}
	pods := []corev1.Pod{
		pod("d", "10.0.0.4", corev1.ConditionTrue, false), pod("a", "10.0.0.1", corev1.ConditionTrue, false),
		pod("b", "10.0.0.2", corev1.ConditionFalse, false), pod("c", "10.0.0.3", corev1.ConditionTrue, true),
		pod("e", "", corev1.ConditionTrue, false), pod("f", "10.0.0.6", corev1.ConditionFalse, false),
	}
	pods[1].Status.Phase, pods[2].Status.Phase, pods[5].Status.Phase = corev1.PodRunning, corev1.PodRunning, corev1.PodFailed
	gateways := []corev1.Pod{pod("g", "10.0.0.7", corev1.ConditionTrue, false), pod("h", "10.0.0.8", corev1.ConditionFalse, false)}
	got := Targets(pods, gateways, false)
	if len(got) != 3 || got[0].Name != "a" || got[1].Name != "d" || got[2].Name != "g" || got[0].Gateway || got[1].Gateway || !got[2].Gateway {
		t.Errorf("%+v", got)
	}
	got = Targets(pods, nil, true)
	if len(got) != 3 || got[0].Unready || got[1].Name != "b" || !got[1].Unready || got[2].Name != "d" {
		t.Errorf("%+v", got)
	}
}
