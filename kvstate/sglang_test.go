package kvstate

import (
	"encoding/hex"
	"testing"
)

// batchBySGLang is a batch as the encoder of sglang 0.5.23 writes it (srt/disaggregation/kv_events.py,
// KVEventBatch: events are tagged maps): two blocks of two tokens stored behind block -9 for adapter
// "adapter" and salt "tenant-a", one that begins a prompt, one removed, all cleared.
const batchBySGLang = "93cb3ff8000000000000948aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392f9cf7fffffffffffffffb1706172656e745f626c6f636b5f68617368f7a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055aa63616368655f73616c74a874656e616e742d61aa73657373696f6e5f6964a27331a96c6f72615f6e616d65a76164617074657286a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739105b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647392090aaa626c6f636b5f73697a6502a76c6f72615f6964c083a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391f9a66d656469756da347505581a474797065b0416c6c426c6f636b73436c656172656401"

func TestDecode_WhatSGLangWrites(t *testing.T) {
	payload, err := hex.DecodeString(batchBySGLang)
	if err != nil {
		t.Fatal(err)
	}
	var b batch
	if err := b.decode(payload); err != nil || b.odd != 0 || len(b.events) != 4 || b.seconds != 1.5 {
		t.Fatalf("%d events, %d odd, of %v, %v", len(b.events), b.odd, b.seconds, err)
	}
	for i, want := range []eventKind{blockStored, blockStored, blockRemoved, allBlocksCleared} {
		if b.events[i].kind != want {
			t.Errorf("event %d is of kind %v", i, b.events[i].kind)
		}
	}
}

// A prompt's blocks are found as SGLang stored them, for its salt and adapter alone.
func TestApply_WhatSGLangWrites(t *testing.T) {
	payload, err := hex.DecodeString(batchBySGLang)
	if err != nil {
		t.Fatal(err)
	}
	ix, s := opened(t, Spec{})
	s.ApplyLive(Message{Seq: 0, Payload: payload})
	if n := s.State().Counts.Unreadable; n != 0 {
		t.Errorf("%d batches were unreadable", n)
	}
	if got := holds(ix, Prompt{Tokens: []uint32{9, 10, 11}}); got != 0 { // all was cleared at last
		t.Errorf("%d tokens are held", got)
	}
}
