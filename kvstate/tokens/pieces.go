package tokens

import (
	"container/list"
	"hash/maphash"
	"slices"
	"sync"
)

// pieces remembers the tokens of texts, those used last. A conversation's next turn has
// nearly all of its messages here. A nil *pieces remembers nothing.
type pieces struct {
	limit int64 // bytes
	seed  maphash.Seed

	mu    sync.Mutex // guards what follows
	byKey map[pieceKey]*list.Element
	order *list.List // of pieceEntry, newest first
	bytes int64
}

type pieceKey struct {
	hash   uint64
	length int
}

type pieceEntry struct {
	key pieceKey
	ids []uint32
}

const (
	leastPiece = 64  // bytes of text; shorter ones are encoded again
	pieceBytes = 200 // what an entry takes besides its tokens
)

func newPieces(limit int64) *pieces {
	return &pieces{limit: limit, seed: maphash.MakeSeed(), byKey: map[pieceKey]*list.Element{}, order: list.New()}
}

func (p *pieces) key(text string) pieceKey {
	return pieceKey{maphash.String(p.seed, text), len(text)}
}

// get returns tokens that must not be changed.
func (p *pieces) get(text string) ([]uint32, bool) {
	if p == nil || len(text) < leastPiece {
		return nil, false
	}
	key := p.key(text)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.byKey[key]
	if e == nil {
		return nil, false
	}
	p.order.MoveToFront(e)
	return e.Value.(*pieceEntry).ids, true
}

// put copies the tokens.
func (p *pieces) put(text string, ids []uint32) {
	if p == nil || len(text) < leastPiece {
		return
	}
	entry := &pieceEntry{p.key(text), slices.Clone(ids)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byKey[entry.key] != nil {
		return
	}
	p.byKey[entry.key] = p.order.PushFront(entry)
	p.bytes += entry.bytes()
	for p.bytes > p.limit {
		oldest := p.order.Remove(p.order.Back()).(*pieceEntry)
		delete(p.byKey, oldest.key)
		p.bytes -= oldest.bytes()
	}
}

func (e *pieceEntry) bytes() int64 { return pieceBytes + int64(4*len(e.ids)) }
