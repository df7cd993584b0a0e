package tokens

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// ChunkBytes is the length of a chunk of text: some 64 tokens of English or code.
const ChunkBytes = 256

// Chunks are the keys of a prompt's text, for what nothing better is known of.
func (s *Source) Chunks(p Prompt) []Chunk {
	p.engine = s.engine()
	return p.chunks()
}

// chunks are the keys of the prompt's whole chunks. A key covers the prompt's context
// and all text up to the end of its chunk, but neither model nor salt, which belong
// into what is made of it.
func (p *Prompt) chunks() []Chunk {
	b, ok := takeApart(p)
	if !ok {
		return nil
	}
	return p.chunksOf(&b)
}

// chunksOf is chunks of a request that was taken apart.
func (p *Prompt) chunksOf(b *body) []Chunk {
	h := p.root(b.rest)
	t := texts.Get().(*text)
	defer t.free()
	compact := b.turns
	if present(b.system) || !isCompact(b.turns) {
		t.compact = t.compact[:0]
		if present(b.system) {
			t.compact = append(appendCompact(t.compact, p.withoutAttribution(b.system)), '\n')
		}
		t.compact = appendCompact(t.compact, b.turns)
		compact = t.compact
	}
	chunks := make([]Chunk, 0, len(compact)/ChunkBytes)
	var buffer [8 + ChunkBytes]byte
	for rest := compact; len(rest) >= ChunkBytes; rest = rest[ChunkBytes:] {
		binary.LittleEndian.PutUint64(buffer[:], h)
		copy(buffer[8:], rest[:ChunkBytes])
		h = xxhash.Sum64(buffer[:])
		chunks = append(chunks, Chunk(h))
	}
	return chunks
}
