package kvstate

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// opened is an index with one source.
func opened(t testing.TB, spec Spec) (*Index, *Source) {
	t.Helper()
	ix, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	if spec.Server == "" {
		spec.Server = "s"
	}
	spec.Model = "m"
	s, err := ix.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	return ix, s
}

// holds is how many tokens the source is said to hold of a prompt.
func holds(ix *Index, p Prompt) int {
	p.Model = "m"
	var h Hits
	ix.Match(&p, &h)
	return h.Held("s").GPU
}

func count(from, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(from + i)
	}
	return tokens
}

// TestDecode_EveryVersion: each form in which engines have told the same two blocks.
func TestDecode_EveryVersion(t *testing.T) {
	stored := wireEvent{kind: "BlockStored", hashes: []uint64{1<<63 | 5, 1<<63 | 6}, tokens: count(1000, 32), size: 16}
	full := stored
	full.medium, full.spec, full.extra = "GPU", "full_attention", [][]string{nil, nil}
	// As vLLM 0.31 was seen to publish it.
	seen := func() []byte {
		b := msgp.AppendArrayHeader(nil, 3)
		b = msgp.AppendFloat64(b, 1.79e9)
		b = msgp.AppendArrayHeader(b, 1)
		b = msgp.AppendMapHeader(b, 13)
		b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
		b = msgp.AppendString(b, "block_hashes")
		b = msgp.AppendArrayHeader(b, 2)
		b = msgp.AppendUint64(msgp.AppendUint64(b, 1<<63|5), 1<<63|6)
		b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
		b = msgp.AppendString(b, "token_ids")
		b = msgp.AppendArrayHeader(b, 32)
		for _, token := range count(1000, 32) {
			b = msgp.AppendInt64(b, int64(token))
		}
		b = msgp.AppendInt(msgp.AppendString(b, "block_size"), 16)
		b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
		b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
		b = msgp.AppendNil(msgp.AppendString(b, "lora_name"))
		b = msgp.AppendNil(msgp.AppendNil(msgp.AppendArrayHeader(msgp.AppendString(b, "extra_keys"), 2)))
		b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
		b = msgp.AppendString(msgp.AppendString(b, "kv_cache_spec_kind"), "full_attention")
		b = msgp.AppendMapHeader(msgp.AppendString(b, "locality"), 0)
		b = msgp.AppendString(msgp.AppendString(b, "session_id"), "x")
		return msgp.AppendInt(b, 0)
	}
	// The batch as a map, and without the rank.
	asMap := func() []byte {
		b := msgp.AppendMapHeader(nil, 2)
		b = msgp.AppendArrayHeader(msgp.AppendString(b, "events"), 1)
		b = full.append(b, wireForm{maps: true})
		return msgp.AppendInt(msgp.AppendString(b, "ts"), 17)
	}
	noRank := func() []byte {
		b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 17)
		return stored.append(msgp.AppendArrayHeader(b, 1), wireForm{short: true})
	}
	// More fields than are known, and a tag.
	later := func() []byte {
		b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 5), 17)
		b = msgp.AppendArrayHeader(b, 2)
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 3), "BlockMoved")
		b = msgp.AppendBool(msgp.AppendMapHeader(b, 0), true)
		b = msgp.AppendArrayHeader(b, 14)
		var fields []byte
		fields = full.append(fields, wireForm{})
		b = append(b, fields[1:]...)
		b = msgp.AppendMapHeader(msgp.AppendNil(b), 0)
		return msgp.AppendNil(msgp.AppendString(msgp.AppendNil(b), "more"))
	}
	// A string as digest, and a parent of 0 for a first block (llm-d's simulator).
	parentZero := func() []byte {
		b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 17)
		b = msgp.AppendArrayHeader(b, 1)
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 5), "BlockStored")
		b = msgp.AppendString(msgp.AppendString(msgp.AppendArrayHeader(b, 2), "a"), "b")
		b = msgp.AppendInt(b, 0)
		b = msgp.AppendArrayHeader(b, 32)
		for _, token := range count(1000, 32) {
			b = msgp.AppendUint64(b, uint64(token))
		}
		return msgp.AppendNil(msgp.AppendInt(b, 16))
	}
	cases := map[string][]byte{"seen": seen(), "batch as a map": asMap(), "no rank": noRank(), "later": later(), "parent 0": parentZero()}
	for _, form := range []wireForm{
		{}, {short: true}, {hashes: "int"}, {hashes: "bin"}, {hashes: "bin", short: true},
		{maps: true}, {maps: true, short: true}, {maps: true, hashes: "int"}, {maps: true, hashes: "bin"},
	} {
		cases[fmt.Sprintf("%+v", form)] = wireBatch(form, 17, full)
		cases[fmt.Sprintf("%+v, bare", form)] = wireBatch(form, 17, stored)
	}
	for name, payload := range cases {
		t.Run(name, func(t *testing.T) {
			ix, s := opened(t, Spec{})
			s.ApplyLive(Message{Payload: payload})
			if got := holds(ix, Prompt{Tokens: count(1000, 40)}); got != 32 {
				t.Errorf("%d tokens held, want 32; %+v", got, s.State().Counts)
			}
		})
	}
}

