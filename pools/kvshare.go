package pools

import (
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools/load"
)

// sharedPrompts is how much of the KV of the prompts in flight a server really keeps. Requests whose prompts begin
// alike share the blocks of what they have in common: sixteen agents with one system prompt of 30,000 tokens take its
// KV once. Counted for each of them the server would be full with a few.
type sharedPrompts struct {
	mu    sync.Mutex
	share float64   // of a prompt's tokens, those that are kept for it alone, 0..1
	at    time.Time // when that was seen; zero: never
}

const (
	leastShare = 1. / 64 // what prompts are taken to keep for themselves at the least
	shareLife  = time.Minute
	// fullKV is the share of KV in use from which an engine is short of it: requests wait there for room, whatever
	// those that run share.
	fullKV = 0.9
)

// observe compares what an engine says that is in use with the tokens of the prompts that it has computed. Those of
// which it has computed a part, and the answers' own tokens, are in use too, so that too little is rather taken to
// be shared than too much. Of a prompt whose answer comes whole it is not known when it has been computed: it counts,
// and a server that computes one gets no other anyway. An engine that is short of KV has room for nothing that is
// shared.
func (p *sharedPrompts) observe(l load.Load, decodes, prefills InFlight) {
	if !l.KVUsed.Known || !l.KVTokens.Known || !l.Running.Known {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.KVUsed.Value >= fullKV && l.Waiting.Value > 0 {
		p.share, p.at = 1, l.At
		return
	}
	prompts := float64(decodes.Prompts - prefills.Seen)
	if prompts <= 0 || l.Running.Value <= 0 {
		return
	}
	prompts *= l.Running.Value / (l.Running.Value + l.Waiting.Value) // those that wait keep nothing
	p.share, p.at = min(1, max(leastShare, l.KVUsed.Value*l.KVTokens.Value/prompts)), l.At
}

// of is the share as last seen, 1 where that is long ago.
func (p *sharedPrompts) of(now time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || now.Sub(p.at) > shareLife {
		return 1
	}
	return p.share
}

// KVShare is how many tokens of KV a token of the requests that were sent to the server takes there, above 0 and at
// most 1: less where their prompts begin alike.
func (s *Server) KVShare(sent InFlight, now time.Time) float64 {
	if sent.Tokens <= 0 {
		return 1
	}
	own := float64(sent.Prompts) / float64(sent.Tokens)
	return 1 - (1-s.shared.of(now))*min(1, own)
}
