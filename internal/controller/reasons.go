package controller

// Condition types of an InferencePool.
const (
	ConditionReady             = "Ready"
	ConditionWorkersReady      = "WorkersReady"
	ConditionBatchersReady     = "BatchersReady"
	ConditionGatewaysReady     = "GatewaysReady"
	ConditionCapacityAvailable = "CapacityAvailable"
	ConditionMetricsAvailable  = "MetricsAvailable"
	ConditionScaling           = "Scaling"
	ConditionFillSufficient    = "FillSufficient"
	ConditionRolloutSafe       = "RolloutSafe"
	ConditionNamesAvailable    = "NamesAvailable"
	ConditionColdStart         = "ColdStartInBudget"
	// ConditionCertificateCurrent is only of a pool with TLS.
	ConditionCertificateCurrent = "CertificateCurrent"
	// ConditionReroutesUsable is only of a pool whose ladders name other pools.
	ConditionReroutesUsable = "ReroutesUsable"
)

// ConditionAccepted is the condition type of an InferenceTenant.
const ConditionAccepted = "Accepted"

// Reasons of conditions. Those of Scaling, CapacityAvailable and FillSufficient come from package scaling,
// and troubles of pods (ErrImagePull, CrashLoopBackOff, ...) in the kubelet's words.
const (
	ReasonServing        = "Serving"
	ReasonNotServing     = "NotServing"
	ReasonAllReady       = "AllReady"
	ReasonNotObserved    = "NotObserved" // the children were applied and not seen yet
	ReasonStarting       = "Starting"
	ReasonReporting      = "Reporting"
	ReasonReportsMissing = "ReportsMissing"
	ReasonReportsPartial = "ReportsPartial"
	ReasonNamesFree      = "NamesFree"
	ReasonNameTaken      = "NameTaken"
	ReasonUnschedulable  = "Unschedulable"
	ReasonGPULost        = "GPULost"
	ReasonTierFound      = "TierFound"
	ReasonTierUnknown    = "TierUnknown"
	ReasonNoPool         = "NoPool"
	ReasonKeyDuplicate   = "KeyDuplicate"
	ReasonApplyFailed    = "ApplyFailed"

	ReasonCertificateServed   = "CertificateServed"
	ReasonCertificateMissing  = "CertificateMissing"
	ReasonCertificateInvalid  = "CertificateInvalid"
	ReasonCertificateExpired  = "CertificateExpired"
	ReasonCertificateEndsSoon = "CertificateEndsSoon"

	ReasonReroutesFit       = "ReroutesFit"
	ReasonRerouteNoPool     = "ReroutePoolMissing"
	ReasonRerouteWrongModel = "RerouteWrongModel"
	ReasonRerouteNeedsTLS   = "RerouteNeedsTLS"
	ReasonRerouteNoTLS      = "RerouteWithoutTLS"
	ReasonRerouteCAMissing  = "RerouteCAMissing"
	ReasonRerouteCAInvalid  = "RerouteCAInvalid"
	ReasonRerouteFailing    = "RerouteFailing"

	ReasonNotMeasured  = "NotMeasured"
	ReasonWithinBudget = "WithinBudget"
	ReasonOverBudget   = "OverBudget"

	ReasonHeadroom        = "Headroom"
	ReasonTooFull         = "TooFull"
	reasonUnexpectedAdmit = "UnexpectedAdmissionError" // the kubelet's word for a device that is not there
)

// Reasons of events.
const (
	EventScaledUp     = "ScaledUp"
	EventScaledDown   = "ScaledDown"
	EventZoneChanged  = "ZoneChanged"
	EventWrongWorker  = "WrongWorkerLeft"
	EventNameTaken    = "NameTaken"
	EventReady        = "Ready"
	EventNotReady     = "NotReady"
	EventNoCapacity   = "CapacityMissing"
	EventRolloutShort = "RolloutOverload"
	EventCertificate  = "CertificateProblem"
	EventPoisoned     = "PoisonedInput"
	EventReplaced     = "WorkerReplaced"
	EventReroute      = "RerouteProblem"
)

// actionReconcile is the action of every event: what the operator was doing.
const actionReconcile = "Reconcile"
