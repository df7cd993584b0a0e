package pd

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/modeltokens"
	"github.com/tandem-gateway/tandem/pd/senttext"
	"github.com/tandem-gateway/tandem/pools"
)

// Locality knows how much of a prompt each server holds: the tokens of prompts by
// model, and the index of which server holds which blocks. It is read without a network
// call, save where tokens are asked of an engine, and that never for long.
type Locality struct {
	Index         *kvstate.Index
	Tokens        *modeltokens.Sources
	SentText      *senttext.History
	sourceClasses atomic.Pointer[map[string]uint64]
}

// NewLocality returns a locality over an index, with the token sources that open gives
// (modeltokens.New).
func NewLocality(index *kvstate.Index, open func(model string) (*tokens.Source, error)) *Locality {
	return &Locality{Index: index, Tokens: modeltokens.New(open), SentText: senttext.New()}
}

// Close ends the token sources.
func (l *Locality) Close() { l.Tokens.Close() }

// prefix is what is known of one request's prompt.
type prefix struct {
	source *tokens.Source
	prompt tokens.Prompt
	tokens tokens.Tokens
	known  bool
	// unknown is why the tokens are not known; "" where they are.
	unknown tokens.Reason
	model   string // base model
	hits    kvstate.Hits
	// text is the chunks of a prompt whose tokens are known: equal text may come of which they
	// are not, or not in time.
	text []tokens.Chunk
	// chains are all that is known of the prompt of another replica's request.
	chains []kvstate.Chain
	length int // tokens of that prompt

	// answer is the KV of an earlier answer that the prompt goes on behind, of which so many tokens are
	// its own; nil: there is none, or it was not sought yet.
	answer       *answerkv.Answer
	answerTokens int
	answerSought bool
}

// versionOf is a server as it is now.
func versionOf(s *pools.Server) senttext.Server {
	return senttext.Server{ID: s.ID(), Class: s.CompatibilityKey()}
}

// saltedModel is whose chunks of text the prompt's are.
func (p *prefix) saltedModel() senttext.Salted {
	return senttext.Salted{Model: p.model, Adapter: p.tokens.Adapter, Salt: p.tokens.Salt}
}

// spokenIn is the API of a prompt whose tokens can be known, "" for any other.
func spokenIn(d *api.Dialect) tokens.API {
	switch d {
	case api.Chat:
		return tokens.Chat
	case api.Completions:
		return tokens.Completions
	case api.Responses:
		return tokens.Responses
	case api.Messages:
		return tokens.Messages
	}
	return ""
}

// findTokens finds the tokens of a request's prompt. base is the model that the request's
// model is an adapter of, or the model itself.
func (l *Locality) findTokens(ctx context.Context, req *Request, base string) *prefix {
	p := &prefix{model: base}
	spoken := spokenIn(req.Dialect)
	switch {
	case spoken == "":
		p.unknown = tokens.NotGenerated
	case req.Aggregated:
		p.unknown = tokens.Aggregated
	default:
		p.source, p.unknown = l.Tokens.Source(base)
	}
	if p.source == nil {
		return p
	}
	// Nothing that the gateway edits is part of the prompt, so what was sent will do.
	p.prompt = tokens.Prompt{API: spoken, Body: req.Body.Source(), Long: req.Body.Long(), Model: req.Model, Salt: req.Salt}
	if req.Model != base {
		p.prompt.Adapter = req.Model
	}
	p.tokens, p.known = p.source.Tokens(ctx, p.prompt)
	p.unknown = p.tokens.Unknown
	if !p.known { // what went where, by its text: approximate, and counted nowhere as known
		if p.tokens.Chunks = p.tokens.Text; p.tokens.Chunks == nil {
			p.tokens.Chunks = p.source.Chunks(p.prompt)
		}
		p.known = len(p.tokens.Chunks) > 0
	} else {
		p.text = p.tokens.Text
	}
	return p
}

