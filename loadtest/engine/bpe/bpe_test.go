package bpe

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var rewrite = flag.Bool("rewrite", false, "write merges.txt anew")

func TestVocabulary_IsWhatTrainingGives(t *testing.T) {
	merges := Train(Corpus(trainSeed, trainBytes), trainMerges, trainMaxBytes)
	var b strings.Builder
	for _, m := range merges {
		fmt.Fprintf(&b, "%d %d\n", m.Left, m.Right)
	}
	if *rewrite {
		if err := os.WriteFile("merges.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if b.String() != mergeList {
		t.Fatal("merges.txt is not what training gives; run go test ./loadtest/engine/bpe -run Vocabulary -rewrite")
	}
	if size := Default().Size(); size != 4096 {
		t.Fatalf("vocabulary has %d tokens, want 4096", size)
	}
}

// trainSlowly is the definition of training: count all pairs, merge the most
// frequent everywhere, repeat.
func trainSlowly(text string, count, maxBytes int) []Merge {
	var ids []int32
	for i := range len(text) {
		ids = append(ids, int32(text[i]))
	}
	size := slices.Repeat([]int{1}, byteTokens)
	var merges []Merge
	for len(merges) < count {
		counts := map[Merge]int{}
		for i := 0; i+1 < len(ids); i++ {
			if size[ids[i]]+size[ids[i+1]] <= maxBytes {
				counts[Merge{ids[i], ids[i+1]}]++
			}
		}
		queue := pairQueue{}
		for pair, n := range counts {
			queue = append(queue, candidate{pair, n})
		}
		if len(queue) == 0 {
			return merges
		}
		slices.SortFunc(queue, func(a, b candidate) int {
			if (pairQueue{a, b}).Less(0, 1) {
				return -1
			}
			return 1
		})
		best := queue[0]
		if best.count < 2 {
			return merges
		}
		token := byteTokens + int32(len(merges))
		size = append(size, size[best.pair.Left]+size[best.pair.Right])
		merges = append(merges, best.pair)
		ids = replace(ids, best.pair, token)
	}
	return merges
}

func replace(ids []int32, pair Merge, token int32) []int32 {
	var out []int32
	for i := 0; i < len(ids); i++ {
		if i+1 < len(ids) && ids[i] == pair.Left && ids[i+1] == pair.Right {
			out = append(out, token)
			i++
			continue
		}
		out = append(out, ids[i])
	}
	return out
}

func TestTrain_EqualsTheSlowDefinition(t *testing.T) {
	for _, text := range []string{"", "a", "banana bandana banana", "the cat of the hat of the bat", Corpus(7, 3000)} {
		got, want := Train(text, 60, 12), trainSlowly(text, 60, 12)
		if !slices.Equal(got, want) {
			t.Errorf("text of %d bytes:\n got %v\nwant %v", len(text), got, want)
		}
	}
}

// encodeSlowly is the definition of encoding: every merge in order over the whole text.
func encodeSlowly(tok *Tokenizer, text string) []int32 {
	var ids []int32
	for i := range len(text) {
		ids = append(ids, int32(text[i]))
	}
	for rank, m := range tok.merges {
		ids = replace(ids, m, byteTokens+int32(rank))
	}
	return ids
}

func TestEncode_MergesCrossWords(t *testing.T) {
	tok := Default()
	crossing := 0
	for id := range int32(tok.Size()) {
		if s := tok.Text(id); strings.Contains(strings.TrimSpace(s), " ") {
			crossing++
		}
	}
	if crossing < 100 {
		t.Fatalf("only %d tokens cross a word boundary", crossing)
	}
	whole, part := tok.Encode("one of the servers of the cluster"), tok.Encode("one of the servers of t")
	if slices.Equal(whole[:len(part)], part) {
		t.Fatalf("a text prefix should not always be a token prefix: %v, %v", whole, part)
	}
}

// Texts that are remembered have the tokens that they have without memory, and the memory is
// bounded.
func TestAppend_GivesWhatEncodeGives(t *testing.T) {
	tok, err := New(Default().merges, Default().specials)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(3) {
		text := Corpus(seed, 3000)
		want := append([]int32{7}, tok.Encode(text)...)
		for range 3 {
			got := tok.Append([]int32{7}, text)
			if !slices.Equal(got, want) {
				t.Fatalf("text of seed %d: %d tokens, want %d", seed, len(got), len(want))
			}
			got[1] = -1 // it is the caller's
		}
	}
	for i := range 10 {
		tok.memory.keep(strings.Repeat(string(rune('a'+i)), mostKept/3), nil)
	}
	if kept := len(tok.memory.young) + len(tok.memory.old); kept > 8 {
		t.Errorf("%d texts are kept", kept)
	}
}

func TestEncodeMarked_SpecialTokensStandAlone(t *testing.T) {
	tok := Default()
	user, _ := tok.Special(User)
	ids := tok.EncodeMarked("a" + User + "b<|nothing|>")
	if !slices.Contains(ids, user) || tok.Decode(ids) != "ab<|nothing|>" {
		t.Fatalf("got %v = %q", ids, tok.Decode(ids))
	}
	if slices.Contains(tok.Encode(User), user) {
		t.Fatal("Encode must not make special tokens from text")
	}
}

func FuzzEncode_RoundTripsAndEqualsTheDefinition(f *testing.F) {
	for _, s := range []string{"", "a", "aaaaaaaaaaaaaaaaa", "of the of the of the", "日本語 🙂", "\x00\xff\xfe", strings.Repeat("        x", 20), Corpus(3, 300)} {
		f.Add(s)
	}
	tok := Default()
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		ids := tok.encodeLong(text + "!")
		if got := tok.Decode(ids); got != text+"!" {
			t.Fatalf("decode(encode(%q)) = %q", text, got)
		}
		if short := tok.encodeShort(text + "!"); !slices.Equal(ids, short) {
			t.Fatalf("%q: long %v, short %v", text, ids, short)
		}
		if slow := encodeSlowly(tok, text+"!"); !slices.Equal(ids, slow) {
			t.Fatalf("%q: got %v, definition gives %v", text, ids, slow)
		}
		for i := 0; i+1 < len(ids); i++ {
			if !tok.Adjacent(ids[i], ids[i+1]) {
				t.Fatalf("%q: neighbours %d, %d do not re-encode to themselves", text, ids[i], ids[i+1])
			}
		}
	})
}

func TestAdjacent_PairsMakeAWholeTextCanonical(t *testing.T) {
	tok := Default()
	c := chance(5)
	for range 300 {
		ids := []int32{int32(c.below(tok.Size() - 16))}
		for len(ids) < 40 {
			if next := int32(c.below(tok.Size() - 16)); tok.Adjacent(ids[len(ids)-1], next) {
				ids = append(ids, next)
			}
		}
		if again := tok.Encode(tok.Decode(ids)); !slices.Equal(again, ids) {
			t.Fatalf("%v re-encodes to %v", ids, again)
		}
	}
}

func TestCorpus_IsValidText(t *testing.T) {
	if !utf8.ValidString(Corpus(trainSeed, 10_000)) {
		t.Fatal("corpus is not UTF-8")
	}
}

// Budget: 100 KB in a few milliseconds, since a gateway test may send that as one prompt.
func BenchmarkEncode_100KB(b *testing.B) {
	text := Corpus(9, 100_000)
	tok := Default()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text)
	}
}