// TestApply_Removals: hashes of all forms name the same blocks.
func TestApply_Removals(t *testing.T) {
	for _, form := range []wireForm{{}, {hashes: "int"}, {hashes: "bin"}, {maps: true, short: true}} {
		ix, s := opened(t, Spec{})
		s.ApplyLive(Message{Seq: 0, Payload: wireBatch(form, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1<<63 | 5, 1<<63 | 6}, tokens: count(0, 32), size: 16, medium: "GPU"})})
		s.ApplyLive(Message{Seq: 1, Payload: wireBatch(form, 1, wireEvent{kind: "BlockRemoved", hashes: []uint64{1<<63 | 6}, medium: "GPU"})})
		if got := holds(ix, Prompt{Tokens: count(0, 32)}); got != 16 {
			t.Errorf("%+v: %d tokens held, want 16", form, got)
		}
	}
}

// TestApply_WhatKVDependsOn: adapter, salt and media are part of a block, in whatever
// form they are told.
func TestApply_WhatKVDependsOn(t *testing.T) {
	tokens := count(0, 48)
	for name, c := range map[string]struct {
		event   wireEvent
		raw     func(e *event) // changes the decoded event
		prompt  Prompt
		held    int
		foreign []Prompt // of which nothing is held
	}{
		"plain": {
			prompt: Prompt{}, held: 48,
			foreign: []Prompt{{Adapter: "a"}, {Salt: "x"}, {Media: []Medium{{Hash: "h", Offset: 3, Length: 2}}}},
		},
		"adapter": {
			event: wireEvent{adapter: "a"}, prompt: Prompt{Adapter: "a"}, held: 48,
			foreign: []Prompt{{}, {Adapter: "b"}, {Salt: "a"}},
		},
		"adapter in the keys too, as vLLM tells it": {
			event: wireEvent{adapter: "a", extra: [][]string{{"a"}, {"a"}, {"a"}}}, prompt: Prompt{Adapter: "a"}, held: 48,
			foreign: []Prompt{{}},
		},
		"adapter by number": {
			raw: func(e *event) { e.adapterID = 7 }, prompt: Prompt{Adapter: "7"}, held: 0,
			foreign: []Prompt{{}},
		},
		"salt": {
			event: wireEvent{extra: [][]string{{"x"}, nil, nil}}, prompt: Prompt{Salt: "x"}, held: 48,
			foreign: []Prompt{{}, {Salt: "y"}, {Adapter: "x"}},
		},
		"salt beside the keys": {
			raw: func(e *event) { e.salt = []byte("x") }, prompt: Prompt{Salt: "x"}, held: 48,
			foreign: []Prompt{{}},
		},
		"salt in both places": {
			event: wireEvent{extra: [][]string{{"x"}, nil, nil}},
			raw:   func(e *event) { e.salt = []byte("x") }, prompt: Prompt{Salt: "x"}, held: 48,
		},
		"adapter, media and salt": {
			event:  wireEvent{adapter: "a", extra: [][]string{{"a", "img", "x"}, {"a", "img"}, {"a"}}},
			prompt: Prompt{Adapter: "a", Salt: "x", Media: []Medium{{Hash: "img", Offset: 10, Length: 10}}}, held: 48,
			foreign: []Prompt{
				{Adapter: "a", Media: []Medium{{Hash: "img", Offset: 10, Length: 10}}},
				{Adapter: "a", Salt: "x", Media: []Medium{{Hash: "other", Offset: 10, Length: 10}}},
			},
		},
		"unknown medium in the second block": {
			event:  wireEvent{extra: [][]string{nil, {"img"}, nil}},
			prompt: Prompt{Media: []Medium{{Offset: 20, Length: 4}}}, held: 16,
		},
		"two media": {
			event:  wireEvent{extra: [][]string{{"one"}, {"two", "one"}, nil}},
			prompt: Prompt{Media: []Medium{{Hash: "one", Offset: 8, Length: 10}, {Hash: "two", Offset: 20, Length: 4}}}, held: 48,
			foreign: []Prompt{{Media: []Medium{{Hash: "two", Offset: 8, Length: 10}, {Hash: "one", Offset: 20, Length: 4}}}},
		},
		"media with offsets, as vLLM told them before": {
			raw: func(e *event) {
				b := msgp.AppendNil(msgp.AppendArrayHeader(nil, 3))
				b = msgp.AppendArrayHeader(b, 1)
				b = msgp.AppendInt(msgp.AppendString(msgp.AppendArrayHeader(b, 2), "img"), 4)
				e.extra = msgp.AppendNil(b)
			},
			prompt: Prompt{Media: []Medium{{Hash: "img", Offset: 20, Length: 4}}}, held: 48,
		},
		"key of an unknown form": {
			raw: func(e *event) {
				b := msgp.AppendFloat64(msgp.AppendArrayHeader(msgp.AppendArrayHeader(nil, 3), 1), 1)
				e.extra = msgp.AppendNil(msgp.AppendNil(b))
			},
			prompt: Prompt{}, held: 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ix, s := opened(t, Spec{})
			e := c.event
			e.kind, e.hashes, e.tokens, e.size, e.medium = "BlockStored", []uint64{11, 12, 13}, tokens, 16, "GPU"
			if err := s.batch.decode(wireBatch(wireForm{}, 1, e)); err != nil {
				t.Fatal(err)
			}
			if c.raw != nil {
				c.raw(&s.batch.events[0])
			}
			s.apply(&s.batch)
			c.prompt.Tokens = tokens
			if got := holds(ix, c.prompt); got != c.held {
				t.Errorf("%d tokens held, want %d; %+v", got, c.held, s.State().Counts)
			}
			for _, p := range c.foreign {
				p.Tokens = tokens
				if got := holds(ix, p); got != 0 {
					t.Errorf("%d tokens held of %+v, which is another prompt", got, p)
				}
			}
		})
	}
}

