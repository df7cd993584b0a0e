package tokens

import (
	"context"
	"fmt"
	"time"
)

// Source knows the tokens of one model's prompts, in one mode. Its methods may be called
// by many goroutines.
type Source struct {
	cfg     Config
	metrics *Metrics
	memory  *memory // engine, learned
	claims  *claims
	asker   *asker   // engine
	encoder *encoder // tokenizer
}

// New makes a source. ask is needed in engine mode only, metrics may be nil. The caller
// closes it.
func New(cfg Config, ask Ask, metrics *Metrics) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, metrics: metrics, claims: newClaims()}
	switch cfg.Mode {
	case Engine:
		if ask == nil {
			return nil, fmt.Errorf("tokens of %s: mode engine has no server to ask", cfg.Model)
		}
		s.memory = newMemory(cfg.MemoryBytes)
		s.asker = newAsker(cfg, ask, s.memory, s.claims, metrics)
	case Learned:
		s.memory = newMemory(cfg.MemoryBytes)
	case Tokenizer:
		encoder, err := loadEncoder(cfg)
		if err != nil {
			return nil, fmt.Errorf("tokens of %s: %w", cfg.Model, err)
		}
		s.encoder = encoder
	}
	return s, nil
}

// Close ends what is under way and waits for it. Tokens must not be called after it.
func (s *Source) Close() {
	if s.asker != nil {
		s.asker.close()
	}
}

// engine is whose conversions count for the model.
func (s *Source) engine() string {
	if s.cfg.Engine == nil {
		return engineVLLM
	}
	return s.cfg.Engine()
}

// Tokens says what is known of a prompt's tokens; false is nothing, for the reason in
// Tokens.Unknown, and the caller routes by load. Only engine mode may wait, and never longer
// than AskWait.
func (s *Source) Tokens(ctx context.Context, p Prompt) (Tokens, bool) {
	start := time.Now()
	p.engine = s.engine()
	t, ok := s.tokens(ctx, &p)
	t.Mode, t.Adapter, t.Salt = s.cfg.Mode, p.Adapter, p.Salt
	s.metrics.asked(s.cfg.Model, outcomeOf(&t, ok), time.Since(start))
	return t, ok
}

func (s *Source) tokens(ctx context.Context, p *Prompt) (Tokens, bool) {
	if s.cfg.Mode == Approximate {
		if chunks := p.chunks(); len(chunks) > 0 {
			return Tokens{Chunks: chunks}, true
		}
		return unknown(TooShort)
	}
	if ids, ok := p.promptIDs(); ok {
		return Tokens{IDs: ids, Certain: len(ids), Complete: true, By: ByRequest}, true
	}
	switch s.cfg.Mode {
	case Engine:
		return s.asker.tokens(ctx, p)
	case Learned:
		return s.remembered(p)
	case Tokenizer:
		return s.encoded(p)
	}
	return unknown(Off)
}

// unknown is what is known of a prompt's tokens where that is nothing.
func unknown(why Reason) (Tokens, bool) { return Tokens{Unknown: why}, false }

// encoded is what the gateway's own tokenizer says, where it was not wrong yet.
func (s *Source) encoded(p *Prompt) (Tokens, bool) {
	b, ok := takeApart(p)
	if !ok {
		return unknown(BadForm)
	}
	context := p.contextOf(&b)
	if !s.claims.believes(context, ByTokenizer) {
		return unknown(Wrong)
	}
	ids, why := s.encoder.tokens(p)
	if why != "" {
		return unknown(why)
	}
	return Tokens{IDs: ids, Certain: len(ids), Complete: true, By: ByTokenizer, context: context}, true
}

// remembered is what the memory says.
func (s *Source) remembered(p *Prompt) (Tokens, bool) {
	b, ok := takeApart(p)
	if !ok {
		return unknown(BadForm)
	}
	t, ok := p.readBody(&b)
	if !ok {
		return unknown(BadForm)
	}
	defer t.free()
	c := s.memory.recall(t)
	known := c.tokens()
	known.setText(t)
	reported := p.API != Messages // its answers have no ids at all
	known.Teaches = !t.partial && reported && s.memory.isWorthAsking(t, &c)
	if len(c.ids) > 0 {
		return known, true
	}
	known.Text = p.chunksOf(&b)
	switch {
	case t.partial:
		known.Unknown = Media
	case !reported:
		known.Unknown = NotReported
	default:
		known.Unknown = NotLearned
	}
	return known, false
}

func (c claim) tokens() Tokens {
	t := Tokens{IDs: c.ids, Certain: c.certain, Complete: c.complete}
	if c.by != nil {
		t.By, t.Hashed = c.by.by, c.by.hashed
	}
	return t
}

// Learn takes in the token ids of a prompt, as its prefill answered them (ParseIDs). The caller changes them no more.
// The ids of other modes are no news. Ids must never reach the client that did not ask
// for them: what strips them from answers is not this package.
func (s *Source) Learn(p Prompt, ids []uint32) {
	if s.cfg.Mode != Learned || len(ids) == 0 {
		return
	}
	t, ok := p.read()
	if !ok {
		return
	}
	defer t.free()
	s.metrics.learned(s.cfg.Model, s.memory, s.memory.learn(t, ids, ByPrefill))
}
