package kvstate

import (
	"container/heap"
	"slices"
	"sync"
	"time"
)

// longestGuess bounds how long ahead a guess may be.
const longestGuess = time.Minute

// eventsTake is the most that the events of a prompt come later than the engine's answer: engines
// publish them step by step before it, and what is received elsewhere comes through Redis some 10 ms
// later.
const eventsTake = time.Second

// warmedTogether is how many blocks of a guess are read into the cache before they are entered: each
// lies elsewhere, and what one waits for all wait for at once.
const warmedTogether = 32

// guesses are blocks that servers were sent work for and have not confirmed: a layer of
// its own beside the tier indexes, which it never touches. A guess lives until the server must
// have confirmed it, or until it is withdrawn: one that outlived what it was about would hide
// that the server has evicted it.
type guesses struct {
	index *tierIndex
	max   int // blocks

	mu     sync.Mutex              // guards what follows
	again  map[guessedBlock]uint32 // how many guesses more than one say the same of a block: of few any does
	queue  guessQueue              // withdrawn ones stay until their time
	blocks int                     // of the queue
	timer  *time.Timer
	sink   uint64 // what was read to warm the cache
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
	place  int // in the queue; of one that has left it, none
}

func newGuesses(cfg *Config) *guesses {
	return &guesses{
		index: newTierIndex(), max: cfg.MaxGuesses,
		again: map[guessedBlock]uint32{},
	}
}

// guessQueue is a heap of guesses, that which ends soonest first.
type guessQueue []*guess

func (q guessQueue) Len() int           { return len(q) }
func (q guessQueue) Less(i, k int) bool { return q[i].until.Before(q[k].until) }
func (q guessQueue) Swap(i, k int) {
	q[i], q[k] = q[k], q[i]
	q[i].place, q[k].place = i, k
}

func (q *guessQueue) Push(x any) {
	new := x.(*guess) // it holds nothing else
	new.place = len(*q)
	*q = append(*q, new)
}

func (q *guessQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return x
}

// add enters a guess, pushing those that end soonest out where there are too many.
func (g *guesses) add(holder int, chain []Hash, until time.Time) *guess {
	if len(chain) == 0 || len(chain) > g.max {
		return nil
	}
	new := &guess{holder: holder, chain: append([]Hash(nil), chain...), until: until}
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.blocks+len(chain) > g.max {
		g.popLocked()
	}
	for next := range slices.Chunk(chain, warmedTogether) {
		for _, own := range next {
			g.sink += g.index.warm(own)
		}
		for _, own := range next {
			if g.index.put(own, holder) {
				g.again[guessedBlock{own, holder}]++
			}
		}
	}
	g.blocks += len(chain)
	heap.Push(&g.queue, new)
	g.wakeForLocked(new)
	return new
}

// wakeForLocked sets the timer where a guess is the next to end.
func (g *guesses) wakeForLocked(next *guess) {
	switch {
	case g.queue[0] != next:
	case g.timer == nil:
		g.timer = time.AfterFunc(time.Until(next.until), g.expire)
	default:
		g.timer.Reset(time.Until(next.until))
	}
}

// endBy lets a guess end at a time, unless it ends before.
func (g *guesses) endBy(old *guess, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old.chain == nil || !until.Before(old.until) {
		return
	}
	old.until = until
	heap.Fix(&g.queue, old.place)
	g.wakeForLocked(old)
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
		switch g.again[block] {
		case 0:
			g.index.take(own, old.holder)
		case 1:
			delete(g.again, block)
		default:
			g.again[block]--
		}
	}
	g.blocks -= len(old.chain)
	old.chain = nil
}

func (g *guesses) popLocked() {
	g.withdrawLocked(heap.Pop(&g.queue).(*guess)) // it holds nothing else
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

// Entered reports whether anything was entered: of a server that has published nothing yet the
// index has no place for it.
func (g Guess) Entered() bool { return len(g.all) > 0 }

// Withdraw takes the guess back, since the request failed or went elsewhere. Only the
// first call counts.
func (g Guess) Withdraw() {
	for _, each := range g.all {
		g.of.withdraw(each)
	}
}

// Computed says that the server has computed what was guessed: what it holds of it its events say
// from now on, or in a moment.
func (g Guess) Computed() {
	until := time.Now().Add(eventsTake)
	for _, each := range g.all {
		g.of.endBy(each, until)
	}
}
