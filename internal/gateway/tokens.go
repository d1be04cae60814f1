package gateway

import (
	"fmt"
	"sync"
	"unicode/utf8"

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

const (
	// tokenPiece is the longest text that is tokenized at once. The encodings' expressions take time with the
	// square of some runs (2.3 s for 64 KiB of " \n"), so that a text is counted in pieces (20 ms for the same).
	// A cut inside a word counts it as one token more, at most one in 512 bytes.
	tokenPiece = 512
	// tokenBack is how far back a place between two words is looked for.
	tokenBack = 64
	// tokenMost is the part of a longer input that is counted; the rest is taken to be like it.
	tokenMost = 64 << 10
)

// count is the number of tokens of s. Its time is bounded: 64 KiB take 10 to 30 ms, longer inputs no more.
func (t *tokenCounter) count(s string) int64 {
	if t.encoding == "" {
		return estimateTokens(s)
	}
	c, err := t.codec()
	if err != nil {
		return estimateTokens(s) // cannot happen: the encodings are compiled in
	}
	n, done := int64(0), 0
	for done < len(s) && done < tokenMost {
		piece := s[done : done+pieceOf(s[done:])]
		k, err := c.Count(piece)
		if err != nil {
			return estimateTokens(s)
		}
		n += int64(k)
		done += len(piece)
	}
	if done < len(s) {
		n = (n*int64(len(s)) + int64(done) - 1) / int64(done)
	}
	return n
}

// pieceOf is the length of the next piece of s: up to a space that ends a word if there is one near, else any
// whole characters.
func pieceOf(s string) int {
	if len(s) <= tokenPiece {
		return len(s)
	}
	for i := tokenPiece - 1; i > tokenPiece-tokenBack; i-- {
		if s[i-1] > ' ' && s[i] == ' ' && s[i+1] > ' ' {
			return i
		}
	}
	n := tokenPiece
	for n > tokenPiece-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}
