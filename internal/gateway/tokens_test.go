package gateway

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

func TestTokenCounts(t *testing.T) {
	for _, c := range []struct {
		encoding, text string
		want           int64
	}{
		{"", "hello world", 3}, {"", "", 0}, {"", "abcde", 2},
		// Counts of OpenAI's own tiktoken.
		{"o200k_base", "hello world", 2}, {"cl100k_base", "hello world", 2}, {"r50k_base", "hello world", 2}, {"p50k_base", "hello world", 2},
		{"o200k_base", "", 0}, {"cl100k_base", "tiktoken is great!", 6}, {"o200k_base", "antidisestablishmentarianism", 6},
	} {
		n, err := newTokenCounter(c.encoding)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.count(c.text); got != c.want {
			t.Errorf("%q by %q: %d tokens, want %d", c.text, c.encoding, got, c.want)
		}
	}
	if _, err := newTokenCounter("p51k"); err == nil {
		t.Error("an encoding that does not exist was taken")
	}
}

// worstInputs are 64 KiB that a tokenizer may find hard.
func worstInputs() map[string]string {
	r := rand.New(rand.NewPCG(1, 2))
	letters := make([]byte, 64<<10)
	for i := range letters {
		letters[i] = byte('a' + r.IntN(26))
	}
	return map[string]string{
		"one letter": strings.Repeat("a", 64<<10), "one word": string(letters), "spaces": strings.Repeat(" ", 64<<10),
		"text": strings.Repeat("The quick brown fox jumps over the lazy dog. ", 1457), "emoji": strings.Repeat("🙂", 16<<10),
		"newlines": strings.Repeat("\n", 64<<10), "punctuation": strings.Repeat("!?", 32<<10), "digits": strings.Repeat("1234567", 9362),
		"cjk": strings.Repeat("漢字仮名交", 4369), "apostrophes": strings.Repeat("'s", 32<<10), "space letter": strings.Repeat(" a", 32<<10),
		"space newline": strings.Repeat(" \n", 32<<10),
	}
}

// A count of pieces is close to that of the whole, and never below what the whole would cost by more than the
// cuts can hide.
func TestCountOfPieces(t *testing.T) {
	c, err := newTokenCounter("o200k_base")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := c.codec()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("Pack my box with five dozen liquor jugs; 漢字 and naïve 🙂 too.\n", 200)
	want, err := whole.Count(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.count(text); got < int64(want) || got > int64(want)+int64(want)/50 {
		t.Errorf("%d tokens in pieces, %d in one", got, want)
	}
	long := strings.Repeat(text, 100) // 1.4 MB: a part is counted
	if got := c.count(long); got < 98*int64(want) || got > 102*int64(want) {
		t.Errorf("%d tokens, want about %d", got, 100*want)
	}
	// Every input is divided without a rest, and no character is cut.
	for name, in := range worstInputs() {
		for rest := in; rest != ""; {
			n := pieceOf(rest)
			if n < 1 || n > tokenPiece || !utf8.ValidString(rest[:n]) {
				t.Fatalf("%s: a piece of %d bytes", name, n)
			}
			rest = rest[n:]
		}
	}
	if n := pieceOf(strings.Repeat("\x80", 1000)); n < 1 || n > tokenPiece {
		t.Errorf("no valid text: a piece of %d bytes", n)
	}
}

func TestTokenCounterIsLoadedOnce(t *testing.T) {
	c, err := newTokenCounter("cl100k_base")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := c.count("hello world"); got != 2 {
				t.Errorf("%d", got)
			}
		})
	}
	wg.Wait()
}

func BenchmarkTokens(b *testing.B) {
	c, err := newTokenCounter("o200k_base")
	if err != nil {
		b.Fatal(err)
	}
	c.count("x")
	for name, text := range worstInputs() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.count(text)
			}
		})
	}
	b.Run("prompt of 200 bytes", func(b *testing.B) {
		text := strings.Repeat("The quick brown fox ", 10)
		b.ReportAllocs()
		for b.Loop() {
			c.count(text)
		}
	})
}
