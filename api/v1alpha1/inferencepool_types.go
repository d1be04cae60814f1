package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InferencePool is a fleet of GPU workers that run one function in batches, the batchers in front of
// them, and the rules by which the fleet is scaled and load is shed. Clients call the Service that has
// the pool's name, port 80, as an ordinary synchronous HTTP API.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.workers.replicas,statuspath=.status.workers.replicas,selectorpath=.status.selector
// +kubebuilder:resource:path=inferencepools,singular=inferencepool,shortName=slp,categories=sluice
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Zone",type=string,JSONPath=`.status.zone.name`,description="Green, Yellow (shedding in proportion) or Red (the lowest tier is shed)"
// +kubebuilder:printcolumn:name="Queue",type=integer,JSONPath=`.status.queue.depth`,description="Requests waiting, all batchers together"
// +kubebuilder:printcolumn:name="Workers",type=string,JSONPath=`.status.workers.summary`,description="GPU workers ready/desired"
// +kubebuilder:printcolumn:name="Util",type=string,JSONPath=`.status.utilization`,description="Offered load over capacity"
// +kubebuilder:printcolumn:name="Why",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Scaling")].message`,description="The last scaling decision and its reason"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 40",message="metadata.name must have at most 40 characters: the names of the pool's Services and Deployments are made from it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be a DNS-1035 label (a-z, 0-9 and -, beginning with a letter): it becomes the name of a Service"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.tiers) || self.spec.tiers.all(t, !has(t.degrade) || (!has(t.degrade.yellow) || t.degrade.yellow.all(s, !has(s.reroute) || s.reroute.pool != self.metadata.name)) && (!has(t.degrade.red) || t.degrade.red.all(s, !has(s.reroute) || s.reroute.pool != self.metadata.name)))",message="spec.tiers[].degrade: reroute must name another pool than this one"
type InferencePool struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the pool should be.
	// +required
	Spec InferencePoolSpec `json:"spec"`
	// status is what the operator last observed and decided.
	// +optional
	Status InferencePoolStatus `json:"status,omitzero"`
}

// InferencePoolList is a list of InferencePools.
//
// +kubebuilder:object:root=true
type InferencePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferencePool `json:"items"`
}

// InferencePoolSpec is what a pool should be.
//
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !has(self.gateway.defaultTier) || !has(self.tiers) || self.tiers.exists(t, t.name == self.gateway.defaultTier)",message="gateway.defaultTier must be the name of one of spec.tiers"
type InferencePoolSpec struct {
	// model is the name that clients put into the "model" field of a request. A request for any other
	// name is answered 404.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._:/-]*$`
	Model string `json:"model"`

	// tiers are the classes of service, highest first. A higher tier is served before a lower one; a
	// tier with reservedPercent keeps that share of every worker even when the higher tiers could use it.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:default={{name: "enterprise", shedding: "Never"}, {name: "paid", shedding: "Throttle"}, {name: "free", shedding: "First", reservedPercent: 2}}
	// +kubebuilder:validation:XValidation:rule="self.map(t, has(t.reservedPercent) ? t.reservedPercent : 0).sum() <= 50",message="the reservedPercent of all tiers together must be at most 50: the rest is what strict priority works with"
	Tiers []Tier `json:"tiers,omitempty"`

	// batching says how requests are gathered into batches for a worker.
	// +optional
	// +kubebuilder:default={}
	Batching BatchingSpec `json:"batching,omitzero"`

	// scaling says when workers are added and removed.
	// +optional
	// +kubebuilder:default={}
	Scaling ScalingSpec `json:"scaling,omitzero"`

	// zones says from which queue on load is shed.
	// +optional
	// +kubebuilder:default={}
	Zones ZonesSpec `json:"zones,omitzero"`

	// workers are the GPU workers: one Deployment, one batch at a time each.
	// +optional
	// +kubebuilder:default={}
	Workers WorkersSpec `json:"workers,omitzero"`

	// batchers hold the waiting requests, form the batches and, in the default layout, run the gateway.
	// +optional
	// +kubebuilder:default={}
	Batchers BatchersSpec `json:"batchers,omitzero"`

	// gateway says who may call the pool and how large a request may be.
	// +optional
	// +kubebuilder:default={}
	Gateway GatewaySpec `json:"gateway,omitzero"`

	// telemetry says what leaves the data plane about single requests: traces, access log, usage records.
	// +optional
	Telemetry *TelemetrySpec `json:"telemetry,omitempty"`
}

