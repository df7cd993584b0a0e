package kvstate

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// pool is an index with servers a and b that share a store, and c that has none.
type pool struct {
	ix      *Index
	sources map[string]*Source
	seq     uint64
}

func newPool(t *testing.T) *pool {
	t.Helper()
	ix, a := opened(t, Spec{SourceID: SourceID{Server: "a"}, Store: "pool", BlockTokens: 16})
	p := &pool{ix: ix, sources: map[string]*Source{"a": a}}
	for server, store := range map[string]string{"b": "pool", "c": ""} {
		s, err := ix.Open(Spec{SourceID: SourceID{Server: server}, Model: "m", Store: store, BlockTokens: 16})
		if err != nil {
			t.Fatal(err)
		}
		p.sources[server] = s
	}
	return p
}

func (p *pool) tell(server string, events ...wireEvent) {
	p.sources[server].ApplyLive(Message{Seq: p.seq, Payload: wireBatch(wireForm{maps: true}, 1, events...)})
	p.seq++
}

func (p *pool) match(tokens []uint32) *Hits {
	var h Hits
	p.ix.Match(&Prompt{Model: "m", Tokens: tokens}, &h)
	return &h
}

// computed is what vLLM with a MooncakeStoreConnector says of blocks of 16 tokens that it has
// computed and put into the store: each a BlockStored of the GPU, and then one of "cpu".
func computed(hashes []uint64, parent uint64, tokens []uint32) (events []wireEvent) {
	for _, medium := range []string{"GPU", "cpu"} {
		above := parent
		for i, hash := range hashes {
			events = append(events, wireEvent{
				kind: "BlockStored", hashes: []uint64{hash}, parent: above, tokens: tokens[16*i : 16*i+16], size: 16, medium: medium,
			})
			above = hash
		}
	}
	return events
}

// What one server has put into a store all servers of the store can load, and no other.
func TestStore_CountsForAllThatShareIt(t *testing.T) {
	p := newPool(t)
	prompt := count(0, 100)
	p.tell("a", computed([]uint64{1, 2, 3, 4}, 0, prompt)...)
	h := p.match(prompt)
	for server, want := range map[string]cached.Tokens{
		"a": {GPU: 64, CPU: 64, Disk: 64}, "b": {Disk: 64}, "c": {},
	} {
		if got := h.Held(server); got != want {
			t.Errorf("%s: %+v, want %+v", server, got, want)
		}
	}
	if got := p.ix.Models()[0].Stores["pool"]; got.Blocks != 4 || got.Bytes == 0 {
		t.Errorf("the store's size: %+v", got)
	}
	// What a evicts it can load again, as b can.
	p.tell("a", wireEvent{kind: "BlockRemoved", hashes: []uint64{1, 2, 3, 4}, medium: "GPU"})
	if got := p.match(prompt).Held("a"); got != (cached.Tokens{Disk: 64}) {
		t.Errorf("evicted: %+v", got)
	}
	// What b computes behind it, it puts behind it.
	p.tell("b", computed([]uint64{1, 2, 3, 4, 5, 6}, 0, prompt)[:6]...) // GPU
	p.tell("b", computed([]uint64{5, 6}, 4, prompt[64:])[2:]...)        // into the store: the new ones
	if got := p.match(prompt).Held("a"); got != (cached.Tokens{Disk: 96}) {
		t.Errorf("with what b put: %+v", got)
	}
}

// A server that names no store has what it puts for itself.
func TestStore_OfAServerAlone(t *testing.T) {
	p := newPool(t)
	prompt := count(0, 40)
	p.tell("c", computed([]uint64{1, 2}, 0, prompt)...)
	p.tell("c", wireEvent{kind: "BlockRemoved", hashes: []uint64{1, 2}, medium: "GPU"})
	h := p.match(prompt)
	if c, b := h.Held("c"), h.Held("b"); c != (cached.Tokens{CPU: 32, Disk: 32}) || b != (cached.Tokens{}) {
		t.Errorf("c %+v, b %+v", c, b)
	}
	p.sources["c"].RecordGap()
	if got := p.match(prompt).Held("c"); got != (cached.Tokens{}) {
		t.Errorf("after a gap: %+v", got)
	}
}

