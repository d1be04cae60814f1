package relay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"reflect"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/wire"
)

// What one side sends the other reads, frame by frame, whatever the sizes.
func TestFramesArrive(t *testing.T) {
	near, far := net.Pipe()
	out, in := newConn(near, nil), newConn(far, bufio.NewReader(far))
	go out.write()
	want := []string{"", "x", strings.Repeat("y", 3<<20), "é\"\\\n"}
	for i, s := range want {
		if _, ok := out.send(kindSubmit, uint64(i), wire.Submission{RequestID: "r", Input: s}); !ok {
			t.Fatal("not sent")
		}
	}
	out.finish()
	if _, ok := out.send(kindCancel, 9, nil); ok {
		t.Error("sent on a connection that is closing")
	}
	var got []string
	err := in.read(func(k kind, id uint64, body []byte) error {
		var q wire.Submission
		if err := wire.Decode(body, &q); err != nil || k != kindSubmit || id != uint64(len(got)) {
			t.Errorf("kind %d, id %d: %v", k, id, err)
		}
		got = append(got, q.Input)
		return nil
	})
	if err == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d frames, then %v", len(got), err)
	}
}

// A header that promises more than comes costs no memory, and one that promises too much ends the connection.
func FuzzFrames(f *testing.F) {
	frame := func(n uint32, body string) []byte {
		b := binary.BigEndian.AppendUint32(nil, n)
		b = append(b, byte(kindSubmit))
		return append(binary.BigEndian.AppendUint64(b, 7), body...)
	}
	f.Add(frame(2, "{}"))
	f.Add(frame(99<<20, "short"))
	f.Add(frame(1<<31, ""))
	f.Add(append(frame(30, `{"request_id":"a","remaining_us":-1}`), frame(0, "")...))
	f.Fuzz(func(t *testing.T, data []byte) {
		read := 0
		c := newConn(nil, bufio.NewReader(bytes.NewReader(data)))
		err := c.read(func(_ kind, _ uint64, body []byte) error {
			read += headerBytes + len(body)
			if cap(body) > 2<<20 && len(data) < 1<<20 {
				t.Errorf("%d bytes of memory for %d received", cap(body), len(data))
			}
			var q wire.Submission
			var a wire.SubmissionAnswer
			_, _ = wire.Decode(body, &q), wire.Decode(body, &a)
			return nil
		})
		if err == nil || read > len(data) {
			t.Errorf("%d of %d bytes, %v", read, len(data), err)
		}
	})
}