// SheddingPolicy says what happens to a tier when the fleet is too small for the load.
// +kubebuilder:validation:Enum=Never;Throttle;First
type SheddingPolicy string

const (
	// SheddingNever admits the tier in every zone. Only feasibility and the bounds of the queue refuse it.
	SheddingNever SheddingPolicy = "Never"
	// SheddingThrottle admits what the higher tiers leave of the capacity, in Yellow and in Red.
	SheddingThrottle SheddingPolicy = "Throttle"
	// SheddingFirst admits what is left in Yellow and nothing in Red.
	SheddingFirst SheddingPolicy = "First"
)

// RequestClass says whether somebody waits for the answers of a tier.
// +kubebuilder:validation:Enum=Interactive;Background;Internal
type RequestClass string

const (
	// ClassInteractive is served as soon as its tier allows.
	ClassInteractive RequestClass = "Interactive"
	// ClassBackground has no latency need: it fills what the interactive tiers leave free and pauses
	// in Yellow and Red.
	ClassBackground RequestClass = "Background"
	// ClassInternal is Background that is admitted in its hours only, or while the pool is idle.
	ClassInternal RequestClass = "Internal"
)

// Tier is one class of service.
//
// +kubebuilder:validation:XValidation:rule="!has(self.latencyTarget) || !has(self.timeout) || duration(self.latencyTarget) <= duration(self.timeout)",message="latencyTarget must be at most timeout"
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || duration(self.timeout) >= duration('100ms') && duration(self.timeout) <= duration('10m')",message="timeout must be between 100ms and 10m"
// +kubebuilder:validation:XValidation:rule="!has(self.latencyTarget) || duration(self.latencyTarget) >= duration('20ms')",message="latencyTarget must be at least 20ms"
// +kubebuilder:validation:XValidation:rule="has(self.hours) == (has(self.class) && self.class == 'Internal')",message="hours is required when class is Internal, and only then"
// +kubebuilder:validation:XValidation:rule="!has(self.degrade) || !has(self.class) || self.class == 'Interactive'",message="degrade may only be set when class is Interactive: the other classes pause instead"
type Tier struct {
	// name is the tier's name, as InferenceTenants refer to it and as answers and metrics carry it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// latencyTarget is the latency that a request of this tier may be predicted to have: one that would
	// wait longer is refused with 429 at once instead of being answered slowly. At least 20ms.
	// +optional
	// +kubebuilder:default="500ms"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	LatencyTarget metav1.Duration `json:"latencyTarget,omitzero"`

	// timeout is the longest time a request of this tier may take, whatever its client would accept; a
	// client may ask for less. Between 100ms and 10m.
	// +optional
	// +kubebuilder:default="2s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	Timeout metav1.Duration `json:"timeout,omitzero"`

	// shedding says what happens to the tier in Yellow and Red: Never (always admitted), Throttle
	// (what the higher tiers leave), First (what is left in Yellow, nothing in Red).
	// +optional
	// +kubebuilder:default=Throttle
	Shedding SheddingPolicy `json:"shedding,omitempty"`

	// reservedPercent is the share of all slots that the tier gets even when higher tiers could fill
	// every batch, in percent (0-50; all tiers together at most 50).
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=50
	ReservedPercent int32 `json:"reservedPercent"`

	// class is Interactive (somebody waits), Background (no latency need: pauses in Yellow and Red) or
	// Internal (as Background, and in its hours only, unless the pool is idle).
	// +optional
	// +kubebuilder:default=Interactive
	Class RequestClass `json:"class,omitempty"`

	// hours is when an Internal tier is admitted although the pool is not idle.
	// +optional
	Hours *TierHours `json:"hours,omitempty"`

	// limits bound what all tenants of the tier together may ask for, in this pool. What there is is divided
	// among them in fair parts. They gate beside each tenant's own limits.
	// +optional
	Limits *TenantLimits `json:"limits,omitempty"`

	// degrade says how a request of the tier is served more cheaply before it is shed.
	// +optional
	Degrade *DegradeSpec `json:"degrade,omitempty"`
}