// TestApply_Groups: with several KV groups a prompt is held as far as all counted ones
// hold it; sliding windows and state spaces do not count.
func TestApply_Groups(t *testing.T) {
	ix, s := opened(t, Spec{})
	stored := func(group int, spec string, size, blocks int) wireEvent {
		e := wireEvent{kind: "BlockStored", group: group, spec: spec, tokens: count(0, size*blocks), size: size, medium: "GPU"}
		for i := range blocks {
			e.hashes = append(e.hashes, uint64(100+i)) // the same hashes in all groups
		}
		return e
	}
	p := Prompt{Tokens: count(0, 64)}
	s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1, stored(1, "full_attention", 16, 4), stored(0, "sliding_window", 16, 4), stored(3, "mamba", 64, 1))})
	if got := holds(ix, p); got != 64 {
		t.Errorf("%d tokens, want 64", got)
	}
	s.ApplyLive(Message{Seq: 1, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockRemoved", group: 0, hashes: []uint64{100}, medium: "GPU"})})
	if got := holds(ix, p); got != 64 {
		t.Errorf("%d tokens after a removal from a sliding window, want 64", got)
	}
	s.ApplyLive(Message{Seq: 2, Payload: wireBatch(wireForm{}, 1, stored(2, "mla_attention", 8, 3))})
	if got := holds(ix, p); got != 24 {
		t.Errorf("%d tokens with a group that holds 24", got)
	}
	s.ApplyLive(Message{Seq: 3, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockRemoved", group: 1, hashes: []uint64{101}, medium: "GPU"})})
	if got := holds(ix, p); got != 16 {
		t.Errorf("%d tokens after the other group lost its second block", got)
	}
	s.ApplyLive(Message{Seq: 4, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "AllBlocksCleared"})})
	if got := holds(ix, p); got != 0 {
		t.Errorf("%d tokens after all were cleared", got)
	}
	if s.State().Counts.Dropped[DropGroup] != 3 {
		t.Errorf("dropped: %v", s.State().Counts.Dropped)
	}
	sinks, s := opened(t, Spec{})
	s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1, stored(0, "sink_full_attention", 16, 4))})
	if got := holds(sinks, p); got != 64 {
		t.Errorf("%d tokens of a group whose attention has sinks, want 64", got)
	}
}

