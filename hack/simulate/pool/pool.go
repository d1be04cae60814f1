// Package pool reads the InferencePool and InferenceTenants that a simulation is of, as an API server would
// take them: the schemas of the CustomResourceDefinitions give the defaults and refuse what they refuse. The
// rules between fields (CEL) are left to the API server: `kubectl apply --dry-run=server` asks it.
package pool

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/config/crd"
)

// Set is a pool and the tenants that call it.
type Set struct {
	Pool    *v1alpha1.InferencePool
	Tenants []*v1alpha1.InferenceTenant
}

// Read reads a file of YAML documents with exactly one InferencePool in it and any number of
// InferenceTenants; documents of other kinds are skipped.
func Read(path string) (Set, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Set{}, err
	}
	s, err := Parse(raw)
	if err != nil {
		return Set{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Parse is Read of the file's content.
func Parse(raw []byte) (Set, error) {
	var s Set
	pools, err := compile(crd.InferencePools)
	if err != nil {
		return s, err
	}
	tenants, err := compile(crd.InferenceTenants)
	if err != nil {
		return s, err
	}
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s, err
		}
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal(doc, &head); err != nil {
			return s, err
		}
		if head.APIVersion != v1alpha1.GroupVersion.String() {
			continue
		}
		switch head.Kind {
		case "InferencePool":
			if s.Pool != nil {
				return s, errors.New("there is more than one InferencePool: simulate one at a time")
			}
			s.Pool = &v1alpha1.InferencePool{}
			err = pools.read(doc, s.Pool)
		case "InferenceTenant":
			t := &v1alpha1.InferenceTenant{}
			err = tenants.read(doc, t)
			s.Tenants = append(s.Tenants, t)
		}
		if err != nil {
			return s, err
		}
	}
	if s.Pool == nil {
		return s, errors.New("there is no InferencePool")
	}
	return s, nil
}