// TierHours is a window that opens by a schedule.
//
// +kubebuilder:validation:XValidation:rule="!has(self.duration) || duration(self.duration) >= duration('1m') && duration(self.duration) <= duration('24h')",message="duration must be between 1m and 24h"
// +kubebuilder:validation:XValidation:rule="!has(self.timeZone) || timestamp('2026-01-01T00:00:00Z').getHours(self.timeZone) >= 0",message="timeZone must be a name of the IANA time zone database, such as Europe/Berlin"
// +kubebuilder:validation:XValidation:rule="self.schedule.split(' ').all(f, f.split(',').all(u, !u.contains('-') || int(u.split('/')[0].split('-')[0]) <= int(u.split('/')[0].split('-')[1])))",message="schedule: a range A-B must not go backwards"
type TierHours struct {
	// schedule is when the window opens, in cron's five fields: minute, hour, day of month, month, day of
	// week. Each is *, a number, a range A-B, a list of these with commas, or one of them with /STEP.
	// +required
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^(\*|([0-9]|[1-5][0-9])(-([0-9]|[1-5][0-9]))?)(/[1-9][0-9]?)?(,(\*|([0-9]|[1-5][0-9])(-([0-9]|[1-5][0-9]))?)(/[1-9][0-9]?)?)* (\*|([0-9]|1[0-9]|2[0-3])(-([0-9]|1[0-9]|2[0-3]))?)(/[1-9][0-9]?)?(,(\*|([0-9]|1[0-9]|2[0-3])(-([0-9]|1[0-9]|2[0-3]))?)(/[1-9][0-9]?)?)* (\*|([1-9]|[12][0-9]|3[01])(-([1-9]|[12][0-9]|3[01]))?)(/[1-9][0-9]?)?(,(\*|([1-9]|[12][0-9]|3[01])(-([1-9]|[12][0-9]|3[01]))?)(/[1-9][0-9]?)?)* (\*|([1-9]|1[0-2])(-([1-9]|1[0-2]))?)(/[1-9][0-9]?)?(,(\*|([1-9]|1[0-2])(-([1-9]|1[0-2]))?)(/[1-9][0-9]?)?)* (\*|[0-6](-[0-6])?)(/[1-9][0-9]?)?(,(\*|[0-6](-[0-6])?)(/[1-9][0-9]?)?)*$`
	Schedule string `json:"schedule"`

	// duration is how long the window stays open. Between 1m and 24h.
	// +optional
	// +kubebuilder:default="8h"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	Duration metav1.Duration `json:"duration,omitzero"`

	// timeZone is whose clock the schedule means: a name of the IANA time zone database.
	// +optional
	// +kubebuilder:default="UTC"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}$`
	TimeZone string `json:"timeZone,omitempty"`
}

// DegradeSpec is a ladder for each zone. The steps that make a request cheaper (maxTokens, parameter) are taken
// for every request of the tier in that zone; those that answer it elsewhere (reroute, answer) for a request
// that would otherwise be refused for want of capacity, in order. In Green nothing is degraded, except that
// a request which could not be answered in time takes the reroute or answer of yellow. An answer that was
// degraded says so, and how.
//
// +kubebuilder:validation:MinProperties=1
type DegradeSpec struct {
	// yellow is the ladder in zone Yellow.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.all(s, !has(s.answer)) || self.filter(s, has(s.answer)).size() == 1 && has(self[self.size()-1].answer)",message="answer must be the last step: it always answers"
	// +kubebuilder:validation:XValidation:rule="self.filter(s, has(s.maxTokens)).size() <= 1 && self.filter(s, has(s.parameter)).size() <= 1 && self.filter(s, has(s.reroute)).size() <= 1",message="each kind of step may be there once"
	Yellow []DegradeStep `json:"yellow,omitempty"`

	// red is the ladder in zone Red. Unset, that of yellow holds.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.all(s, !has(s.answer)) || self.filter(s, has(s.answer)).size() == 1 && has(self[self.size()-1].answer)",message="answer must be the last step: it always answers"
	// +kubebuilder:validation:XValidation:rule="self.filter(s, has(s.maxTokens)).size() <= 1 && self.filter(s, has(s.parameter)).size() <= 1 && self.filter(s, has(s.reroute)).size() <= 1",message="each kind of step may be there once"
	Red []DegradeStep `json:"red,omitempty"`
}