// TestApply_LargerBlocksBehind: a connector may keep larger blocks than the engine, with
// hashes of its own; what either holds can be used. After a restart with other sizes
// nothing is left of the old ones.
func TestApply_LargerBlocksBehind(t *testing.T) {
	ix, s := opened(t, Spec{})
	p := Prompt{Tokens: count(0, 128), Model: "m"}
	want := func(want cached.Tokens) {
		t.Helper()
		var h Hits
		if ix.Match(&p, &h); h.Held("s") != want {
			t.Errorf("%+v held, want %+v", h.Held("s"), want)
		}
	}
	s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1,
		wireEvent{kind: "BlockStored", hashes: []uint64{1, 2, 3}, tokens: count(0, 48), size: 16, medium: "GPU"},
		wireEvent{kind: "BlockStored", hashes: []uint64{77}, tokens: count(0, 64), size: 64, medium: "cpu"})})
	want(cached.Tokens{GPU: 48, CPU: 64, Disk: 64})
	s.ApplyLive(Message{Seq: 1, Payload: wireBatch(wireForm{}, 1,
		wireEvent{kind: "BlockRemoved", hashes: []uint64{3}, medium: "GPU"},
		wireEvent{kind: "BlockRemoved", hashes: []uint64{77}, medium: "cpu"})})
	want(cached.Tokens{GPU: 32, CPU: 32, Disk: 32})
	s.RecordGap()
	want(cached.Tokens{})
	s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 32), size: 32})})
	want(cached.Tokens{GPU: 32, CPU: 32, Disk: 32})
	if n := len(s.State().Holders); n != 1 {
		t.Errorf("%d holders after the gap", n)
	}
}

// TestApply_TwoHashesForTheSame: an engine may tell the same tokens under two hashes; they
// are held until both are removed.
func TestApply_TwoHashesForTheSame(t *testing.T) {
	ix, s := opened(t, Spec{})
	seq := uint64(0)
	tell := func(e wireEvent, want int) {
		t.Helper()
		s.ApplyLive(Message{Seq: seq, Payload: wireBatch(wireForm{}, 1, e)})
		seq++
		s.checkTree(t)
		if got := holds(ix, Prompt{Tokens: count(0, 64)}); got != want {
			t.Errorf("%d tokens held, want %d", got, want)
		}
	}
	tell(wireEvent{kind: "BlockStored", hashes: []uint64{1, 2}, tokens: count(0, 32), size: 16}, 32)
	tell(wireEvent{kind: "BlockStored", hashes: []uint64{11, 12, 13}, tokens: count(0, 48), size: 16}, 48)
	tell(wireEvent{kind: "BlockRemoved", hashes: []uint64{1}}, 48)
	tell(wireEvent{kind: "BlockRemoved", hashes: []uint64{13}}, 32)
	tell(wireEvent{kind: "BlockRemoved", hashes: []uint64{11}}, 0)
	tell(wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 16), size: 16}, 32)
}