// An engine's own memory is its own, also where it has a store beside; what is remote is not.
func TestStore_LocalityTellsItFromTheEnginesOwn(t *testing.T) {
	for _, x := range []struct {
		medium, where string
		a, b          cached.Tokens
	}{
		{"CPU", "LOCAL", cached.Tokens{GPU: 16, CPU: 32, Disk: 32}, cached.Tokens{}},
		{"CPU", "", cached.Tokens{GPU: 16, CPU: 32, Disk: 32}, cached.Tokens{}},
		{"STORAGE", "", cached.Tokens{GPU: 16, CPU: 16, Disk: 32}, cached.Tokens{Disk: 32}},
		{"STORAGE", "REMOTE", cached.Tokens{GPU: 16, CPU: 16, Disk: 32}, cached.Tokens{Disk: 32}},
		{"STORAGE", "LOCAL", cached.Tokens{GPU: 16, CPU: 16, Disk: 32}, cached.Tokens{}},
	} {
		p := newPool(t)
		prompt := count(0, 40)
		events := computed([]uint64{1, 2}, 0, prompt)
		for i := range events[2:] {
			events[2+i].medium, events[2+i].where = x.medium, x.where
		}
		p.tell("a", events...)
		p.tell("a", wireEvent{kind: "BlockRemoved", hashes: []uint64{2}, medium: "GPU"})
		h := p.match(prompt)
		if a, b := h.Held("a"), h.Held("b"); a != x.a || b != x.b {
			t.Errorf("%s %s: a %+v, want %+v; b %+v, want %+v", x.medium, x.where, a, x.a, b, x.b)
		}
	}
}

// Events of a store say neither salt nor adapter: a block is what the engine's GPU said it was.
func TestStore_KeepsTenantsApart(t *testing.T) {
	p := newPool(t)
	prompt := count(0, 40)
	events := computed([]uint64{1, 2}, 0, prompt)
	events[0].extra = [][]string{{"salt-of-ada"}}
	p.tell("a", events...)
	var h Hits
	p.ix.Match(&Prompt{Model: "m", Salt: "salt-of-ada", Tokens: prompt}, &h)
	if ada, others := h.Held("b"), p.match(prompt).Held("b"); ada != (cached.Tokens{Disk: 32}) || others != (cached.Tokens{}) {
		t.Errorf("ada %+v, others %+v", ada, others)
	}
}

// A connector with blocks of its own size says them under hashes of its own.
func TestStore_BlocksOfAnotherSize(t *testing.T) {
	p := newPool(t)
	prompt := count(0, 100)
	p.tell("a", computed([]uint64{1, 2, 3, 4}, 0, prompt)[:4]...)
	p.tell("a",
		wireEvent{kind: "BlockStored", hashes: []uint64{91}, tokens: prompt[:32], size: 32, medium: "cpu"},
		wireEvent{kind: "BlockStored", hashes: []uint64{92}, parent: 91, tokens: prompt[32:64], size: 32, medium: "cpu"},
		wireEvent{kind: "BlockStored", hashes: []uint64{94}, parent: 93, tokens: prompt[64:96], size: 32, medium: "cpu"})
	if got := p.match(prompt).Held("a"); got != (cached.Tokens{GPU: 64, CPU: 64, Disk: 64}) {
		t.Errorf("%+v", got)
	}
	if n := p.sources["a"].State().Counts.Dropped[DropParent]; n != 1 {
		t.Errorf("%d dropped behind what is not known, want 1", n)
	}
}

// A store says nothing of what it forgets: what was not put or found there for its life is not
// believed any more.
func TestStore_BlocksAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		cold, hot := count(0, 40), count(1000, 40)
		p.tell("a", computed([]uint64{1, 2}, 0, cold)...)
		p.tell("a", computed([]uint64{11, 12}, 0, hot)...)
		life := p.ix.cfg.StoreLife
		for range 4 {
			time.Sleep(life / 2)
			synctest.Wait()
			h := p.match(hot)
			if got := h.Held("b").Disk; got != 32 {
				t.Fatalf("what is found again and again: %d tokens", got)
			}
			p.ix.RecordCached("b", h, 32)
		}
		if got := p.match(cold).Held("b").Disk; got != 0 {
			t.Errorf("what nobody found: %d tokens", got)
		}
		time.Sleep(2 * life)
		synctest.Wait()
		if st := p.sources["a"].store; st.blocks != 0 || st.timer != nil {
			t.Errorf("%d blocks, timer %v behind the end of all", st.blocks, st.timer)
		}
	})
}

// What the engine did not find in the store is not believed any more; what it found is.
func TestStore_UsageContradicts(t *testing.T) {
	for _, x := range []struct {
		name               string
		cached, of, remain int // tokens that usage reports, that b has of its own, that are believed then
	}{
		{"all found", 64, 0, 64},
		{"all but the last block, which is computed again", 48, 0, 64},
		{"half", 32, 0, 32},
		{"nothing", 0, 0, 0},
		{"its own alone", 32, 32, 32},
		{"less than its own", 16, 32, 64},
	} {
		p := newPool(t)
		prompt := count(0, 64)
		p.tell("a", computed([]uint64{1, 2, 3, 4}, 0, prompt)...)
		if x.of > 0 {
			p.tell("b", computed([]uint64{1, 2}, 0, prompt)[:2]...)
		}
		p.ix.RecordCached("b", p.match(prompt), x.cached)
		if got := p.match(prompt).Held("b").Disk; got != x.remain {
			t.Errorf("%s: %d tokens believed, want %d", x.name, got, x.remain)
		}
	}
}