// DegradeStep is one step; exactly one of its fields.
//
// +kubebuilder:validation:XValidation:rule="[has(self.maxTokens), has(self.parameter), has(self.reroute), has(self.answer)].filter(x, x).size() == 1",message="set exactly one of maxTokens, parameter, reroute and answer"
type DegradeStep struct {
	// maxTokens caps max_tokens.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	MaxTokens *int32 `json:"maxTokens,omitempty"`

	// parameter is handed to the backend with the request: one by which it leaves an optional path out.
	// +optional
	Parameter *DegradeParameter `json:"parameter,omitempty"`

	// reroute hands the request to another pool of the namespace, once: a pool that got it this way does
	// not hand it on. The caller's credentials go with it, and its limits there hold.
	// +optional
	Reroute *DegradeReroute `json:"reroute,omitempty"`

	// answer is given instead of the function's output.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Answer string `json:"answer,omitempty"`
}

// DegradeParameter is a parameter of the backend.
//
// +kubebuilder:validation:XValidation:rule="!(self.name in ['max_tokens', 'temperature'])",message="name must not be max_tokens or temperature: those are the client's"
type DegradeParameter struct {
	// name of the parameter, as the backend knows it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_.-]*$`
	Name string `json:"name"`

	// value of the parameter. true and false are booleans, whole numbers are integers, all else is a string.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Value string `json:"value"`
}

// DegradeReroute is another pool.
type DegradeReroute struct {
	// pool is the name of an InferencePool of the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Pool string `json:"pool"`

	// model is that pool's spec.model.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._:/-]*$`
	Model string `json:"model"`

	// tls asks the other pool over TLS, on port 443 of its Service. Unset, it is asked in plain HTTP on port 80, which
	// a pool with gateway.tls closes unless it says plainHTTP: Open. The condition ReroutesUsable says when this
	// does not fit the other pool.
	// +optional
	TLS *RerouteTLS `json:"tls,omitempty"`
}

// RerouteTLS says whom to trust as the other pool.
type RerouteTLS struct {
	// caSecretName names a Secret of the namespace whose key ca.crt holds the certificates (PEM) that the other
	// pool's must be signed by. It may be the other pool's own Secret: cert-manager writes ca.crt beside tls.crt.
	// Nothing but ca.crt is mounted, no key. A change is followed within about a minute.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	CASecretName string `json:"caSecretName"`

	// serverName is the DNS name that the other pool's certificate must be valid for. Unset, it is the name of its
	// Service: POOL.NAMESPACE.svc.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	ServerName string `json:"serverName,omitempty"`
}

// BatchingSpec says how requests are gathered into batches.
//
// +kubebuilder:validation:XValidation:rule="!has(self.inferenceTimeout) || !has(self.inferenceTime) || duration(self.inferenceTimeout) > duration(self.inferenceTime)",message="inferenceTimeout must be longer than inferenceTime"
// +kubebuilder:validation:XValidation:rule="!has(self.maxWait) || duration(self.maxWait) <= duration('10s')",message="maxWait must be at most 10s"
type BatchingSpec struct {
	// maxSize is the largest number of requests in a batch (1-1000), the B of every formula.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxSize int32 `json:"maxSize,omitempty"`

	// maxWait is the longest time a request waits for company while a worker is idle. The batcher waits
	// less whenever waiting cannot pay. At most 10s.
	// +optional
	// +kubebuilder:default="40ms"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	MaxWait metav1.Duration `json:"maxWait,omitzero"`

	// inferenceTime is the time a batch is expected to take, until 20 batches were measured.
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	InferenceTime metav1.Duration `json:"inferenceTime,omitzero"`

	// inferenceTimeout is the longest time a batch may take before its worker counts as hung. Once the
	// service time is measured, min(inferenceTimeout, 3 x p99) holds.
	// +optional
	// +kubebuilder:default="500ms"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	InferenceTimeout metav1.Duration `json:"inferenceTimeout,omitzero"`

	// maxRetries is how often a request whose worker crashed or hung is tried again (0 or 1). More would
	// turn a failure into an overload.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	MaxRetries *int32 `json:"maxRetries,omitempty"`
}

