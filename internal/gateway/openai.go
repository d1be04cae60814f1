package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// openAI is POST /v1/chat/completions (chat) and POST /v1/completions, as OpenAI's SDKs speak them. Fields
// that no SDK need care about are ignored, since SDKs send many; those that would change the answer are
// named in a Warning or refused, as the pool says.
type openAI struct{ chat bool }

func (o openAI) name() string {
	if o.chat {
		return "openai_chat"
	}
	return "openai_completions"
}

func (o openAI) inputField() string {
	if o.chat {
		return "messages"
	}
	return "prompt"
}

type openAIRequest struct {
	Model               string          `json:"model"`
	Messages            []openAIMessage `json:"messages"`
	Prompt              json.RawMessage `json:"prompt"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Temperature         *float64        `json:"temperature"`
	N                   *int            `json:"n"`
	Stream              bool            `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type openAIMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// openAIIgnored are the fields that would change an answer and that no backend here takes. A null, false, 0 or
// empty value asks for nothing.
var openAIIgnored = []string{
	"audio", "best_of", "echo", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "min_p",
	"modalities", "presence_penalty", "reasoning_effort", "response_format", "seed", "stop", "suffix", "tool_choice",
	"tools", "top_k", "top_logprobs", "top_p", "web_search_options",
}

var openAIRoles = []string{"system", "developer", "user", "assistant", "tool", "function"}

func (o openAI) decode(body []byte) (call, *refusal) {
	var q openAIRequest
	if r := decodeLenient(body, &q); r != nil {
		return call{}, r
	}
	c := call{
		model: q.Model, stream: q.Stream, chat: o.chat, usageChunk: q.StreamOptions != nil && q.StreamOptions.IncludeUsage,
		params:  wire.Parameters{MaxTokens: q.MaxTokens, Temperature: q.Temperature},
		ignored: ignoredFields(body),
	}
	if q.MaxCompletionTokens != nil {
		c.params.MaxTokens = q.MaxCompletionTokens
	}
	if q.N != nil && *q.N != 1 {
		return call{}, &refusal{reason: ReasonUnsupportedParameter, param: "n", detail: "one answer per request: n must be 1"}
	}
	var r *refusal
	if o.chat {
		c.input, r = chatInput(q.Messages)
	} else {
		c.input, r = promptInput(q.Prompt)
	}
	return c, r
}

func ignoredFields(body []byte) []string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return nil
	}
	var out []string
	for _, name := range openAIIgnored {
		switch v := string(fields[name]); v {
		case "", "null", "false", "0", `""`, "[]", "{}":
		case "1":
			if name != "top_p" && name != "best_of" { // their neutral value
				out = append(out, name)
			}
		default:
			if name == "response_format" && strings.Contains(v, `"text"`) {
				continue
			}
			out = append(out, name)
		}
	}
	return out
}

// chatInput is the one template from messages to the input string of a batch function:
//
//	one message of role user            -> its text, unchanged
//	anything else, a line per message   -> "role: text" ..., and a last line "assistant:"
//
// A text may be a string or a list of {"type":"text"} parts, which are joined by newlines.
func chatInput(messages []openAIMessage) (string, *refusal) {
	if len(messages) == 0 {
		return "", &refusal{reason: ReasonEmptyInput, param: "messages", detail: "messages is missing or empty"}
	}
	texts := make([]string, len(messages))
	size := 0
	for i, m := range messages {
		if !slices.Contains(openAIRoles, m.Role) {
			return "", &refusal{reason: ReasonInvalidRequest, param: fmt.Sprintf("messages[%d].role", i),
				detail: fmt.Sprintf("role %.32q is none of %s", m.Role, strings.Join(openAIRoles, ", "))}
		}
		text, r := contentText(m.Content, fmt.Sprintf("messages[%d].content", i))
		if r != nil {
			return "", r
		}
		texts[i] = text
		size += len(text)
	}
	if size == 0 {
		return "", nil // refused as empty, like any other empty input
	}
	if len(messages) == 1 && messages[0].Role == "user" {
		return texts[0], nil
	}
	var b strings.Builder
	for i, m := range messages {
		b.WriteString(m.Role + ": " + texts[i] + "\n")
	}
	b.WriteString("assistant:")
	return b.String(), nil
}

func contentText(raw json.RawMessage, param string) (string, *refusal) {
	if len(raw) == 0 || string(raw) == "null" { // an assistant message that only called tools
		return "", nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", &refusal{reason: ReasonInvalidRequest, param: param, detail: param + " must be a string or a list of text parts"}
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if p.Type != "text" {
			return "", &refusal{reason: ReasonInvalidRequest, param: param, detail: fmt.Sprintf("%s[%d] is of type %.32q; only text is taken", param, i, p.Type)}
		}
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n"), nil
}

func promptInput(raw json.RawMessage) (string, *refusal) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", &refusal{reason: ReasonInvalidRequest, param: "prompt", detail: "prompt is missing: a string"}
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil && len(list) == 1 {
		return list[0], nil
	}
	return "", &refusal{reason: ReasonInvalidRequest, param: "prompt", detail: "prompt must be one string: send one request per prompt, the pool makes the batches"}
}

type openAIUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

type openAIText struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type openAIChoice struct {
	Index        int         `json:"index"`
	Message      *openAIText `json:"message,omitempty"`
	Delta        *openAIText `json:"delta,omitempty"`
	Text         *string     `json:"text,omitempty"`
	Logprobs     *struct{}   `json:"logprobs"`
	FinishReason string      `json:"finish_reason"`
}

