package engine

import (
	"bytes"
	"context"
	"slices"
	"time"
	"unicode/utf8"
)

// Reasons why a sequence ended (vLLM finish_reason).
const (
	finishStop   = "stop"
	finishLength = "length"
	finishAbort  = "abort"
	finishError  = "error"

	finishTransfer = "transfer" // its KV did not come, or was not fetched
)

// sampling says how an answer is made and where it ends.
type sampling struct {
	maxTokens   int
	minTokens   int
	stop        []string
	stopTokens  []int32
	allowed     []int32 // the only tokens that may be said; none: all
	ignoreEOS   bool
	includeStop bool    // the stop string stays in the text
	topLogprobs int     // others reported for each token; negative: no logprobs
	script      []int32 // tokens to say instead of free text, then the answer ends
	reasoning   int     // tokens of reasoning before the answer, the last of which ends it
	variant     int     // which of n answers to one prompt; 0 is the plain one
	interval    int     // tokens that a stream brings at once; up to 1: each by itself
}

// sequence is one prompt and the answer being made to it. The lock of its rank
// guards it from submission on.
type sequence struct {
	id       string // internal request id, unique
	sampling sampling
	adapter  string
	salt     string
	priority float64 // lowest first
	// reportsHits is generation's.
	reportsHits bool
	order       uint64 // of arrival

	tokens []int32 // prompt, then answer
	prompt int     // length of the prompt
	text   []byte  // of the answer
	sent   int     // bytes of text handed to the reader

	past   past   // over all tokens
	pasts  []past // past at the end of each full block of tokens
	hashes []blockHash

	blocks   []*block
	computed int // leading tokens whose KV is in blocks
	stored   int // leading blocks that are reusable
	cached   int // prompt tokens that did not have to be computed here; -1: not known yet

	handoffOut bool               // a prefill leg: hand the KV over at the end
	holdName   string             // under this name; empty: the id
	reader     string             // to this engine only; empty: to any
	decodeLeg  bool               // it asked for KV from another engine
	handoffIn  *handoff           // the KV to fetch first; nil when there is none
	answerIn   *handoff           // an answer's KV that a prefill leg fetches first; nil when there is none
	fetches    bool               // KV comes from another engine and is not here yet
	admitted   chan room          // tells the goroutine that fetches
	cancel     context.CancelFunc // of the goroutine that fetches
	pulled     bool               // KV came from another engine
	result     *handoff           // what a prefill leg hands over; nil: nothing

	bootstrap *bootstrapRoom    // where its legs meet; nil: they do not
	source    *bootstrapRoom    // a third engine that may hold its beginning; nil: none
	session   *bootstrapSession // of a prefill leg with a bootstrap room, until it ends

	state  sequenceState
	finish string
	times  times

	// Faults of its request: steps with it take slow times longer (0: as usual); the
	// hand-off is withheld, or names what is not there.
	slow         float64
	dropHandoff  bool
	wrongHandoff bool

	out *answers
	at  int // index of this answer among those of its request
}

// times of a sequence's life, for metrics; zero: not reached.
type times struct {
	arrived, scheduled, first, last time.Time
}

type sequenceState int

const (
	waiting   sequenceState = iota
	expecting               // a prefill whose decode has no room yet
	offering                // a prefill whose KV is computed and not read
	loading                 // its KV is on the way from another engine
	running
	ended
)

// need is the number of tokens to compute before the next one can be said.
func (s *sequence) need() int { return len(s.tokens) - s.computed }

// emitted is the number of tokens of the answer.
func (s *sequence) emitted() int { return len(s.tokens) - s.prompt }

// extend takes one more token at the end.
func (s *sequence) extend(token int32, blockSize int) {
	s.tokens = append(s.tokens, token)
	s.past = s.past.after(token)
	if len(s.tokens)%blockSize == 0 {
		s.pasts = append(s.pasts, s.past)
	}
}

// hashTo extends the chain of block hashes to the first n blocks.
func (s *sequence) hashTo(n, blockSize int, root blockHash) {
	for i := len(s.hashes); i < n; i++ {
		parent := root
		if i > 0 {
			parent = s.hashes[i-1]
		}
		s.hashes = append(s.hashes, hashBlock(parent, s.tokens[i*blockSize:(i+1)*blockSize], extraKeys(i, s.adapter, s.salt)))
	}
}

