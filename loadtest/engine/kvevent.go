package engine

import (
	"time"

	"github.com/tinylib/msgp/msgp"
)

// kvEvent is blockStored, blockRemoved or allBlocksCleared (vLLM
// distributed/kv_events.py). Each can be written as a msgpack array (older vLLM) or
// as a map (newer vLLM).
type kvEvent interface {
	appendArray(b []byte) []byte
	appendMap(b []byte) []byte
}

// blockStored reports blocks in a row that became reusable.
type blockStored struct {
	hashes    []blockHash
	parent    blockHash
	root      bool // the first block has no parent
	tokens    []int32
	blockSize int
	adapter   string
	extra     [][]string // by block
	medium    string
}

type blockRemoved struct{ hash blockHash }

type allBlocksCleared struct{}

// Every block of the simulated engine is on the GPU and of full attention. What is in a store
// beside it is reported as vLLM's MooncakeStoreConnector does (0.32, mooncake/store/worker.py):
// by block, without salt and adapter, when it was put there, and never when it is forgotten.
const (
	medium      = "GPU"
	storeMedium = "cpu"
	groupKind   = "full_attention"
)

func (e blockStored) appendArray(b []byte) []byte {
	b = msgp.AppendArrayHeader(b, 12)
	b = msgp.AppendString(b, "BlockStored")
	b = appendHashes(b, e.hashes)
	b = e.appendParent(b)
	b = appendTokens(b, e.tokens)
	b = msgp.AppendInt(b, e.blockSize)
	b = msgp.AppendNil(b) // lora_id, deprecated for lora_name
	b = msgp.AppendString(b, e.medium)
	b = appendName(b, e.adapter)
	b = appendExtra(b, e.extra)
	b = msgp.AppendInt(b, 0) // group_idx
	b = msgp.AppendString(b, groupKind)
	return msgp.AppendNil(b) // no sliding window
}

func (e blockStored) appendMap(b []byte) []byte {
	b = msgp.AppendMapHeader(b, 11)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
	b = appendHashes(msgp.AppendString(b, "block_hashes"), e.hashes)
	b = e.appendParent(msgp.AppendString(b, "parent_block_hash"))
	b = appendTokens(msgp.AppendString(b, "token_ids"), e.tokens)
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), e.blockSize)
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = msgp.AppendString(msgp.AppendString(b, "medium"), e.medium)
	b = appendName(msgp.AppendString(b, "lora_name"), e.adapter)
	b = appendExtra(msgp.AppendString(b, "extra_keys"), e.extra)
	b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
	return msgp.AppendString(msgp.AppendString(b, "kv_cache_spec_kind"), groupKind)
}

func (e blockStored) appendParent(b []byte) []byte {
	if e.root {
		return msgp.AppendNil(b)
	}
	return msgp.AppendUint64(b, e.parent.number())
}

func (e blockRemoved) appendArray(b []byte) []byte {
	b = msgp.AppendArrayHeader(b, 4)
	b = msgp.AppendString(b, "BlockRemoved")
	b = appendHashes(b, []blockHash{e.hash})
	b = msgp.AppendString(b, medium)
	return msgp.AppendInt(b, 0) // group_idx
}

func (e blockRemoved) appendMap(b []byte) []byte {
	b = msgp.AppendMapHeader(b, 4)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockRemoved")
	b = appendHashes(msgp.AppendString(b, "block_hashes"), []blockHash{e.hash})
	b = msgp.AppendString(msgp.AppendString(b, "medium"), medium)
	return msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
}

func (allBlocksCleared) appendArray(b []byte) []byte {
	return msgp.AppendString(msgp.AppendArrayHeader(b, 1), "AllBlocksCleared")
}

func (allBlocksCleared) appendMap(b []byte) []byte {
	return msgp.AppendString(msgp.AppendString(msgp.AppendMapHeader(b, 1), "type"), "AllBlocksCleared")
}

// encodeBatch is the payload of one message: [seconds since 1970, [events], rank].
func encodeBatch(at time.Time, events []kvEvent, rank int, asMaps bool) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, float64(at.UnixMicro())/1e6)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		if asMaps {
			b = e.appendMap(b)
		} else {
			b = e.appendArray(b)
		}
	}
	return msgp.AppendInt(b, rank)
}

func appendHashes(b []byte, hashes []blockHash) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = msgp.AppendUint64(b, h.number())
	}
	return b
}

func appendTokens(b []byte, tokens []int32) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, t := range tokens {
		b = msgp.AppendInt32(b, t)
	}
	return b
}

// appendName writes nil for no name.
func appendName(b []byte, name string) []byte {
	if name == "" {
		return msgp.AppendNil(b)
	}
	return msgp.AppendString(b, name)
}

// appendExtra writes one entry for each block: nil, or its extra keys.
func appendExtra(b []byte, extra [][]string) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(extra)))
	for _, keys := range extra {
		if len(keys) == 0 {
			b = msgp.AppendNil(b)
			continue
		}
		b = msgp.AppendArrayHeader(b, uint32(len(keys)))
		for _, key := range keys {
			b = msgp.AppendString(b, key)
		}
	}
	return b
}