// ScalingMode says who decides the number of workers.
// +kubebuilder:validation:Enum=Auto;Observe;External
type ScalingMode string

const (
	// ScalingAuto lets the operator decide and act.
	ScalingAuto ScalingMode = "Auto"
	// ScalingObserve lets the operator decide and report; the number of workers stays as it is.
	ScalingObserve ScalingMode = "Observe"
	// ScalingExternal takes spec.workers.replicas, which an HPA, KEDA or `kubectl scale` writes.
	ScalingExternal ScalingMode = "External"
)

// ScalingDirection is a direction in which scaling can be paused.
// +kubebuilder:validation:Enum=Up;Down
type ScalingDirection string

const (
	// ScalingUp is adding workers.
	ScalingUp ScalingDirection = "Up"
	// ScalingDown is removing workers.
	ScalingDown ScalingDirection = "Down"
)

// ScalingSpec says when workers are added and removed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.down) || !has(self.up) || self.down.belowPercent < self.up.abovePercent",message="down.belowPercent must be below up.abovePercent"
// +kubebuilder:validation:XValidation:rule="!has(self.targetPercent) || !has(self.down) || !has(self.up) || self.targetPercent <= self.up.abovePercent && self.targetPercent > self.down.belowPercent",message="targetPercent must lie above down.belowPercent and at or below up.abovePercent"
type ScalingSpec struct {
	// mode is Auto (the operator decides and acts), Observe (it decides and reports, nothing changes) or
	// External (spec.workers.replicas is obeyed: point an HPA or KEDA at the pool, never at the Deployment).
	// +optional
	// +kubebuilder:default=Auto
	Mode ScalingMode `json:"mode,omitempty"`

	// targetPercent is the utilization (offered load over capacity) that the fleet is sized for.
	// +optional
	// +kubebuilder:default=75
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=95
	TargetPercent int32 `json:"targetPercent,omitempty"`

	// up says when workers are added.
	// +optional
	// +kubebuilder:default={}
	Up ScaleUpSpec `json:"up,omitzero"`

	// down says when a worker is removed: one at a time, then the window starts again.
	// +optional
	// +kubebuilder:default={}
	Down ScaleDownSpec `json:"down,omitzero"`

	// paused lists the directions in which the operator must not scale, for a maintenance or an incident.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	Paused []ScalingDirection `json:"paused,omitempty"`
}

// ScaleUpSpec says when workers are added.
//
// +kubebuilder:validation:XValidation:rule="!has(self.window) || duration(self.window) <= duration('1h')",message="window must be at most 1h"
type ScaleUpSpec struct {
	// abovePercent is the utilization above which workers are added once it has lasted for window. A
	// backlog over zones.yellow adds workers at once.
	// +optional
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=100
	AbovePercent int32 `json:"abovePercent,omitempty"`

	// window is how long utilization must stay above abovePercent. At most 1h.
	// +optional
	// +kubebuilder:default="2m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	Window metav1.Duration `json:"window,omitzero"`
}

// ScaleDownSpec says when a worker is removed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.window) || duration(self.window) <= duration('24h') && duration(self.window) >= duration('1s')",message="window must be between 1s and 24h"
type ScaleDownSpec struct {
	// belowPercent is the utilization below which one worker is removed once it has lasted for window.
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=90
	BelowPercent int32 `json:"belowPercent,omitempty"`

	// window is how long utilization must stay below belowPercent. Between 1s and 24h.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	Window metav1.Duration `json:"window,omitzero"`
}

