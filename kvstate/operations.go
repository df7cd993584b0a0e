package kvstate

import (
	"encoding/binary"
	"fmt"
)

// ops reads the operations of a delta (see journal).
type ops struct {
	rest []byte
	bad  bool
}

func (o *ops) number() int {
	v, n := binary.Uvarint(o.rest)
	if n <= 0 || v > 1<<31-1 {
		o.rest, o.bad = nil, true
		return 0
	}
	o.rest = o.rest[n:]
	return int(v)
}

func (o *ops) byte() byte {
	if len(o.rest) == 0 {
		o.bad = true
		return 0
	}
	v := o.rest[0]
	o.rest = o.rest[1:]
	return v
}

func (o *ops) hash() uint64 {
	if len(o.rest) < 8 {
		o.rest, o.bad = nil, true
		return 0
	}
	v := binary.LittleEndian.Uint64(o.rest)
	o.rest = o.rest[8:]
	return v
}

// count reads how many entries of so many bytes follow.
func (o *ops) count(bytes int) int {
	n := o.number()
	if n > len(o.rest)/bytes {
		o.rest, o.bad = nil, true
		return 0
	}
	return n
}

// applyOps carries out operations on the source's holders.
func (s *Source) applyOps(data []byte) error {
	o := &ops{rest: data}
	for len(o.rest) > 0 && !o.bad {
		switch op := o.byte(); op {
		case opStore:
			if err := s.opStore(o); err != nil {
				return err
			}
		case opHold, opRelease:
			if err := s.opCopies(o, op); err != nil {
				return err
			}
		case opClear:
			tier := Tier(o.byte())
			if tier >= tiers {
				return fmt.Errorf("%w: tier %d", ErrDelta, tier)
			}
			s.clear(tier)
			s.counts.Cleared++
		case opReset:
			s.forgetBlocks()
		default:
			return fmt.Errorf("%w: operation %d", ErrDelta, op)
		}
	}
	if o.bad {
		return fmt.Errorf("%w: breaks off", ErrDelta)
	}
	return nil
}

// opHolder reads which holder and which tier an operation is about.
func (s *Source) opHolder(o *ops) (*holder, Tier, error) {
	group, blockTokens, placed := o.number(), o.number(), o.byte()
	tier := Tier(placed % (maxLookahead + 1))
	if o.bad || tier > nowhere || blockTokens == 0 {
		return nil, 0, fmt.Errorf("%w: holder", ErrDelta)
	}
	h := s.holderFor(group, blockForm{blockTokens, int(placed / (maxLookahead + 1))})
	if h == nil {
		return nil, 0, fmt.Errorf("%w: too many groups", ErrDelta)
	}
	return h, tier, nil
}

func (s *Source) opStore(o *ops) error {
	h, tier, err := s.opHolder(o)
	if err != nil {
		return err
	}
	hasParent, parentHash := o.byte() == 1, uint64(0)
	if hasParent {
		parentHash = o.hash()
	}
	n := o.count(16)
	parent := uint32(0)
	if hasParent {
		if parent = h.find(parentHash); parent == 0 {
			// Forgotten here for want of room: what is behind it goes the same way.
			s.drop(DropParent)
			o.rest = o.rest[16*n:]
			return nil
		}
	}
	s.journal.begin(h, tier, hasParent, parentHash)
	defer s.journal.end()
	for range n {
		engine, own := o.hash(), Hash(o.hash())
		node, outcome := h.store(parent, engine, own, tier, s.age)
		if outcome == isOther || outcome == isFull {
			return fmt.Errorf("%w: a block that does not fit in", ErrDelta)
		}
		s.journal.block(engine, own)
		parent = node
		s.counts.Stored++
	}
	return nil
}

func (s *Source) opCopies(o *ops, op byte) error {
	h, tier, err := s.opHolder(o)
	if err != nil {
		return err
	}
	if tier == nowhere {
		return fmt.Errorf("%w: copies nowhere", ErrDelta)
	}
	defer s.journal.end()
	for range o.count(8) {
		engine := o.hash()
		i := h.find(engine)
		switch {
		case i == 0, op == opRelease && !h.release(i, tier):
			s.drop(DropRemoval)
			continue
		case op == opRelease:
			s.counts.Removed++
		default:
			h.nodes.node(i).setAge(s.age)
			h.hold(i, tier)
			s.counts.Stored++
		}
		s.journal.copy(op, h, tier, engine)
	}
	return nil
}
