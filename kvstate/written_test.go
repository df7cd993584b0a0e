package kvstate

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/cached"
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

// written is a batch of testdata, as an engine's own encoder wrote it. SGLang's are what its recorder
// (srt/mem_cache/events.py) makes of nodes of its radix tree, with pages of two tokens; only the hashes
// of the pages are made otherwise, since the library that makes them needs a GPU's packages.
func written(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	payload, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// heldFrom is what an index that has received a batch of an engine's holds of each prompt.
func heldFrom(t *testing.T, name string, want map[*Prompt]cached.Tokens) {
	t.Helper()
	ix, s := opened(t, Spec{Store: "pool"})
	s.ApplyLive(Message{Payload: written(t, name)})
	if c := s.State().Counts; c.Unreadable != 0 || len(c.DropReasons()) != 0 {
		t.Errorf("%d batches were unreadable, dropped %v", c.Unreadable, c.DropReasons())
	}
	for p, want := range want {
		p.Model = "m"
		var h Hits
		if ix.Match(p, &h); h.Held("s") != want {
			t.Errorf("%v of %q, %q: %+v held, want %+v", p.Tokens, p.Adapter, p.Salt, h.Held("s"), want)
		}
	}
}

// A prompt's blocks are found as SGLang stored them, for its salt and adapter alone, in the tiers that
// are left.
func TestApply_WhatSGLangWrites(t *testing.T) {
	gpu := func(n int) cached.Tokens { return cached.Tokens{GPU: n, CPU: n, Disk: n} }
	heldFrom(t, "sglang-0.5.23-stored", map[*Prompt]cached.Tokens{
		{Tokens: count(1, 7), Adapter: "adapter", Salt: "tenant-a"}: gpu(6),
		{Tokens: count(1, 7), Salt: "tenant-b"}:                     gpu(4),
		{Tokens: count(1, 7), Adapter: "adapter"}:                   {},
		{Tokens: count(1, 7), Salt: "tenant-a"}:                     {},
		{Tokens: count(1, 7)}:                                       {},
		{Tokens: count(9, 7)}:                                       gpu(4), // the third block was removed
		{Tokens: count(9, 7), Salt: "tenant-a"}:                     {},
		{Tokens: count(21, 3)}:                                      {CPU: 2, Disk: 2}, // evicted from the GPU
	})
}

// With a draft model each token of a page is written with the next one: a prompt has the page only
// where it goes on with the token behind it.
func TestApply_WhatSGLangWritesForDraftModels(t *testing.T) {
	gpu := func(n int) cached.Tokens { return cached.Tokens{GPU: n, CPU: n, Disk: n} }
	heldFrom(t, "sglang-0.5.23-pairs", map[*Prompt]cached.Tokens{
		{Tokens: count(1, 9), Salt: "tenant-a"}:                   gpu(6),
		{Tokens: count(1, 7), Salt: "tenant-a"}:                   gpu(6),
		{Tokens: count(1, 6), Salt: "tenant-a"}:                   gpu(4),
		{Tokens: []uint32{1, 2, 3, 4, 5, 6, 8}, Salt: "tenant-a"}: gpu(4),
		{Tokens: []uint32{1, 2, 3, 4, 5, 9, 7}, Salt: "tenant-a"}: gpu(4),
		{Tokens: []uint32{1, 2, 3, 4, 9, 6, 7}, Salt: "tenant-a"}: gpu(2),
		{Tokens: count(1, 9)}:                                     {},
	})
}

// Pairs that do not follow each other, or are none, are of a form that is not known.
func TestDecode_PairsThatDoNotFit(t *testing.T) {
	good := written(t, "sglang-0.5.23-pairs")
	for name, x := range map[string][2]string{
		"the second of a pair is not the next": {"\x92\x02\x03", "\x92\x09\x03"},
		"three tokens":                         {"\x92\x05\x06\x92\x06\x07", "\x93\x05\x06\x06\x91\x07"},
		"one token":                            {"\x92\x06\x07", "\x91\x06\x07"},
		"no pair behind one":                   {"\x92\x06\x07", "\x07\xa1\x07"},
		"no token":                             {"\x92\x06\x07", "\x92\xff\x07"},
		"no token behind":                      {"\x92\x06\x07", "\x92\x06\xff"},
	} {
		var b batch
		err := b.decode(bytes.Replace(good, []byte(x[0]), []byte(x[1]), 1))
		if err == nil && (b.odd != 1 || len(b.events) != 0) {
			t.Errorf("%s: %d events, %d odd", name, len(b.events), b.odd)
		}
	}
}

// vLLM 0.33 (distributed/kv_events.py) reports the tokens behind each block where a draft model reads
// them.
func TestApply_WhatVLLMWritesForDraftModels(t *testing.T) {
	gpu := func(n int) cached.Tokens { return cached.Tokens{GPU: n, CPU: n, Disk: n} }
	heldFrom(t, "vllm-0.33.0-lookahead", map[*Prompt]cached.Tokens{
		{Tokens: count(1, 7), Salt: "tenant-a"}:                   gpu(6),
		{Tokens: count(1, 6), Salt: "tenant-a"}:                   gpu(4),
		{Tokens: []uint32{1, 2, 3, 4, 9, 6, 7}, Salt: "tenant-a"}: gpu(2),
		{Tokens: count(1, 7)}:                                     {},
	})
}

// vLLM 0.33's MooncakeStoreConnector (mooncake/store/worker.py) reports what it has put into the store as
// of the medium "cpu", without the salt; what has left the GPU is in the store all the same.
func TestApply_WhatVLLMWritesOfItsStore(t *testing.T) {
	heldFrom(t, "vllm-0.33.0-mooncake", map[*Prompt]cached.Tokens{
		{Tokens: count(1, 7), Salt: "tenant-a"}: {Disk: 4},
		{Tokens: count(1, 7), Salt: "tenant-b"}: {},
		{Tokens: count(1, 7)}:                   {},
	})
}

// LMCache 0.5.6 behind vLLM in a process of its own (integration/vllm/lmcache_mp_connector.py) reports chunks
// in its node's memory by hashes of its own, in the medium "CPU", and what is evicted there: they are the
// server's, and no store's. A salt is not in them.
func TestApply_WhatLMCacheWritesOfItsMemory(t *testing.T) {
	heldFrom(t, "lmcache-0.5.6-cpu", map[*Prompt]cached.Tokens{
		{Tokens: count(1, 9)}:                      {CPU: 4, Disk: 4}, // the GPU has dropped all, LMCache the second chunk
		{Tokens: count(21, 5)}:                     {CPU: 4, Disk: 4},
		{Tokens: count(21, 5), Salt: "tenant-a"}:   {},
		{Tokens: count(21, 5), Adapter: "adapter"}: {},
	})
}
