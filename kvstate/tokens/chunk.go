package tokens

import (
	"encoding/binary"
	"math/bits"
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
	if present(b.system) || !isCompact(b.turns, p.Long) {
		t.compact = t.compact[:0]
		if present(b.system) {
			t.compact = append(appendCompact(t.compact, p.withoutAttribution(b.system)), '\n')
		}
		t.compact = appendCompact(t.compact, b.turns)
		compact = t.compact
	}
	chunks := make([]Chunk, 0, len(compact)/ChunkBytes)
	for rest := compact; len(rest) >= ChunkBytes; rest = rest[ChunkBytes:] {
		h = chunkHash(h, (*[ChunkBytes]byte)(rest))
		chunks = append(chunks, Chunk(h))
	}
	return chunks
}

// chunkHash is the hash of a chunk and of what stands before it, of which before is the hash: of equal chunks behind
// different text no two have the same. Keys go to other replicas, so it is the same in each process. A long prompt has
// a thousand chunks, for which xxhash takes twice as long. Written as a loop it would, too.
func chunkHash(before uint64, chunk *[ChunkBytes]byte) uint64 {
	const p1, p2, p3, p4 = 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0x85ebca77c2b2ae63
	a, b, c, d := wordAt(chunk, 0), wordAt(chunk, 16), wordAt(chunk, 32), wordAt(chunk, 48)
	a, b, c, d = product(a^p1, wordAt(chunk, 8)^p2), product(b^p2, wordAt(chunk, 24)^p3), product(c^p3, wordAt(chunk, 40)^p4), product(d^p4, wordAt(chunk, 56)^p1)
	a, b = product(wordAt(chunk, 64)^p1, wordAt(chunk, 72)^a), product(wordAt(chunk, 80)^p2, wordAt(chunk, 88)^b)
	c, d = product(wordAt(chunk, 96)^p3, wordAt(chunk, 104)^c), product(wordAt(chunk, 112)^p4, wordAt(chunk, 120)^d)
	a, b = product(wordAt(chunk, 128)^p1, wordAt(chunk, 136)^a), product(wordAt(chunk, 144)^p2, wordAt(chunk, 152)^b)
	c, d = product(wordAt(chunk, 160)^p3, wordAt(chunk, 168)^c), product(wordAt(chunk, 176)^p4, wordAt(chunk, 184)^d)
	a, b = product(wordAt(chunk, 192)^p1, wordAt(chunk, 200)^a), product(wordAt(chunk, 208)^p2, wordAt(chunk, 216)^b)
	c, d = product(wordAt(chunk, 224)^p3, wordAt(chunk, 232)^c), product(wordAt(chunk, 240)^p4, wordAt(chunk, 248)^d)
	return bits.RotateLeft64(before, 27)*p1 + product(a^bits.RotateLeft64(b, 32), c^bits.RotateLeft64(d, 32)^p1)
}

func wordAt(chunk *[ChunkBytes]byte, at int) uint64 {
	return binary.LittleEndian.Uint64(chunk[at : at+8])
}

// product mixes two words into one.
func product(x, y uint64) uint64 {
	high, low := bits.Mul64(x, y)
	return high ^ low
}