// wholeText is a hash of all of the prompt's text, 0 where it is not known.
func (p *prefix) wholeText() uint64 {
	if p == nil {
		return 0
	}
	return p.tokens.Whole
}

// takeLater takes over the tokens that an engine has answered since the request was located, and
// reports whether there are any.
func (p *prefix) takeLater() bool {
	if p == nil || p.tokens.Later == nil {
		return false
	}
	found, ok := p.tokens.Later.Tokens()
	if !ok {
		return false
	}
	p.tokens, p.text, p.known, p.unknown = found, found.Text, true, ""
	p.hits = kvstate.Hits{} // of what was known before
	p.answer, p.answerTokens, p.answerSought = nil, 0, false
	return true
}

// promptTokens is the prompt's length as the gateway knows it, 0 where it does not.
func (p *prefix) promptTokens() int {
	if p == nil || !p.tokens.Complete {
		return 0
	}
	return p.tokens.Count()
}

// isClaimed reports whether the tokens are what the gateway says that an engine makes of the
// prompt, and not what one said of it.
func (p *prefix) isClaimed() bool {
	return p != nil && (p.tokens.By == tokens.ByTranslation || p.tokens.By == tokens.ByTokenizer)
}

// isGuessed reports whether nothing is known of the prompt's tokens, and what servers hold of
// it is guessed from the text that they were sent.
func (p *prefix) isGuessed() bool {
	return p != nil && len(p.tokens.Chunks) > 0 && p.tokens.Mode != tokens.Approximate
}

// counted holds what was known of a prompt against the tokens that an engine counted in it.
func (p *prefix) counted(count int) {
	if p != nil && p.source != nil && p.known {
		p.source.Counted(p.prompt.API, &p.tokens, count)
	}
}

// beginning is what is known of a longer prompt that begins with this one.
func (p *prefix) beginning() *prefix {
	known := p.tokens
	known.Complete, known.Teaches, known.Later = false, false, nil
	return &prefix{source: p.source, prompt: p.prompt, tokens: known, known: p.known, model: p.model}
}

// match looks up what each server holds of the prompt now. The prompt is hashed once.
func (l *Locality) match(p *prefix) {
	if l.Index.Rematch(&p.hits) {
		return
	}
	if len(p.chains) > 0 {
		l.Index.MatchChains(p.model, p.length, p.chains, &p.hits)
		return
	}
	if !p.known || len(p.tokens.IDs) == 0 {
		return
	}
	prompt := kvstate.Prompt{Model: p.model, Adapter: p.tokens.Adapter, Salt: p.tokens.Salt, Tokens: p.tokens.IDs, Hashed: p.tokens.Hashed}
	for _, m := range p.tokens.Media {
		prompt.Media = append(prompt.Media, kvstate.Medium{Hash: m.Hash, Offset: m.Offset, Length: m.Length})
	}
	l.Index.Match(&prompt, &p.hits)
}

// extends reports whether a server on which another prompt was bound, of which it held so many tokens,
// will hold more of this one than it was found to: by tokens, or where none are known by the text that
// both begin with.
func (p *prefix) extends(server string, at *kvstate.HitPosition, by *prefix, held int) bool {
	mine, theirs := p.tokens.Chunks, by.tokens.Chunks
	if len(mine) == 0 {
		return p.hits.Extends(server, at, &by.hits)
	}
	if len(theirs) == 0 {
		theirs = by.text
	}
	common := 0
	for common < min(len(mine), len(theirs)) && mine[common] == theirs[common] {
		common++
	}
	return common*senttext.ChunkTokens > held && p.saltedModel() == by.saltedModel()
}