// good is a batch with every kind of event, in the given form.
func good(form wireForm) []byte {
	return wireBatch(form, 17,
		wireEvent{kind: "BlockStored", hashes: []uint64{1, 2}, tokens: count(0, 32), size: 16, medium: "GPU", adapter: "a", extra: [][]string{{"a", "salt"}, {"a"}}, spec: "full_attention"},
		wireEvent{kind: "BlockStored", hashes: []uint64{3}, parent: 2, tokens: count(70000, 16), size: 16, medium: "GPU", adapter: "a", spec: "full_attention"},
		wireEvent{kind: "BlockStored", hashes: []uint64{1}, size: 16, medium: "CPU"},
		wireEvent{kind: "BlockRemoved", hashes: []uint64{3, 9}, medium: "GPU"},
		wireEvent{kind: "AllBlocksCleared"},
	)
}

// poison is messages that kill or bloat some decoder.
func poison() map[string][]byte {
	stored := func(change func(*wireEvent)) []byte {
		e := wireEvent{kind: "BlockStored", hashes: []uint64{1, 2}, tokens: count(0, 32), size: 16, medium: "GPU"}
		change(&e)
		return wireBatch(wireForm{}, 17, e)
	}
	// field puts raw bytes at one of the first five fields of a BlockStored.
	field := func(at int, raw []byte) []byte {
		b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 17)
		b = msgp.AppendArrayHeader(b, 1)
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 5), "BlockStored")
		good := [][]byte{nil, {0x91, 5}, {0xc0}, {0x91, 7}, {1}}
		for i := 1; i < 5; i++ {
			if i == at {
				b = append(b, raw...)
				continue
			}
			b = append(b, good[i]...)
		}
		return msgp.AppendNil(b)
	}
	timed := func(seconds float64) []byte {
		return wireBatch(wireForm{}, seconds, wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 16), size: 16})
	}
	tag := func(raw []byte) []byte {
		b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 17)
		b = append(msgp.AppendArrayHeader(msgp.AppendArrayHeader(b, 1), 2), raw...)
		return msgp.AppendNil(msgp.AppendNil(b))
	}
	long := func(n int) []byte {
		e := wireEvent{kind: "BlockStored", size: 1}
		for i := range n {
			e.hashes = append(e.hashes, uint64(i+1))
		}
		e.tokens = count(0, n)
		return wireBatch(wireForm{}, 17, e)
	}
	inside := func(raw ...byte) []byte { // as the events of a batch
		return append(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 17), raw...)
	}
	p := map[string][]byte{
		"1 array32 of 2^32-1":        {0xdd, 0xff, 0xff, 0xff, 0xff},
		"1 events of 2^32-1":         inside(0xdd, 0xff, 0xff, 0xff, 0xff),
		"1 hashes of 2^32-1":         field(1, []byte{0xdd, 0xff, 0xff, 0xff, 0xff}),
		"1 tokens of 2^32-1":         field(3, []byte{0xdd, 0xff, 0xff, 0xff, 0xff}),
		"2 map32 of 2^32-1":          {0xdf, 0xff, 0xff, 0xff, 0xff},
		"2 event map of 2^32-1":      inside(0x91, 0xdf, 0xff, 0xff, 0xff, 0xff),
		"3 array32 of 10^8":          {0xdd, 0x05, 0xf5, 0xe1, 0x00},
		"3 tokens of 10^8":           field(3, []byte{0xdd, 0x05, 0xf5, 0xe1, 0x00, 1, 2, 3}),
		"4 map32 of 10^8":            {0xdf, 0x05, 0xf5, 0xe1, 0x00},
		"5 bin32 of 2^31":            {0xc6, 0x80, 0, 0, 0},
		"5 hash of 2^31":             field(1, []byte{0x91, 0xc6, 0x80, 0, 0, 0}),
		"6 str32 of 2^31":            {0xdb, 0x80, 0, 0, 0},
		"6 tag of 2^31":              tag([]byte{0xdb, 0x80, 0, 0, 0}),
		"7 ext32 of 2^31":            {0xc9, 0x80, 0, 0, 0, 1},
		"7 event of ext32":           inside(0x91, 0xc9, 0x80, 0, 0, 0, 1),
		"8 nested arrays":            bytes.Repeat([]byte{0x91}, 5_000_000),
		"8 nested in events":         inside(bytes.Repeat([]byte{0x91}, 5_000_000)...),
		"9 nested maps":              bytes.Repeat([]byte{0x81, 0xa0}, 5_000_000),
		"9 nested in events, maps":   inside(append([]byte{0x91}, bytes.Repeat([]byte{0x81, 0xa0}, 5_000_000)...)...),
		"11 trailing garbage":        append(good(wireForm{}), 0xc1, 0xff, 0x00),
		"12 negative token":          field(3, []byte{0x91, 0xff}),
		"12 float token":             field(3, msgp.AppendFloat64([]byte{0x91}, 1)),
		"12 string token":            field(3, []byte{0x91, 0xa1, 'x'}),
		"12 nil token":               field(3, []byte{0x91, 0xc0}),
		"12 token beyond 32 bits":    field(3, msgp.AppendUint64([]byte{0x91}, 1<<40)),
		"12 pair as a token":         field(3, []byte{0x91, 0x92, 1, 2}),
		"13 no hashes":               stored(func(e *wireEvent) { e.hashes = nil }),
		"13 100,000 hashes":          long(100_000), // more than what is kept from event to event
		"13 mixed hashes":            field(1, []byte{0x95, 1, 0xff, 0xc4, 1, 7, 0xa1, 'x', 0xcb, 0, 0, 0, 0, 0, 0, 0, 0}),
		"14 block size 0":            stored(func(e *wireEvent) { e.size = 0 }),
		"14 block size negative":     stored(func(e *wireEvent) { e.size = -16 }),
		"14 block size 2^31":         stored(func(e *wireEvent) { e.size = 1 << 31 }),
		"14 block size 2^31-1":       stored(func(e *wireEvent) { e.size = 1<<31 - 1 }),
		"15 too few tokens":          stored(func(e *wireEvent) { e.tokens = e.tokens[:31] }),
		"15 too many tokens":         stored(func(e *wireEvent) { e.tokens = append(e.tokens, 1) }),
		"16 own parent":              stored(func(e *wireEvent) { e.parent = 1 }),
		"16 unknown parent":          stored(func(e *wireEvent) { e.parent = 77 }),
		"16 the same hash twice":     stored(func(e *wireEvent) { e.hashes[1] = 1 }),
		"17 unknown tag":             tag(msgp.AppendString(nil, "BlockEaten")),
		"17 nil tag":                 tag([]byte{0xc0}),
		"17 number as tag":           tag([]byte{7}),
		"17 no tag":                  inside(0x91, 0x90),
		"18 time NaN":                timed(math.NaN()),
		"18 time infinite":           timed(math.Inf(1)),
		"18 time in the year 3000":   timed(32503680000),
		"   nothing":                 {},
		"   nil":                     {0xc0},
		"   never used byte":         {0xc1},
		"   batch without events":    {0x91, 0xc0},
		"   extra keys cut short":    stored(func(e *wireEvent) { e.extra = [][]string{{"a"}} }),
		"   keys of what is no list": field(1, []byte{0x80}),
	}
	for _, form := range []wireForm{{}, {maps: true, hashes: "bin"}} {
		whole := good(form)
		for i := range whole {
			p[fmt.Sprintf("10 cut at %d of %+v", i, form)] = whole[:i]
		}
	}
	return p
}

