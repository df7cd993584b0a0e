package tokens

import (
	"slices"

	"github.com/tandem-gateway/tandem/kvstate"
)

// known is a prompt whose tokens are known. All but its proofs, its hashes and where its tokens lie is fixed.
type known struct {
	text              // its own copy
	ids    []uint32   // in one piece: all, or those that it shares
	rest   []uint32   // behind them
	shared *sharedIDs // nil: it shares none
	by     Method

	hashed *kvstate.Hashed // beside ids, and apart from what the memory may forget while a request goes on

	proofs []proof // in order of cells

	older, newer *known // by last use
	asked        uint64 // the recall that last looked at it
}

// proof says: a prompt that shares this one's first cells, and goes on with a tail of
// the set, begins with this one's first n tokens.
type proof struct {
	cell  int32
	n     int32
	tails tails
	// full says that the n tokens are all that the shared text makes, but for its end.
	full bool
}

// newKnown copies the text. The ids nobody changes any more.
func newKnown(t *text, ids []uint32, by Method) *known {
	return &known{text: t.clone(), ids: ids, by: by, hashed: new(kvstate.Hashed)}
}

// maxProofs bounds the proofs of one prompt. A long conversation has one for each turn,
// and only a prompt that goes back to that turn needs it.
const maxProofs = 32

// What a known prompt takes, in bytes: its own with room for its proofs, and its share
// of the index.
const (
	knownBytes = 500 + 24*maxProofs
	cutBytes   = 100
	idBytes    = 4
)

// bytes is about what it takes in memory, without the ids that it shares.
func (k *known) bytes() int64 {
	own := k.count()
	if k.shared != nil {
		own = len(k.rest)
	}
	return knownBytes + int64(len(k.cuts)*cutBytes+4*len(k.prints)+12*len(k.turns)+len(k.tails)+idBytes*own+kvstate.HashedBytes*k.count())
}

// addProof adds a proof, or widens the one that says the same already.
func (k *known) addProof(p proof) {
	i, found := slices.BinarySearchFunc(k.proofs, p, func(a, b proof) int { return int(a.cell - b.cell) })
	for j := i; found && j < len(k.proofs) && k.proofs[j].cell == p.cell; j++ {
		if k.proofs[j].n == p.n && k.proofs[j].full == p.full {
			k.proofs[j].tails |= p.tails
			return
		}
	}
	k.proofs = slices.Insert(k.proofs, i, p)
	if len(k.proofs) > maxProofs {
		k.thin()
	}
}

// thin drops the proof that is nearest to the one before it.
func (k *known) thin() {
	at, least := 1, k.proofs[1].cell-k.proofs[0].cell
	for i := 2; i < len(k.proofs)-1; i++ {
		if gap := k.proofs[i].cell - k.proofs[i-1].cell; gap < least {
			at, least = i, gap
		}
	}
	k.proofs = slices.Delete(k.proofs, at, at+1)
}
