package kvstate

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// stream is the publisher of a simulated engine, and a feed that loses, doubles and
// swaps its messages on the way to a source.
type stream struct {
	cache  *cache
	source *Source
	form   wireForm
	clock  float64
	next   uint64   // number of the next batch
	kept   [][]byte // the last ones, for replay; empty: no replay
	keep   int

	silent bool // replays are requested and not answered
}

// publish numbers what happened in the cache.
func (s *stream) publish() Message {
	s.clock++
	m := Message{Seq: s.next, Payload: wireBatch(s.form, s.clock, s.cache.events...)}
	s.cache.events = nil
	s.next++
	s.kept = append(s.kept, m.Payload)
	if len(s.kept) > s.keep {
		s.kept = s.kept[1:]
	}
	return m
}

// live hands a message over as a feed does.
func (s *stream) live(m Message) {
	for {
		request := s.source.ApplyLive(m)
		if !request.Needed() {
			return
		}
		s.run(request)
	}
}

// run carries out a request, and what it leads to.
func (s *stream) run(request ReplayRequest) {
	for tries := 0; request.Needed() && tries < 4; tries++ {
		s.source.BeginReplay(request)
		if s.silent {
			request = s.source.EndReplay(false)
			continue
		}
		first := s.next - uint64(len(s.kept))
		for i, payload := range s.kept {
			if n := first + uint64(i); n >= request.From {
				s.source.ApplyReplayed(Message{Seq: n, Payload: payload})
			}
		}
		request = s.source.EndReplay(true)
	}
}

// restart is the engine dying and coming back empty, with other hashes.
func (s *stream) restart() {
	s.cache = newCache(s.cache.size, s.cache.salt+1)
	s.next, s.kept = 0, nil
	s.source.RecordDisconnect()
	s.run(s.source.RecordConnect())
}

// TestSource_NeverClaimsWhatIsNotHeld: however messages are lost, doubled and swapped,
// and whenever the engine restarts, in the end the index claims nothing that the engine
// does not hold; and where everything could be replayed, it claims all.
func TestSource_NeverClaimsWhatIsNotHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prompts := drawPrompts(t)
		replays := rapid.Bool().Draw(t, "replays")
		keep := rapid.SampledFrom([]int{1, 4, 1000}).Draw(t, "kept for replay")
		ix, err := New(Default())
		if err != nil {
			t.Fatal(err)
		}
		source, err := ix.Open(Spec{SourceID: SourceID{Server: "s"}, Model: "m", Replays: replays})
		if err != nil {
			t.Fatal(err)
		}
		s := &stream{
			cache: newCache(rapid.SampledFrom([]int{4, 16}).Draw(t, "block size"), 1), source: source, keep: keep,
			next: rapid.SampledFrom([]uint64{0, 1}).Draw(t, "first number"),
		}
		s.run(source.RecordConnect())
		var late []Message
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			kinds := []string{"deliver", "deliver", "deliver", "deliver", "lose", "twice", "restart", "reconnect", "check"}
			if replays {
				kinds = append(kinds, "late", "silence")
			}
			kind := rapid.SampledFrom(kinds).Draw(t, "fate")
			switch kind {
			case "restart":
				late = nil // a connection's messages do not outlive it
				s.restart()
				continue
			case "reconnect":
				source.RecordDisconnect()
				s.run(source.RecordConnect())
				continue
			case "check":
				s.run(source.Check())
				continue
			case "silence":
				s.silent = !s.silent
				continue
			}
			s.cache.step(t, prompts)
			m := s.publish()
			switch kind {
			case "deliver":
				s.live(m)
				for _, old := range late {
					s.live(old)
				}
				late = nil
			case "twice":
				s.live(m)
				s.live(m)
			case "late":
				late = append(late, m)
			}
		}
		// Quiet: what is under way arrives, and one message more.
		s.silent = false
		s.live(s.publish())
		s.run(source.Check())
		source.checkTree(t)

		var hits Hits
		for _, prompt := range prompts {
			ix.Match(&Prompt{Model: "m", Tokens: prompt}, &hits)
			got, want := hits.Held("s"), s.cache.truth(prompt)
			if got.GPU > want.GPU || got.CPU > want.CPU || got.Disk > want.Disk {
				t.Fatalf("claimed %+v, truth %+v", got, want)
			}
			if replays && keep == 1000 && got != want {
				t.Fatalf("claimed %+v, truth %+v though everything could be replayed", got, want)
			}
		}
	})
}