// cachedTokens returns what a server holds of the prompt, which has so many tokens, as match found.
func (l *Locality) cachedTokens(p *prefix, promptTokens int, s *pools.Server, at *serverFacts) cached.Tokens {
	if chunks := p.tokens.Chunks; len(chunks) > 0 {
		of, on := p.saltedModel(), versionOf(s)
		n := l.SentText.CachedTokens(of, on, chunks)
		return cached.Tokens{GPU: n, CPU: n, Disk: n, Pending: min(n, senttext.ChunkTokens*l.SentText.Computing(of, on, chunks))}
	}
	if !p.known || at.replaced {
		return cached.Tokens{}
	}
	held := p.hits.HeldAt(s.ID(), &at.spot)
	if n := l.computing(p, s, promptTokens); n > held.GPU {
		held.Pending += n - held.GPU
		held.GPU, held.CPU, held.Disk = n, max(n, held.CPU), max(n, held.Disk)
	}
	return held
}

// computing is how many leading tokens of a prompt of so many a server is believed to compute, by its
// text: also of one of which fewer tokens are known so far. Whole KV blocks count, and one less: a text's
// tokens are spread unevenly over it, and what two prompts share ends within a block.
func (l *Locality) computing(p *prefix, s *pools.Server, promptTokens int) int {
	if len(p.text) == 0 {
		return 0
	}
	n, block := l.SentText.Computing(p.saltedModel(), versionOf(s), p.text)*promptTokens/len(p.text), s.BlockTokens()
	if block == 0 {
		return n
	}
	return max(0, n/block-1) * block
}

// setCachedTokens writes what each of some servers holds of the prompt, which has so many tokens, as
// match found.
func (l *Locality) setCachedTokens(p *prefix, promptTokens int, servers []*pools.Server, facts []serverFacts, candidates []cost.Candidate) {
	for i, s := range servers {
		candidates[i].Cached = l.cachedTokens(p, promptTokens, s, &facts[i])
	}
}

// replaced reports whether what was received of a server came from another engine, which
// was there before.
func (l *Locality) replaced(s *pools.Server) bool {
	heard := l.sourceClasses.Load()
	if heard == nil {
		return false
	}
	class, known := (*heard)[s.ID()]
	return known && class != s.CompatibilityKey()
}

// SetSourceClasses sets the classes of servers as they were when the index began to receive
// their events: what was received of a server is not believed of one with other weights. The
// caller must not change the map afterwards.
func (l *Locality) SetSourceClasses(classes map[string]uint64) { l.sourceClasses.Store(&classes) }

// computesLonger is how long after its predicted end a computation is believed to go on that is
// known by text alone.
const computesLonger = time.Second

// predict notes that a server computes the prompt and holds it in so long, and returns what
// takes it back when it will not. What is known by text alone is never confirmed, so it is
// noted of decode as well, which gets it then. The text of other prompts is noted too, and that it is
// computed where not all of their tokens are known: of the
// next turn or a sibling the tokens may not be known in time, and the index has no place for a
// server that has published nothing yet.
//
// computed says that it has: without that, what the server has evicted since would be believed to be
// held until long after.
func (l *Locality) predict(p *prefix, in time.Duration, computes, decode *pools.Server) *prediction {
	return &prediction{enters: func() (withdraw, computed func()) { return l.enterPrediction(p, in, computes, decode) }}
}

func (l *Locality) enterPrediction(p *prefix, in time.Duration, computes, decode *pools.Server) (withdraw, computed func()) {
	now, of, on := time.Now(), p.saltedModel(), versionOf(computes)
	text, seen := p.tokens.Chunks, senttext.Sighting{Held: now, Computes: now.Add(in + computesLonger), Shared: p.source != nil}
	var guess kvstate.Guess
	if len(text) == 0 {
		guess, text, seen.Shared = l.Index.Guess(computes.ID(), &p.hits, in), p.text, false
		if guess.Entered() && p.tokens.Complete || !l.Index.CountsGuesses() {
			seen.Computes = time.Time{}
		}
	}
	if len(text) > 0 {
		if decode != computes {
			l.SentText.Record(of, versionOf(decode), kvTokens(decode, now), text, senttext.Sighting{Held: now.Add(in), Shared: seen.Shared})
		}
		l.SentText.Record(of, on, kvTokens(computes, now), text, seen)
	}
	byText := len(text) > 0 && !seen.Computes.IsZero()
	if !byText && !guess.Entered() {
		return nil, nil
	}
	withdraw = func() {
		guess.Withdraw()
		if byText {
			l.SentText.Withdraw(of, on, text, seen)
		}
	}
	return withdraw, guess.Computed
}

