package tokens

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

func learnedSource(t testing.TB, memoryBytes int64) *Source {
	t.Helper()
	cfg := Default()
	cfg.Model, cfg.Mode, cfg.MemoryBytes = "sim-model", Learned, memoryBytes
	s, err := New(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func promptOf(t testing.TB, talk []message) Prompt {
	return Prompt{API: Chat, Body: chatBody(t, talk, nil)}
}

// Two replicas that see half of the traffic each and exchange what they learned know as much as
// one that sees all of it.
func TestLearnedPrefix_ReplicasKnowTheSame(t *testing.T) {
	one, a, b := learnedSource(t, 64<<20), learnedSource(t, 64<<20), learnedSource(t, 64<<20)
	w := newTraffic(11)
	for i := range 300 {
		talk := w.next()
		p, ids := promptOf(t, talk), encode(appends(talk, 0))
		mine, other := a, b
		if i%2 == 1 {
			mine, other = b, a
		}
		want, _ := one.Tokens(t.Context(), p)
		got, _ := mine.Tokens(t.Context(), p)
		if !slices.Equal(got.IDs, want.IDs) || got.Certain != want.Certain {
			t.Fatalf("prompt %d: %d tokens known, %d certain; a single replica knows %d, %d", i, len(got.IDs), got.Certain, len(want.IDs), want.Certain)
		}
		one.Learn(p, ids)
		learned := mine.LearnedPrefix(p, ids)
		mine.Learn(p, ids)
		if err := other.Import(learned); err != nil {
			t.Fatal(err)
		}
	}
}

func TestImport_RefusesWhatIsNoLearnedPrefix(t *testing.T) {
	s := learnedSource(t, 1<<20)
	p := promptOf(t, newTraffic(1).next())
	good := s.LearnedPrefix(p, []uint32{1, 2, 3})
	if err := s.Import(good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, {}, {0x99}, {learnedPrompt}, {0x12}, good[:len(good)-1], append(bytes.Clone(good), 0), append(bytes.Clone(good[:len(good)-1]), 1), append([]byte{0x11}, good[1:]...)} { // the last of version 1
		if err := s.Import(bad); !errors.Is(err, errLearnedPrefix) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

func FuzzImport_NeverPanics(f *testing.F) {
	s := learnedSource(f, 1<<20)
	w := newTraffic(3)
	for range 20 {
		talk := w.next()
		f.Add(s.LearnedPrefix(promptOf(f, talk), encode(appends(talk, 0))))
	}
	f.Fuzz(func(t *testing.T, learned []byte) {
		into := learnedSource(t, 1<<20)
		if into.Import(learned) != nil {
			return
		}
		other := learnedSource(t, 1<<20)
		for k := into.memory.oldest; k != nil; k = k.newer { // what was taken in is whole
			if err := other.Import(k.encode(nil)); err != nil {
				t.Fatal(err)
			}
		}
		talk := newTraffic(3).next()
		into.Tokens(t.Context(), promptOf(t, talk))
		into.Learn(promptOf(t, talk), []uint32{1, 2, 3})
	})
}
