package gateway

import (
	"bytes"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A text has about the tokens that a tokenizer makes of it: a word up to six letters at a time, a
// digit, two signs, an escape, a character beyond ASCII; what is no text has no more than its
// beginning.
func TestCountTokens(t *testing.T) {
	word := func(n int) string { return strings.Repeat("x", n) }
	const longest = (longestWord + 5) / 6 // tokens of a word of that length
	for text, want := range map[string]int{
		"": 0, " ": 0, "hello": 1, "hellos": 1, "goodbye": 2, "a b": 2, "a_b": 1, "A": 1, "Z z": 2, "12": 2, "a1": 2, ",": 1, ",,": 1, ",,,": 2, "a,b": 3, "!": 1, "~": 1,
		`\n`: 1, `\na`: 2, `\u00e9`: 1, `\u00e9a`: 2, `\`: 1, `\u`: 1, "\u00e9": 1, "\u65e5\u672c": 2, "\x80": 0, "\x01": 0,
		word(longestWord): longest, word(longestWord + 1): longest, word(9000): longest, word(9000) + " ab": longest + 1, word(9000) + `"ab`: longest + 2, word(9000) + `\nab`: longest + 2,
		word(longestWord-1) + "1": longest + 1, word(longestWord) + "1": longest, word(longestWord) + "++": longest, word(longestWord-1) + "+++": longest + 1,
	} {
		if got := countTokens([]byte(text)); got != want {
			t.Errorf("%.40q of %d bytes: %d tokens, want %d", text, len(text), got, want)
		}
	}
}

// runByRun is countTokens without blocks.
func runByRun(value []byte) (n int) {
	for i, word := 0, 0; i < len(value); {
		var tokens int
		tokens, i, word = countRun(value, i, word)
		n += tokens
	}
	return n
}

// What is read is any bytes: a count ends, is no more than there are bytes, and is the same in
// blocks as run by run.
func FuzzCountTokens(f *testing.F) {
	f.Add([]byte(`{"a":"K\u00f6ln\n 12.5"}`))
	f.Add([]byte(`"\`))
	f.Add([]byte(strings.Repeat("snake_case`@[{AZaz\x5f\xdf\xe1\xfa ", 40)))
	f.Fuzz(func(t *testing.T, value []byte) {
		n := countTokens(value)
		if n < 0 || n > len(value) {
			t.Errorf("%d tokens of %d bytes", n, len(value))
		}
		if want := runByRun(value); n != want {
			t.Errorf("%d tokens, run by run %d, of %q", n, want, value)
		}
	})
}

// Blocks change no count, of texts with short words, long ones, hardly any end of a word, and all
// bytes.
func TestCountTokens_InBlocksAsRunByRun(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 4000 {
		letters := []string{"abcZ_ \",.1\\u\n\xc3\xa4", strings.Repeat("abcdefghijklmnopqrstuvwxyz", 8) + `"`, "a1,", "abcd ", "a\\", string(all)}[i%6]
		value := make([]byte, rng.IntN(6000))
		for j := range value {
			value[j] = letters[rng.IntN(len(letters))]
		}
		if got, want := countTokens(value), runByRun(value); got != want {
			t.Fatalf("%d tokens, run by run %d, of %q", got, want, value)
		}
	}
}

// What is remembered of texts is what is counted of them, of more than there is room for, and is there for the next
// request with the text.
func TestTextCounts_AreThoseOfTheTexts(t *testing.T) {
	counts := textCounts{seed: maphash.MakeSeed()}
	text := bytes.Repeat([]byte("of the sea, 12 ships; "), 40)
	for i := range 3 * len(counts.slots) {
		text[i%len(text)] ^= byte(i)
		want := countTokens(text)
		for range 2 { // as it comes, and as one that is known
			if got := counts.tokensOf(text); got != want {
				t.Fatalf("text %d: %d tokens, counted %d", i, got, want)
			}
		}
	}
	hash := counts.hashOf(text)
	counts.slots[hash%uint64(len(counts.slots))].Store(hash>>countBits<<countBits | 7)
	if n := counts.tokensOf(text); n != 7 {
		t.Errorf("a text that is known to have 7 tokens is counted again: %d", n)
	}
}

// A part of a long text says how many tokens it has, of whatever kind it is; what is no text has hardly
// any.
func TestRoughTokens_OfLongTextsAreThoseOfAPart(t *testing.T) {
	for name, words := range map[string][]string{
		"English":  strings.Fields("the river is deep and wide so tell me of its harbour, where forty ships lie; 3 of them sail at (noon)"),
		"code":     {"func (s *Server) Get(", `\n\t`, "if err != nil {", "return", "x[i+1] = ", `\"text\"`, "}", "0x7f"},
		"JSON":     {`{"name":"get_weather",`, `"parameters":{"type":"object"},`, `"required":["city"]}`},
		"URLs":     {"[a](https://example.com/" + strings.Repeat("a/1b-", 25), strings.Repeat("c0d1e2f3.", 210), "and", "more"},
		"Japanese": {"\u6c34\u306f", "\u6df1\u304f", "\u3001", "harbour", "\u6e2f"},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		var text strings.Builder
		for text.Len() < 300_000 {
			text.WriteString(words[rng.IntN(len(words))] + strings.Repeat(" ", rng.IntN(2)))
		}
		for _, length := range []int{sampledFrom - 1, sampledFrom, 150_001, 300_000} {
			value := []byte(text.String()[:length])
			got, want := float64(roughTokens(value)), float64(countTokens(value))
			if off := got/want - 1; off < -0.04 || off > 0.04 {
				t.Errorf("%s, %d bytes: %v tokens, counted %v", name, length, got, want)
			}
		}
	}
	if n := roughTokens([]byte(strings.Repeat("iVBORw0KGgo/+A1", 100_000))); n != 0 {
		t.Errorf("an image has %d tokens", n)
	}
}

// Of real files a sample says within a few per cent how many tokens a text has. With -v it says how sure it is. The
// files are those of modules that go.mod pins: ours change each day, and a bound that they just met they would miss by
// chance. Fiber's READMEs have pictures in them, words of 300 to 1600 bytes.
func TestRoughTokens_OfFiles(t *testing.T) {
	var all []byte
	for _, module := range []string{"github.com/redis/go-redis/v9", "google.golang.org/grpc", "github.com/valyala/fasthttp", "github.com/gofiber/fiber/v2"} {
		dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatal(module, err)
		}
		for _, kind := range []string{"*.go", "*.md", "*/*.md", "internal/*/*.go"} {
			names, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), kind))
			if err != nil {
				t.Fatal(kind, err)
			}
			for _, name := range names {
				content, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				all = strconv.AppendQuote(all, string(content))
			}
		}
	}
	if len(all) < 2_000_000 {
		t.Fatalf("only %d bytes of files", len(all))
	}
	for _, length := range []int{sampledFrom, 220_000, 1_000_000} {
		var squares, most float64
		n := 0.0
		for from := 0; from+length <= len(all); from += length / 4 {
			text := all[from : from+length]
			off := float64(roughTokens(text))/float64(countTokens(text)) - 1
			squares, most, n = squares+off*off, max(most, math.Abs(off)), n+1
		}
		mean := math.Sqrt(squares / n)
		t.Logf("%d bytes: off by %.1f %% in the mean, %.1f %% at most, of %.0f texts", length, 100*mean, 100*most, n)
		if mean > 0.04 || most > 0.15 {
			t.Errorf("%d bytes: off by %.1f %% in the mean, %.1f %% at most", length, 100*mean, 100*most)
		}
	}
}

// The budget is 0.1 ms for 220 KB of English.
func BenchmarkRoughTokens(b *testing.B) {
	words := strings.Fields("the river is deep and wide so tell me of its harbour, where forty ships lie; 3 of them sail at (noon)")
	var text strings.Builder
	for state := uint32(1); text.Len() < 220_000; {
		state = state*1664525 + 1013904223
		text.WriteString(words[state>>16%uint32(len(words))] + " ")
	}
	value := []byte(text.String())
	b.SetBytes(int64(len(value)))
	for b.Loop() {
		roughTokens(value)
	}
}

// The budget is a tenth of a microsecond a KB for a text that another request brought before.
func BenchmarkRoughTokens_OfAKnownText(b *testing.B) {
	value := bytes.Repeat([]byte("the river is deep and wide; "), 4096/28)
	b.SetBytes(int64(len(value)))
	for b.Loop() {
		roughTokens(value)
	}
}