// StaleSignalPolicy says what a gateway does when the operator has not scraped it for 10 s.
// +kubebuilder:validation:Enum=KeepStricter;OwnView
type StaleSignalPolicy string

const (
	// StaleKeepStricter applies the stricter of the last published limits and the gateway's own view.
	StaleKeepStricter StaleSignalPolicy = "KeepStricter"
	// StaleOwnView applies the gateway's own view only.
	StaleOwnView StaleSignalPolicy = "OwnView"
)

// ZonesSpec says from which queue on load is shed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.yellow) || !has(self.red) || has(self.yellow.depth) == has(self.red.depth)",message="yellow and red must be of one kind: both backlog or both depth"
// +kubebuilder:validation:XValidation:rule="!has(self.yellow) || !has(self.red) || !has(self.yellow.depth) || !has(self.red.depth) || self.yellow.depth < self.red.depth",message="yellow.depth must be less than red.depth"
// +kubebuilder:validation:XValidation:rule="!has(self.yellow) || !has(self.red) || !has(self.yellow.backlog) || !has(self.red.backlog) || duration(self.yellow.backlog) < duration(self.red.backlog)",message="yellow.backlog must be less than red.backlog"
type ZonesSpec struct {
	// yellow is where shedding in proportion begins.
	// +optional
	// +kubebuilder:default={backlog: "300ms"}
	Yellow ZoneThreshold `json:"yellow,omitzero"`

	// red is where tiers with shedding First are refused entirely.
	// +optional
	// +kubebuilder:default={backlog: "750ms"}
	Red ZoneThreshold `json:"red,omitzero"`

	// whenStale says what a gateway does when the operator has not been heard for 10 s: KeepStricter (the
	// stricter of the last published limits and its own view) or OwnView (its own view only).
	// +optional
	// +kubebuilder:default=KeepStricter
	WhenStale StaleSignalPolicy `json:"whenStale,omitempty"`
}

// ZoneThreshold is a queue, as a time or as a number of requests; exactly one of the two.
//
// +kubebuilder:validation:XValidation:rule="has(self.backlog) != has(self.depth)",message="set exactly one of backlog and depth"
// +kubebuilder:validation:XValidation:rule="!has(self.backlog) || duration(self.backlog) >= duration('10ms')",message="backlog must be at least 10ms"
type ZoneThreshold struct {
	// backlog is the time the fleet needs to serve what is waiting (depth over capacity). It follows the
	// capacity, so it holds from one worker to a hundred. At least 10ms.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:Type=string
	Backlog *metav1.Duration `json:"backlog,omitempty"`

	// depth is a number of waiting requests, all batchers together.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Depth *int32 `json:"depth,omitempty"`
}

// AuthMode says how a request's tenant is found.
// +kubebuilder:validation:Enum=Keys;TrustedHeaders;None
type AuthMode string

const (
	// AuthKeys finds the tenant by the key in Authorization: Bearer or X-API-Key.
	AuthKeys AuthMode = "Keys"
	// AuthTrustedHeaders believes an upstream proxy's headers.
	AuthTrustedHeaders AuthMode = "TrustedHeaders"
	// AuthNone serves everybody in defaultTier.
	AuthNone AuthMode = "None"
)

// ParametersPolicy says what happens to a parameter that the backend does not take.
// +kubebuilder:validation:Enum=Warn;Reject
type ParametersPolicy string

const (
	// ParametersWarn answers with a Warning header.
	ParametersWarn ParametersPolicy = "Warn"
	// ParametersReject answers 400.
	ParametersReject ParametersPolicy = "Reject"
)