// A store is bounded: what is oldest goes first.
func TestStore_IsBounded(t *testing.T) {
	st := newStore(Disk, &Config{StoreLife: time.Hour, MaxBlocks: 1000 * storeShare})
	defer func() { st.timer.Stop() }()
	for i := range 100_000 {
		st.believe(Hash(i+1) << 32)
	}
	if blocks, _ := st.index.size(); blocks > 1000 || blocks < 800 {
		t.Errorf("%d blocks, want some 1,000 at most", blocks)
	}
	if !st.has(Hash(100_000) << 32) {
		t.Error("the newest is not there")
	}
}

// Where the store's part of a chain ends is found as a walk over it would.
func TestStore_End(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		st := newStore(Disk, &Config{StoreLife: time.Hour, MaxBlocks: 1 << 20})
		chain := make([]Hash, random.IntN(200))
		for i := range chain {
			chain[i] = Hash(random.Uint64() | 1)
		}
		from := random.IntN(len(chain) + 1)
		end := from + random.IntN(len(chain)-from+1)
		st.believe(chain[from:end]...)
		if got := st.end(chain, from); got != end {
			t.Fatalf("%d of %d from %d on, want %d", got, len(chain), from, end)
		}
		if st.timer != nil {
			st.timer.Stop()
		}
	}
}

// A store that does say what it forgets is believed.
func TestStore_MaySayWhatItForgets(t *testing.T) {
	p := newPool(t)
	prompt := count(0, 40)
	p.tell("a", computed([]uint64{1, 2}, 0, prompt)...)
	p.tell("a", wireEvent{kind: "BlockRemoved", hashes: []uint64{2, 3}, medium: "STORAGE", where: "REMOTE"})
	if got := p.match(prompt).Held("b"); got != (cached.Tokens{Disk: 16}) {
		t.Errorf("%+v", got)
	}
	if n := p.sources["a"].State().Counts.Dropped[DropRemoval]; n != 1 {
		t.Errorf("%d removals of what is not known, want 1", n)
	}
}

// A server that has published nothing has no place in the index, and can load from the store that
// it names all the same, until it is gone.
func TestStore_CountsForAServerThatIsSilent(t *testing.T) {
	p := newPool(t)
	silent, err := p.ix.Open(Spec{SourceID: SourceID{Server: "new"}, Model: "m", Store: "pool"})
	if err != nil {
		t.Fatal(err)
	}
	prompt := count(0, 40)
	p.tell("a", computed([]uint64{1, 2}, 0, prompt)...)
	var at HitPosition
	h := p.match(prompt)
	if got, again := h.Held("new"), h.HeldAt("new", &at); got != (cached.Tokens{Disk: 32}) || again != got {
		t.Errorf("%+v, %+v", got, again)
	}
	silent.Close()
	if got := p.match(prompt).Held("new"); got != (cached.Tokens{}) {
		t.Errorf("closed: %+v", got)
	}
}

// passOn gives another pool what a server's source changed.
func (p *pool) passOn(t *testing.T, server string, to *pool) {
	t.Helper()
	if delta := p.sources[server].TakeDelta(); delta != nil {
		if err := to.sources[server].Apply(delta); err != nil {
			t.Fatal(err)
		}
	}
	if puts := p.sources[server].TakePuts(); puts != nil {
		if err := to.sources[server].ApplyPuts(puts); err != nil {
			t.Fatal(err)
		}
	}
}

