package wire

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func ptr[T any](v T) *T { return &v }

// What one side writes with the fast codec, encoding/json reads as the same value, and the other way round.
func TestCodecAgreesWithEncodingJSON(t *testing.T) {
	odd := "\"\\/\b\f\n\r\t\u0000\u001f<&>\u2028é漢🙂 plain"
	req := BatchRequest{BatchID: "b-1", Parameters: &Parameters{Temperature: ptr(0.1)}, Requests: []Item{
		{RequestID: "r-1", Input: odd, Parameters: &Parameters{MaxTokens: ptr(7), Temperature: ptr(1e-9)}}, {RequestID: "r-2"},
	}}
	var buf bytes.Buffer
	if err := AppendBatch(&buf, &req); err != nil {
		t.Fatal(err)
	}
	var std BatchRequest
	if err := json.Unmarshal(buf.Bytes(), &std); err != nil || !reflect.DeepEqual(std, req) {
		t.Errorf("encoding/json reads %+v (%v) from %s", std, err, buf.Bytes())
	}
	doc, _ := json.Marshal(req)
	if got, err := DecodeBatch(doc); err != nil || !reflect.DeepEqual(*got, req) {
		t.Errorf("DecodeBatch reads %+v (%v) from %s", got, err, doc)
	}

	resp := BatchResponse{BatchID: "b-1", ServiceMs: 100.125, Results: []Result{
		{RequestID: "r-1", Output: odd, Status: StatusOK, Usage: &Usage{PromptTokens: 3, CompletionTokens: 4, Estimated: true}},
		{RequestID: "r-2", Status: StatusError, Error: "no"},
	}}
	buf.Reset()
	if err := AppendResponse(&buf, &resp); err != nil {
		t.Fatal(err)
	}
	var stdResp BatchResponse
	if err := json.Unmarshal(buf.Bytes(), &stdResp); err != nil || !reflect.DeepEqual(stdResp, resp) {
		t.Errorf("encoding/json reads %+v (%v) from %s", stdResp, err, buf.Bytes())
	}
	doc, _ = json.Marshal(resp)
	if got, err := DecodeResponse(doc, 2); err != nil || !reflect.DeepEqual(*got, resp) {
		t.Errorf("DecodeResponse reads %+v (%v) from %s", got, err, doc)
	}
}

func TestDecodeResponseRefusesWhatIsNoAnswer(t *testing.T) {
	for _, bad := range []string{"", "null x", "{", `{"batch_id":1}`, `{"results":[{"output":[]}]}`, `{"batch_id":"b"} {}`, "<html>", strings.Repeat("[", 1000)} {
		if r, err := DecodeResponse([]byte(bad), 1); err == nil {
			t.Errorf("%q was read as %+v", bad, r)
		}
	}
}

type strict struct {
	Model      string      `json:"model"`
	Input      *string     `json:"input"`
	Parameters *Parameters `json:"parameters"`
}

// FuzzDecodeStrict: whatever DecodeStrict accepts, encoding/json accepts too and reads as the same value. (It
// may refuse more: then encoding/json is asked.)
func FuzzDecodeStrict(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","input":"i"}`, ` {"input" : "\u00e9\ud83d\ude42\n" , "parameters":{"max_tokens":7,"temperature":1e-3}} `,
		`{"Model":"m","INPUT":"i"}`, `{"model":"a","model":"b"}`, `{"input":null}`, `{"parameters":{"max_tokens":1.0}}`, `{"parameters":{"max_tokens":01}}`,
		`{"parameters":{"temperature":-0}}`, `{"input":"\ud800"}`, "{\"input\":\"a\x00b\"}", "{\"input\":\"\xff\"}", `{"x":1}`, `{} {}`, `null`, `{"model":"m",}`,
		`{"parameters":{"max_tokens":9223372036854775808}}`, `{"parameters":{"temperature":1e999}}`, `{"parameters":{"max_tokens":null}}`, `{"":""}`,
		`{"input":"a"}{"input":"b"}`, `{"parameters":null,"parameters":{"max_tokens":1},"parameters":{"temperature":1}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var fast strict
		if !DecodeStrict(data, &fast) {
			return
		}
		var slow strict
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&slow); err != nil {
			t.Fatalf("%q: accepted, encoding/json says %v", data, err)
		}
		if !reflect.DeepEqual(fast, slow) {
			t.Fatalf("%q: read as %+v, encoding/json reads %+v", data, fast, slow)
		}
	})
}

// FuzzDecodeResponse: a worker's bytes are read as encoding/json reads them, or refused.
func FuzzDecodeResponse(f *testing.F) {
	f.Add([]byte(`{"batch_id":"b","results":[{"request_id":"r","output":"o","status":"ok","usage":{"prompt_tokens":1,"completion_tokens":2,"estimated":true}}],"service_ms":100.5}`))
	f.Add([]byte(`{"results":[{},{"error":"\u0000"}],"unknown":[{"a":[1,2,{}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		fast, err := DecodeResponse(data, 1)
		if err != nil || !json.Valid(data) {
			return
		}
		slow := BatchResponse{Results: []Result{}}
		if err := json.Unmarshal(data, &slow); err != nil {
			t.Fatalf("%q: accepted, encoding/json says %v", data, err)
		}
		if !reflect.DeepEqual(*fast, slow) {
			t.Fatalf("%q: read as %+v, encoding/json reads %+v", data, *fast, slow)
		}
	})
}