// kvTokens is how many tokens a server's KV has room for, 0 where that is not known.
func kvTokens(s *pools.Server, now time.Time) int { return int(s.FreshLoad(now).KVTokens.Value) }

// teaches reports whether prefill should be asked for the prompt's token ids.
func (p *prefix) teaches() bool { return p != nil && p.tokens.Teaches }

// learn takes the token ids out of prefill's answer. The answer itself never goes
// to the client.
func (l *Locality) learn(p *prefix, answer api.Answer) {
	if ids, ok := tokens.ParseIDs(answer.PromptIDs()); ok {
		l.Tokens.Learn(p.model, p.source, p.prompt, ids)
	}
}

// LocalityStatus is what people see of the locality: of each source what it holds,
// how far behind it is and what went wrong, and of each model how large its part of
// the index is.
type LocalityStatus struct {
	Sources []SourceStatus       `json:"sources"`
	Models  []kvstate.ModelState `json:"models"`
}

// SourceStatus is one server's KV as it was received.
type SourceStatus struct {
	Server     string  `json:"server"`
	Rank       int     `json:"rank,omitempty"`
	Model      string  `json:"model"`
	GPU        int     `json:"gpu_blocks"`
	CPU        int     `json:"cpu_blocks"`
	Disk       int     `json:"disk_blocks"`
	Seq        uint64  `json:"seq"`
	LagSeconds float64 `json:"lag_seconds"`        // how old the last batch was when it came; -1 unknown
	AgeSeconds float64 `json:"age_seconds"`        // since the last batch came; -1: none came here
	Receiver   string  `json:"receiver,omitempty"` // of an engine in connect mode: replica and address
	Batches    uint64  `json:"batches"`
	Gaps       uint64  `json:"gaps"`
	Replays    uint64  `json:"replays"`
	Restarts   uint64  `json:"restarts"`

	Dropped map[string]uint64 `json:"dropped"` // events, blocks or messages that were left out, by reason
	Resets  map[string]uint64 `json:"resets"`  // times that all was forgotten, by reason
}

// Status describes the locality; empty for a nil one.
func (l *Locality) Status() LocalityStatus {
	out := LocalityStatus{Sources: []SourceStatus{}, Models: []kvstate.ModelState{}}
	if l == nil {
		return out
	}
	for _, s := range l.Index.Sources() {
		status := SourceStatus{
			Server: s.Server, Rank: s.Rank, Model: s.Model, Seq: s.Seq, LagSeconds: -1, AgeSeconds: -1, Receiver: s.Receiver, Batches: s.Counts.Batches,
			Gaps: s.Counts.Gaps, Replays: s.Counts.Replays, Restarts: s.Counts.Restarts,
			Dropped: s.Counts.DropReasons(), Resets: s.Counts.ResetReasons(),
		}
		if lag := s.Counts.EngineLag; lag >= 0 {
			status.LagSeconds = lag
		}
		if !s.Counts.LastBatch.IsZero() {
			status.AgeSeconds = time.Since(s.Counts.LastBatch).Seconds()
		}
		for _, h := range s.Holders {
			status.GPU, status.CPU, status.Disk = status.GPU+h.GPU, status.CPU+h.CPU, status.Disk+h.Disk
		}
		out.Sources = append(out.Sources, status)
	}
	out.Models = append(out.Models, l.Index.Models()...)
	return out
}
