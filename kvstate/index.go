package kvstate

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Index knows which server holds which blocks. Its methods may be called from any
// goroutine.
type Index struct {
	cfg  Config
	seed atomic.Pointer[Seed] // of sources that open from now on, and of matches

	models atomic.Pointer[map[string]*model]

	blocks atomic.Int64 // of all sources
	age    generation
	trim   sync.Mutex // held while trimming

	mu      sync.Mutex // guards sources, and orders changes of models
	sources map[SourceID]*Source
}

// New returns an empty index.
func New(cfg Config) (*Index, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ix := &Index{cfg: cfg, sources: map[SourceID]*Source{}}
	ix.seed.Store(NewSeed(cfg.Secret))
	ix.age.every = int64(max(1, cfg.MaxBlocks/generations))
	ix.models.Store(&map[string]*model{})
	return ix, nil
}

// ReplaceSecret makes another secret the key of the block hashes. Sources that are open keep theirs, so that no prompt
// matches what they hold: they are to be closed and opened again.
func (ix *Index) ReplaceSecret(secret string) { ix.seed.Store(NewSeed(secret)) }

// SecretMark distinguishes the secrets that key the hashes without revealing them.
func (ix *Index) SecretMark() uint64 { return ix.seed.Load().mark }

// Match finds how much of a prompt each server of its model holds. It takes no lock.
// Blocks that come or go meanwhile may be seen or not.
func (ix *Index) Match(p *Prompt, h *Hits) {
	h.reset(len(p.Tokens), ix.cfg.CountGuesses)
	m := (*ix.models.Load())[p.Model]
	if m == nil {
		return
	}
	h.model = m
	m.match(p, ix.seed.Load(), h)
	m.counts.recordMatch(h)
}

// Rematch repeats the match of h, with the hashes that it has: what servers hold
// changes while a request waits, its prompt does not. It is false, and h as it was, where
// h is no match or servers with other block sizes have come.
func (ix *Index) Rematch(h *Hits) bool {
	if h.model == nil {
		return false
	}
	view := h.model.view.Load()
	if len(view.sizes) != len(h.chains) {
		return false
	}
	for i := range view.sizes {
		if view.sizes[i].blockForm != h.chains[i].blockForm {
			return false
		}
	}
	h.best = [tiers]int{}
	h.model.matchChains(view, h)
	return true
}

// MatchChains is Match for a prompt of which only the hashes are known. Servers whose
// block size is not among the chains hold nothing of it.
func (ix *Index) MatchChains(model string, promptTokens int, chains []Chain, h *Hits) {
	h.reset(promptTokens, ix.cfg.CountGuesses)
	m := (*ix.models.Load())[model]
	if m == nil {
		return
	}
	h.model = m
	view := m.view.Load()
	for i := range view.sizes {
		from := len(h.hashes)
		for _, c := range chains {
			if view.sizes[i].blockForm == (blockForm{c.BlockTokens, c.Lookahead}) {
				h.hashes = append(h.hashes, c.Hashes...)
			}
		}
		h.chains = append(h.chains, chain{view.sizes[i].blockForm, h.hashes[from:]})
	}
	m.matchChains(view, h)
	m.counts.recordMatch(h)
}

// Guess enters that a server will hold the prompt that h is the match of in so long. It is believed for
// that and a short time more, or until soon after it is said to be computed, or until withdrawn.
func (ix *Index) Guess(server string, h *Hits, in time.Duration) Guess {
	if h.model == nil {
		return Guess{}
	}
	g := Guess{of: h.model.guesses}
	until := time.Now().Add(min(in, longestGuess) + ix.cfg.GuessLife)
	for _, rank := range h.members.servers[server] {
		for _, group := range rank.groups {
			for _, holder := range group.holders {
				if new := g.of.add(holder.number, h.missing(holder), until); new != nil {
					g.all = append(g.all, new)
				}
			}
		}
	}
	return g
}

// CountsGuesses reports whether guesses count as held.
func (ix *Index) CountsGuesses() bool { return ix.cfg.CountGuesses }

// missing is the whole blocks of the prompt that a holder does not have on its GPU.
func (h *Hits) missing(of held) []Hash {
	chain := h.chainOf(of.blockForm)
	return chain[min(len(chain), int(h.prefixes[of.number][GPU])):]
}

// Open adds a source. The caller closes it.
func (ix *Index) Open(spec Spec) (*Source, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.sources[spec.SourceID] != nil {
		return nil, fmt.Errorf("KV source %s is open already", spec.SourceID)
	}
	s := newSource(ix, ix.modelLocked(spec.Model), spec)
	ix.sources[spec.SourceID] = s
	return s, nil
}

// keptModels is how many models are known before those are forgotten of which no source is open: each takes some 260 KB.
const keptModels = 64

// modelLocked returns the model of a name, which stays, with its counts, while there are not many.
func (ix *Index) modelLocked(name string) *model {
	known := *ix.models.Load()
	if m := known[name]; m != nil {
		return m
	}
	more := maps.Clone(known)
	if len(more) >= keptModels {
		maps.DeleteFunc(more, func(_ string, m *model) bool { return !ix.hasSourceOfLocked(m) })
	}
	m := newModel(name, &ix.cfg)
	more[name] = m
	ix.models.Store(&more)
	return m
}

func (ix *Index) hasSourceOfLocked(m *model) bool {
	for _, s := range ix.sources {
		if s.model == m {
			return true
		}
	}
	return false
}

// List returns the open sources, in no order.
func (ix *Index) List() []*Source {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	all := make([]*Source, 0, len(ix.sources))
	for _, s := range ix.sources {
		all = append(all, s)
	}
	return all
}
