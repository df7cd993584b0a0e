package kvstate

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// decodeField reads one field into e, or skips it if its name is not known.
func (b *batch) decodeField(name string, p []byte, e *event) (rest []byte, err error) {
	switch name {
	case "type":
		var kind []byte
		kind, rest, err = msgp.ReadStringZC(p)
		switch string(kind) {
		case "BlockStored":
			e.kind = blockStored
		case "BlockRemoved":
			e.kind = blockRemoved
		case "AllBlocksCleared":
			e.kind = allBlocksCleared
		default:
			return nil, errEvent
		}
	case "block_hashes":
		e.hashes, rest, err = b.decodeHashes(p)
	case "parent_block_hash":
		e.parent, e.hasParent, rest, err = decodeParent(p)
	case "token_ids":
		if isPairs(p) {
			return b.decodePairs(p, e)
		}
		e.tokens, rest, err = b.decodeTokens(p)
	case "block_size":
		e.blockTokens, rest, err = decodeSmall(p)
	case "lookahead_token_ids":
		if msgp.IsNil(p) {
			return msgp.ReadNilBytes(p)
		}
		e.lookahead, rest, err = b.decodeLookahead(p)
	case "lora_id":
		e.adapterID, rest, err = decodeID(p)
	case "lora_name":
		e.adapter, rest, err = decodeText(p)
	case "cache_salt":
		e.salt, rest, err = decodeText(p)
	case "medium":
		e.medium, rest, err = decodeText(p)
	case "locality": // in maps alone; vLLM since 0.32: LOCAL, REMOTE, nil
		if msgp.NextType(p) != msgp.StrType {
			return msgp.Skip(p)
		}
		var where []byte
		where, rest, err = decodeText(p)
		e.remote, e.local = string(where) == "REMOTE", string(where) == "LOCAL"
	case "extra_keys":
		rest, err = msgp.Skip(p)
		if err == nil && !msgp.IsNil(p) {
			e.extra = p[:len(p)-len(rest)]
		}
	case "group_idx":
		if e.groupKnown = !msgp.IsNil(p); !e.groupKnown {
			return msgp.ReadNilBytes(p)
		}
		e.group, rest, err = decodeSmall(p)
	case "kv_cache_spec_kind":
		e.spec, rest, err = decodeText(p)
	default:
		rest, err = msgp.Skip(p)
	}
	return rest, err
}

// decodeHashes reads the engine's hashes. No memory is taken for more of them than
// there are bytes.
func (b *batch) decodeHashes(p []byte) (hashes []uint64, rest []byte, err error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, nil, err
	}
	from := len(b.hashes)
	for range n {
		var hash uint64
		if hash, p, err = decodeHash(p); err != nil {
			return nil, nil, err
		}
		b.hashes = append(b.hashes, hash)
	}
	return b.hashes[from:len(b.hashes):len(b.hashes)], p, nil
}

// decodeHash takes a number of either sign (vLLM: the last eight bytes of the digest;
// SGLang: the first, signed), or the digest itself, of which the last eight bytes count.
func decodeHash(p []byte) (uint64, []byte, error) {
	if len(p) >= 9 && p[0] == 0xcf { // uint64, nearly always
		return binary.BigEndian.Uint64(p[1:]), p[9:], nil
	}
	switch msgp.NextType(p) {
	case msgp.UintType:
		return msgp.ReadUint64Bytes(p)
	case msgp.IntType:
		if v, rest, err := msgp.ReadInt64Bytes(p); err == nil {
			return uint64(v), rest, nil
		}
		return msgp.ReadUint64Bytes(p)
	case msgp.BinType:
		v, rest, err := msgp.ReadBytesZC(p)
		return lastEight(v), rest, err
	case msgp.StrType:
		v, rest, err := msgp.ReadStringZC(p)
		return textHash(v), rest, err
	}
	return 0, nil, errEvent
}

// decodeParent: nil and an empty digest say that the first block has no parent.
func decodeParent(p []byte) (parent uint64, has bool, rest []byte, err error) {
	if msgp.IsNil(p) {
		rest, err = msgp.ReadNilBytes(p)
		return 0, false, rest, err
	}
	parent, rest, err = decodeHash(p)
	return parent, parent != 0 || err != nil, rest, err
}

