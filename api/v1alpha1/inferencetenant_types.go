package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InferenceTenant is who may call the pools of its namespace: the hashes of its keys, its tier and its
// limits. A key itself is never stored.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=inferencetenants,singular=inferencetenant,shortName=slt,categories=sluice
// +kubebuilder:printcolumn:name="Tier",type=string,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Requests/min",type=integer,JSONPath=`.spec.limits.requestsPerMinute`
// +kubebuilder:printcolumn:name="Tokens/min",type=integer,JSONPath=`.spec.limits.tokensPerMinute`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name must have at most 63 characters: it is a label value in metrics and logs"
type InferenceTenant struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is who the tenant is and what it may do.
	// +required
	Spec InferenceTenantSpec `json:"spec"`
	// status is what the operator found.
	// +optional
	Status InferenceTenantStatus `json:"status,omitzero"`
}

// InferenceTenantList is a list of InferenceTenants.
//
// +kubebuilder:object:root=true
type InferenceTenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceTenant `json:"items"`
}

// InferenceTenantSpec is who a tenant is and what it may do.
type InferenceTenantSpec struct {
	// tier is the name of a tier of the pools that the tenant calls. A pool without a tier of this name
	// answers the tenant 403.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Tier string `json:"tier"`

	// keys are the SHA-256 hashes of the tenant's keys. A key must be long and random (32 bytes): the hash
	// has no salt. Removing a hash revokes the key within a second.
	// +optional
	// +listType=map
	// +listMapKey=sha256
	// +kubebuilder:validation:MaxItems=16
	Keys []TenantKey `json:"keys,omitempty"`

	// limits bound what the tenant may ask for, all pools of the namespace each on its own.
	// +optional
	Limits TenantLimits `json:"limits,omitzero"`
}

// TenantKey is the hash of a key.
type TenantKey struct {
	// sha256 is the hexadecimal SHA-256 of the key: printf %s "$KEY" | sha256sum
	// +required
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256"`

	// notAfter is when the key stops working.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
}

// TenantLimits bound what a tenant, or several together, may ask for. Unset is unlimited.
type TenantLimits struct {
	// requestsPerMinute bounds the requests. The bucket holds one minute's worth.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000000
	RequestsPerMinute *int64 `json:"requestsPerMinute,omitempty"`

	// tokensPerMinute bounds prompt tokens + max_tokens. The bucket holds one minute's worth; a request that
	// costs more than that is answered 413.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000000000
	TokensPerMinute *int64 `json:"tokensPerMinute,omitempty"`
}

// InferenceTenantStatus is what the operator found.
type InferenceTenantStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the tenant: Accepted (its tier exists in a pool of the namespace and no other tenant
	// has one of its keys).
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