// piece is one token of an answer as its reader gets it.
type piece struct {
	at        int // which answer
	token     int32
	text      string   // new text; may be empty, or include that of earlier tokens
	reasoning bool     // it is of the reasoning before the answer
	ranking   []likely // with logprobs: this token, then the likeliest others
	finish    string   // not empty on the last piece
	stoppedBy any      // stop string or token id that ended the answer, or nil
	cached    int      // prompt tokens that were not computed here
	result    *handoff // on the last piece of a prefill leg
}

// emit makes the next token of the answer and returns it as its reader gets it.
func (s *sequence) emit(l *language, blockSize int) piece {
	token, p := s.sample(l)
	reasoning := s.emitted() < s.sampling.reasoning
	s.extend(token, blockSize)
	out := piece{at: s.at, token: token, reasoning: reasoning, cached: s.cached}
	if s.handoffIn != nil && s.handoffIn.Cached != nil {
		out.cached = *s.handoffIn.Cached
	}
	if s.sampling.topLogprobs >= 0 {
		out.ranking = l.ranking(p, token, s.sampling.topLogprobs)
	}
	before := len(s.text)
	s.text = append(s.text, l.tok.Text(token)...)
	s.finish, out.stoppedBy = s.ending(token, before, l.end)
	out.text = s.release()
	out.finish = s.finish
	return out
}

// sample picks the next token: of the reasoning, of the script, or by the language.
func (s *sequence) sample(l *language) (token int32, p past) {
	p = s.past
	if s.sampling.variant > 0 {
		p = past(mix(uint64(p) + uint64(s.sampling.variant)))
	}
	said := s.emitted() - s.sampling.reasoning
	switch {
	case said < -1:
		return l.next(p, s.tokens[len(s.tokens)-1], false), p
	case said == -1:
		return l.endReasoning, p
	}
	if script := s.sampling.script; script != nil {
		if said < len(script) {
			return script[said], p
		}
		return l.end, p
	}
	if allowed := s.sampling.allowed; len(allowed) > 0 {
		return allowed[p.draw(0)%uint64(len(allowed))], p
	}
	mayEnd := !s.sampling.ignoreEOS && s.emitted() >= s.sampling.minTokens && said >= l.least
	return l.next(p, s.tokens[len(s.tokens)-1], mayEnd), p
}

// ending says whether the token just said ends the answer, and by what. before is
// the length of the text without it.
func (s *sequence) ending(token int32, before int, end int32) (finish string, by any) {
	if token == end {
		return finishStop, nil
	}
	if s.emitted() >= s.sampling.minTokens {
		if slices.Contains(s.sampling.stopTokens, token) {
			return finishStop, token
		}
		for _, stop := range s.sampling.stop {
			from := max(0, before-len(stop)+1)
			if at := bytes.Index(s.text[from:], []byte(stop)); at >= 0 {
				s.text = s.text[:from+at]
				if s.sampling.includeStop {
					s.text = append(s.text, stop...)
				}
				return finishStop, stop
			}
		}
	}
	if s.emitted() >= s.sampling.maxTokens {
		return finishLength, nil
	}
	return "", nil
}

// release hands out new text. Until the answer or the reasoning before it ends it keeps
// back what may become part of a stop string, and the bytes of an unfinished character.
func (s *sequence) release() string {
	end := len(s.text)
	if s.finish == "" && s.emitted() != s.sampling.reasoning {
		if !s.sampling.includeStop {
			end -= longest(s.sampling.stop) - 1
		}
		end = max(end, s.sent)
		end = s.sent + wholeCharacters(s.text[s.sent:end])
	}
	if end <= s.sent {
		return ""
	}
	out := s.text[s.sent:end]
	s.sent = end
	return string(bytes.ToValidUTF8(out, []byte("\uFFFD")))
}

// wholeCharacters is the length of text without an unfinished character at its end.
func wholeCharacters(text []byte) int {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if utf8.FullRune(text[i:]) {
				break
			}
			return i
		}
	}
	return len(text)
}

// longest is the length of the longest string, at least 1.
func longest(all []string) int {
	n := 1
	for _, s := range all {
		n = max(n, len(s))
	}
	return n
}