func lastEight(digest []byte) (v uint64) {
	for _, c := range digest[max(0, len(digest)-8):] {
		v = v<<8 | uint64(c)
	}
	return v
}

// textHash makes a number of a digest that is written as text (FNV-1a).
func textHash(text []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range text {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// decodeTokens reads token ids, the bulk of a message.
func (b *batch) decodeTokens(p []byte) (tokens []uint32, rest []byte, err error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, nil, err
	}
	if int64(n) > int64(len(p)) { // a token takes a byte at least
		return nil, nil, msgp.ErrShortBytes
	}
	from := len(b.tokens)
	out := slices.Grow(b.tokens, int(n))
	for range n {
		switch {
		case len(p) >= 1 && p[0] < 0x80:
			out = append(out, uint32(p[0]))
			p = p[1:]
		case len(p) >= 3 && p[0] == 0xcd: // uint16
			out = append(out, uint32(p[1])<<8|uint32(p[2]))
			p = p[3:]
		case len(p) >= 5 && p[0] == 0xce: // uint32
			out = append(out, uint32(p[1])<<24|uint32(p[2])<<16|uint32(p[3])<<8|uint32(p[4]))
			p = p[5:]
		default:
			var v int64
			if v, p, err = msgp.ReadInt64Bytes(p); err != nil {
				return nil, nil, err
			}
			if v < 0 || v > math.MaxUint32 {
				return nil, nil, errEvent
			}
			out = append(out, uint32(v))
		}
	}
	b.tokens = out
	return out[from:len(out):len(out)], p, nil
}

// isPairs reports whether an array's first element is one itself.
func isPairs(p []byte) bool {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	return err == nil && n > 0 && msgp.NextType(p) == msgp.ArrayType
}

// decodePairs reads tokens of which each is written with the one behind it, as SGLang does for draft
// models that read it (EAGLE, MTP: "bigram" pages in mem_cache/events.py).
func (b *batch) decodePairs(p []byte, e *event) (rest []byte, err error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, err
	}
	from := len(b.tokens)
	for i := range n {
		var fields, token, behind uint32
		if fields, p, err = msgp.ReadArrayHeaderBytes(p); err != nil || fields != 2 {
			return nil, errEvent
		}
		if token, p, err = msgp.ReadUint32Bytes(p); err != nil {
			return nil, err
		}
		if behind, p, err = msgp.ReadUint32Bytes(p); err != nil {
			return nil, err
		}
		switch {
		case i == 0:
			b.tokens = append(b.tokens, token)
		case b.tokens[len(b.tokens)-1] != token:
			return nil, errEvent
		}
		b.tokens = append(b.tokens, behind)
	}
	all := b.tokens[from:len(b.tokens):len(b.tokens)]
	e.tokens, e.lookahead = all[:n], all[n:]
	return p, nil
}

// decodeLookahead reads the tokens behind each block, of which those behind the last count: the
// others are the beginnings of the next blocks.
func (b *batch) decodeLookahead(p []byte) (behind []uint32, rest []byte, err error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, nil, err
	}
	for range n {
		if behind, p, err = b.decodeTokens(p); err != nil {
			return nil, nil, err
		}
	}
	return behind, p, nil
}

// decodeSmall reads a number that fits a size or an index.
func decodeSmall(p []byte) (int, []byte, error) {
	v, rest, err := msgp.ReadInt64Bytes(p)
	if err == nil && (v < 0 || v > math.MaxInt32) {
		err = errEvent
	}
	return int(v), rest, err
}

// decodeID reads a number that may be nil, which is -1.
func decodeID(p []byte) (int64, []byte, error) {
	if msgp.IsNil(p) {
		rest, err := msgp.ReadNilBytes(p)
		return -1, rest, err
	}
	v, rest, err := msgp.ReadInt64Bytes(p)
	if err == nil && v < 0 {
		err = errEvent
	}
	return v, rest, err
}

// decodeText reads a string that may be nil, which is empty.
func decodeText(p []byte) ([]byte, []byte, error) {
	if msgp.IsNil(p) {
		rest, err := msgp.ReadNilBytes(p)
		return nil, rest, err
	}
	return msgp.ReadStringZC(p)
}
