// Package crd carries the CustomResourceDefinitions into programs that need their schema and defaults
// without a cluster.
package crd

import _ "embed"

// InferencePools is the definition of InferencePool, as YAML.
//
//go:embed bases/inference.sluice.dev_inferencepools.yaml
var InferencePools []byte

// InferenceTenants is the definition of InferenceTenant, as YAML.
//
//go:embed bases/inference.sluice.dev_inferencetenants.yaml
var InferenceTenants []byte
