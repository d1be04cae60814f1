package gateway

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"
)

// Frames of HTTP/2 (RFC 9113), as far as a client needs them that misbehaves.
const (
	h2Data, h2Headers, h2Reset, h2Settings = 0x0, 0x1, 0x3, 0x4
	h2EndStream, h2EndHeaders              = 0x1, 0x4
)

func h2Frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := make([]byte, 9, 9+len(payload))
	b[0], b[1], b[2], b[3], b[4] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags
	binary.BigEndian.PutUint32(b[5:], stream)
	return append(b, payload...)
}

// h2Post is the beginning of a connection with window bytes for each answer, and the headers of a POST on stream 1.
func h2Post(window uint32) []byte {
	setting := binary.BigEndian.AppendUint32([]byte{0, 4}, window) // SETTINGS_INITIAL_WINDOW_SIZE
	literal := func(name byte, value string) []byte { return append([]byte{name, byte(len(value))}, value...) }
	headers := append([]byte{0x83, 0x86}, literal(0x04, "/v1/inference")...) // POST, http, :path
	headers = append(headers, literal(0x01, "x")...)                         // :authority
	out := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), h2Frame(h2Settings, 0, 0, setting)...)
	return append(out, h2Frame(h2Headers, h2EndHeaders, 1, headers)...)
}

// h2Frames reads frames until the connection ends or a frame of the kind comes, for a minute at most, and says which came.
func h2Frames(c net.Conn, until byte) (seen []byte) {
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	head := make([]byte, 9)
	for {
		if _, err := io.ReadFull(c, head); err != nil {
			return seen
		}
		if _, err := io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
			return seen
		}
		seen = append(seen, head[3])
		if head[3] == until {
			return seen
		}
	}
}

// A client that gives no window for its answer, ever, holds the stream for as long as an answer may be written.
func TestClientThatNeverReadsOverHTTP2(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		began := time.Now()
		send(c, string(append(h2Post(0), h2Frame(h2Data, h2EndStream, 1, []byte(hello))...)))
		seen := h2Frames(c, h2Reset)
		if len(seen) == 0 || seen[len(seen)-1] != h2Reset {
			t.Fatalf("frames %v, want a reset at the end", seen)
		}
		for _, kind := range seen {
			if kind == h2Data {
				t.Error("an answer was sent without a window for it")
			}
		}
		if d := time.Since(began); d < r.writeTimeout || d > r.writeTimeout+2*time.Second {
			t.Errorf("reset after %v, want %v", d, r.writeTimeout)
		}
		_ = c.Close()
	})
}

// A client that opens a stream and never finishes its body gets 408, and is counted.
func TestUnfinishedBodyOverHTTP2(t *testing.T) {
	inServer(t, func(t *testing.T, r *rig, l *pipeListener) {
		c := l.dial()
		began := time.Now()
		send(c, string(append(h2Post(1<<16), h2Frame(h2Data, 0, 1, []byte(hello[:5]))...)))
		h2Frames(c, h2Data)
		if d := time.Since(began); d < r.bodyTimeout || d > r.bodyTimeout+2*time.Second {
			t.Errorf("answered after %v, want %v", d, r.bodyTimeout)
		}
		if n := counter(t, r.Gateway, `sluice_requests_total{code="408",reason="body_timeout",tier="enterprise"}`); n != 1 {
			t.Errorf("counted %v times", n)
		}
		_ = c.Close()
	})
}
