package oip

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// modelServer is a server of the Open Inference Protocol v2 over HTTP, written from the public specification
// (required and optional parts of "HTTP/REST"), for one model that turns text into upper case. It is strict:
// whatever the specification requires of a request and is not there is answered 400.
type modelServer struct {
	model       string
	inputShape  []int // in the metadata; -1 is variable
	noMetadata  bool
	nested      bool // answers with nested data, as the specification allows
	mu          sync.Mutex
	serverReady bool
	modelReady  bool
	calls       int
	parameters  map[string]any // of the last request
	// instead, if set, answers an infer call in place of the model.
	instead func(w http.ResponseWriter, r *http.Request, inputs []string)
}

type specTensor struct {
	Name       string         `json:"name"`
	Shape      []int          `json:"shape"`
	Datatype   string         `json:"datatype"`
	Parameters map[string]any `json:"parameters,omitempty"`
	Data       any            `json:"data,omitempty"`
}

type specRequest struct {
	ID         string         `json:"id"`
	Parameters map[string]any `json:"parameters"`
	Inputs     []specTensor   `json:"inputs"`
	Outputs    []specTensor   `json:"outputs"`
}

func newModelServer() *modelServer {
	return &modelServer{model: "upper", inputShape: []int{-1}, serverReady: true, modelReady: true}
}

func (m *modelServer) set(server, model bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serverReady, m.modelReady = server, model
}

func (m *modelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	serverReady, modelReady := m.serverReady, m.modelReady
	m.mu.Unlock()
	base := "/v2/models/" + m.model
	switch r.Method + " " + r.URL.Path {
	case "GET /v2/health/live":
	case "GET /v2/health/ready":
		status(w, serverReady)
	case "GET " + base + "/ready":
		status(w, modelReady)
	case "GET " + base:
		if m.noMetadata {
			fail(w, http.StatusNotFound, "no metadata extension")
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": m.model, "versions": []string{"1"}, "platform": "test",
			"inputs":  []specTensor{{Name: DefaultInput, Datatype: "BYTES", Shape: m.inputShape}},
			"outputs": []specTensor{{Name: DefaultOutput, Datatype: "BYTES", Shape: m.inputShape}},
		})
	case "POST " + base + "/infer":
		m.infer(w, r)
	default:
		fail(w, http.StatusNotFound, "no such endpoint: "+r.URL.Path)
	}
}

func (m *modelServer) infer(w http.ResponseWriter, r *http.Request) {
	var req specRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	inputs, err := m.checked(req)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	m.mu.Lock()
	m.calls++
	m.parameters = req.Parameters
	m.mu.Unlock()
	if m.instead != nil {
		m.instead(w, r, inputs)
		return
	}
	outputs := make([]any, len(inputs))
	for i, in := range inputs {
		outputs[i] = strings.ToUpper(in)
		if m.nested {
			outputs[i] = []string{strings.ToUpper(in)}
		}
	}
	answerTensor(w, req.ID, specTensor{Name: req.Outputs[0].Name, Datatype: "BYTES", Shape: req.Inputs[0].Shape, Data: outputs})
}

func (m *modelServer) checked(req specRequest) ([]string, error) {
	if len(req.Inputs) != 1 || req.Inputs[0].Name != DefaultInput || req.Inputs[0].Datatype != "BYTES" {
		return nil, fmt.Errorf("want one BYTES input %s, got %+v", DefaultInput, req.Inputs)
	}
	if len(req.Outputs) != 1 || req.Outputs[0].Name != DefaultOutput {
		return nil, fmt.Errorf("unexpected outputs %+v", req.Outputs)
	}
	t := req.Inputs[0]
	if len(t.Shape) != len(m.inputShape) {
		return nil, fmt.Errorf("shape %v, the model wants %v", t.Shape, m.inputShape)
	}
	elements := 1
	for i, d := range t.Shape {
		if want := m.inputShape[i]; want >= 0 && d != want {
			return nil, fmt.Errorf("shape %v, the model wants %v", t.Shape, m.inputShape)
		}
		elements *= d
	}
	data, ok := t.Data.([]any)
	if !ok || len(data) != elements {
		return nil, fmt.Errorf("%d elements of data for shape %v", len(data), t.Shape)
	}
	inputs := make([]string, len(data))
	for i, d := range data {
		if inputs[i], ok = d.(string); !ok {
			return nil, fmt.Errorf("element %d is %T", i, d)
		}
	}
	return inputs, nil
}

func answerTensor(w http.ResponseWriter, id string, t specTensor) {
	_ = json.NewEncoder(w).Encode(map[string]any{"model_name": "upper", "model_version": "1", "id": id, "outputs": []specTensor{
		{Name: "scores", Datatype: "FP32", Shape: []int{1}, Data: []float64{0.5}}, t,
	}})
}

func status(w http.ResponseWriter, ok bool) {
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func fail(w http.ResponseWriter, code int, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": message})
}
