package engine

import (
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

// language is the simulated model: it says which token follows a run of tokens.
//
// The next token is a function of all tokens before it, of the model's name and of
// the adapter, and of nothing else: not of the engine, the path (aggregated or
// prefill and decode), the salt, the seed or the temperature. One wrong, doubled or
// lost token changes everything after it. The tokens it speaks re-encode to
// themselves, so a continuation by text equals one by tokens.
type language struct {
	*speech
	name  string
	least int    // length of an answer, in tokens
	mean  uint64 // length beyond that
}

func newLanguage(name string, leastTokens, meanTokens int) *language {
	return &language{speech: defaultSpeech(), name: name, least: leastTokens, mean: uint64(meanTokens)}
}

// speech is what all models speak: the vocabulary, and which of its tokens make sentences.
type speech struct {
	tok   *bpe.Tokenizer
	words []int32 // tokens it may speak: one or more words and a space
	lasts []int32 // words without a space, to be followed by a break
	after []int32 // breaks: punctuation and a space, perhaps with a word
	end   int32   // ends an answer
	begin int32   // begins a prompt

	endReasoning int32 // the answer follows
}

// defaultSpeech is made once: to sort the vocabulary takes longer than all else that an
// engine does to start.
var defaultSpeech = sync.OnceValue(func() *speech {
	tok := bpe.Default()
	s := &speech{tok: tok}
	s.end, _ = tok.Special(bpe.EndOfTurn)
	s.begin, _ = tok.Special(bpe.Begin)
	s.endReasoning, _ = tok.Special(bpe.EndOfReasoning)
	known := map[string]bool{}
	for _, w := range bpe.Words() {
		known[w] = true
	}
	for id := range int32(tok.Size()) {
		text := tok.Text(id)
		words := strings.Fields(strings.ToLower(strings.TrimLeft(text, ".,?! ")))
		if slices.ContainsFunc(words, func(w string) bool { return !known[w] }) {
			continue
		}
		switch spaced := strings.HasSuffix(text, " "); {
		case spaced && strings.IndexAny(text, ".,?!") == 0:
			s.after = append(s.after, id)
		case spaced && len(words) > 0 && text[0] != ' ':
			s.words = append(s.words, id)
		case len(words) == 1 && words[0] == text:
			s.lasts = append(s.lasts, id)
		}
	}
	return s
})

// past is everything before a token, folded into 64 bits.
type past uint64

// start is the past before the first token.
func (l *language) start(adapter string) past {
	h := fnv.New64a()
	h.Write([]byte(l.name + "\x00" + adapter))
	return past(mix(h.Sum64()))
}

// after is the past once token has followed.
func (p past) after(token int32) past {
	return past(mix(uint64(p)*0x9E3779B97F4A7C15 + uint64(token) + 1))
}

// draw is the n-th independent number that the past determines.
func (p past) draw(n int) uint64 { return mix(uint64(p) + uint64(n)*0xD1342543DE82EF95) }

// mix spreads every input bit over all output bits (the splitmix64 finalizer).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// maxDraws bounds the search for a token that leaves the text canonical. One in a
// few does, so the bound is never met in practice.
const maxDraws = 64

// next is the token after p. last is the token before it. With mayEnd false the
// answer does not end here; an answer ends with a chance of 1/mean at each token,
// whatever its length, so that a continued answer ends where the whole one does.
func (l *language) next(p past, last int32, mayEnd bool) int32 {
	if mayEnd && p.draw(0)%l.mean == 0 {
		return l.end
	}
	var token int32
	for n := 1; n <= maxDraws; n++ {
		token = l.candidate(p.draw(n), last)
		if l.tok.Adjacent(last, token) {
			break
		}
	}
	return token
}

// candidate maps a number to a token that reads well after last.
func (l *language) candidate(n uint64, last int32) int32 {
	text := l.tok.Text(last)
	list := l.words
	switch {
	case text != "" && unicode.IsLetter(rune(text[len(text)-1])):
		list = l.after
	case n%12 == 0:
		list = l.lasts
	}
	return list[n/12%uint64(len(list))]
}

// likely is a token and its logarithmic probability, for answers with logprobs.
type likely struct {
	token   int32
	logprob float64
}

// ranking is the spoken token followed by the n most likely others, most likely
// first. The numbers are made up, but the same on every engine.
func (l *language) ranking(p past, spoken int32, n int) []likely {
	logprob := -float64(p.draw(-1)%1000) / 1000
	top := []likely{{spoken, logprob}}
	for i := 0; len(top) <= n; i++ {
		token := l.words[p.draw(-2-i)%uint64(len(l.words))]
		if slices.ContainsFunc(top, func(t likely) bool { return t.token == token }) {
			continue
		}
		logprob -= 0.1 + float64(p.draw(-2-i)>>32%900)/1000
		top = append(top, likely{token, logprob})
	}
	return top
}