// TestPoison: nothing that a payload contains kills the decoder, takes memory beyond its
// own size, or leaves the source unable to go on.
func TestPoison(t *testing.T) {
	for name, payload := range poison() {
		ix, s := opened(t, Spec{})
		s.ApplyLive(Message{Seq: 0, Payload: good(wireForm{})})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s.ApplyLive(Message{Seq: 1, Payload: payload})
		runtime.ReadMemStats(&after)
		if grown, most := after.TotalAlloc-before.TotalAlloc, uint64(2<<20+300*len(payload)); grown > most {
			t.Errorf("%s: %d bytes allocated for %d", name, grown, len(payload))
		}
		s.checkTree(t)
		s.ApplyLive(Message{Seq: 2, Payload: wireBatch(wireForm{}, 17, wireEvent{kind: "BlockStored", hashes: []uint64{500}, tokens: count(5000, 16), size: 16, medium: "GPU"})})
		if got := holds(ix, Prompt{Tokens: count(5000, 16)}); got != 16 {
			t.Errorf("%s: the next good message told nothing (%d tokens held)", name, got)
		}
		if c := s.State().Counts; c.Unreadable > 0 && c.Resets[ResetUnreadable] != c.Unreadable {
			t.Errorf("%s: not readable, and yet what was known is kept", name)
		}
		s.Close()
	}
}

