package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"sluice.dev/sluice/internal/quota"
)

func TestChatTemplate(t *testing.T) {
	for body, want := range map[string]string{
		`[{"role":"user","content":"hi"}]`:                                                                   "hi",
		`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`:                "a\nb",
		`[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]`:                            "system: be brief\nuser: hi\nassistant:",
		`[{"role":"assistant","content":"hi"}]`:                                                              "assistant: hi\nassistant:",
		`[{"role":"user","content":"q"},{"role":"assistant","content":null},{"role":"tool","content":"42"}]`: "user: q\nassistant: \ntool: 42\nassistant:",
	} {
		c, r := openAI{chat: true}.decode([]byte(`{"model":"llm","messages":` + body + `}`))
		if r != nil || c.input != want {
			t.Errorf("%s: %q, %v, want %q", body, c.input, r, want)
		}
	}
}

func TestChatAnswer(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		// What SDKs send besides is ignored; what would change the answer is named.
		w := r.post(t, "/v1/chat/completions", `{"model":"llm","messages":[{"role":"user","content":"hello"}],"max_completion_tokens":9,"user":"u","metadata":{"a":"b"},
			"store":false,"stream":false,"n":1,"top_p":1,"frequency_penalty":0,"tools":[],"stop":null,"seed":3,"response_format":{"type":"text"},"some_new_field":[1]}`)
		var v struct {
			ID, Object, Model string
			Created           int64
			Choices           []struct {
				Index        int
				Message      struct{ Role, Content string }
				FinishReason string `json:"finish_reason"`
			}
			Usage map[string]int
		}
		w.into(&v)
		if w.Code != 200 || v.Object != "chat.completion" || v.Model != "llm" || !strings.HasPrefix(v.ID, "chatcmpl-") || v.Created == 0 ||
			len(v.Choices) != 1 || v.Choices[0].Message.Role != "assistant" || v.Choices[0].Message.Content != "hello" || v.Choices[0].FinishReason != "stop" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if u := v.Usage; u["prompt_tokens"] < 1 || u["completion_tokens"] < 1 || u["total_tokens"] != u["prompt_tokens"]+u["completion_tokens"] {
			t.Errorf("usage %v", u)
		}
		if got := w.Header().Get("Warning"); got != `299 sluice "ignored, the backend does not take it: seed"` {
			t.Errorf("Warning %q", got)
		}
	})
}

