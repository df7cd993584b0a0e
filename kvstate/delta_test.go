package kvstate

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestDelta_AnotherIndexFollows: one that gets deltas, and begins with a snapshot, says
// the same as the one that hears the engine; and goes on by itself from there.
func TestDelta_AnotherIndexFollows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prompts := drawPrompts(t)
		spec := Spec{SourceID: SourceID{Server: "s"}, Model: "m", Replays: true}
		open := func() (*Index, *Source) {
			ix, err := New(Default())
			if err != nil {
				t.Fatal(err)
			}
			s, err := ix.Open(spec)
			if err != nil {
				t.Fatal(err)
			}
			return ix, s
		}
		ix, source := open()
		s := &stream{cache: newCache(16, 1), source: source, keep: 3}
		s.run(source.RecordConnect())
		source.Record(true)
		var other *Index
		var follower *Source
		same := func() {
			follower.checkTree(t)
			var a, b Hits
			for _, prompt := range prompts {
				p := Prompt{Model: "m", Tokens: prompt}
				ix.Match(&p, &a)
				other.Match(&p, &b)
				if a.Held("s") != b.Held("s") {
					t.Fatalf("heard %+v, followed %+v", a.Held("s"), b.Held("s"))
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"event", "event", "event", "event", "lose", "restart", "join", "pass on"}).Draw(t, "step") {
			case "event":
				s.cache.step(t, prompts)
				s.live(s.publish())
			case "lose":
				s.cache.step(t, prompts)
				s.publish()
			case "restart":
				s.restart()
			case "join":
				source.TakeDelta()
				other, follower = open()
				if err := follower.Apply(source.Snapshot()); err != nil {
					t.Fatal(err)
				}
				same()
			case "pass on":
				delta := source.TakeDelta()
				if follower == nil || delta == nil {
					continue
				}
				for range 2 { // the second changes nothing
					if err := follower.Apply(delta); err != nil {
						t.Fatal(err)
					}
				}
				same()
			}
		}
		if follower == nil {
			return
		}
		s.live(s.publish()) // shows what was lost at last
		if err := follower.Apply(source.TakeDelta()); err != nil {
			t.Fatal(err)
		}
		same()
		// The follower takes over: parents and removals still resolve.
		follower.seq.replays = false
		for range 5 {
			s.cache.step(t, prompts)
			m := s.publish()
			s.live(m)
			follower.ApplyLive(m)
			same()
		}
	})
}

func TestDelta_Refused(t *testing.T) {
	ix, s, batch := lone(t, false)
	s.Record(true)
	s.ApplyLive(batch(0))
	first := s.TakeDelta()
	s.ApplyLive(batch(1))
	second := s.TakeDelta()
	if s.TakeDelta() != nil {
		t.Error("a delta of nothing")
	}
	snapshot := s.Snapshot()
	if _, seq, err := SnapshotOrder(snapshot); err != nil || seq != 1 {
		t.Errorf("order of the snapshot: %d, %v", seq, err)
	}

	_, other, _ := lone(t, false)
	if err := other.Apply(second); !errors.Is(err, ErrDeltaGap) {
		t.Errorf("the second before the first: %v", err)
	}
	for name, delta := range map[string][]byte{
		"nothing": nil, "short": first[:10], "cut": first[:len(first)-1],
		"changed": append(bytes.Clone(first[:60]), append([]byte{first[60] ^ 1}, first[61:]...)...),
		"version": append([]byte{9}, first[1:]...),
	} {
		if err := other.Apply(delta); !errors.Is(err, ErrDelta) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg := Default()
	cfg.Secret = "another"
	stranger, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := stranger.Open(Spec{SourceID: s.ID(), Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if err := foreign.Apply(first); !errors.Is(err, ErrDelta) {
		t.Errorf("made with another secret: %v", err)
	}
	if err := errors.Join(other.Apply(first), other.Apply(second)); err != nil {
		t.Error(err)
	}
	if a, b := s.Snapshot(), other.Snapshot(); !slices.Equal(a[25:], b[25:]) { // without the epoch
		t.Error("they differ")
	}
	if claims(ix, 5) != 2 {
		t.Error("the first index has changed")
	}
}

// Copies that several groups of a server lose at once are passed on as those of each.
func TestDelta_CopiesOfSeveralGroups(t *testing.T) {
	ix, s := opened(t, Spec{})
	s.Record(true)
	var stored, removed []wireEvent
	for group := range 2 {
		e := wireEvent{kind: "BlockStored", group: group, spec: "full_attention", tokens: count(0, 64), size: 16, medium: "GPU", hashes: []uint64{100, 101, 102, 103}}
		stored = append(stored, e)
	}
	// In turns, so that no two in a row are of one group.
	for _, hash := range []uint64{103, 102} {
		for group := range 2 {
			removed = append(removed, wireEvent{kind: "BlockRemoved", group: group, hashes: []uint64{hash}, medium: "GPU"})
		}
	}
	s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1, stored...)})
	first := s.TakeDelta()
	s.ApplyLive(Message{Seq: 1, Payload: wireBatch(wireForm{}, 1, removed...)})
	second := s.TakeDelta()

	other, follower := opened(t, Spec{})
	if err := errors.Join(follower.Apply(first), follower.Apply(second)); err != nil {
		t.Fatal(err)
	}
	p := Prompt{Tokens: count(0, 64)}
	if a, b := holds(ix, p), holds(other, p); a != 32 || b != 32 {
		t.Errorf("%d tokens are held, and %d as the follower has it", a, b)
	}
	if dropped := follower.State().Counts.Dropped; dropped != s.State().Counts.Dropped {
		t.Errorf("the follower dropped %v", dropped)
	}
	follower.checkTree(t)
}

