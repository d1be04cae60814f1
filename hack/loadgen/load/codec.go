package load

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
)

// codec writes requests and checks answers. One goroutine writes; check may be called from several.
type codec struct {
	api    API
	heads  [][]byte // request line and headers of each tier, up to and with "Content-Length: "
	model  []byte   // as a JSON string
	expect func(string, int) string
	filler string
}

// fillerBytes is how much text inputs are cut from. Longer inputs repeat it.
const fillerBytes = 1 << 16

func newCodec(p Plan) *codec {
	c := &codec{api: p.API, expect: p.Expect}
	c.model, _ = json.Marshal(p.Model)
	for _, t := range p.Tiers {
		var b strings.Builder
		b.WriteString("POST " + p.Path + " HTTP/1.1\r\nHost: " + p.Targets[0] + "\r\nContent-Type: application/json\r\n")
		if t.Key != "" {
			b.WriteString("Authorization: Bearer " + t.Key + "\r\n")
		}
		for line := range strings.SplitSeq(t.Header, "\n") {
			if line != "" {
				b.WriteString(line + "\r\n")
			}
		}
		b.WriteString("Content-Length: ")
		c.heads = append(c.heads, []byte(b.String()))
	}
	rng := rand.New(rand.NewPCG(p.Seed, 1))
	const letters = "abcdefghijklmnopqrstuvwxyz     ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,"
	filler := make([]byte, fillerBytes)
	for i := range filler {
		filler[i] = letters[rng.IntN(len(letters))]
	}
	c.filler = string(filler)
	return c
}

// escapes stands in every 64th input: what a JSON codec must escape or may, and runes of 2 to 4 bytes.
const escapes = "\"\\/\n\t\u0001<&>é漢🙂"

// input returns an input that no other request of the run has, at least length bytes long (its number takes
// up to 14).
func (c *codec) input(n uint64, length int) string {
	var b strings.Builder
	b.Grow(length + len(escapes))
	b.WriteString(strconv.FormatUint(n, 36))
	b.WriteByte('-')
	if n%64 == 0 {
		b.WriteString(escapes)
	}
	for off := int(n*7) % (fillerBytes / 2); b.Len() < length; off = 0 {
		b.WriteString(c.filler[off:min(fillerBytes, off+length-b.Len())])
	}
	return b.String()
}

// InputNumber returns the number of the request that an input belongs to.
func InputNumber(input string) (uint64, error) {
	number, _, _ := strings.Cut(input, "-")
	return strconv.ParseUint(number, 36, 64)
}

// request appends the bytes of a whole HTTP request to buf and returns the body too, which lies in it.
func (c *codec) request(buf []byte, tier int, input string, maxTokens int) (all, body []byte) {
	quoted := quote(input)
	size := 0
	switch c.api {
	case Instances:
		size = len(`{"instances":[]}`) + len(quoted)
	default:
		size = len(`{"model":,"input":}`) + len(c.model) + len(quoted)
	}
	var params string
	if maxTokens > 0 && c.api != Instances {
		params = `,"parameters":{"max_tokens":` + strconv.Itoa(maxTokens) + `}`
		size += len(params)
	}
	buf = append(buf, c.heads[tier]...)
	buf = strconv.AppendInt(buf, int64(size), 10)
	buf = append(buf, "\r\n\r\n"...)
	at := len(buf)
	if c.api == Instances {
		buf = append(append(append(buf, `{"instances":[`...), quoted...), `]}`...)
	} else {
		buf = append(append(buf, `{"model":`...), c.model...)
		buf = append(append(buf, `,"input":`...), quoted...)
		buf = append(append(buf, params...), '}')
	}
	return buf, buf[at:]
}

// quote returns s as a JSON string.
func quote(s string) []byte {
	for i := 0; i < len(s); i++ {
		if b := s[i]; b < 0x20 || b >= 0x7f || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&' {
			q, _ := json.Marshal(s) // a string always marshals
			return q
		}
	}
	q := make([]byte, 0, len(s)+2)
	return append(append(append(q, '"'), s...), '"')
}

// right says whether the body of a 200 answers this call and no other.
func (c *codec) right(body []byte, cl call) bool {
	if c.api == Echo {
		return bytes.Equal(body, cl.body)
	}
	want := c.expect(cl.input, cl.maxTokens)
	if c.api == Instances {
		var a struct {
			Predictions []string `json:"predictions"`
		}
		return json.Unmarshal(body, &a) == nil && len(a.Predictions) == 1 && a.Predictions[0] == want
	}
	// Most answers have the output in the form that we would write it in: that costs no decoding. The number
	// that makes an input unique stands in it, so these bytes cannot be another's.
	if i := bytes.Index(body, []byte(`"output":"`)); i >= 0 {
		q := quote(want)
		if bytes.HasPrefix(body[i+len(`"output":`):], q) && json.Valid(body) {
			return true
		}
	}
	var a struct {
		Output *string `json:"output"`
	}
	return json.Unmarshal(body, &a) == nil && a.Output != nil && *a.Output == want
}

// reason returns the stable reason of a refusal, "" if it has none: "reason" of problem+json, or "code" of an
// error in OpenAI's shape.
func reason(body []byte) string {
	var a struct {
		Reason string `json:"reason"`
		Error  struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &a) != nil {
		return ""
	}
	if a.Reason == "" {
		return a.Error.Code
	}
	return a.Reason
}
