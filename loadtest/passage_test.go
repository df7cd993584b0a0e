package loadtest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestVocabulary_IsDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range vocabulary {
		if seen[w] || w == "" || strings.Trim(w, "abcdefghijklmnopqrstuvwxyz") != "" {
			t.Errorf("word %q", w)
		}
		seen[w] = true
	}
}

// Text with the same key must stay the same from version to version, or two
// runs of one trace could not be compared.
func TestPassage_TextOfABlockIsFixed(t *testing.T) {
	got := string(passage{keys: []uint64{46}, tokens: 12}.appendText(nil, 1))
	const want = "again better bar bell guide cause green few appear ball bottom feel"
	if got != want {
		t.Errorf("block 46 begins %q, want %q", got, want)
	}
}

func TestPassage_EqualLeadingKeysGiveEqualBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.Uint64()
		rate := rapid.Float64Range(0.3, 2).Draw(t, "words per token")
		shared := rapid.SliceOfN(key, 0, 4).Draw(t, "shared")
		tails := rapid.SliceOfNDistinct(key, 2, 2, rapid.ID).Draw(t, "tails")
		partial := rapid.IntRange(8, blockTokens).Draw(t, "tokens of the last block")

		texts := make([][]byte, 2)
		for i, tail := range tails {
			keys := append(append([]uint64{}, shared...), tail)
			tokens := len(shared)*blockTokens + partial
			texts[i] = passage{keys: keys, tokens: tokens}.appendText(nil, rate)
		}
		prefix := passage{keys: shared, tokens: len(shared) * blockTokens}.appendText(nil, rate)
		for _, text := range texts {
			if !bytes.HasPrefix(text, prefix) {
				t.Fatal("equal leading keys, but not an equal beginning")
			}
		}
		wordsBefore := len(bytes.Fields(prefix))
		opening := func(text []byte) string {
			words := bytes.Fields(text)[wordsBefore:]
			return string(bytes.Join(words[:min(8, len(words))], []byte(" ")))
		}
		if a, b := opening(texts[0]), opening(texts[1]); a == b && len(strings.Fields(a)) == 8 {
			t.Fatalf("keys %v begin alike: %q", tails, a)
		}
	})
}

func TestPassage_LengthInWords(t *testing.T) {
	for _, c := range []struct {
		tokens int
		rate   float64
		words  int
	}{{1, 1, 1}, {511, 1, 511}, {512, 1, 512}, {513, 1, 513}, {6758, 1, 6758}, {512, 0.66, 338}, {1024, 0.66, 676}, {1, 0.01, 1}} {
		text := newPassage(9, c.tokens).appendText(nil, c.rate)
		if got := len(strings.Fields(string(text))); got != c.words {
			t.Errorf("%d tokens at %v: %d words, want %d", c.tokens, c.rate, got, c.words)
		}
	}
}

func TestMix_NeighboursDoNotShareBlocks(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(20) {
		c := newConversations(Config{Seed: seed, PromptTokens: FixedLength(1500), OutputTokens: FixedLength(1), Turns: 1}, 1)
		for n := range uint64(50) {
			for _, key := range newPassage(c.key(n), 1500).keys {
				text := fmt.Sprint(key)
				if seen[text] {
					t.Fatalf("seed %d, conversation %d shares a block with another", seed, n)
				}
				seen[text] = true
			}
		}
	}
}

func BenchmarkPassage_12kTokens(b *testing.B) {
	p := newPassage(1, 12_000)
	for b.Loop() {
		p.appendText(make([]byte, 0, 80<<10), 1)
	}
}
