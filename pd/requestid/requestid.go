// Package requestid makes the names of requests and of what engines are asked for them.
package requestid

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// New is a UUID of version 4, as text: "req-" + string(id[:]) takes one allocation. Each request has one, and each of its
// legs. They have to differ, also from those of other replicas, and open nothing: the runtime's generator (ChaCha8, which
// the system seeds) does, and needs neither a lock nor a system call.
func New() (text [36]byte) {
	var id [16]byte
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	id[6] = id[6]&0x0f | 0x40 // the version
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	hex.Encode(text[:], id[:4])
	hex.Encode(text[9:], id[4:6])
	hex.Encode(text[14:], id[6:8])
	hex.Encode(text[19:], id[8:10])
	hex.Encode(text[24:], id[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return text
}
