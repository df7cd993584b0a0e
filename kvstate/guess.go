package kvstate

import (
	"sync"
	"time"
)

// guesses are blocks that servers were sent work for and have not confirmed: a layer of
// its own beside the tier indexes, which it never touches. A guess lives for a short time or
// until it is withdrawn.
type guesses struct {
	index *tierIndex
	life  time.Duration
	max   int // blocks

	mu     sync.Mutex // guards what follows
	copies map[guessedBlock]uint32
	queue  []*guess // oldest first; withdrawn ones stay until their time
	blocks int      // of the queue
	timer  *time.Timer
}

type guessedBlock struct {
	own    Hash
	holder int
}

// guess is some blocks in a row of one holder. A withdrawn one has no chain.
type guess struct {
	holder int
	chain  []Hash
	until  time.Time
}

func newGuesses(cfg *Config) *guesses {
	return &guesses{
		index: newTierIndex(), life: cfg.GuessLife, max: cfg.MaxGuesses,
		copies: map[guessedBlock]uint32{},
	}
}

// add enters a guess, pushing the oldest out where there are too many.
func (g *guesses) add(holder int, chain []Hash) *guess {
	if len(chain) == 0 || len(chain) > g.max {
		return nil
	}
	new := &guess{holder: holder, chain: append([]Hash(nil), chain...), until: time.Now().Add(g.life)}
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.blocks+len(chain) > g.max {
		g.popLocked()
	}
	for _, own := range chain {
		block := guessedBlock{own, holder}
		if g.copies[block]++; g.copies[block] == 1 {
			g.index.put(own, holder)
		}
	}
	g.blocks += len(chain)
	g.queue = append(g.queue, new)
	if len(g.queue) == 1 {
		g.timer = time.AfterFunc(g.life, g.expire)
	}
	return new
}

// withdraw takes a guess back, once.
func (g *guesses) withdraw(old *guess) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.withdrawLocked(old)
}

func (g *guesses) withdrawLocked(old *guess) {
	for _, own := range old.chain {
		block := guessedBlock{own, old.holder}
		if g.copies[block]--; g.copies[block] == 0 {
			delete(g.copies, block)
			g.index.take(own, old.holder)
		}
	}
	g.blocks -= len(old.chain)
	old.chain = nil
}

func (g *guesses) popLocked() {
	g.withdrawLocked(g.queue[0])
	g.queue[0] = nil
	g.queue = g.queue[1:]
}

// expire drops the guesses whose time is over and sets the timer for the next.
func (g *guesses) expire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for len(g.queue) > 0 && !g.queue[0].until.After(now) {
		g.popLocked()
	}
	if len(g.queue) > 0 {
		g.timer.Reset(g.queue[0].until.Sub(now))
	}
}

// forget drops the guesses about a holder that leaves.
func (g *guesses) forget(holder int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, old := range g.queue {
		if old.holder == holder {
			g.withdrawLocked(old)
		}
	}
}

// Guess is what Index.Guess entered. The zero value is a guess about nothing.
type Guess struct {
	of  *guesses
	all []*guess
}

// Withdraw takes the guess back, since the request failed or went elsewhere. Only the
// first call counts.
func (g Guess) Withdraw() {
	for _, each := range g.all {
		g.of.withdraw(each)
	}
}
