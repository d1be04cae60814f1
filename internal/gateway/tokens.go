package gateway

import (
	"fmt"
	"sync"

	"github.com/tiktoken-go/tokenizer"
)

// tokenCounter counts the tokens of a prompt for limits: by an encoding where the pool names one, else by the
// estimate of 4 bytes a token that Sluice uses everywhere. Safe for concurrent use.
type tokenCounter struct {
	encoding tokenizer.Encoding // "": the estimate
	codec    func() (tokenizer.Codec, error)
}

// bytesPerToken is the estimate.
const bytesPerToken = 4

func newTokenCounter(encoding string) (*tokenCounter, error) {
	t := &tokenCounter{encoding: tokenizer.Encoding(encoding)}
	switch t.encoding {
	case "", tokenizer.O200kBase, tokenizer.Cl100kBase, tokenizer.P50kBase, tokenizer.R50kBase:
	default:
		return nil, fmt.Errorf("gateway.tokenEncoding %q is not known", encoding)
	}
	// A vocabulary takes time to build and memory to keep: only a pool that counts tokens pays for it, once.
	t.codec = sync.OnceValues(func() (tokenizer.Codec, error) { return tokenizer.Get(t.encoding) })
	return t, nil
}

func estimateTokens(s string) int64 { return (int64(len(s)) + bytesPerToken - 1) / bytesPerToken }

// count is the number of tokens of s.
func (t *tokenCounter) count(s string) int64 {
	if t.encoding == "" {
		return estimateTokens(s)
	}
	c, err := t.codec()
	if err != nil {
		return estimateTokens(s)
	}
	n, err := c.Count(s)
	if err != nil {
		return estimateTokens(s)
	}
	return int64(n)
}
