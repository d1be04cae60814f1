package python

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func TestFramesFollowOneAnother(t *testing.T) {
	r := bytes.NewReader(append(frame(`{"id":1,"outputs":["a"]}`), frame(`{"id":2,"contract":"no"}`)...))
	one, err1 := readFrame(r)
	two, err2 := readFrame(r)
	if err1 != nil || err2 != nil || one.ID != 1 || one.Outputs[0] != "a" || two.ID != 2 || two.Contract != "no" {
		t.Errorf("got %+v, %v and %+v, %v", one, err1, two, err2)
	}
	if _, err := readFrame(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want EOF", err)
	}
}

func TestBrokenFrames(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"cut in its length": {"\x00\x00", "EOF"},
		"cut in its body":   {"\x00\x00\x00\x05{}", "cut short"},
		"no JSON":           {"\x00\x00\x00\x02{[", "frame"},
		"too long":          {"\xff\xff\xff\xff", "limit"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readFrame(strings.NewReader(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A length is only a claim.
func TestClaimedLengthTakesNoMemory(t *testing.T) {
	data := append(binary.BigEndian.AppendUint32(nil, frameLimit), "{}"...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readFrame(bytes.NewReader(data)); err == nil {
		t.Error("a frame cut short was read")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes allocated for a frame of 2 bytes", n)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(frame(`{"version":1,"python":"3.8.0","parameters":true}`))
	f.Add(frame(`{"id":1,"error":{"type":"ValueError","message":"\ud800"}}`))
	f.Add([]byte("\x7f\xff\xff\xff{"))
	f.Add(frame(`{"id":18446744073709551616}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := writeFrame(&out, m); err != nil {
			t.Fatal(err)
		}
		again, err := readFrame(&out)
		if err != nil || again.ID != m.ID || len(again.Outputs) != len(m.Outputs) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}
