package engine

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// blockHash names a full block of tokens and all before it, as vLLM's sha256_cbor
// does. Events carry the last eight bytes as a number.
type blockHash [32]byte

// number is the hash as KV events carry it.
func (h blockHash) number() uint64 { return binary.BigEndian.Uint64(h[24:]) }

// rootHash is the parent of first blocks: sha256 of the CBOR text of the seed. An
// empty seed gives a random root.
func rootHash(seed string) blockHash {
	if seed == "" {
		var random [16]byte
		rand.Read(random[:]) // never fails (crypto/rand)
		seed = hex.EncodeToString(random[:])
	}
	return sha256.Sum256(appendCBORText(nil, seed))
}

// hashBlock is sha256 of the canonical CBOR of [parent, [tokens], extra]. extra
// holds what else the KV depends on: the adapter's name, and on a first block the
// salt; CBOR null if there is nothing.
func hashBlock(parent blockHash, tokens []int32, extra []string) blockHash {
	b := make([]byte, 0, 64+5*len(tokens))
	b = append(b, 0x83)
	b = appendCBORHead(b, 2, uint64(len(parent)))
	b = append(b, parent[:]...)
	b = appendCBORHead(b, 4, uint64(len(tokens)))
	for _, t := range tokens {
		b = appendCBORHead(b, 0, uint64(t))
	}
	if len(extra) == 0 {
		return sha256.Sum256(append(b, 0xf6))
	}
	b = appendCBORHead(b, 4, uint64(len(extra)))
	for _, s := range extra {
		b = appendCBORText(b, s)
	}
	return sha256.Sum256(b)
}

// extraKeys of the block at an index of a sequence.
func extraKeys(index int, adapter, salt string) []string {
	var extra []string
	if adapter != "" {
		extra = append(extra, adapter)
	}
	if index == 0 && salt != "" {
		extra = append(extra, salt)
	}
	return extra
}

func appendCBORText(b []byte, s string) []byte {
	return append(appendCBORHead(b, 3, uint64(len(s))), s...)
}

// appendCBORHead writes a major type and its number in the shortest form.
func appendCBORHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major<<5|byte(n))
	case n < 1<<8:
		return append(b, major<<5|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major<<5|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major<<5|26), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, major<<5|27), n)
	}
}
