package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// The codec of the hot path. A batch is encoded once and its answer decoded once; both go through these
// functions, so that another JSON library is a change in one place.

// AppendBatch appends the JSON of r to buf.
func AppendBatch(buf *bytes.Buffer, r *BatchRequest) error {
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false) // 6 bytes for each < > & of a prompt otherwise
	return enc.Encode(r)
}

// DecodeResponse reads the answer to a batch of n requests.
func DecodeResponse(data []byte, n int) (*BatchResponse, error) {
	r := &BatchResponse{Results: make([]Result, 0, n)}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("batch response: %w", err)
	}
	return r, nil
}

// DecodeBatch reads a batch. It checks the JSON alone; what a batch must hold is the worker's to check.
func DecodeBatch(data []byte) (*BatchRequest, error) {
	r := &BatchRequest{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("the batch is not valid JSON: %w", err)
	}
	return r, nil
}

// AppendResponse appends the JSON of r to buf.
func AppendResponse(buf *bytes.Buffer, r *BatchResponse) error {
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}
