package transcript

import (
	"encoding/binary"
	"strconv"
)

// packedIDs are token ids as varints: half the memory of their digits, for as long as a stream is open.
type packedIDs []byte

// packIDs packs n ids of the form "1, 2,3"; nil where they are not of that form.
func packIDs(text []byte, n int) packedIDs {
	packed := make(packedIDs, 0, 3*n)
	for at := 0; at < len(text); {
		id, digits := uint64(0), 0
		for ; at < len(text) && text[at] >= '0' && text[at] <= '9'; at++ {
			id, digits = 10*id+uint64(text[at]-'0'), digits+1
		}
		if digits == 0 || digits > 18 {
			return nil
		}
		packed = binary.AppendUvarint(packed, id)
		comma := false
		for ; at < len(text) && (text[at] == ',' && !comma || text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r'); at++ {
			comma = comma || text[at] == ','
		}
		if at < len(text) != comma {
			return nil
		}
	}
	return packed
}

// appendTo appends the ids as "1,2,3".
func (p packedIDs) appendTo(out []byte) []byte {
	for at := 0; at < len(p); {
		id, n := binary.Uvarint(p[at:])
		if at > 0 {
			out = append(out, ',')
		}
		out, at = strconv.AppendUint(out, id, 10), at+n
	}
	return out
}
