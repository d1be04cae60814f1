package python

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// frameLimit bounds a frame in both directions: 1,000 outputs of 256 KiB.
const frameLimit = 256 << 20

// request asks the runner for one batch.
type request struct {
	ID         uint64   `json:"id"`
	Inputs     []string `json:"inputs"`
	Parameters any      `json:"parameters,omitempty"`
}

// reply is what the runner says: first a hello (Version, and Python or Fatal), then an answer to each request
// with its ID and one of Outputs, Error (the function raised) or Contract (what came back is unusable).
type reply struct {
	Version    int        `json:"version,omitempty"`
	Python     string     `json:"python,omitempty"`
	Parameters bool       `json:"parameters,omitempty"`
	Fatal      *exception `json:"fatal,omitempty"`

	ID       uint64     `json:"id,omitempty"`
	Outputs  []string   `json:"outputs,omitempty"`
	Error    *exception `json:"error,omitempty"`
	Contract string     `json:"contract,omitempty"`
}

// exception is a Python exception.
type exception struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

func (e *exception) String() string {
	if e.Message == "" {
		return e.Type
	}
	return e.Type + ": " + e.Message
}

// writeFrame writes v in one frame: 4 bytes of length, big endian, then JSON.
func writeFrame(w io.Writer, v any) error {
	var buf bytes.Buffer
	buf.Write(make([]byte, 4))
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	n := buf.Len() - 4
	if n > frameLimit {
		return fmt.Errorf("a frame of %d bytes, the limit is %d", n, frameLimit)
	}
	binary.BigEndian.PutUint32(buf.Bytes(), uint32(n))
	_, err := w.Write(buf.Bytes())
	return err
}

// readFrame reads one frame. Memory is taken as bytes arrive, never by what a length claims.
func readFrame(r io.Reader) (reply, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return reply{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > frameLimit {
		return reply{}, fmt.Errorf("a frame of %d bytes, the limit is %d", n, frameLimit)
	}
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		return reply{}, fmt.Errorf("frame cut short: %w", err)
	}
	var m reply
	if err := json.Unmarshal(body.Bytes(), &m); err != nil {
		return reply{}, fmt.Errorf("frame: %w", err)
	}
	return m, nil
}
