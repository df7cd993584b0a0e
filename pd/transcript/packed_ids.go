package transcript

import (
	"encoding/binary"
	"slices"
	"strconv"
	"sync"
	"unique"
)

// packedIDs are token ids as varints: half the memory of their digits, for as long as a stream is open.
// Streams whose prompts begin alike, as those of a conversation and those about a document do, share it.
type packedIDs struct {
	shared []unique.Handle[string] // of sharedIDs each, from the beginning
	rest   []byte
}

// sharedIDs is how many ids are shared as one: what a stream of a short prompt has for itself is not more.
const sharedIDs = 1024

// packing are buffers for ids whose length as varints is not known yet.
var packing = sync.Pool{New: func() any { return new([]byte) }}

// packIDs packs ids of the form "1, 2,3"; false where they are not of that form.
func packIDs(text []byte) (p packedIDs, ok bool) {
	scratch := packing.Get().(*[]byte)
	defer packing.Put(scratch)
	packed := (*scratch)[:0]
	for at, n := 0, 1; at < len(text); n++ {
		id, digits := uint64(0), 0
		for ; at < len(text) && text[at] >= '0' && text[at] <= '9'; at++ {
			id, digits = 10*id+uint64(text[at]-'0'), digits+1
		}
		if digits == 0 || digits > 18 {
			return packedIDs{}, false
		}
		packed = binary.AppendUvarint(packed, id)
		comma := false
		for ; at < len(text) && (text[at] == ',' && !comma || text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r'); at++ {
			comma = comma || text[at] == ','
		}
		if at < len(text) != comma {
			return packedIDs{}, false
		}
		if n%sharedIDs == 0 {
			p.shared = append(p.shared, unique.Make(string(packed)))
			packed = packed[:0]
		}
	}
	*scratch = packed
	p.rest = slices.Clone(packed)
	return p, true
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
	for _, h := range p.shared {
		add([]byte(h.Value()))
	}
	add(p.rest)
	return out
}
