package kvstate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// An engine that tells no group means the only one that it has, whatever its number; one that
// tells another than it has means nothing.
func TestApply_TheOnlyGroupNeedsNoNumber(t *testing.T) {
	ix, s := opened(t, Spec{})
	seq := uint64(0)
	tell := func(form wireForm, e wireEvent, want cached.Tokens) {
		t.Helper()
		s.ApplyLive(Message{Seq: seq, Payload: wireBatch(form, 1, e)})
		seq++
		s.checkTree(t)
		var h Hits
		ix.Match(&Prompt{Model: "m", Tokens: count(0, 32)}, &h)
		if got := h.Held("s"); got.GPU != want.GPU || got.CPU != want.CPU {
			t.Errorf("%+v held, want %+v", got, want)
		}
	}
	bare := wireForm{short: true} // without a group
	tell(wireForm{}, wireEvent{kind: "BlockStored", group: 1, spec: "full_attention", hashes: []uint64{1, 2}, tokens: count(0, 32), size: 16, medium: "GPU"}, cached.Tokens{GPU: 32, CPU: 32})
	tell(bare, wireEvent{kind: "BlockRemoved", hashes: []uint64{2}, medium: "GPU"}, cached.Tokens{GPU: 16, CPU: 16})
	tell(wireForm{}, wireEvent{kind: "BlockRemoved", group: 2, hashes: []uint64{1}, medium: "GPU"}, cached.Tokens{GPU: 16, CPU: 16})
	tell(wireForm{}, wireEvent{kind: "BlockStored", group: 2, spec: "full_attention", hashes: []uint64{1}, size: 16, medium: "CPU"}, cached.Tokens{GPU: 16, CPU: 16})
	tell(wireForm{}, wireEvent{kind: "BlockStored", group: 1, spec: "full_attention", hashes: []uint64{1}, size: 8, medium: "CPU"}, cached.Tokens{GPU: 16, CPU: 16})
	tell(wireForm{}, wireEvent{kind: "BlockStored", group: 1, spec: "full_attention", hashes: []uint64{1}, size: 16, medium: "CPU"}, cached.Tokens{GPU: 16, CPU: 16})
	tell(wireForm{}, wireEvent{kind: "BlockRemoved", group: 1, hashes: []uint64{1}, medium: "GPU"}, cached.Tokens{CPU: 16})
	c := s.State().Counts
	if c.Dropped[DropOffload] != 2 || c.Dropped[DropGroup] != 1 || c.Dropped[DropRemoval] != 0 || c.Removed != 2 || c.Stored != 3 {
		t.Errorf("%+v", c)
	}
}

// What an event says that cannot be, is dropped and counted; what it said before that stands.
func TestApply_CountsWhatItDrops(t *testing.T) {
	stored := func(change func(*wireEvent)) wireEvent {
		e := wireEvent{kind: "BlockStored", hashes: []uint64{11, 12}, tokens: count(0, 32), size: 16, medium: "GPU"}
		change(&e)
		return e
	}
	for _, x := range []struct {
		name string
		e    wireEvent
		drop Drop
		n    uint64
		held int
	}{
		{"no tier", stored(func(e *wireEvent) { e.medium = "tape" }), DropTier, 1, 0},
		{"removed from no tier", wireEvent{kind: "BlockRemoved", hashes: []uint64{1}, medium: "tape"}, DropTier, 1, 0},
		{"a group that does not count", stored(func(e *wireEvent) { e.spec = "mamba" }), DropGroup, 1, 0},
		{"another group without a word of its kind", stored(func(e *wireEvent) { e.group = 1 }), DropGroup, 1, 0},
		{"no block size", stored(func(e *wireEvent) { e.size = 0 }), DropMalformed, 1, 0},
		{"fewer hashes than blocks", stored(func(e *wireEvent) { e.hashes = e.hashes[:1] }), DropMalformed, 1, 0},
		{"tokens of half a block", stored(func(e *wireEvent) { e.tokens = e.tokens[:31] }), DropMalformed, 1, 0},
		{"half a block more", stored(func(e *wireEvent) { e.tokens = count(0, 40) }), DropMalformed, 1, 0},
		{"an unknown parent", stored(func(e *wireEvent) { e.parent = 99 }), DropParent, 1, 0},
		{"a hash of other tokens", stored(func(e *wireEvent) { e.hashes = []uint64{11, 11} }), DropConflict, 1, 16},
		{"copies of what is not known", wireEvent{kind: "BlockStored", hashes: []uint64{1, 2}, size: 16, medium: "CPU"}, DropOffload, 2, 0},
		{"removal from a group that is not known", wireEvent{kind: "BlockRemoved", hashes: []uint64{1, 2}, medium: "GPU"}, DropGroup, 1, 0},
	} {
		ix, s := opened(t, Spec{})
		s.ApplyLive(Message{Payload: wireBatch(wireForm{}, 1, x.e)})
		s.checkTree(t)
		c := s.State().Counts
		if got := holds(ix, Prompt{Tokens: count(0, 32)}); c.Dropped[x.drop] != x.n || got != x.held {
			t.Errorf("%s: dropped %v, %d tokens held, want %d", x.name, c.Dropped, got, x.held)
		}
	}
}