// What a replica receives of a store those that follow it know as well: blocks that are put and
// forgotten, and those that are stored behind what only the store was known to have.
func TestStore_IsPassedOn(t *testing.T) {
	p, follower := newPool(t), newPool(t)
	for _, s := range p.sources {
		s.Record(true)
	}
	prompt := count(0, 200)
	same := func(what string, want map[string]cached.Tokens) {
		t.Helper()
		for server := range p.sources {
			p.passOn(t, server, follower)
		}
		for server, tokens := range want {
			if got, followed := p.match(prompt).Held(server), follower.match(prompt).Held(server); got != tokens || followed != tokens {
				t.Errorf("%s, %s: received %+v, followed %+v, want %+v", what, server, got, followed, tokens)
			}
		}
	}
	p.tell("a", computed([]uint64{1, 2, 3, 4}, 0, prompt)...)
	same("put", map[string]cached.Tokens{"a": {GPU: 64, CPU: 64, Disk: 64}, "b": {Disk: 64}, "c": {}})
	p.tell("a", wireEvent{kind: "BlockRemoved", hashes: []uint64{4}, medium: "STORAGE", where: "REMOTE"},
		wireEvent{kind: "BlockRemoved", hashes: []uint64{1, 2, 3, 4}, medium: "GPU"})
	same("forgotten", map[string]cached.Tokens{"a": {Disk: 48}, "b": {Disk: 48}})

	// b says of a fifth and a sixth block only that the store has them, and stores behind them.
	p.tell("b", computed([]uint64{11, 12, 13, 14}, 0, prompt)[:4]...)
	p.tell("b", computed([]uint64{15, 16}, 14, prompt[64:])[2:]...)
	p.tell("b", computed([]uint64{17}, 16, prompt[96:])[:1]...)
	p.tell("b", wireEvent{kind: "BlockStored", hashes: []uint64{15, 16}, size: 16, medium: "GPU"})
	same("behind what the store has", map[string]cached.Tokens{"b": {GPU: 112, CPU: 112, Disk: 112}})
	if n := follower.sources["b"].State().Counts.Dropped[DropParent]; n != 0 {
		t.Errorf("%d blocks were dropped behind what is not known", n)
	}

	// c has a store of its own, which is gone with it.
	p.tell("c", computed([]uint64{21, 22}, 0, prompt)...)
	p.tell("c", wireEvent{kind: "BlockRemoved", hashes: []uint64{21, 22}, medium: "GPU"})
	same("alone", map[string]cached.Tokens{"c": {CPU: 32, Disk: 32}})
	p.tell("c", computed([]uint64{21, 22, 23}, 0, prompt)[3:]...)
	p.sources["c"].RecordGap()
	same("behind a gap", map[string]cached.Tokens{"c": {}})
}

// What is passed on is as old as it is there: a replica that reads it late believes it no longer.
func TestStore_WhatIsPassedOnLateIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, prompt := newPool(t), count(0, 40)
		p.sources["a"].Record(true)
		p.tell("a", computed([]uint64{1, 2}, 0, prompt)...)
		puts, life := p.sources["a"].TakePuts(), p.ix.cfg.StoreLife
		time.Sleep(life / 2)
		late := newPool(t)
		believed := func() int { return late.match(prompt).Held("b").Disk }
		if err := late.sources["a"].ApplyPuts(puts); err != nil || believed() != 32 {
			t.Fatalf("%d tokens, %v", believed(), err)
		}
		time.Sleep(life / 2)
		synctest.Wait()
		if believed() != 0 {
			t.Error("believed for longer than since it was put")
		}
		if err := late.sources["a"].ApplyPuts(puts); err != nil || believed() != 0 {
			t.Errorf("what is older than a life: %d tokens, %v", believed(), err)
		}
	})
}

func TestStore_PutsThatCannotBeUsedAreRefused(t *testing.T) {
	p := newPool(t)
	a := p.sources["a"]
	a.Record(true)
	if a.TakePuts() != nil {
		t.Error("something was put before anything was said")
	}
	p.tell("a", computed([]uint64{1}, 0, count(0, 16))...)
	puts := a.TakePuts()
	if a.TakePuts() != nil {
		t.Error("the same is given twice")
	}
	other, err := New(Config{Secret: "x", MaxBlocks: 1 << 20, GuessLife: time.Second, MaxGuesses: 1, StoreLife: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := other.Open(Spec{SourceID: SourceID{Server: "a"}, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	altered := func(at int, to byte) []byte {
		b := slices.Clone(puts)
		b[at] = to
		return binary.LittleEndian.AppendUint32(b[:len(b)-4], crc32.Checksum(b[:len(b)-4], castagnoli))
	}
	broken := slices.Clone(puts)
	broken[len(broken)-6] ^= 1
	for name, x := range map[string]struct {
		to    *Source
		bytes []byte
	}{
		"nothing": {a, nil}, "breaks off": {a, puts[:len(puts)-1]}, "damaged": {a, broken}, "another version": {a, altered(0, 2)},
		"another secret": {stranger, puts}, "on the GPU": {a, altered(putsHead, byte(GPU)+putIsThere)}, "nowhere": {a, altered(putsHead, byte(nowhere)+putIsThere)},
	} {
		if err := x.to.ApplyPuts(x.bytes); !errors.Is(err, ErrDelta) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.Close()
	if err := a.ApplyPuts(puts); err != nil {
		t.Errorf("a closed source: %v", err)
	}
}