func TestCompletionAnswer(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		w := r.post(t, "/v1/completions", `{"model":"llm","prompt":["hello"]}`)
		var v struct {
			Object  string
			Choices []struct{ Text string }
		}
		w.into(&v)
		if w.Code != 200 || v.Object != "text_completion" || len(v.Choices) != 1 || v.Choices[0].Text != "hello" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

func TestStream(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		w := r.post(t, "/v1/chat/completions", `{"model":"llm","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"a\nb"}]}`)
		if w.Code != 200 || w.Header().Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%d %v", w.Code, w.Header())
		}
		events := strings.Split(strings.TrimSuffix(w.Body.String(), "\n\n"), "\n\n")
		if len(events) != 3 || events[2] != "data: [DONE]" {
			t.Fatalf("%q", events)
		}
		var chunk struct {
			Object  string
			Choices []struct {
				Delta        struct{ Role, Content string }
				FinishReason string `json:"finish_reason"`
			}
			Usage *struct {
				Total int `json:"total_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(events[0], "data: ")), &chunk); err != nil {
			t.Fatal(err)
		}
		if chunk.Object != "chat.completion.chunk" || chunk.Choices[0].Delta.Content != "a\nb" || chunk.Choices[0].FinishReason != "stop" || chunk.Usage != nil {
			t.Errorf("%s", events[0])
		}
		chunk.Choices = nil
		if err := json.Unmarshal([]byte(strings.TrimPrefix(events[1], "data: ")), &chunk); err != nil || len(chunk.Choices) != 0 || chunk.Usage == nil || chunk.Usage.Total < 2 {
			t.Errorf("%s: %v", events[1], err)
		}
		// A refusal is a status, never an event.
		r.post(t, "/v1/chat/completions", `{"model":"gpt","stream":true,"messages":[{"role":"user","content":"a"}]}`).want(404, "unknown_model")
	})
}

func TestOpenAIErrorShape(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, r *rig) {
		w := r.post(t, "/v1/chat/completions", `{"model":"gpt","messages":[{"role":"user","content":"a"}]}`)
		var v struct {
			Error struct {
				Message, Type, Code string
				Param               *string
			}
		}
		w.into(&v)
		if e := v.Error; e.Message == "" || e.Type != "not_found_error" || e.Code != "unknown_model" || e.Param == nil || *e.Param != "model" {
			t.Errorf("%s", w.Body)
		}
	})
}

func TestModels(t *testing.T) {
	inBubble(t, 1, withKeys, func(t *testing.T, r *rig) {
		r.tenants.Set([]Tenant{keyed("acme", "paid", "k", quota.Limits{})})
		get := func(path string, headers ...string) reply {
			req := httptest.NewRequestWithContext(r.ctx, http.MethodGet, path, nil)
			for i := 0; i < len(headers); i += 2 {
				req.Header.Set(headers[i], headers[i+1])
			}
			w := httptest.NewRecorder()
			r.ServeHTTP(w, req)
			return reply{w, t}
		}
		get("/v1/models").want(401, "missing_key")
		if w := get("/v1/models", "X-API-Key", "k"); w.Code != 200 || !strings.Contains(w.Body.String(), `"id":"llm","object":"model"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := get("/v1/models/llm", "X-API-Key", "k"); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		get("/v1/models/gpt", "X-API-Key", "k").want(404, "unknown_model")
	})
}

// Whatever a body holds, the codecs neither panic nor let anything through that they did not understand.
func FuzzCodecs(f *testing.F) {
	for _, s := range []string{
		hello, `{"model":"llm","messages":[{"role":"user","content":"x"}]}`, `{"model":"llm","prompt":["x"],"stream":true}`, `{`, ``, `null`, `[]`,
		`{"model":"llm","input":"x","parameters":{"max_tokens":1e3}}`, `{"model":"llm","messages":[{"role":"user","content":[{"type":"text","text":"é"}]}],"stop":["a"]}`,
		`{"input":"\ud800"}`, `{"model":null,"input":null,"parameters":null}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, c := range []codec{native{}, openAI{}, openAI{chat: true}} {
			got, r := c.decode(body)
			if r != nil {
				if a, ok := answers[r.reason]; !ok || a.status != 400 || r.detail == "" {
					t.Errorf("%s: %q refused as %v (%d)", c.name(), body, r, a.status)
				}
				continue
			}
			if !utf8.ValidString(got.input) || !json.Valid(body) {
				t.Errorf("%s took %q", c.name(), body)
			}
		}
	})
}

// No header makes the first step panic or pass something that is not clean.
func FuzzHeaders(f *testing.F) {
	f.Add("id", "1000", "1000", "1", "2")
	f.Add("a b", "-1", "1e309", "NaN", "x")
	f.Fuzz(func(t *testing.T, id, ours, envoy, stainless, attempt string) {
		h := http.Header{}
		h.Set("Sluice-Timeout-Ms", ours)
		h.Set("X-Envoy-Expected-Rq-Timeout-Ms", envoy)
		h.Set("X-Stainless-Timeout", stainless)
		h.Set("Sluice-Attempt", attempt)
		isRetry(h)
		if d, r := clientTimeout(h); r == nil && d < 0 {
			t.Errorf("a timeout of %v", d)
		}
		if validToken(id, 128) && (strings.ContainsAny(id, "\r\n\x00 \"\\") || len(id) > 128 || id == "") {
			t.Errorf("%q was taken as a request id", id)
		}
	})
}