// A source may have so many groups and block sizes; what is beyond them is dropped.
func TestApply_TheMostHolders(t *testing.T) {
	ix, s := opened(t, Spec{})
	var all []wireEvent
	for i := range maxHolders + 1 {
		all = append(all, wireEvent{kind: "BlockStored", hashes: []uint64{uint64(i + 1)}, tokens: count(0, 8*(i+1)), size: 8 * (i + 1), medium: "GPU"})
	}
	s.ApplyLive(Message{Payload: wireBatch(wireForm{}, 1, all...)})
	if st := s.State(); len(st.Holders) != maxHolders || st.Counts.Dropped[DropGroup] != 1 {
		t.Errorf("%d holders, dropped %v", len(st.Holders), st.Counts.Dropped)
	}
	if got := holds(ix, Prompt{Tokens: count(0, 100)}); got != 8*maxHolders {
		t.Errorf("%d tokens held", got)
	}
}

// The same tokens under three hashes are held until the last of these is removed.
func TestApply_ThreeHashesForTheSame(t *testing.T) {
	for _, order := range [][]uint64{{1, 2, 3}, {3, 2, 1}, {2, 3, 1}} {
		ix, s := opened(t, Spec{})
		var all []wireEvent
		for hash := uint64(1); hash <= 3; hash++ {
			all = append(all, wireEvent{kind: "BlockStored", hashes: []uint64{hash}, tokens: count(0, 16), size: 16})
		}
		s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1, all...)})
		for i, hash := range order {
			if got := holds(ix, Prompt{Tokens: count(0, 16)}); got != 16 {
				t.Errorf("%v: %d tokens held after %d removals", order, got, i)
			}
			s.ApplyLive(Message{Seq: uint64(i + 1), Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockRemoved", hashes: []uint64{hash}})})
			s.checkTree(t)
		}
		if got := holds(ix, Prompt{Tokens: count(0, 16)}); got != 0 {
			t.Errorf("%v: %d tokens held after all were removed", order, got)
		}
	}
}

