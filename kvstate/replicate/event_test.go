package replicate

import (
	"math/rand/v2"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// blockTokens is the block size of the tests' engine.
const blockTokens = 16

// stored is an event that blocks came, behind a parent; 0: none.
func stored(parent uint64, hashes []uint64, tokens []uint32) []byte {
	return storedIn("GPU", parent, hashes, tokens)
}

func storedIn(medium string, parent uint64, hashes []uint64, tokens []uint32) []byte {
	b := appendHashes(msgp.AppendString(msgp.AppendArrayHeader(nil, 7), "BlockStored"), hashes)
	if parent == 0 {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendUint64(b, parent)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, t := range tokens {
		b = msgp.AppendUint32(b, t)
	}
	b = msgp.AppendNil(msgp.AppendInt(b, blockTokens)) // no lora_id
	return msgp.AppendString(b, medium)
}

// removed is an event that blocks are gone.
func removed(hashes []uint64) []byte {
	b := appendHashes(msgp.AppendString(msgp.AppendArrayHeader(nil, 3), "BlockRemoved"), hashes)
	return msgp.AppendString(b, "GPU")
}

func appendHashes(b []byte, hashes []uint64) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = msgp.AppendUint64(b, h)
	}
	return b
}

// batch is the payload of a message.
func batch(events ...[]byte) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 0)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		b = append(b, e...)
	}
	return msgp.AppendNil(b)
}

// publisher makes the messages of an engine: each stores 16 blocks of a conversation of 64
// times as many, and, once so many messages' worth of blocks are cached, drops 16 of the
// oldest conversation, tails first.
type publisher struct {
	payloads [][]byte
	blocks   int // stored by each
}

// newPublisher prepares messages; each is to be offered once, in order.
func newPublisher(r *rand.Rand, messages, cached int) *publisher {
	p := &publisher{blocks: 16}
	var held [][]uint64 // by conversation
	for i := range messages {
		if i%64 == 0 {
			held = append(held, nil)
		}
		last, parent := &held[len(held)-1], uint64(0)
		if n := len(*last); n > 0 {
			parent = (*last)[n-1]
		}
		hashes, tokens := make([]uint64, p.blocks), make([]uint32, p.blocks*blockTokens)
		for k := range hashes {
			hashes[k] = r.Uint64()
		}
		for k := range tokens {
			tokens[k] = r.Uint32()
		}
		*last = append(*last, hashes...)
		events := [][]byte{stored(parent, hashes, tokens)}
		if i >= cached {
			oldest := held[0]
			gone := slices.Clone(oldest[len(oldest)-p.blocks:])
			slices.Reverse(gone)
			if held[0] = oldest[:len(oldest)-p.blocks]; len(held[0]) == 0 {
				held = held[1:]
			}
			events = append(events, removed(gone))
		}
		p.payloads = append(p.payloads, batch(events...))
	}
	return p
}