// TestPoison_Frames: see hostile inputs 19 and 20.
func TestPoison_Frames(t *testing.T) {
	eight := []byte{0, 0, 0, 0, 0, 0, 0, 9}
	for n := range 51 {
		frames := slices.Repeat([][]byte{eight}, n)
		if _, err := ParseLive(frames); (err == nil) != (n == 3) {
			t.Errorf("%d frames of a live message: %v", n, err)
		}
		if _, _, err := ParseReply(append([][]byte{nil}, frames...)); (err == nil) != (n == 2 || n == 3) {
			t.Errorf("%d frames of a reply: %v", n, err)
		}
	}
	for _, n := range []int{0, 7, 8, 9, 24, 1000} {
		m, err := ParseLive([][]byte{bytes.Repeat([]byte{0xff}, 1<<20), append(slices.Clone(eight[:min(n, 8)]), make([]byte, max(0, n-8))...), nil})
		if (err == nil) != (n >= 8) || err == nil && m.Seq != 9 {
			t.Errorf("number of %d bytes: %+v, %v", n, m, err)
		}
	}
	if _, _, err := ParseReply(nil); err == nil {
		t.Error("a reply of no frames")
	}
	end := bytes.Repeat([]byte{0xff}, 8)
	if _, err := ParseLive([][]byte{nil, end, nil}); err == nil {
		t.Error("a live message may not have the number that ends replays")
	}
	for _, frames := range [][][]byte{{nil, end, nil}, {nil, nil, end, nil}} {
		if _, isEnd, err := ParseReply(frames); err != nil || !isEnd {
			t.Errorf("end of a replay: %v, %v", isEnd, err)
		}
	}
}

// FuzzSource: any payloads, in order or not; then the tree is whole and a good message
// is understood.
func FuzzSource(f *testing.F) {
	for _, payload := range poison() {
		if len(payload) < 1<<16 {
			f.Add(payload, uint64(1))
		}
	}
	for _, form := range []wireForm{{}, {maps: true}, {hashes: "bin"}, {maps: true, hashes: "int", short: true}} {
		f.Add(good(form), uint64(1))
	}
	for _, name := range []string{"sglang-0.5.23-stored", "sglang-0.5.23-pairs", "vllm-0.33.0-lookahead", "vllm-0.33.0-mooncake", "lmcache-0.5.6-cpu"} {
		f.Add(written(f, name), uint64(1))
	}
	f.Add(wireBatch(wireForm{maps: true}, 17, ahead(count(0, 50), 2)), uint64(1))
	f.Fuzz(func(t *testing.T, payload []byte, seq uint64) {
		ix, s := opened(t, Spec{})
		s.ApplyLive(Message{Seq: 0, Payload: good(wireForm{})})
		s.ApplyLive(Message{Seq: seq % endOfReplay, Payload: payload})
		s.checkTree(t)
		if _, other := opened(t, Spec{}); other.Apply(s.Snapshot()) != nil {
			t.Error("its snapshot is refused")
		}
		s.RecordGap()
		s.ApplyLive(Message{Seq: 2, Payload: wireBatch(wireForm{}, 17, wireEvent{kind: "BlockStored", hashes: []uint64{500}, tokens: count(5000, 16), size: 16, medium: "GPU"})})
		if got := holds(ix, Prompt{Tokens: count(5000, 16)}); got != 16 {
			t.Errorf("the next good message told nothing")
		}
		s.Close()
		if left := ix.blocks.Load(); left != 0 {
			t.Errorf("%d blocks left", left)
		}
	})
}
