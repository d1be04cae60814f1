package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"sluice.dev/sluice/internal/wire"
)

// codec is one API: how a body is read and how answers look.
type codec interface {
	// name is the value of the label api in metrics and logs.
	name() string
	// inputField names the field of the body that holds the input, for messages.
	inputField() string
	// decode reads a body. It must not look at anything but the body.
	decode(body []byte) (call, *refusal)
	// answer writes a result; headers are set already.
	answer(x *exchange, latencyMs float64)
	// refuse writes a refusal; headers are set already.
	refuse(x *exchange, r *refusal)
}

// native is POST /v1/inference.
type native struct{}

func (native) name() string       { return "native" }
func (native) inputField() string { return "input" }

// nativeRequest is the body of POST /v1/inference. A field that is not here is refused by name: a misspelt
// max_tokens must not be ignored.
type nativeRequest struct {
	Model      string           `json:"model"`
	Input      *string          `json:"input"`
	Parameters *wire.Parameters `json:"parameters"`
}

// nativeResponse is the answer to POST /v1/inference.
type nativeResponse struct {
	RequestID string         `json:"request_id"`
	Output    string         `json:"output"`
	Metadata  nativeMetadata `json:"metadata"`
}

// nativeMetadata says what the request cost: milliseconds from its arrival to its answer, tokens of prompt
// and completion together, milliseconds in the queue.
type nativeMetadata struct {
	LatencyMs   float64 `json:"latency_ms"`
	TokensUsed  int     `json:"tokens_used"`
	QueueWaitMs float64 `json:"queue_wait_ms"`
	// Degraded is how the request was degraded, in the form of the Sluice-Degraded header.
	Degraded []string `json:"degraded,omitempty"`
}

func (native) decode(body []byte) (call, *refusal) {
	var q nativeRequest
	if r := decodeStrict(body, &q); r != nil {
		return call{}, r
	}
	c := call{model: q.Model}
	if q.Input == nil {
		return call{}, &refusal{reason: ReasonInvalidRequest, param: "input", detail: "input is missing: a string"}
	}
	c.input = *q.Input
	if q.Parameters != nil {
		if q.Parameters.Switch != nil { // the pool sets it, no client
			return call{}, &refusal{reason: ReasonUnknownField, param: "switch", detail: "the field switch is not known"}
		}
		c.params = *q.Parameters
	}
	return c, nil
}

func (native) answer(x *exchange, latencyMs float64) {
	u := x.result.Usage
	writeJSON(x.w, http.StatusOK, "application/json", nativeResponse{
		RequestID: x.id, Output: x.result.Output,
		Metadata: nativeMetadata{LatencyMs: latencyMs, TokensUsed: u.PromptTokens + u.CompletionTokens, QueueWaitMs: ms(x.result.QueueWait), Degraded: x.degradedList()},
	})
}

func (native) refuse(x *exchange, r *refusal) { writeProblem(x.w, x.id, r) }

// decodeStrict reads exactly one JSON object without unknown fields. Almost every body is right and is read
// by the fast codec (0.5 us; encoding/json took 2.5 us and half of the pipeline's allocations); encoding/json
// says what is wrong with the others.
func decodeStrict[T any](body []byte, v *T) *refusal {
	if utf8.Valid(body) && wire.DecodeStrict(body, v) {
		return nil
	}
	*v = *new(T)
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	return decodeWith(dec, body, v)
}

// decodeLenient reads exactly one JSON object and ignores fields that it does not know.
func decodeLenient(body []byte, v any) *refusal {
	return decodeWith(json.NewDecoder(bytes.NewReader(body)), body, v)
}

func decodeWith(dec *json.Decoder, body []byte, v any) *refusal {
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) == 0 {
		return refuse(ReasonInvalidJSON, "the body is empty")
	} else if trimmed[0] != '{' {
		return refuse(ReasonInvalidJSON, "the body must be a JSON object")
	}
	if !utf8.Valid(body) {
		// encoding/json would put replacement characters into the input: a wrong answer to a question
		// that nobody asked.
		return refuse(ReasonInvalidJSON, "the body is not valid UTF-8")
	}
	if err := dec.Decode(v); err != nil {
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.As(err, &typ):
			return &refusal{reason: ReasonInvalidRequest, param: typ.Field, detail: typ.Field + " must be of type " + jsonType(typ.Type.String()) + ", not " + typ.Value}
		case errors.As(err, &syntax):
			return refuse(ReasonInvalidJSON, "at byte %d: %s", syntax.Offset, syntax.Error())
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
			return refuse(ReasonInvalidJSON, "the JSON ends too early")
		}
		if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			field = strings.Trim(field, `"`)
			return &refusal{reason: ReasonUnknownField, param: field, detail: "the field " + field + " is not known"}
		}
		return refuse(ReasonInvalidRequest, "%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return refuse(ReasonInvalidJSON, "there is more after the JSON object")
	}
	return nil
}

// jsonType is a Go type in the words of JSON.
func jsonType(goType string) string {
	switch goType {
	case "string":
		return "string"
	case "int", "int64":
		return "integer"
	case "float64":
		return "number"
	case "bool":
		return "boolean"
	}
	return "object"
}
