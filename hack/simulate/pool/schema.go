package pool

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// schema is what a CustomResourceDefinition says of its objects.
type schema struct {
	props     *apiextensionsv1.JSONSchemaProps
	validator *jsonschema.Schema
}

func compile(definition []byte) (*schema, error) {
	var d apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(definition, &d); err != nil {
		return nil, err
	}
	props := d.Spec.Versions[0].Schema.OpenAPIV3Schema
	raw, err := json.Marshal(props)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("crd.json", doc); err != nil {
		return nil, err
	}
	v, err := c.Compile("crd.json")
	if err != nil {
		return nil, fmt.Errorf("the schema of %s: %w", d.Name, err)
	}
	return &schema{props, v}, nil
}

// read defaults, checks and decodes one document.
func (s *schema) read(doc []byte, into any) error {
	var obj any
	if err := yaml.Unmarshal(doc, &obj); err != nil {
		return err
	}
	if err := setDefaults(obj, s.props); err != nil {
		return err
	}
	if err := s.validator.Validate(obj); err != nil {
		return err
	}
	whole, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	// Strict: the API server would prune a misspelt field, and the simulation be of another pool.
	return yaml.UnmarshalStrict(whole, into)
}

// setDefaults fills x in place with the defaults of its structural schema, as an API server does: a property that
// is absent or null gets its default, from the outside in, so that a default {} is filled in turn.
func setDefaults(x any, s *apiextensionsv1.JSONSchemaProps) error {
	if s == nil {
		return nil
	}
	switch x := x.(type) {
	case map[string]any:
		for name, prop := range s.Properties {
			if x[name] == nil && prop.Default != nil {
				var v any
				if err := json.Unmarshal(prop.Default.Raw, &v); err != nil {
					return fmt.Errorf("the default of %s: %w", name, err)
				}
				x[name] = v
			}
			if err := setDefaults(x[name], &prop); err != nil {
				return err
			}
		}
	case []any:
		if s.Items == nil {
			return nil
		}
		for _, v := range x {
			if err := setDefaults(v, s.Items.Schema); err != nil {
				return err
			}
		}
	}
	return nil
}