// What an engine stored, removed and cleared counts at a follower as at the receiver: copies in other tiers too.
func TestDelta_CountsWhatTheEngineReports(t *testing.T) {
	_, s := opened(t, Spec{})
	s.Record(true)
	_, follower := opened(t, Spec{})
	for seq, e := range []wireEvent{
		{kind: "BlockStored", tokens: count(0, 64), size: 16, medium: "GPU", hashes: []uint64{100, 101, 102, 103}},
		{kind: "BlockStored", medium: "CPU", size: 16, hashes: []uint64{100, 101}},
		{kind: "BlockRemoved", medium: "GPU", hashes: []uint64{103, 102}},
		{kind: "BlockRemoved", medium: "CPU", hashes: []uint64{101}},
		{kind: "AllBlocksCleared"},
	} {
		s.ApplyLive(Message{Seq: uint64(seq), Payload: wireBatch(wireForm{}, 1, e)})
		before := follower.Changes()
		if err := follower.Apply(s.TakeDelta()); err != nil {
			t.Fatal(err)
		}
		if follower.Changes() == before {
			t.Errorf("%s in %s changes nothing that a snapshot would have", e.kind, e.medium)
		}
	}
	counts := func(s *Source) [3]uint64 {
		n := s.State().Counts
		return [3]uint64{n.Stored, n.Removed, n.Cleared}
	}
	if received, followed := counts(s), counts(follower); received != [3]uint64{6, 3, 1} || followed != received {
		t.Errorf("stored, removed and cleared: %v at the receiver, %v at the follower", received, followed)
	}
}

// A restart of the engine counts at a follower as at the receiver, once for each; what it begins with,
// and a snapshot in the place of what was lost, is none.
func TestDelta_CountsRestarts(t *testing.T) {
	_, s, batch := lone(t, false)
	s.Record(true)
	_, follower, _ := lone(t, false)
	passOn := func() {
		t.Helper()
		if err := follower.Apply(s.TakeDelta()); err != nil {
			t.Fatal(err)
		}
	}
	counts := func(s *Source) [2]uint64 {
		n := s.State().Counts
		return [2]uint64{n.Restarts, n.Resets[ResetRestart]}
	}
	as := func(publisher byte, m Message) Message {
		m.Publisher[0] = publisher
		return m
	}
	s.ApplyLive(as(1, batch(0)))
	s.LoseDelta()
	passOn()
	s.ApplyLive(as(1, batch(1)))
	s.LoseDelta()
	passOn()
	if got := counts(follower); got != [2]uint64{} {
		t.Errorf("without a restart: %v", got)
	}
	for n := uint64(1); n <= 2; n++ {
		before := follower.Changes()
		s.ApplyLive(as(byte(n+1), batch(0)))
		passOn()
		if received, followed := counts(s), counts(follower); received != [2]uint64{n, n} || followed != received {
			t.Errorf("restarts and resets: %v at the receiver, %v at the follower, want %d", received, followed, n)
		}
		if follower.Changes() == before {
			t.Error("a restart changes nothing that a snapshot would have")
		}
	}
}

// A delta is news of the engine, whose time counts; a snapshot is none: it may be of any age.
func TestDelta_IsNewsAndASnapshotIsNot(t *testing.T) {
	_, s, batch := lone(t, false)
	s.Record(true)
	s.ApplyLive(batch(0))
	s.TakeDelta()
	snapshot := s.Snapshot()
	s.ApplyLive(batch(1))
	delta := s.TakeDelta()
	_, follower, _ := lone(t, false)
	if err := follower.Apply(snapshot); err != nil || !follower.State().Counts.LastBatch.IsZero() {
		t.Errorf("with a snapshot the last batch is of %v, %v", follower.State().Counts.LastBatch, err)
	}
	if err := follower.Apply(delta); err != nil || follower.State().Counts.LastBatch.IsZero() {
		t.Errorf("with a delta the last batch is of no time, %v", err)
	}
}

// FuzzApply: whatever a store gives back, the source is whole afterwards.
func FuzzApply(f *testing.F) {
	_, s := opened(f, Spec{})
	s.Record(true)
	s.ApplyLive(Message{Payload: good(wireForm{})})
	f.Add(s.TakeDelta()[deltaHead:])
	f.Add(s.Snapshot()[deltaHead:])
	f.Fuzz(func(t *testing.T, ops []byte) {
		ix, s := opened(t, Spec{})
		s.ApplyLive(Message{Payload: good(wireForm{})})
		s.mu.Lock()
		_ = s.applyOps(ops)
		s.recount()
		s.mu.Unlock()
		s.checkTree(t)
		s.Close()
		if left := ix.blocks.Load(); left != 0 {
			t.Errorf("%d blocks left", left)
		}
	})
}

// BenchmarkRestore: a snapshot of 250,000 blocks. Budget: 1 us a block (1 M entries/s).
func BenchmarkRestore(b *testing.B) {
	f := newFleet(b, 1)
	f.fill(250_000)
	snapshot := f.sources[0].Snapshot()
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			snapshot = f.sources[0].Snapshot()
		}
		b.ReportMetric(float64(len(snapshot))/250_000, "B/block")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/250_000, "ns/block")
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			to := newFleet(b, 1)
			if err := to.sources[0].Apply(snapshot); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/250_000, "ns/block")
	})
}
