package kvstate

import (
	"encoding/binary"
	"runtime"
	"testing"
	"weak"
)

// TestAllocations_OfAKVEvent counts from the frames of a message to the index, in every form
// that engines write. None: an event is read in place, and blocks live in memory that the
// index keeps and reuses. What libzmq's binding allocates for the frames is not in it.
func TestAllocations_OfAKVEvent(t *testing.T) {
	const batches = 64
	for _, maps := range []bool{false, true} {
		for _, hashes := range []string{"uint", "int", "bin"} {
			form := wireForm{maps: maps, hashes: hashes}
			var payloads [][]byte
			for i := range uint64(batches) { // of four blocks, of which two go at once and two later
				first := 1 + 4*i
				payloads = append(payloads, wireBatch(form, 1,
					wireEvent{kind: "BlockStored", hashes: []uint64{first, first + 1, first + 2, first + 3}, tokens: count(int(i), 64), size: 16, medium: "GPU"},
					wireEvent{kind: "BlockRemoved", hashes: []uint64{first + 3, first + 2}, medium: "GPU"}))
			}
			payloads = append(payloads, wireBatch(form, 1, wireEvent{kind: "AllBlocksCleared"}))
			f := newFleet(t, 1)
			number := make([]byte, 8)
			frames := [][]byte{nil, number, nil}
			next := 0
			take := func() {
				binary.BigEndian.PutUint64(number, uint64(next))
				frames[2] = payloads[next%len(payloads)]
				next++
				m, err := ParseLive(frames)
				if err != nil {
					t.Fatal(err)
				}
				if f.sources[0].ApplyLive(m).Needed() {
					t.Fatal("a message was missed")
				}
			}
			for range 2 * len(payloads) { // memory has grown
				take()
			}
			blocks := 0
			if n := testing.AllocsPerRun(4*len(payloads), func() { take(); blocks = max(blocks, int(f.ix.blocks.Load())) }); n != 0 {
				t.Errorf("%+v: %v allocations for a message, none is allowed", form, n)
			}
			if blocks != 2*batches {
				t.Errorf("%+v: at most %d blocks held, want %d", form, blocks, 2*batches)
			}
		}
	}
}

// A message that was applied is let go of, and so is the memory that a long one took: a source whose engine is at rest
// would keep some megabytes to its next message.
func TestSource_KeepsNothingOfALongMessage(t *testing.T) {
	f := newFleet(t, 1)
	hashes := make([]uint64, 4*keptHashes)
	for i := range hashes {
		hashes[i] = uint64(i + 1)
	}
	payload := wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: hashes, tokens: count(0, 16*len(hashes)), size: 16, medium: "GPU"})
	message := weak.Make(&payload[0])
	m, err := ParseLive([][]byte{nil, make([]byte, 8), payload})
	if err != nil {
		t.Fatal(err)
	}
	if f.sources[0].ApplyLive(m).Needed() || int(f.ix.blocks.Load()) != len(hashes) {
		t.Fatalf("%d blocks", f.ix.blocks.Load())
	}
	runtime.GC()
	if b := &f.sources[0].batch; message.Value() != nil || cap(b.tokens) > keptTokens || cap(b.hashes) > keptHashes {
		t.Errorf("kept: message %v, room for %d tokens and %d hashes", message.Value() != nil, cap(b.tokens), cap(b.hashes))
	}
}