// lone is a source with a log of simple batches: batch n stores block n of one chain.
func lone(t *testing.T, replays bool) (*Index, *Source, func(seq int) Message) {
	t.Helper()
	ix, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ix.Open(Spec{SourceID: SourceID{Server: "s"}, Model: "m", Replays: replays})
	if err != nil {
		t.Fatal(err)
	}
	return ix, s, func(seq int) Message {
		e := wireEvent{kind: "BlockStored", hashes: []uint64{uint64(seq + 1)}, parent: uint64(seq), tokens: []uint32{uint32(seq)}, size: 1, medium: "GPU"}
		return Message{Seq: uint64(seq), Payload: wireBatch(wireForm{}, float64(seq), e)}
	}
}

// claims is how many blocks of lone's chain the source claims.
func claims(ix *Index, n int) int {
	p := Prompt{Model: "m"}
	for i := range n {
		p.Tokens = append(p.Tokens, uint32(i))
	}
	var h Hits
	ix.Match(&p, &h)
	return h.Held("s").GPU
}

func TestSource_AsksAndForgets(t *testing.T) {
	type step struct {
		do      string // live N, replay WHY FROM, got N, end, broke, connected, reconnected, check, other N (another publisher's batch N)
		n       int
		request ReplayRequest
		claims  int
	}
	for name, c := range map[string]struct {
		replays bool
		steps   []step
	}{
		"in order": {false, []step{{"live", 0, ReplayRequest{}, 1}, {"live", 1, ReplayRequest{}, 2}, {"live", 2, ReplayRequest{}, 3}}},
		"numbers may start at 1": {true, []step{
			{"connected", 0, ReplayRequest{Start, 0}, 0}, {"got", 1, ReplayRequest{}, 0}, {"end", 0, ReplayRequest{}, 0},
			{"live", 2, ReplayRequest{}, 0}}},
		"duplicate": {false, []step{{"live", 0, ReplayRequest{}, 1}, {"live", 0, ReplayRequest{}, 1}, {"live", 1, ReplayRequest{}, 2}, {"live", 0, ReplayRequest{}, 2}}},
		"gap without replay": {false, []step{
			{"live", 0, ReplayRequest{}, 1}, {"live", 1, ReplayRequest{}, 2}, {"live", 5, ReplayRequest{}, 0}, {"live", 6, ReplayRequest{}, 0}}},
		"gap filled": {true, []step{
			{"connected", 0, ReplayRequest{Start, 0}, 0}, {"got", 0, ReplayRequest{}, 1}, {"end", 0, ReplayRequest{}, 1},
			{"live", 3, ReplayRequest{Gap, 0}, 1}, {"begin", 0, ReplayRequest{Gap, 0}, 1},
			{"got", 0, ReplayRequest{}, 1}, {"got", 1, ReplayRequest{}, 2}, {"got", 2, ReplayRequest{}, 3}, {"got", 3, ReplayRequest{}, 4}, {"end", 0, ReplayRequest{}, 4},
			{"live", 3, ReplayRequest{}, 4}, {"live", 4, ReplayRequest{}, 5}}},
		"gap beyond what is kept": {true, []step{
			{"connected", 0, ReplayRequest{Start, 0}, 0}, {"got", 0, ReplayRequest{}, 1}, {"end", 0, ReplayRequest{}, 1},
			{"live", 9, ReplayRequest{Gap, 0}, 1}, {"begin", 0, ReplayRequest{Gap, 0}, 1},
			{"got", 7, ReplayRequest{}, 0}, {"got", 8, ReplayRequest{}, 0}, {"end", 0, ReplayRequest{}, 0}, {"live", 9, ReplayRequest{}, 0}}},
		"replay not answered": {true, []step{
			{"connected", 0, ReplayRequest{Start, 0}, 0}, {"got", 0, ReplayRequest{}, 1}, {"end", 0, ReplayRequest{}, 1},
			{"live", 2, ReplayRequest{Gap, 0}, 1}, {"begin", 0, ReplayRequest{Gap, 0}, 1}, {"broke", 0, ReplayRequest{Start, 0}, 0},
			{"live", 2, ReplayRequest{}, 0}, {"live", 3, ReplayRequest{}, 0}}},
		"restart seen by its number": {true, []step{
			{"connected", 0, ReplayRequest{Start, 0}, 0}, {"got", 0, ReplayRequest{}, 1}, {"got", 1, ReplayRequest{}, 2}, {"end", 0, ReplayRequest{}, 2},
			{"live", 2, ReplayRequest{}, 3}, {"other", 0, ReplayRequest{Restart, 0}, 0}, {"begin", 0, ReplayRequest{Restart, 0}, 0},
			{"other got", 0, ReplayRequest{}, 1}, {"end", 0, ReplayRequest{}, 1}, {"other", 0, ReplayRequest{}, 1}}},
		"restart seen by the consistency check": {true, []step{
			{"connected", 0, ReplayRequest{Start, 0}, 0}, {"got", 0, ReplayRequest{}, 1}, {"got", 1, ReplayRequest{}, 2}, {"end", 0, ReplayRequest{}, 2},
			{"reconnected", 0, ReplayRequest{Gap, 1}, 2}, {"begin", 1, ReplayRequest{Gap, 1}, 2}, {"other got", 1, ReplayRequest{}, 0}, {"other got", 2, ReplayRequest{}, 0},
			{"end", 0, ReplayRequest{Restart, 0}, 0}}},
		"restart without a word": {true, []step{
			{"connected", 0, ReplayRequest{Start, 0}, 0}, {"got", 0, ReplayRequest{}, 1}, {"end", 0, ReplayRequest{}, 1},
			{"check", 0, ReplayRequest{ConsistencyCheck, 0}, 1}, {"begin", 0, ReplayRequest{ConsistencyCheck, 0}, 1}, {"end", 0, ReplayRequest{Restart, 0}, 0}}},
		"a consistency check that is not answered says nothing": {true, []step{
			{"connected", 0, ReplayRequest{Start, 0}, 0}, {"got", 0, ReplayRequest{}, 1}, {"end", 0, ReplayRequest{}, 1},
			{"check", 0, ReplayRequest{ConsistencyCheck, 0}, 1}, {"begin", 0, ReplayRequest{ConsistencyCheck, 0}, 1}, {"broke", 0, ReplayRequest{}, 1}, {"live", 1, ReplayRequest{}, 2}}},
		"reconnect without replay": {false, []step{
			{"connected", 0, ReplayRequest{}, 0}, {"live", 0, ReplayRequest{}, 1}, {"reconnected", 0, ReplayRequest{}, 0}}},
		"number jumps by 2^63": {false, []step{
			{"live", 0, ReplayRequest{}, 1}, {"far", 1, ReplayRequest{}, 0}, {"live", 0, ReplayRequest{}, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			ix, s, batch := lone(t, c.replays)
			for i, step := range c.steps {
				var request ReplayRequest
				m := batch(step.n)
				switch step.do {
				case "live":
					request = s.ApplyLive(m)
				case "far":
					m.Seq += 1 << 63
					request = s.ApplyLive(m)
				case "other", "other got":
					m.Payload = append(slices.Clone(m.Payload), 0xc0) // another checksum
					if step.do == "other" {
						request = s.ApplyLive(m)
					} else {
						s.ApplyReplayed(m)
					}
				case "connected", "reconnected":
					if step.do == "reconnected" {
						s.RecordDisconnect()
					}
					request = s.RecordConnect()
					if step.do == "connected" && request.Needed() {
						s.BeginReplay(request)
					}
				case "check":
					request = s.Check()
				case "begin":
					s.BeginReplay(step.request)
					request = step.request
				case "got":
					s.ApplyReplayed(m)
				case "end", "broke":
					request = s.EndReplay(step.do == "end")
				}
				if request != step.request {
					t.Fatalf("step %d, %s %d: requests %+v, want %+v", i, step.do, step.n, request, step.request)
				}
				if got := claims(ix, 20); got != step.claims {
					t.Fatalf("step %d, %s %d: claims %d blocks, want %d", i, step.do, step.n, got, step.claims)
				}
			}
		})
	}
}

// What a check asks for depends on what is known, and on whether that is all that there is.
func TestSequence_ConsistencyCheck(t *testing.T) {
	last := stamp{known: true, seq: 7}
	for _, x := range []struct {
		replays, complete bool
		last              stamp
		want              ReplayRequest
	}{
		{false, false, stamp{}, ReplayRequest{}}, {false, true, last, ReplayRequest{}},
		{true, false, stamp{}, ReplayRequest{Start, 0}}, {true, true, stamp{}, ReplayRequest{ConsistencyCheck, 0}},
		{true, false, last, ReplayRequest{Rebuild, 0}}, {true, true, last, ReplayRequest{ConsistencyCheck, 7}},
	} {
		q := sequence{replays: x.replays, complete: x.complete, last: x.last}
		if got := q.consistencyCheck(); got != x.want {
			t.Errorf("%+v: %+v", x, got)
		}
	}
}

// Of a replay from batch 5 on: what comes before, again or after a hole.
func TestSequence_OfferReplayed(t *testing.T) {
	at := func(seq uint64) stamp { return stamp{known: true, seq: seq, sum: seq} }
	type answer struct {
		s    stamp
		want verdict
	}
	other := stamp{known: true, seq: 5, sum: 99}
	for name, x := range map[string]struct {
		request ReplayRequest
		last    stamp
		answers []answer
	}{
		"as it was":                   {ReplayRequest{Gap, 5}, at(5), []answer{{at(4), ignore}, {at(5), ignore}, {at(6), apply}, {at(6), ignore}, {at(3), ignore}, {at(7), apply}, {at(9), reset}}},
		"another publisher":           {ReplayRequest{Gap, 5}, at(5), []answer{{other, resetOnly}, {at(6), ignore}}},
		"it no longer has that batch": {ReplayRequest{Gap, 5}, at(5), []answer{{at(8), reset}, {at(9), apply}}},
		"nothing was known":           {ReplayRequest{Start, 0}, stamp{}, []answer{{at(3), apply}, {at(4), apply}, {at(4), ignore}}},
		"from the start again":        {ReplayRequest{Rebuild, 0}, at(5), []answer{{at(2), reset}, {at(3), apply}}},
	} {
		q := sequence{replays: true, last: x.last}
		q.begin(x.request)
		for i, a := range x.answers {
			got := q.offerReplayed(a.s)
			if got != a.want {
				t.Errorf("%s: answer %d, batch %d: %v, want %v", name, i, a.s.seq, got, a.want)
			}
			if got == apply || got == reset {
				q.recordApplied(a.s)
			}
		}
	}
}

func TestSource_OpenTwice(t *testing.T) {
	ix, s, _ := lone(t, false)
	if _, err := ix.Open(Spec{SourceID: s.ID(), Model: "m"}); err == nil {
		t.Error("a second source of the same name was opened")
	}
	s.Close()
	s.Close()
	again, err := ix.Open(Spec{SourceID: s.ID(), Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	s.ApplyLive(Message{}) // closed: nothing happens
	if len(ix.Sources()) != 1 {
		t.Errorf("%d sources", len(ix.Sources()))
	}
	again.Close()
}

// TestIndex_Trim: the bound holds, what was confirmed last stays, and of a chain the
// head stays longest.
func TestIndex_Trim(t *testing.T) {
	cfg := Default()
	cfg.MaxBlocks = 4096
	ix, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var sources []*Source
	for i := range 3 {
		s, err := ix.Open(Spec{SourceID: SourceID{Server: fmt.Sprint("s", i)}, Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, s)
	}
	chain := func(conversation int) []uint32 { // 100 blocks of 4, the first 10 shared by all
		tokens := make([]uint32, 400)
		for i := range tokens {
			tokens[i] = uint32(i)
			if i >= 40 {
				tokens[i] += uint32(1000 * conversation)
			}
		}
		return tokens
	}
	caches := []*cache{newCache(4, 1), newCache(4, 2), newCache(4, 3)}
	seqs := make([]uint64, 3)
	const conversations = 300
	for c := range conversations {
		i := c % 3
		caches[i].compute(chain(c), false)
		caches[i].publish(sources[i], wireForm{}, &seqs[i])
		sources[i].checkTree(t)
		if blocks := ix.blocks.Load(); blocks > 4096 {
			t.Fatalf("%d blocks after %d conversations", blocks, c)
		}
	}
	var h Hits
	for c := conversations - 20; c < conversations; c++ {
		ix.Match(&Prompt{Model: "m", Tokens: chain(c)}, &h)
		if got := h.Held(fmt.Sprint("s", c%3)).GPU; got != 400 {
			t.Errorf("of conversation %d, one of the last, %d tokens are left", c, got)
		}
	}
	ix.Match(&Prompt{Model: "m", Tokens: chain(0)}, &h)
	if got := h.Held("s0").GPU; got != 40 {
		t.Errorf("of the first conversation %d tokens are left, want the shared 40", got)
	}
	for _, s := range sources {
		s.Close()
	}
	if blocks := ix.blocks.Load(); blocks != 0 {
		t.Errorf("%d blocks of no server", blocks)
	}
}

// A publisher that says who it is has restarted when it is another one. One that does not say so,
// in between or at first, is the one it was.
func TestSequence_AnotherPublisher(t *testing.T) {
	one, two := [16]byte{1}, [16]byte{2}
	for name, publishers := range map[string][][16]byte{
		"another":                   {one, one, two},
		"after one without a name":  {one, {}, two},
		"at first without a name":   {{}, one, one, two},
		"another than the last one": {one, two, one},
	} {
		var q sequence
		known := [16]byte{}
		for i, publisher := range publishers {
			want := apply
			if known != publisher && known != [16]byte{} && publisher != [16]byte{} {
				want = reset
			}
			s := stamp{known: true, seq: uint64(i), sum: uint64(i)}
			got, request := q.classify(s, publisher)
			if got != want || request.Needed() {
				t.Errorf("%s: batch %d: %v, want %v, and it requests %v", name, i, got, want, request)
			}
			q.recordApplied(s)
			q.recordSeen(s)
			if publisher != [16]byte{} {
				known = publisher
			}
		}
	}
}

// A late copy of an old batch changes nothing of what shows a restart: a batch of the numbers
// before the newest that has other contents.
func TestSequence_ALateCopyHidesNoRestart(t *testing.T) {
	at := func(seq, sum uint64) stamp { return stamp{known: true, seq: seq, sum: sum} }
	var q sequence
	for seq := range uint64(4) {
		q.classify(at(seq, seq), [16]byte{})
		q.recordApplied(at(seq, seq))
		q.recordSeen(at(seq, seq))
	}
	for _, late := range []uint64{1, 0, 2} {
		if got, _ := q.classify(at(late, late), [16]byte{}); got != ignore {
			t.Errorf("a copy of batch %d: %v", late, got)
		}
		q.recordSeen(at(late, late))
	}
	if got, _ := q.classify(at(3, 99), [16]byte{}); got != reset {
		t.Errorf("another batch 3: %v", got)
	}
}

// The oldest go first, to the generation: those confirmed somewhat later stay as long as there are
// enough of them.
func TestIndex_TrimsTheOldestGeneration(t *testing.T) {
	ix, s := opened(t, Spec{})
	store := func(from int) {
		for i := range 10 {
			id := from + i
			s.ApplyLive(Message{Seq: uint64(id), Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{uint64(1 + id)}, tokens: count(100*id, 16), size: 16, medium: "GPU"})})
		}
	}
	held := func(from int) (n int) {
		for i := range 10 {
			n += holds(ix, Prompt{Tokens: count(100*(from+i), 16)}) / 16
		}
		return n
	}
	generations := func(n int) { ix.age.confirm(n * int(ix.age.every)) }
	store(0)
	generations(20)
	store(10)
	generations(100)
	ix.cfg.MaxBlocks = 16 // five too many, with the sixteenth that is left free
	if dropped := ix.trimOnce(); dropped != 5 || held(0) != 5 || held(10) != 10 {
		t.Errorf("%d are dropped, %d of the oldest and %d of the others are left", dropped, held(0), held(10))
	}
	s.checkTree(t)
}

// A server that reports more and more blocks, on whatever ranks, does not push another below half of its share.
func TestIndex_TrimsNoneBelowHalfOfItsShare(t *testing.T) {
	ix, s := opened(t, Spec{})
	ix.cfg.MaxBlocks = 4096
	store := func(s *Source, seq, id, blocks int) {
		s.ApplyLive(Message{Seq: uint64(seq), Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: engineHashes(id, blocks), tokens: count(100*id, 16*blocks), size: 16, medium: "GPU"})})
	}
	store(s, 0, 0, 900)
	ix.age.confirm(3 * int(ix.age.every)) // what comes now is younger
	var flood []*Source
	for rank := range 8 {
		f, err := ix.Open(Spec{SourceID: SourceID{Server: "flood", Rank: rank}, Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		flood = append(flood, f)
	}
	for i := range 400 {
		store(flood[i%8], i/8, 10_000+i, 50)
		if blocks := ix.blocks.Load(); blocks > 4096 {
			t.Fatalf("%d blocks", blocks)
		}
	}
	if held := s.heldBlocks(); held != 900 {
		t.Errorf("of the other server's 900 blocks %d are left", held)
	}
	if blocks := ix.blocks.Load(); blocks < 3800 {
		t.Errorf("only %d blocks are left of both", blocks)
	}
}

// engineHashes are so many that no other id has.
func engineHashes(id, n int) []uint64 {
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = uint64(id)<<32 + uint64(i) + 1
	}
	return hashes
}

// What a feed and its checks report at once is counted one by one.
func TestSource_ReportsAtOnce(t *testing.T) {
	_, s, batch := lone(t, true)
	var all sync.WaitGroup
	for _, report := range []func(){
		func() { s.RecordConnect() }, s.RecordDisconnect, s.RecordGap, s.RecordMisread, func() { s.Check() }, func() { s.ApplyLive(batch(0)) }, func() { s.State() },
	} {
		all.Go(func() {
			for range 50 {
				report()
			}
		})
	}
	all.Wait()
	if n := s.State().Counts.Resets[ResetGap]; n != 50 {
		t.Errorf("%d gaps of 50", n)
	}
	s.checkTree(t)
}