type openAIResponse struct {
	ID      string         `json:"id"`
	Object  string         `json:"object"`
	Created int64          `json:"created"`
	Model   string         `json:"model"`
	Choices []openAIChoice `json:"choices"`
	Usage   *openAIUsage   `json:"usage,omitempty"`
	// Metadata is there when the request was degraded.
	Metadata *openAIMetadata `json:"metadata,omitempty"`
}

// openAIMetadata says how the request was degraded, in the form of the Sluice-Degraded header.
type openAIMetadata struct {
	Degraded []string `json:"degraded"`
}

func (o openAI) answer(x *exchange, latencyMs float64) {
	u := x.result.Usage
	choice := openAIChoice{FinishReason: "stop"}
	if n := x.call.params.MaxTokens; n != nil && !u.Estimated && u.CompletionTokens >= *n {
		choice.FinishReason = "length"
	}
	res := openAIResponse{
		ID: "cmpl-" + x.id, Object: "text_completion", Created: x.wall.Unix(), Model: x.call.model,
		Usage: &openAIUsage{u.PromptTokens, u.CompletionTokens, u.PromptTokens + u.CompletionTokens},
	}
	text := &openAIText{Role: "assistant", Content: x.result.Output}
	switch {
	case !o.chat:
		choice.Text = &x.result.Output
	case x.call.stream:
		res.ID, res.Object, choice.Delta = "chatcmpl-"+x.id, "chat.completion.chunk", text
	default:
		res.ID, res.Object, choice.Message = "chatcmpl-"+x.id, "chat.completion", text
	}
	res.Choices = []openAIChoice{choice}
	if x.degraded != nil {
		res.Metadata = &openAIMetadata{x.degradedList()}
	}
	x.w.Header().Set("Openai-Processing-Ms", strconv.Itoa(int(latencyMs)))
	if x.call.stream {
		writeStream(x, res)
		return
	}
	writeJSON(x.w, http.StatusOK, "application/json", res)
}

// writeStream answers as server-sent events: one chunk with the whole text, one with the usage if it was
// asked for, and the end mark. The status was decided before: a refusal is never an event.
func writeStream(x *exchange, res openAIResponse) {
	h := x.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	usage := res.Usage
	res.Usage = nil
	chunks := []openAIResponse{res}
	if x.call.usageChunk {
		last := res
		last.Choices, last.Usage = []openAIChoice{}, usage
		chunks = append(chunks, last)
	}
	var b strings.Builder
	for _, c := range chunks {
		doc, _ := json.Marshal(c) // strings and numbers only
		b.WriteString("data: " + string(doc) + "\n\n")
	}
	b.WriteString("data: [DONE]\n\n")
	x.w.WriteHeader(http.StatusOK)
	_, _ = x.w.Write([]byte(b.String())) // the client may be gone
}

// openAIError is an error in OpenAI's shape. code is the reason, the same word as in the native API.
type openAIError struct {
	Error openAIErrorBody `json:"error"`
}

type openAIErrorBody struct {
	Message   string  `json:"message"`
	Type      string  `json:"type"`
	Param     *string `json:"param"`
	Code      Reason  `json:"code"`
	RequestID string  `json:"request_id"`
}

func (openAI) refuse(x *exchange, r *refusal) {
	a := r.answer()
	e := openAIErrorBody{Message: a.title + ": " + r.detail, Type: a.kind, Code: r.reason, RequestID: x.id}
	if r.param != "" {
		e.Param = &r.param
	}
	writeJSON(x.w, a.status, "application/json", openAIError{e})
}

type openAIModel struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func (g *Gateway) model() openAIModel {
	return openAIModel{ID: g.pool.Model, Object: "model", Created: g.started.Unix(), OwnedBy: "sluice"}
}

// listModels answers GET /v1/models to whoever may call the pool.
func (g *Gateway) listModels(w http.ResponseWriter, r *http.Request) {
	g.serveModels(w, r, func(x *exchange) *refusal {
		writeJSON(x.w, http.StatusOK, "application/json", struct {
			Object string        `json:"object"`
			Data   []openAIModel `json:"data"`
		}{"list", []openAIModel{g.model()}})
		return nil
	})
}

func (g *Gateway) getModel(w http.ResponseWriter, r *http.Request) {
	g.serveModels(w, r, func(x *exchange) *refusal {
		if name := r.PathValue("model"); name != g.pool.Model {
			return &refusal{reason: ReasonUnknownModel, param: "model", detail: fmt.Sprintf("model %.128q is not served here; this pool serves %q", name, g.pool.Model)}
		}
		writeJSON(x.w, http.StatusOK, "application/json", g.model())
		return nil
	})
}

func (g *Gateway) serveModels(w http.ResponseWriter, r *http.Request, write func(*exchange) *refusal) {
	x := g.newExchange(w, r, openAI{chat: true})
	ref := g.checkHeaders(x)
	if ref == nil {
		ref = g.identify(x)
	}
	if ref == nil {
		ref = write(x)
	}
	if ref != nil {
		g.answer(x, ref)
		return
	}
	g.metrics.request("unknown", http.StatusOK, ReasonOK)
	g.log.write(g, x, nil, time.Since(x.arrival))
	g.endTrace(x, nil, time.Since(x.arrival))
}
