package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InferencePoolStatus is what the operator last observed and decided. Numbers are rounded (queue to two
// digits, utilization to 5 points) and written at most every 10 s unless something of weight changed.
type InferencePoolStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the pool: Ready, WorkersReady, BatchersReady, GatewaysReady, CapacityAvailable, MetricsAvailable,
	// Scaling (its message is the last decision and its reason), FillSufficient, RolloutSafe,
	// NamesAvailable.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// zone is the pool's zone.
	// +optional
	Zone ZoneStatus `json:"zone,omitzero"`

	// queue is what waits.
	// +optional
	Queue QueueStatus `json:"queue,omitempty"`

	// workers are the GPU workers.
	// +optional
	Workers WorkersStatus `json:"workers,omitzero"`

	// batchers are the batchers.
	// +optional
	Batchers BatchersStatus `json:"batchers,omitzero"`

	// gateway are the standalone gateways; absent while the gateway runs inside the batchers.
	// +optional
	Gateway *GatewayStatus `json:"gateway,omitempty"`

	// utilization is the offered load over the capacity, as a percentage such as 75%, or "n/a" where nothing
	// is known.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Utilization string `json:"utilization,omitempty"`

	// busyPercent is the part of the time in which workers ran a batch.
	// +optional
	BusyPercent int32 `json:"busyPercent,omitempty"`

	// fillPercent is the mean fill of the batches.
	// +optional
	FillPercent int32 `json:"fillPercent,omitempty"`

	// capacityPerSecond is the number of requests a second that the Ready workers can serve.
	// +optional
	CapacityPerSecond int32 `json:"capacityPerSecond,omitempty"`

	// offeredPerSecond is the number of requests a second that clients want served, first attempts only.
	// +optional
	OfferedPerSecond int32 `json:"offeredPerSecond,omitempty"`

	// serviceTime is the measured time of a batch (median), or the configured one until it is measured.
	// +optional
	ServiceTime metav1.Duration `json:"serviceTime,omitzero"`

	// scaling is the state of the scaling rule, kept here so that a restart of the operator loses no timer.
	// +optional
	Scaling ScalingStatus `json:"scaling,omitzero"`

	// selector selects the worker pods, for HPA.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Selector string `json:"selector,omitempty"`
}

// ZoneName is Green, Yellow or Red.
// +kubebuilder:validation:Enum=Green;Yellow;Red
type ZoneName string

const (
	// ZoneGreen admits everything that is feasible.
	ZoneGreen ZoneName = "Green"
	// ZoneYellow sheds in proportion, lowest tier first.
	ZoneYellow ZoneName = "Yellow"
	// ZoneRed refuses tiers with shedding First.
	ZoneRed ZoneName = "Red"
)

// ZoneStatus is the pool's zone.
type ZoneStatus struct {
	// name is Green, Yellow or Red.
	// +optional
	Name ZoneName `json:"name,omitempty"`
	// since is when the zone was entered.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// reason is why, e.g. BacklogHigh, OfferedOverCapacity, NoCapacity.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message gives the numbers.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// calmSince is since when the conditions to leave the zone have held.
	// +optional
	CalmSince *metav1.Time `json:"calmSince,omitempty"`
}

// QueueStatus is what waits, all batchers together.
type QueueStatus struct {
	// depth is the number of waiting requests.
	// +optional
	Depth int32 `json:"depth"`
	// backlog is the time that the fleet needs to serve them.
	// +optional
	Backlog metav1.Duration `json:"backlog,omitzero"`
}

// WorkersStatus are the GPU workers.
type WorkersStatus struct {
	// summary is ready/desired.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Summary string `json:"summary,omitempty"`
	// replicas is the number of worker pods that exist and are not leaving.
	// +optional
	Replicas int32 `json:"replicas"`
	// desired is the number that the operator wants.
	// +optional
	Desired int32 `json:"desired"`
	// ready is the number that serve.
	// +optional
	Ready int32 `json:"ready"`
	// starting is the number on its way: scheduled or waiting for a node, within coldStart.
	// +optional
	Starting int32 `json:"starting"`
	// unschedulable is the number that has waited for a GPU longer than coldStart.
	// +optional
	Unschedulable int32 `json:"unschedulable"`
	// draining is the number that is leaving.
	// +optional
	Draining int32 `json:"draining"`
	// image is the image in use.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// coldStart is the last measured time from a worker's creation to Ready.
	// +optional
	ColdStart *metav1.Duration `json:"coldStart,omitempty"`
}

// BatchersStatus are the batchers.
type BatchersStatus struct {
	// desired is the number that the operator wants.
	// +optional
	Desired int32 `json:"desired"`
	// ready is the number that serve.
	// +optional
	Ready int32 `json:"ready"`
	// image is the image in use.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
}

// GatewayStatus are the standalone gateways.
type GatewayStatus struct {
	// desired is spec.gateway.replicas.
	// +optional
	Desired int32 `json:"desired"`
	// ready is the number that serve.
	// +optional
	Ready int32 `json:"ready"`
	// image is the image in use.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
}

// ScalingStatus is the state of the scaling rule.
type ScalingStatus struct {
	// aboveSince is since when utilization has been above scaling.up.abovePercent.
	// +optional
	AboveSince *metav1.Time `json:"aboveSince,omitempty"`
	// belowSince is since when utilization has been below scaling.down.belowPercent on complete data.
	// +optional
	BelowSince *metav1.Time `json:"belowSince,omitempty"`
	// lastScaleUp is when workers were last added.
	// +optional
	LastScaleUp *metav1.Time `json:"lastScaleUp,omitempty"`
	// lastScaleDown is when a worker was last removed.
	// +optional
	LastScaleDown *metav1.Time `json:"lastScaleDown,omitempty"`
	// lastDepthStep is when a worker was last added because of the queue alone.
	// +optional
	LastDepthStep *metav1.Time `json:"lastDepthStep,omitempty"`
	// victim is the worker pod chosen to leave.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Victim string `json:"victim,omitempty"`
	// changes are the last ten changes, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Changes []ScalingChange `json:"changes,omitempty"`
}

// ScalingChange is one change of the number of workers.
type ScalingChange struct {
	// time of the change.
	// +required
	Time metav1.Time `json:"time"`
	// from is the number before.
	// +required
	From int32 `json:"from"`
	// to is the number after.
	// +required
	To int32 `json:"to"`
	// reason in one word.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// message gives the numbers behind it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