// GatewaySpec says where the gateway runs, who may call the pool and how large a request may be.
//
// +kubebuilder:validation:XValidation:rule="!has(self.auth) || self.auth != 'TrustedHeaders' || has(self.trustedHeaders)",message="trustedHeaders is required when auth is TrustedHeaders: name the addresses that may set them"
// +kubebuilder:validation:XValidation:rule="!has(self.trustedHeaders) || has(self.auth) && self.auth == 'TrustedHeaders'",message="trustedHeaders may only be set when auth is TrustedHeaders"
// +kubebuilder:validation:XValidation:rule="!has(self.maxInputBytes) || !has(self.maxBodyBytes) || self.maxInputBytes <= self.maxBodyBytes",message="maxInputBytes must be at most maxBodyBytes"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultTier) || has(self.auth) && self.auth == 'None'",message="defaultTier may only be set when auth is None: otherwise the tenant says the tier"
type GatewaySpec struct {
	// replicas is the number of standalone gateways. 0: the gateway runs inside every batcher, which is the
	// quickest way. Otherwise gateways are a Deployment of their own, the pool's Service leads to them once
	// they are ready, and each hands its requests to the batchers. Two survive the loss of one.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=64
	Replicas int32 `json:"replicas"`

	// image is the standalone gateway's image. Unset, the operator's default is written to
	// status.gateway.image once and kept, so that a newer operator restarts no gateway. It must be of the same
	// release as the batchers' image.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// pod adjusts the standalone gateway's pod.
	// +optional
	// +kubebuilder:default={}
	Pod PodSpec `json:"pod,omitzero"`

	// auth is Keys (an InferenceTenant's key), TrustedHeaders (an upstream proxy names tenant and tier) or
	// None (everybody may call; every request is of defaultTier).
	// +optional
	// +kubebuilder:default=Keys
	Auth AuthMode `json:"auth,omitempty"`

	// defaultTier is the tier of every request when auth is None. Unset, it is the lowest tier.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	DefaultTier string `json:"defaultTier,omitempty"`

	// trustedHeaders names who may state a request's tenant and tier, and how.
	// +optional
	TrustedHeaders *TrustedHeadersSpec `json:"trustedHeaders,omitempty"`

	// maxInputBytes is the longest input string, in bytes. A longer one is answered 413.
	// +optional
	// +kubebuilder:default=65536
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777216
	MaxInputBytes int32 `json:"maxInputBytes,omitempty"`

	// maxBodyBytes is the longest request body, in bytes. A longer one is answered 413.
	// +optional
	// +kubebuilder:default=1048576
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=67108864
	MaxBodyBytes int32 `json:"maxBodyBytes,omitempty"`

	// unsupportedParameters says what happens to a parameter that the backend does not take: Warn (the
	// answer carries a Warning header) or Reject (400).
	// +optional
	// +kubebuilder:default=Warn
	UnsupportedParameters ParametersPolicy `json:"unsupportedParameters,omitempty"`

	// sharedLimits bound what all tenants of the pool together may ask for. What there is is divided among
	// them in fair parts: a tenant that asks for less than its part is never refused because another has
	// used up the rest. They gate beside each tenant's own limits.
	// +optional
	SharedLimits *TenantLimits `json:"sharedLimits,omitempty"`

	// tokenEncoding is how the tokens of a prompt are counted for limits. Unset, 4 bytes count as one.
	// +optional
	TokenEncoding TokenEncoding `json:"tokenEncoding,omitempty"`

	// tls serves the pool's Service over TLS on port 443, HTTP/2 and HTTP/1.1. Unset, the Service is plain HTTP on
	// port 80.
	// +optional
	TLS *TLSSpec `json:"tls,omitempty"`
}

// TokenEncoding is how text is divided into tokens.
// +kubebuilder:validation:Enum=o200k_base;cl100k_base;p50k_base;r50k_base
type TokenEncoding string

// TrustedHeadersSpec names who may state a request's tenant and tier, and how.
type TrustedHeadersSpec struct {
	// fromCIDRs are the addresses whose headers are believed. A request from any other address is
	// answered 401, whatever its headers say.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+/[0-9]{1,3}$`
	FromCIDRs []string `json:"fromCIDRs"`

	// tenantHeader is the header that carries the tenant.
	// +optional
	// +kubebuilder:default="Sluice-Tenant"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-]+$`
	TenantHeader string `json:"tenantHeader,omitempty"`

	// tierHeader is the header that carries the tier.
	// +optional
	// +kubebuilder:default="Sluice-Tier"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-]+$`
	TierHeader string `json:"tierHeader,omitempty"`
}
