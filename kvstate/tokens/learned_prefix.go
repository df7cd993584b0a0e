package tokens

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tandem-gateway/tandem/kvstate"
)

// A learned prefix is a known prompt in compact form, or a rule: what one replica learned and
// others may take over. It holds hashes instead of text, but also token ids, which are
// text to people who have the tokenizer: it belongs where prompts may be.
//
// The form is private to this package and may change with its version byte; one
// of another version is refused. Some 3.5 bytes a token.
const (
	learnedPrompt = 0x31 // version 3
	learnedRule   = 0x12 // version 1
)

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

// Import takes in a learned prefix of another replica, or of an earlier run.
func (s *Source) Import(learned []byte) error {
	if s.memory == nil || len(learned) == 0 {
		return fmt.Errorf("tokens of %s: %w", s.cfg.Model, errLearnedPrefix)
	}
	d := decoder{rest: learned[1:]}
	switch learned[0] {
	case learnedPrompt:
		k := d.known()
		if d.bad || len(d.rest) > 0 {
			return fmt.Errorf("tokens of %s: %w", s.cfg.Model, errLearnedPrefix)
		}
		s.metrics.learned(s.cfg.Model, s.memory, s.memory.take(k))
	case learnedRule:
		key, r := d.rule()
		if d.bad || len(d.rest) > 0 {
			return fmt.Errorf("tokens of %s: %w", s.cfg.Model, errLearnedPrefix)
		}
		s.memory.addRule(key, r)
	default:
		return fmt.Errorf("tokens of %s: %w: version %#x", s.cfg.Model, errLearnedPrefix, learned[0])
	}
	return nil
}

// Export passes all that is known on, the oldest prompts first and the rules last, until
// yield is false. It does not hold up requests.
func (s *Source) Export(yield func(learned []byte) bool) {
	if s.memory == nil {
		return
	}
	s.memory.mu.Lock()
	var all []*known
	for k := s.memory.oldest; k != nil; k = k.newer {
		all = append(all, k)
	}
	rules := make(map[ruleKey]rule, len(s.memory.rules))
	for key, r := range s.memory.rules {
		rules[key] = *r
	}
	s.memory.mu.Unlock()
	for _, k := range all {
		copied := known{text: k.text, ids: k.ids}
		s.memory.mu.Lock()
		copied.proofs = append(copied.proofs, k.proofs...)
		s.memory.mu.Unlock()
		if !yield(copied.encode(nil)) {
			return
		}
	}
	for key, r := range rules {
		if !yield(key.encode(r)) {
			return
		}
	}
}

// addRule adds another replica's examples of a rule to one's own: of each count the
// greater, since both may have seen the same ones.
func (m *memory) addRule(key ruleKey, imported rule) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rules.make(key.family, place{kind: key.kind, since: key.since, tail: key.to}, key.from)
	r.kept, r.needed, r.short = max(r.kept, imported.kept), max(r.needed, imported.needed), max(r.short, imported.short)
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
	b = binary.AppendUvarint(b, uint64(len(k.proofs)))
	for _, p := range k.proofs {
		b = binary.AppendUvarint(b, uint64(p.cell))
		b = binary.AppendUvarint(b, uint64(p.n))
		b = binary.LittleEndian.AppendUint64(b, uint64(p.tails))
		b = append(b, bit(p.full))
	}
	return b
}

func (key ruleKey) encode(r rule) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{learnedRule}, key.family)
	b = append(b, byte(key.kind), byte(key.since), byte(key.from), byte(key.to))
	for _, n := range []int{r.kept, r.needed, r.short} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
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
	k.proofs = make([]proof, d.count(11))
	last = 0
	for i := range k.proofs {
		p := proof{cell: int32(d.number(cells)), n: int32(d.number(len(k.ids))), tails: tails(d.uint64()), full: d.byte() != 0}
		d.bad = d.bad || int(p.cell) < max(last, 1)
		last = int(p.cell)
		k.proofs[i] = p
	}
	d.bad = d.bad || cells == 0 || len(k.cuts) == 0 || len(k.turns) == 0 || len(k.ids) == 0 || len(k.proofs) > maxProofs
	k.finish()
	return k
}

func (d *decoder) rule() (ruleKey, rule) {
	key := ruleKey{family: d.uint64(), kind: kind(d.byte()), since: tail(d.byte()), from: tail(d.byte()), to: tail(d.byte())}
	r := rule{kept: d.number(math.MaxInt32), needed: d.number(mostNeeded), short: d.number(maxShort)}
	const all = 1<<(other+1) - 1
	d.bad = d.bad || key.kind > other || key.since > all || key.from > all || key.to > all || r.needed < firstNeeded
	return key, r
}