// Operations that no version writes are refused: the delta is of another, or broken.
func TestApplyOps_Refuses(t *testing.T) {
	const hash = "\x01\x00\x00\x00\x00\x00\x00\x00"
	for name, x := range map[string]struct {
		data string
		good bool
	}{
		"nothing": {"", true}, "an unknown operation": {"\xff", false},
		"clear": {string([]byte{opClear, byte(Disk)}), true}, "clear nowhere": {string([]byte{opClear, byte(nowhere)}), false}, "clear of what": {string([]byte{opClear}), false},
		"forget": {string([]byte{opReset}), true},
		"store":  {string([]byte{opStore, 0, 16, byte(GPU), 0, 1}) + hash + hash, true}, "store nowhere": {string([]byte{opStore, 0, 16, byte(nowhere), 0, 1}) + hash + hash, true},
		"store in no tier": {string([]byte{opStore, 0, 16, byte(nowhere) + 1, 0, 1}) + hash + hash, false}, "blocks of nothing": {string([]byte{opStore, 0, 0, byte(GPU), 0, 0}), false},
		"fewer blocks than it says": {string([]byte{opStore, 0, 16, byte(GPU), 0, 2}) + hash + hash, false}, "half a hash": {string([]byte{opStore, 0, 16, byte(GPU), 1}) + hash[:7], false},
		"hold": {string([]byte{opHold, 0, 16, byte(CPU), 1}) + hash, true}, "hold nowhere": {string([]byte{opHold, 0, 16, byte(nowhere), 1}) + hash, false},
		"release": {string([]byte{opRelease, 0, 16, byte(GPU), 1}) + hash, true}, "release of more": {string([]byte{opRelease, 0, 16, byte(GPU), 2}) + hash, false},
	} {
		_, s := opened(t, Spec{})
		if err := s.applyOps([]byte(x.data)); (err == nil) != x.good || err != nil && !errors.Is(err, ErrDelta) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Copies that a delta adds and takes are there and gone, and told on; those of blocks that are
// not known, or not held, are dropped and not told on.
func TestApplyOps_Copies(t *testing.T) {
	ix, s := opened(t, Spec{})
	s.Record(true)
	const one, two = "\x01\x00\x00\x00\x00\x00\x00\x00", "\x02\x00\x00\x00\x00\x00\x00\x00"
	held := func(want cached.Tokens, dropped uint64, told bool, what string) {
		t.Helper()
		s.checkTree(t)
		var h Hits
		ix.Match(&Prompt{Model: "m", Tokens: count(0, 16)}, &h)
		if got := h.Held("s"); got.GPU != want.GPU || got.CPU != want.CPU || s.State().Counts.Dropped[DropRemoval] != dropped || (s.TakeDelta() != nil) != told {
			t.Errorf("%s: %+v held, dropped %v", what, got, s.State().Counts.Dropped)
		}
	}
	s.ApplyLive(Message{Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 16), size: 16})})
	held(cached.Tokens{GPU: 16, CPU: 16}, 0, true, "stored")
	for _, x := range []struct {
		what    string
		op      byte
		tier    Tier
		hash    string
		want    cached.Tokens
		dropped uint64
		told    bool
	}{
		{"a copy on the CPU", opHold, CPU, one, cached.Tokens{GPU: 16, CPU: 16}, 0, true},
		{"none on the GPU", opRelease, GPU, one, cached.Tokens{CPU: 16}, 0, true},
		{"none that was there", opRelease, GPU, one, cached.Tokens{CPU: 16}, 1, false},
		{"of an unknown block", opRelease, CPU, two, cached.Tokens{CPU: 16}, 2, false},
		{"a copy of an unknown block", opHold, CPU, two, cached.Tokens{CPU: 16}, 3, false},
		{"the last", opRelease, CPU, one, cached.Tokens{}, 3, true},
	} {
		if err := s.applyOps(append([]byte{x.op, 0, 16, byte(x.tier), 1}, x.hash...)); err != nil {
			t.Errorf("%s: %v", x.what, err)
		}
		held(x.want, x.dropped, x.told, x.what)
	}
}

// Asked for at its position, a server holds what it holds: of one holder, of several ranks and
// groups, of none, and after the holders have changed.
func TestHits_HeldAt(t *testing.T) {
	ix, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	seq := make(map[*Source]uint64)
	open := func(server string, rank int) *Source {
		t.Helper()
		s, err := ix.Open(Spec{SourceID: SourceID{Server: server, Rank: rank}, Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	store := func(s *Source, group, blocks int) {
		e := wireEvent{kind: "BlockStored", group: group, spec: "full_attention", tokens: count(0, 16*blocks), size: 16, medium: "GPU"}
		for i := range blocks {
			e.hashes = append(e.hashes, uint64(100+i))
		}
		s.ApplyLive(Message{Seq: seq[s], Payload: wireBatch(wireForm{}, 1, e)})
		seq[s]++
	}
	positions := make(map[string]*HitPosition)
	var h Hits
	check := func(when string, want map[string]int) {
		t.Helper()
		ix.Match(&Prompt{Model: "m", Tokens: count(0, 100)}, &h)
		for server, tokens := range want {
			if positions[server] == nil {
				positions[server] = &HitPosition{}
			}
			for range 2 {
				if at := h.HeldAt(server, positions[server]); at != h.Held(server) || at.GPU != tokens {
					t.Errorf("%s, %s: %+v at its position, %+v by its name, want %d", when, server, at, h.Held(server), tokens)
				}
			}
		}
	}
	if got := h.HeldAt("one", &HitPosition{}); got != (cached.Tokens{}) || h.Held("one") != got {
		t.Errorf("before any match: %+v", got)
	}
	one, ranks, groups := open("one", 0), []*Source{open("ranks", 0), open("ranks", 1)}, open("groups", 0)
	store(one, 0, 3)
	store(ranks[0], 0, 1)
	store(ranks[1], 0, 2)
	store(groups, 0, 4)
	store(groups, 1, 2)
	check("at first", map[string]int{"one": 48, "ranks": 32, "groups": 32, "nobody": 0})
	nobody := open("nobody", 0)
	store(nobody, 0, 6)
	store(one, 1, 1)
	check("when more hold", map[string]int{"one": 16, "ranks": 32, "groups": 32, "nobody": 96})
	ranks[1].Close()
	check("when one has gone", map[string]int{"one": 16, "ranks": 16, "groups": 32, "nobody": 96})
}

// Models are told of by their names, in order.
func TestIndex_ModelsAreSorted(t *testing.T) {
	ix, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		s, err := ix.Open(Spec{SourceID: SourceID{Server: fmt.Sprint("s", i)}, Model: fmt.Sprint("m", i)})
		if err != nil {
			t.Fatal(err)
		}
		for j := range i {
			s.ApplyLive(Message{Seq: uint64(j), Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{uint64(j + 1)}, tokens: count(16*j, 16), size: 16})})
		}
	}
	all := ix.Models()
	if len(all) != 8 {
		t.Fatalf("%+v", all)
	}
	for i, m := range all {
		if m.Model != fmt.Sprint("m", i) || m.Tiers[GPU].Blocks != i {
			t.Errorf("%d: %+v", i, m)
		}
	}
}

