package pd

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/senttext"
)

// Prompts that begin alike and come together are prefilled one behind the other on the server that has their
// beginning, and decode is asked for all of them within moments. It finds in its prefix cache what is there, not what is
// on its way: each would pull the beginning again, all over one link. So a decode leg waits for another that
// pulls what it lacks, and pulls the rest.

// sharedPulls are the pulls of prompts that are under way, by decode server. The zero value has none.
type sharedPulls struct {
	mu    sync.Mutex // guards the rest, and the pulls' fields
	under map[string][]*pull
	came  map[string][]*pull // lately, the last one last
}

const (
	// What has come is taken to be there for so long, though no KV events say so: a hot beginning would be
	// waited for again and again.
	cameLife = 5 * time.Second
	mostCame = 2 // of a server: each keeps a prompt's tokens
)

// pull is one of a prompt.
type pull struct {
	prompt leadingTokens
	lacks  int           // tokens that decode lacked
	ended  chan struct{} // closed when it has come, or will not
	came   bool
	isOver bool
}

// leadingTokens are what is known of a prompt's beginning. They are never changed.
type leadingTokens struct {
	of     senttext.Salted
	ids    []uint32
	chunks []tokens.Chunk
	tokens int // that the chunks stand for
}

// leadingTokensOf is what is known of a prompt of so many tokens, false if nothing is.
func leadingTokensOf(p *prefix, promptTokens int) (l leadingTokens, known bool) {
	if p == nil || !p.known {
		return l, false
	}
	l = leadingTokens{of: p.saltedModel(), ids: p.tokens.IDs, chunks: p.tokens.Chunks, tokens: promptTokens}
	if len(l.chunks) == 0 {
		l.chunks = p.text
	}
	if len(p.tokens.Media) > 0 { // equal place-holders may stand for different images
		l.ids = nil
	}
	return l, len(l.ids)+len(l.chunks) > 0
}

// common is how many tokens two prompts begin with alike.
func (l *leadingTokens) common(by *leadingTokens) int {
	switch {
	case l.of != by.of:
		return 0
	case len(l.ids) > 0 && len(by.ids) > 0:
		return equal(l.ids, by.ids)
	case len(l.chunks) > 0 && len(by.chunks) > 0:
		return equal(l.chunks, by.chunks) * l.tokens / len(l.chunks)
	}
	return 0
}

// equal is how many elements two slices begin with alike. The tokens of two prompts on one document mostly are of one
// memory.
func equal[T comparable](a, b []T) int {
	const run = 64 // at a time
	n := min(len(a), len(b))
	if n > 0 && &a[0] == &b[0] {
		return n
	}
	i := 0
	for n-i >= run && *(*[run]T)(a[i:]) == *(*[run]T)(b[i:]) {
		i += run
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// await returns once no pull to a decode server is under way that is worth waiting for, or the context ends, or it is too
// late, and notes the one that is sent then. held are the tokens of the prompt that the server has; the new number comes
// back.
func (s *sharedPulls) await(ctx context.Context, until time.Time, server string, prompt leadingTokens, tokens, held int) (*pull, int) {
	var late <-chan time.Time // nil until there is something to wait for
	isLate := false
	for {
		s.mu.Lock()
		for _, p := range s.came[server] {
			held = max(held, min(tokens, prompt.common(&p.prompt)))
		}
		before, shared := s.worthAwaiting(server, &prompt, held)
		if before == nil || isLate || ctx.Err() != nil {
			own := s.beginLocked(server, prompt, tokens-held)
			s.mu.Unlock()
			return own, held
		}
		s.mu.Unlock()
		if late == nil {
			timer := time.NewTimer(time.Until(until))
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-before.ended:
			if before.came {
				held = max(held, shared)
			}
		case <-late:
			isLate = true
		case <-ctx.Done():
		}
	}
}

// worthAwaiting is the pull to a server that brings most of a prompt of which it has so many tokens, and how many it
// will have then; nil if none is worth the wait.
func (s *sharedPulls) worthAwaiting(server string, prompt *leadingTokens, held int) (best *pull, has int) {
	has = held
	for _, p := range s.under[server] {
		if common := prompt.common(&p.prompt); common > has && cost.WorthAwaiting(common, held, p.lacks) {
			best, has = p, common
		}
	}
	return best, has
}

func (s *sharedPulls) beginLocked(server string, prompt leadingTokens, lacks int) *pull {
	if lacks < cost.WorthFollowing {
		return nil
	}
	if s.under == nil {
		s.under = make(map[string][]*pull)
	}
	p := &pull{prompt: prompt, lacks: lacks, ended: make(chan struct{})}
	s.under[server] = append(s.under[server], p)
	return p
}

// end says that a pull to a server is over, and whether what it pulled has come; said again it does nothing. nil is
// none.
func (s *sharedPulls) end(server string, p *pull, came bool) {
	if p == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.isOver {
		return
	}
	p.isOver, p.came = true, came
	close(p.ended)
	remove(s.under, server, p)
	if !came {
		return
	}
	if s.came == nil {
		s.came = make(map[string][]*pull)
	}
	last := append(s.came[server], p)
	s.came[server] = last[max(0, len(last)-mostCame):]
	time.AfterFunc(cameLife, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		remove(s.came, server, p)
	})
}

func remove(from map[string][]*pull, server string, p *pull) {
	if from[server] = slices.DeleteFunc(from[server], func(other *pull) bool { return other == p }); len(from[server]) == 0 {
		delete(from, server)
	}
}

// awaitShared waits, before decode is sent a hand-off, for what it pulls for others of the same prompt's beginning. It
// waits no longer than half the time for which the hand-off may be used.
func (o *Orchestrator) awaitShared(ctx context.Context, st *requestState, b *binding) {
	server := b.decode.Server()
	if !b.handoff.HasKV() || !o.Binder.Cost.DecodeReuse || !connector.Of(server).Pulls {
		return
	}
	count := b.handoff.Coverage().Tokens
	prompt, known := leadingTokensOf(st.bind.prefix, st.req.PromptTokens)
	if !known || count == 0 {
		return
	}
	until := b.handoff.Created.Add(o.Binder.Config.HandoffAge / 2)
	b.pull, b.cachedTokens = o.pulls.await(ctx, until, server.ID(), prompt, count, max(b.cachedTokens, b.cut.tokens))
	if b.pull != nil {
		st.keepRoom() // it ends by a timer, at the latest
	}
}

// endPull says that decode has, or will not get, what a request's leg had it pull.
func (o *Orchestrator) endPull(b *binding, came bool) {
	o.pulls.end(b.decode.Server().ID(), b.pull, came)
}

// endPullUnseen ends the pull of a leg whose answer comes whole, when it is predicted to have come.
func (o *Orchestrator) endPullUnseen(b *binding) (stop func() bool) {
	bytes := float64(b.pull.lacks) * b.tokenBytes
	takes := o.Binder.Links.Forecast(linkEndOf(b.handoff.From), linkEndOf(b.decode.Server()), bytes, time.Now())
	return time.AfterFunc(o.Binder.Cost.HandOff+takes+b.chosen.Terms.Step, func() { o.endPull(b, true) }).Stop
}
