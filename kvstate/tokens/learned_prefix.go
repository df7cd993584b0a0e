package tokens

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tandem-gateway/tandem/kvstate"
)

// A learned prefix is a known prompt in compact form: what one replica learned and others may take
// over. Proofs and rules each replica finds by itself. It holds hashes instead of text, but also token ids, which are
// text to people who have the tokenizer: it belongs where prompts may be.
//
// The form is private to this package and may change with its version byte; one
// of another version is refused. Some 3.5 bytes a token.
const learnedPrompt = 0x31 // version 3

var errLearnedPrefix = errors.New("malformed learned prefix")

// LearnedPrefix is what Learn takes in, for other replicas' Import; nil if there is nothing to
// learn.
func (s *Source) LearnedPrefix(p Prompt, ids []uint32) []byte {
	if s.cfg.Mode != Learned || len(ids) == 0 {
		return nil
	}
	t, ok := p.read()
	if !ok {
		return nil
	}
	defer t.free()
	if t.partial {
		return nil
	}
	t.printAll()
	return (&known{text: *t, ids: ids}).encode(nil)
}

// Import takes in a learned prefix of another replica.
func (s *Source) Import(learned []byte) error {
	switch {
	case s.memory == nil || len(learned) == 0:
		return fmt.Errorf("tokens of %s: %w", s.cfg.Model, errLearnedPrefix)
	case learned[0] != learnedPrompt:
		return fmt.Errorf("tokens of %s: %w: version %#x", s.cfg.Model, errLearnedPrefix, learned[0])
	}
	d := decoder{rest: learned[1:]}
	k := d.known()
	if d.bad || len(d.rest) > 0 {
		return fmt.Errorf("tokens of %s: %w", s.cfg.Model, errLearnedPrefix)
	}
	s.metrics.learned(s.cfg.Model, s.memory, s.memory.take(k))
	return nil
}

// encode appends what others learn from a prompt.
func (k *known) encode(b []byte) []byte {
	b = append(b, learnedPrompt)
	for _, h := range []uint64{k.root, k.family, k.sum} {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	b = append(b, bit(k.open))
	b = binary.AppendUvarint(b, uint64(k.size))
	b = binary.AppendUvarint(b, uint64(len(k.prints)))
	for _, p := range k.prints {
		b = binary.LittleEndian.AppendUint32(b, p)
	}
	b = binary.AppendUvarint(b, uint64(len(k.cuts)))
	for _, c := range k.cuts {
		b = binary.AppendUvarint(b, uint64(c.cell))
		b = binary.LittleEndian.AppendUint64(b, c.hash)
	}
	b = binary.AppendUvarint(b, uint64(len(k.turns)))
	for _, t := range k.turns {
		b = binary.AppendUvarint(b, uint64(t.first))
		b = binary.LittleEndian.AppendUint32(b, t.head)
		b = append(b, byte(t.kind))
	}
	b = binary.AppendUvarint(b, uint64(len(k.ids)))
	for _, id := range k.ids {
		b = binary.AppendUvarint(b, uint64(id))
	}
	return binary.AppendUvarint(b, 0) // proofs
}

func bit(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// decoder reads a learned prefix. Once it is bad all it reads is zero.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || len(d.rest) < n {
		d.bad = true
		return make([]byte, n) // n is at most 8
	}
	out := d.rest[:n]
	d.rest = d.rest[n:]
	return out
}

func (d *decoder) byte() byte     { return d.take(1)[0] }
func (d *decoder) uint32() uint32 { return binary.LittleEndian.Uint32(d.take(4)) }
func (d *decoder) uint64() uint64 { return binary.LittleEndian.Uint64(d.take(8)) }

// number is a number up to a limit.
func (d *decoder) number(limit int) int {
	n, size := binary.Uvarint(d.rest)
	if d.bad || size <= 0 || n > uint64(limit) {
		d.bad = true
		return 0
	}
	d.rest = d.rest[size:]
	return int(n)
}

// count is the length of a list whose elements take at least size bytes each, so that
// nothing is made that the rest cannot fill.
func (d *decoder) count(size int) int { return d.number(len(d.rest) / size) }

// known reads a prompt and checks that its parts fit each other.
func (d *decoder) known() *known {
	k := &known{by: ByPrefill, hashed: new(kvstate.Hashed)}
	k.root, k.family, k.sum = d.uint64(), d.uint64(), d.uint64()
	k.open = d.byte() != 0
	k.size = d.number(math.MaxInt32)
	k.prints = make([]uint32, d.count(4))
	for i := range k.prints {
		k.prints[i] = d.uint32()
	}
	cells := len(k.prints)
	k.cuts = make([]cut, d.count(9))
	last := 0
	for i := range k.cuts {
		cell := d.number(cells)
		d.bad = d.bad || cell <= last
		last = cell
		k.cuts[i] = cut{cell: int32(cell), hash: d.uint64()}
	}
	k.turns = make([]turn, d.count(6))
	for i := range k.turns {
		first, head, kind := d.number(cells), d.uint32(), kind(d.byte())
		d.bad = d.bad || kind > other || i == 0 && first != 0 || i > 0 && first <= int(k.turns[i-1].first)
		if d.bad {
			return k
		}
		k.turns[i] = turn{first: int32(first), head: head, kind: kind, since: k.since(i, kind)}
	}
	k.ids = make([]uint32, d.count(1))
	for i := range k.ids {
		k.ids[i] = uint32(d.number(math.MaxUint32))
	}
	proofs := d.number(math.MaxInt32)
	d.bad = d.bad || cells == 0 || len(k.cuts) == 0 || len(k.turns) == 0 || len(k.ids) == 0 || proofs != 0
	k.finish()
	return k
}
