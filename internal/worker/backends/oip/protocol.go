package oip

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"sluice.dev/sluice/internal/telemetry"
	"sluice.dev/sluice/internal/worker"
)

// Names of the protocol.
const (
	datatypeBytes = "BYTES"
	// answerLimit bounds what is read of an answer: 1,000 outputs of 256 KiB.
	answerLimit = 256 << 20
	// errorLimit bounds what is kept of a message of the server, in bytes.
	errorLimit = 2000
)

type tensor struct {
	Name     string          `json:"name"`
	Shape    []int           `json:"shape,omitempty"`
	Datatype string          `json:"datatype,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
}

type inputTensor struct {
	Name     string   `json:"name"`
	Shape    []int    `json:"shape"`
	Datatype string   `json:"datatype"`
	Data     []string `json:"data"`
}

type outputName struct {
	Name string `json:"name"`
}

type inferRequest struct {
	ID         string         `json:"id,omitempty"`
	Parameters map[string]any `json:"parameters,omitempty"`
	Inputs     []inputTensor  `json:"inputs"`
	Outputs    []outputName   `json:"outputs"`
}

type inferResponse struct {
	ID      string   `json:"id"`
	Outputs []tensor `json:"outputs"`
}

// infer sends one batch. An error that is no *worker.Error means that no whole answer came.
func (i *instance) infer(ctx context.Context, b worker.Batch) (worker.Output, error) {
	n := len(b.Inputs)
	req := inferRequest{
		ID:      b.ID,
		Inputs:  []inputTensor{{Name: i.config.Input, Shape: []int{n}, Datatype: datatypeBytes, Data: b.Inputs}},
		Outputs: []outputName{{Name: i.config.Output}},
	}
	if i.columns {
		req.Inputs[0].Shape = []int{n, 1}
	}
	if !b.Params.IsZero() {
		req.Parameters = b.Params.Map()
	}
	body, err := json.Marshal(req)
	if err != nil {
		return worker.Output{}, worker.Backendf("the batch could not be encoded: %v", err)
	}
	call, err := http.NewRequestWithContext(ctx, http.MethodPost, i.config.URL+i.modelPath()+"/infer", bytes.NewReader(body))
	if err != nil {
		return worker.Output{}, worker.Backendf("%v", err)
	}
	call.Header.Set("Content-Type", "application/json")
	telemetry.Inject(ctx, call.Header)
	status, answer, err := i.do(call)
	if err != nil {
		return worker.Output{}, err
	}
	if status/100 != 2 {
		return worker.Output{}, failure(status, answer)
	}
	outputs, err := decodeOutputs(answer, i.config.Output, n)
	if err != nil {
		return worker.Output{}, worker.Backendf("%v", err)
	}
	return worker.Output{Outputs: outputs}, nil
}

// failure sorts the server's error answers. The model refused or raised: 4xx and 500, by which Triton, KServe
// and MLServer report an exception of the model. The server itself is in trouble: every other 5xx.
func failure(status int, answer []byte) *worker.Error {
	var e struct {
		Error string `json:"error"`
	}
	message := string(answer[:min(len(answer), errorLimit)])
	if json.Unmarshal(answer, &e) == nil && e.Error != "" {
		message = e.Error[:min(len(e.Error), errorLimit)]
	}
	if status < 500 || status == http.StatusInternalServerError {
		return worker.Applicationf("the model server answers %d: %s", status, message)
	}
	return worker.Backendf("the model server answers %d: %s", status, message)
}

// decodeOutputs takes the n strings of the tensor called name from an answer. Its data may be flat or nested
// as its shape is (the protocol allows both).
func decodeOutputs(answer []byte, name string, n int) ([]string, error) {
	var resp inferResponse
	if err := json.Unmarshal(answer, &resp); err != nil {
		return nil, fmt.Errorf("the model server's answer is not valid JSON: %w", err)
	}
	for _, t := range resp.Outputs {
		if t.Name != name {
			continue
		}
		if t.Datatype != datatypeBytes {
			return nil, fmt.Errorf("output %q has datatype %s, want %s", name, t.Datatype, datatypeBytes)
		}
		elements := 1
		for _, d := range t.Shape {
			elements *= d
		}
		if len(t.Shape) == 0 || t.Shape[0] != n || elements != n {
			return nil, fmt.Errorf("output %q has shape %v for %d inputs", name, t.Shape, n)
		}
		var data any
		if err := json.Unmarshal(t.Data, &data); err != nil {
			return nil, fmt.Errorf("output %q has no data: %w", name, err)
		}
		outputs, err := flatten(make([]string, 0, n), data)
		if err != nil {
			return nil, fmt.Errorf("output %q: %w", name, err)
		}
		if len(outputs) != n {
			return nil, fmt.Errorf("output %q has %d strings for %d inputs", name, len(outputs), n)
		}
		return outputs, nil
	}
	return nil, fmt.Errorf("the model server's answer has no output %q", name)
}

func flatten(to []string, data any) ([]string, error) {
	switch v := data.(type) {
	case string:
		return append(to, v), nil
	case []any:
		for _, e := range v {
			var err error
			if to, err = flatten(to, e); err != nil {
				return nil, err
			}
		}
		return to, nil
	}
	return nil, fmt.Errorf("element %d is %T, want a string", len(to), data)
}

// inputRank says whether the model wants its strings as [n, 1] (models of Triton with a max_batch_size do)
// and not as [n]. A server without model metadata, which the protocol allows, gets [n].
func (b *backend) inputRank(ctx context.Context) (columns bool, err error) {
	status, body, err := b.get(ctx, b.modelPath())
	if err != nil {
		return false, err
	}
	if status/100 != 2 {
		return false, nil
	}
	var meta struct {
		Inputs []tensor `json:"inputs"`
	}
	if err := json.Unmarshal(body, &meta); err != nil {
		return false, fmt.Errorf("metadata of model %q: %w", b.config.Model, err)
	}
	if len(meta.Inputs) == 0 {
		return false, nil // MLServer without declared inputs
	}
	for _, t := range meta.Inputs {
		if t.Name != b.config.Input {
			continue
		}
		if t.Datatype != datatypeBytes || len(t.Shape) < 1 || len(t.Shape) > 2 {
			return false, fmt.Errorf("input %q of model %q is %s%v, want BYTES of one or two dimensions", t.Name, b.config.Model, t.Datatype, t.Shape)
		}
		return len(t.Shape) == 2, nil
	}
	return false, fmt.Errorf("model %q has no input %q", b.config.Model, b.config.Input)
}

func (b *backend) get(ctx context.Context, path string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.config.URL+path, nil)
	if err != nil {
		return 0, nil, err
	}
	return b.do(req)
}

func (b *backend) do(req *http.Request) (int, []byte, error) {
	resp, err := b.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit+1))
	if err == nil && len(body) > answerLimit {
		err = fmt.Errorf("the answer is larger than %d bytes", answerLimit)
	}
	return resp.StatusCode, body, err
}
