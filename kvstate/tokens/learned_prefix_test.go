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

func TestExport_RestoresEverything(t *testing.T) {
	s := learnedSource(t, 64<<20)
	w := newTraffic(12)
	for range 300 {
		talk := w.next()
		s.Learn(promptOf(t, talk), encode(appends(talk, 0)))
	}
	restored, count, size := learnedSource(t, 64<<20), 0, 0
	s.Export(func(learned []byte) bool {
		if err := restored.Import(learned); err != nil {
			t.Fatal(err)
		}
		count++
		size += len(learned)
		return true
	})
	before, after := 0, 0
	for range 200 {
		talk := w.next()
		p := promptOf(t, talk)
		want, _ := s.Tokens(t.Context(), p)
		got, _ := restored.Tokens(t.Context(), p)
		before, after = before+len(want.IDs), after+len(got.IDs)
		if truth := encode(appends(talk, 0)); shared(got.IDs, truth) < len(got.IDs) {
			t.Fatalf("a false claim after the restart: %.200s", p.Body)
		}
	}
	tokens := 0
	for k := restored.memory.oldest; k != nil; k = k.newer {
		tokens += len(k.ids)
	}
	t.Logf("%d learned prefixes, %.2f bytes a token; known before %d tokens, after %d", count, float64(size)/float64(tokens), before, after)
	if float64(after) < .98*float64(before) {
		t.Errorf("%d tokens known, before the restart %d", after, before)
	}
}

func TestImport_RefusesWhatIsNoLearnedPrefix(t *testing.T) {
	s := learnedSource(t, 1<<20)
	p := promptOf(t, newTraffic(1).next())
	good := s.LearnedPrefix(p, []uint32{1, 2, 3})
	if err := s.Import(good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, {}, {0x99}, {learnedPrompt}, {learnedRule}, good[:len(good)-1], append(bytes.Clone(good), 0), append([]byte{0x11}, good[1:]...)} { // the last of version 1
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
		s.Learn(promptOf(f, talk), encode(appends(talk, 0)))
	}
	s.Export(func(learned []byte) bool { f.Add(learned); return true })
	f.Fuzz(func(t *testing.T, learned []byte) {
		into := learnedSource(t, 1<<20)
		if into.Import(learned) != nil {
			return
		}
		into.Export(func(again []byte) bool { // what was taken in is whole
			if err := into.Import(again); err != nil {
				t.Fatal(err)
			}
			return true
		})
		talk := newTraffic(3).next()
		into.Tokens(t.Context(), promptOf(t, talk))
		into.Learn(promptOf(t, talk), []uint32{1, 2, 3})
	})
}
