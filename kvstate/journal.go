package kvstate

import "encoding/binary"

// journal collects what a source changes, in a form that another index can carry out
// without the tokens. It is off until Record.
//
// Operations, numbers as uvarint unless noted, hashes in 8 bytes,
// little-endian:
//
//	store    group, tokens of a block, tier (4 bits) below the lookahead (4 bits), 1 and the
//	         parent's engine hash or 0, count, then for each block of the run its engine hash
//	         and its own
//	hold     group, tokens of a block, tier, count, engine hashes: one more copy of each
//	release  likewise: one copy less
//	clear    tier: no copies in it any more
//	reset    everything is forgotten
type journal struct {
	on    bool
	ops   []byte
	from  stamp // last batch before the first operation
	fresh bool  // ops begin with a reset: from does not matter
	lost  bool  // too much was collected
	puts  puts

	op      byte // of the run being collected, 0: none
	holder  *holder
	tier    Tier
	head    []byte
	hashes  []byte
	entries int
}

const (
	opStore byte = iota + 1
	opHold
	opRelease
	opClear
	opReset
)

// maxJournal bounds what is collected between two calls of TakeDelta, in bytes.
const maxJournal = 16 << 20

// begin starts a run of stored blocks.
func (j *journal) begin(h *holder, tier Tier, hasParent bool, parent uint64) {
	if !j.on {
		return
	}
	j.start(opStore, h, tier)
	if !hasParent {
		j.head = append(j.head, 0)
		return
	}
	j.head = binary.LittleEndian.AppendUint64(append(j.head, 1), parent)
}

// block adds one to the run.
func (j *journal) block(engine uint64, own Hash) {
	if j.on {
		j.hashes = binary.LittleEndian.AppendUint64(j.hashes, engine)
		j.hashes = binary.LittleEndian.AppendUint64(j.hashes, uint64(own))
		j.entries++
	}
}

// copy adds a copy held or released to those of the same kind before.
func (j *journal) copy(op byte, h *holder, tier Tier, engine uint64) {
	if !j.on {
		return
	}
	if j.op != op || j.holder != h || j.tier != tier {
		j.end()
		j.start(op, h, tier)
	}
	j.hashes = binary.LittleEndian.AppendUint64(j.hashes, engine)
	j.entries++
}

func (j *journal) start(op byte, h *holder, tier Tier) {
	j.op, j.holder, j.tier, j.entries, j.hashes = op, h, tier, 0, j.hashes[:0]
	j.head = binary.AppendUvarint(j.head[:0], uint64(h.group))
	j.head = binary.AppendUvarint(j.head, uint64(h.blockTokens))
	j.head = append(j.head, byte(tier)+byte(h.lookahead)*(maxLookahead+1))
}

// end writes down what was begun.
func (j *journal) end() {
	op := j.op
	j.op = 0
	if op == 0 || j.entries == 0 {
		return
	}
	j.ops = append(append(j.ops, op), j.head...)
	j.ops = binary.AppendUvarint(j.ops, uint64(j.entries))
	j.ops = append(j.ops, j.hashes...)
	j.bound()
}

func (j *journal) clearTier(tier Tier) {
	if j.on {
		j.ops = append(j.ops, opClear, byte(tier))
		j.bound()
	}
}

// clearAll forgets the operations so far: nothing of them is left.
func (j *journal) clearAll() {
	if j.on {
		j.ops, j.fresh, j.lost = append(j.ops[:0], opReset), true, false
	}
}

// put notes that a block is in the store of a tier now, or is not there.
func (j *journal) put(own Hash, tier Tier, isThere bool) {
	if j.on {
		j.puts.add(own, tier, isThere)
	}
}

func (j *journal) bound() {
	if len(j.ops) > maxJournal {
		j.ops, j.lost = nil, true
	}
}