// A table is never more than four fifths full: searches would grow long, and one for what is
// not there endless.
func TestTierIndex_IsNeverTooFull(t *testing.T) {
	ix := newTierIndex()
	const n = 1000
	for i := range n {
		if ix.put(Hash(i+1), i%3) { // all of one shard
			t.Fatalf("%d was there already", i)
		}
		sh := &ix.shards[0]
		if table := sh.table.Load(); uint64(sh.filled)*5 > table.slots*4 || sh.live != i+1 || sh.filled != i+1 {
			t.Fatalf("after %d: %d slots, %d filled, %d live", i+1, table.slots, sh.filled, sh.live)
		}
	}
	if !ix.put(1, 0) || ix.put(1, 1) || !ix.put(1, 1) {
		t.Error("servers that have a hash and those that lack it are not told apart")
	}
	for i := range n {
		ix.take(Hash(i+1), i%3)
		ix.take(Hash(i+1), i%3) // nothing is left to take
	}
	ix.take(1, 1)
	if blocks, bytes := ix.size(); blocks != 0 || bytes > 8*2*2*minSlots {
		t.Errorf("%d blocks and %d bytes are left", blocks, bytes)
	}
}

// A holder for which a table has no room yet holds nothing of it: nobody else's bits, and no hash,
// are changed when it is said to have lost a block.
func TestTierIndex_TakesNothingOfWhomItDoesNotKnow(t *testing.T) {
	ix := newTierIndex()
	for i := range minSlots / 2 {
		ix.put(Hash(i+1), 0)
	}
	for _, holder := range []int{64, 65, 128, 1000} {
		for i := range minSlots / 2 {
			ix.take(Hash(i+1), holder)
		}
	}
	for i := range minSlots / 2 {
		if word := ix.word(Hash(i+1), 0); word != 1 {
			t.Errorf("hash %d is held by %b", i+1, word)
		}
	}
	if blocks, _ := ix.size(); blocks != minSlots/2 {
		t.Errorf("%d blocks", blocks)
	}
}

// A source that cannot be one is refused with what it lacks.
func TestSpec_Validate(t *testing.T) {
	for _, x := range []struct {
		spec Spec
		says string
	}{
		{Spec{SourceID: SourceID{Server: "s"}, Model: "m"}, ""}, {Spec{Model: "m"}, "without a server"}, {Spec{SourceID: SourceID{Server: "s"}}, "without a model"},
		{Spec{SourceID: SourceID{Server: "s", Rank: -1}, Model: "m"}, "rank -1"}, {Spec{SourceID: SourceID{Server: "s", Rank: 1}, Model: "m", BlockTokens: -1}, "blocks of -1"},
		{Spec{SourceID: SourceID{Server: "s"}, Model: "m", BlockTokens: 1}, ""},
	} {
		err := x.spec.Validate()
		if (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: %v", x.spec, err)
		}
	}
}
