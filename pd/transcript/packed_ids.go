package transcript

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"weak"
)

// packedIDs are token ids as varints: half the memory of their digits, for as long as a stream is open.
// Streams whose prompts begin alike, as those of a conversation and those about a document do, share it, and
// digits of which another open stream has the ids are not read again.
type packedIDs struct {
	shared []*idRun // from the beginning
	rest   []byte
}

// sharedText is how much text of a list, in bytes, is shared as one run: some 1,000 ids. What a stream of a
// short prompt has for itself is not more.
const sharedText = 6 << 10

// idRun is a part of a list of ids.
type idRun struct{ packed []byte }

// runName stands for the text of a run. Clients choose the texts, and one that had the name of another's would
// let a stream go on behind that one's prompt. So it is a hash under a key of this process that nobody else
// has: GHASH, which is what AES-GCM authenticates additional data by. Whatever two texts of n bytes are chosen,
// that key gives them the same name with a probability of less than (n/16 + 2) / 2^128. No name leaves the
// process, so that nobody learns of the key, and one nonce is enough for all.
type runName [16]byte

// openRuns are the runs of ids that streams have.
var openRuns = newRunTable()

type runTable struct {
	names cipher.AEAD // nil: there are none (GODEBUG=fips140=only), and nothing is shared
	nonce []byte      // of all names

	mu   sync.Mutex // guards runs
	runs map[runName]weak.Pointer[idRun]
}

func newRunTable() *runTable {
	t := &runTable{runs: make(map[runName]weak.Pointer[idRun]), nonce: make([]byte, 12)}
	key := make([]byte, 16)
	_, _ = rand.Read(key)            // never fails
	block, err := aes.NewCipher(key) // nor does this for such a key
	if err != nil {
		return t
	}
	if names, err := cipher.NewGCM(block); err == nil {
		t.names = names
	}
	return t
}

// nameOf names a text, by way of some memory.
func (t *runTable) nameOf(text []byte, scratch *[]byte) runName {
	*scratch = t.names.Seal((*scratch)[:0], t.nonce, nil, text)
	return runName(*scratch)
}

func (t *runTable) find(name runName) *idRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runs[name].Value()
}

// add shares a run, and returns the one that another stream has shared meanwhile, if one has.
func (t *runTable) add(name runName, r *idRun) *idRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	if there := t.runs[name].Value(); there != nil {
		return there
	}
	t.runs[name] = weak.Make(r)
	runtime.AddCleanup(r, t.remove, name)
	return r
}

// remove forgets a run that no stream has any more, unless another one has taken its place.
func (t *runTable) remove(name runName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.runs[name].Value() == nil {
		delete(t.runs, name)
	}
}

// packing are buffers for ids whose length as varints is not known yet.
var packing = sync.Pool{New: func() any { return new([]byte) }}

// packIDs packs ids of the form "1, 2,3"; false where they are not of that form, which is that of a list in JSON. Of
// digits that another stream has that was found out before.
func packIDs(text []byte) (p packedIDs, ok bool) {
	scratch := packing.Get().(*[]byte)
	defer packing.Put(scratch)
	for openRuns.names != nil && len(text) > sharedText {
		comma := bytes.IndexByte(text[sharedText:], ',')
		if comma < 0 {
			break
		}
		part := text[:sharedText+comma]
		name := openRuns.nameOf(part, scratch)
		r := openRuns.find(name)
		if r == nil {
			if *scratch, ok = appendPacked((*scratch)[:0], part); !ok {
				return packedIDs{}, false
			}
			r = openRuns.add(name, &idRun{slices.Clone(*scratch)})
		}
		if p.shared == nil {
			p.shared = make([]*idRun, 0, len(text)/sharedText)
		}
		p.shared, text = append(p.shared, r), text[len(part)+1:]
	}
	if *scratch, ok = appendPacked((*scratch)[:0], text); !ok {
		return packedIDs{}, false
	}
	p.rest = slices.Clone(*scratch)
	return p, true
}

// appendPacked appends ids of the form "1, 2,3" as varints; false where they are not of that form.
func appendPacked(packed, text []byte) (_ []byte, ok bool) {
	packed = slices.Grow(packed, len(text)+8) // digits take more than what they are packed as
	for at := 0; ; at++ {
		packed, at = appendUsual(packed, text, at)
		at = skipSpace(text, at)
		id, digits := uint64(0), 0
		for ; at < len(text) && text[at] >= '0' && text[at] <= '9'; at++ {
			id, digits = 10*id+uint64(text[at]-'0'), digits+1
		}
		if digits == 0 || digits > 18 || digits > 1 && text[at-digits] == '0' {
			return packed, false
		}
		packed = binary.AppendUvarint(packed, id)
		at = skipSpace(text, at)
		if at == len(text) {
			return packed, true
		}
		if text[at] != ',' {
			return packed, false
		}
	}
}

func skipSpace(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r') {
		at++
	}
	return at
}

// appendUsual appends ids of up to seven digits that commas alone part, from text[at] on, and returns where it
// stops: before one that is something else, or near the end. It looks at eight bytes at once: how many of
// them are digits cannot be foretold, and a loop over them would take a wrong branch for each id. packed has
// room for as many bytes as there are in text, and eight.
func appendUsual(packed, text []byte, from int) (_ []byte, at int) {
	const (
		everyByte = 0x0101010101010101
		highBits  = everyByte << 7
	)
	out, n := packed[:cap(packed)], len(packed)
	for at = from; at+8 <= len(text) && n+8 <= len(out); {
		w := binary.LittleEndian.Uint64(text[at:]) ^ everyByte*'0'
		others := (w + everyByte*(0x80-10) | w) & highBits
		length := bits.TrailingZeros64(others) &^ 7 // in bits
		if length == 0 || length == 64 || byte(w>>length) != ','^'0' || byte(w) == 0 && length > 8 {
			break
		}
		id := digitsValue(w << (64 - length))
		if id >= 1<<21 {
			break
		}
		bytes := (bits.Len32(id|1) + 6) / 7
		varint := id&0x7f | id&0x3f80<<1 | id&0x1fc000<<2 | 0x808080&(1<<(8*(bytes-1))-1)
		binary.LittleEndian.PutUint32(out[n:], varint)
		n, at = n+bytes, at+length/8+1
	}
	return out[:n], at
}

// digitsValue is the number that eight digits make, the first of which is the lowest byte.
func digitsValue(digits uint64) uint32 {
	pairs := digits*10 + digits>>8
	const mask, high, low = 0x000000ff000000ff, 100 + 1000000<<32, 1 + 10000<<32
	return uint32((pairs&mask*high + pairs>>16&mask*low) >> 32)
}

// appendTo appends the ids as "1,2,3".
func (p packedIDs) appendTo(out []byte) []byte {
	first := true
	add := func(packed []byte) {
		for at := 0; at < len(packed); first = false {
			id, n := binary.Uvarint(packed[at:])
			if !first {
				out = append(out, ',')
			}
			out, at = strconv.AppendUint(out, id, 10), at+n
		}
	}
	for _, r := range p.shared {
		add(r.packed)
	}
	add(p.rest)
	return out
}
