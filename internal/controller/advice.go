package controller

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/internal/fleet"
)

// troubled is the worker whose trouble is to be told: the first that is not Ready and has any. One that has
// ended was replaced already, and is told of only when no other has trouble.
func troubled(workers []fleet.Worker) *fleet.Worker {
	var ended *fleet.Worker
	for i := range workers {
		w := &workers[i]
		switch {
		case w.Trouble == "" || w.Phase == fleet.WorkerReady || w.Phase == fleet.WorkerDraining:
		case w.Phase == fleet.WorkerEnded:
			ended = w
		default:
			return w
		}
	}
	return ended
}

// condensed names a trouble by one reason where the kubelet alternates between two: a condition whose reason
// flips would be written every few seconds.
func condensed(trouble string) string {
	switch trouble {
	case "ImagePullBackOff":
		return "ErrImagePull"
	case reasonUnexpectedAdmit, fleet.TroubleGPUUnhealthy:
		return ReasonGPULost
	}
	return trouble
}

// advice says of a worker's trouble what to do.
func advice(v view, w fleet.Worker) string {
	return "pod " + w.Name + ": " + explain(w.Trouble, w.Detail, w.Name, v.plan.settings.WorkerImage, "workers", v.pool.Spec.Workers.GPU.ResourceName)
}

// explain says what a trouble of a pod means and what to do. part is workers or batchers, as in the spec.
func explain(trouble, detail, pod, image, part, gpu string) string {
	if image != "" {
		image = " " + image
	}
	switch trouble {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable":
		return fmt.Sprintf("its image%s cannot be pulled: check spec.%[2]s.image, the registry and spec.%[2]s.pod.imagePullSecrets%[3]s", image, part, told(detail))
	case "CrashLoopBackOff", "RunContainerError", "StartError":
		return fmt.Sprintf("it ends soon after its start: read `kubectl logs %s --previous`%s", pod, told(detail))
	case "CreateContainerConfigError", "CreateContainerError":
		return fmt.Sprintf("its container cannot be made: check what spec.%s.pod refers to%s", part, told(detail))
	case ReasonUnschedulable:
		return fmt.Sprintf("no node has room for it%s", told(detail))
	case reasonUnexpectedAdmit:
		return fmt.Sprintf("GPU lost: the node refused it, its %s is gone: repair or drain the node%s", gpu, told(detail))
	case fleet.TroubleGPUUnhealthy:
		return fmt.Sprintf("GPU lost: its device plugin calls %s unhealthy: repair or drain the node", detail)
	case "NotReady":
		return fmt.Sprintf("%s: read `kubectl logs %s`", detail, pod)
	}
	return trouble + told(detail)
}

func told(detail string) string {
	// The name of the error alternates, and so does the time to the next try: neither helps a person.
	if detail == "" || strings.HasPrefix(detail, "Back-off") || strings.HasPrefix(detail, "back-off") {
		return ""
	}
	return " (" + strings.TrimSpace(detail) + ")"
}
