package tokens

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

func textOfTalk(t testing.TB, talk []message) *text {
	t.Helper()
	p := promptOf(t, talk)
	text, ok := p.read()
	if !ok {
		t.Fatalf("not read: %s", p.Body)
	}
	return text
}

func TestMemory_KnowsTheSamePromptWhole(t *testing.T) {
	m := newMemory(1 << 20)
	text := textOfTalk(t, helloTalk)
	m.learn(text, []uint32{1, 2, 3}, ByPrefill)
	if c := m.recall(text); !c.complete || c.certain != 3 || !slices.Equal(c.ids, []uint32{1, 2, 3}) {
		t.Fatalf("%+v", c)
	}
}

// One known prompt proves nothing about others: the template may do anything with it.
func TestMemory_OneSampleClaimsNothing(t *testing.T) {
	m := newMemory(1 << 20)
	m.learn(textOfTalk(t, helloTalk), encode(appends(helloTalk, 0)), ByPrefill)
	for _, talk := range [][]message{
		{helloTalk[0], {"user", "Something else."}},
		append(helloTalk[:2:2], message{"assistant", "Hi."}, message{"user", "More."}),
	} {
		if c := m.recall(textOfTalk(t, talk)); len(c.ids) > 0 {
			t.Errorf("%d tokens claimed of %v", len(c.ids), talk)
		}
	}
}

// Two known prompts prove what they share, for a third one with the same tail and no
// other.
func TestMemory_TwoSamplesProveWhatTheyShare(t *testing.T) {
	system := message{"system", words(rand.New(rand.NewPCG(1, 1)), 200)}
	for _, c := range []struct {
		name   string
		render template
	}{{"appends", appends}, {"bare", bare}, {"system last", systemLast}} {
		m := newMemory(1 << 20)
		for _, question := range []string{"Why is the sky blue?", "How far is the moon?"} {
			talk := []message{system, {"user", question}}
			m.learn(textOfTalk(t, talk), encode(c.render(talk, 0)), ByPrefill)
		}
		third := []message{system, {"user", "Who wrote Faust?"}}
		truth := encode(c.render(third, 0))
		got := m.recall(textOfTalk(t, third))
		whole := len(encode(system.Content))
		if got.certain != len(got.ids) || shared(got.ids, truth) < len(got.ids) || len(got.ids) < whole-2*lookahead || len(got.ids) > whole+lookahead {
			t.Errorf("%s: %d tokens claimed, %d certain, %d right; the system prompt has %d", c.name, len(got.ids), got.certain, shared(got.ids, truth), whole)
		}
		later := append(third[:2:2], message{"assistant", "Goethe."}, message{"user", "When?"})
		if got := m.recall(textOfTalk(t, later)); len(got.ids) > 0 {
			t.Errorf("%s: %d tokens claimed of a prompt with another tail", c.name, len(got.ids))
		}
	}
}

// Once some conversations have shown how the template goes on, the next turn of any
// other is known up to what is new in it.
func TestMemory_NextTurnsAreKnown(t *testing.T) {
	m, rng := newMemory(1<<20), rand.New(rand.NewPCG(1, 1))
	for i := range 6 {
		talk := []message{{"system", words(rng, 100)}, {"user", words(rng, 40)}}
		before := encode(appends(talk, 0))
		m.learn(textOfTalk(t, talk), before, ByPrefill)
		talk = append(talk, message{"assistant", words(rng, 40)}, message{"user", words(rng, 40)})
		truth := encode(appends(talk, 0))
		got := m.recall(textOfTalk(t, talk))
		if shared(got.ids, truth) < len(got.ids) {
			t.Fatalf("conversation %d: a false claim", i)
		}
		if least := len(before) - lookahead - 4; i >= firstNeeded && len(got.ids) < least {
			t.Errorf("conversation %d: %d tokens claimed, want %d", i, len(got.ids), least)
		}
		m.learn(textOfTalk(t, talk), truth, ByPrefill)
	}
}

func TestMemory_ForgetsAContextThatContradicts(t *testing.T) {
	m, w := newMemory(1<<20), newTraffic(5)
	for range 50 {
		talk := w.next()
		m.learn(textOfTalk(t, talk), encode(appends(talk, 0)), ByPrefill)
	}
	talk := w.next()
	for len(m.recall(textOfTalk(t, talk)).ids) == 0 {
		talk = w.next()
	}
	if m.learn(textOfTalk(t, talk), encode(dated(talk, 7)), ByPrefill) {
		t.Fatal("the contradiction was not seen")
	}
	if m.count != 1 {
		t.Fatalf("%d prompts of a context that changed are still known", m.count)
	}
}

func TestMemory_StaysWithinItsBytes(t *testing.T) {
	const limit = 1 << 20
	m, w := newMemory(limit), newTraffic(9)
	for range 2000 {
		talk := w.next()
		m.learn(textOfTalk(t, talk), encode(appends(talk, 0)), ByPrefill)
		if m.bytes > limit {
			t.Fatalf("%d bytes", m.bytes)
		}
	}
	if m.count < 50 {
		t.Fatalf("only %d known", m.count)
	}
	for m.oldest != nil {
		m.dropLocked(m.oldest)
	}
	if m.bytes != 0 || m.count != 0 || len(m.index) != 0 || m.newest != nil {
		t.Fatalf("%d bytes, %d prompts, %d cuts are left of nothing", m.bytes, m.count, len(m.index))
	}
}

// What the memory counts is about what it takes.
func TestMemory_BytesAreAsCounted(t *testing.T) {
	m, rng := newMemory(1<<30), rand.New(rand.NewPCG(2, 2))
	var before, after runtime.MemStats
	var prompts [][]message
	for range 300 {
		talk := []message{{"system", words(rng, 20)}}
		for range 10 {
			talk = append(talk, message{"user", words(rng, 80)}, message{"assistant", words(rng, 80)})
		}
		prompts = append(prompts, talk)
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, talk := range prompts {
		m.learn(textOfTalk(t, talk), encode(appends(talk, 0)), ByPrefill)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("counted %d, took %d", m.bytes, took)
	if ratio := float64(took) / float64(m.bytes); ratio < .5 || ratio > 1.3 {
		t.Errorf("counted %d bytes, took %d", m.bytes, took)
	}
	runtime.KeepAlive(m)
	runtime.KeepAlive(prompts)
}

func TestMemory_ManyAtOnce(t *testing.T) {
	s := learnedSource(t, 1<<20)
	var all sync.WaitGroup
	for worker := range uint64(8) {
		all.Go(func() {
			w := newTraffic(worker % 3)
			for range 100 {
				talk := w.next()
				p, truth := promptOf(t, talk), encode(appends(talk, 0))
				got, _ := s.Tokens(t.Context(), p)
				if shared(got.IDs, truth) < len(got.IDs) {
					t.Error("a false claim")
					return
				}
				s.Learn(p, truth)
			}
		})
	}
	all.Wait()
}

func TestRule_IsReliedOnAfterExamplesAndLessAfterAViolation(t *testing.T) {
	l := rules{}.make(1, place{}, 0)
	for i := range 2 {
		if l.holds() {
			t.Fatalf("relied on after %d examples", i)
		}
		l.recordExample(i)
	}
	if !l.holds() || l.short != 1 {
		t.Fatalf("%+v", l)
	}
	l.recordViolation()
	l.recordViolation() // the same prompt elsewhere
	for range 15 {
		l.recordExample(0)
	}
	if l.holds() {
		t.Fatalf("relied on too soon after a violation: %+v", l)
	}
	if l.recordExample(0); !l.holds() {
		t.Fatalf("%+v", l)
	}
}

func TestLaws_AreBounded(t *testing.T) {
	m := rules{}
	for family := range uint64(3 * maxRules) {
		m.make(family, place{}, 0)
	}
	if len(m) > maxRules {
		t.Fatalf("%d rules", len(m))
	}
}

// A hostile client can send a prompt of a megabyte of tiny messages.
func TestMemory_ManyMessagesTakeNoLongTime(t *testing.T) {
	m := newMemory(64 << 20)
	talk := strings.Repeat(`{"role":"user","content":"ok"},`, 30_000)
	body := `{"messages":[` + talk + `{"role":"user","content":"x"}]}`
	p := Prompt{API: Chat, Body: []byte(body)}
	for i := range uint32(3) {
		text, ok := p.read()
		if !ok {
			t.Fatal("not read")
		}
		m.recall(text)
		m.learn(text, []uint32{1, 2, 3, i}, ByPrefill)
		text.free()
	}
}

// A next turn whose tokens leave those of the whole prompt before it early breaks the rule that
// it goes on there, and one that leaves them just before their end is an example of it. The same
// prompt once more is neither.
func TestMemory_NextTurnsShowWhetherTheTemplateGoesOn(t *testing.T) {
	whole := make([]uint32, 100)
	for i := range whole {
		whole[i] = uint32(i + 1)
	}
	next := append(helloTalk[:len(helloTalk):len(helloTalk)], message{"assistant", "Hello yourself."}, message{"user", "Go on."})
	for _, c := range []struct {
		name   string
		talk   []message
		same   int // leading tokens that the second prompt has in common with the first
		kept   int
		needed int
	}{
		{"it goes on at the end", next, 100, 1, firstNeeded},
		{"it lacks the opening of a turn", next, 100 - maxShort, 1, firstNeeded},
		{"it lacks more", next, 99 - maxShort, 0, 8 * firstNeeded},
	} {
		m := newMemory(1 << 20)
		m.learn(textOfTalk(t, helloTalk), whole, ByPrefill)
		second := textOfTalk(t, c.talk)
		m.learn(second, append(slices.Clone(whole[:c.same]), 1001, 1002, 1003), ByPrefill)
		r := m.rules.of(second.family, second.at(int32(len(textOfTalk(t, helloTalk).prints))), 0)
		if r == nil || r.kept != c.kept || r.needed != c.needed {
			t.Errorf("%s: the rule is %+v, want %d examples of %d", c.name, r, c.kept, c.needed)
		}
	}
	m := newMemory(1 << 20)
	for range 3 {
		m.learn(textOfTalk(t, helloTalk), whole, ByPrefill)
	}
	if len(m.rules) != 0 {
		t.Errorf("the same prompt three times makes %d rules", len(m.rules))
	}
}

// A prompt keeps 32 proofs. Of more the one goes that is nearest to the one before it, never the
// first nor the last.
func TestKnown_DropsTheProofNearestToTheOneBefore(t *testing.T) {
	k := &known{}
	var want []int32
	for i := range int32(maxProofs) {
		k.addProof(proof{cell: 10 * i, n: i})
		want = append(want, 10*i)
	}
	cells := func() (all []int32) {
		for _, p := range k.proofs {
			all = append(all, p.cell)
		}
		return all
	}
	if got := cells(); !slices.Equal(got, want) {
		t.Fatalf("kept are %v", got)
	}
	k.addProof(proof{cell: 153})
	if got := cells(); !slices.Equal(got, want) {
		t.Errorf("one at 153, 3 behind another: kept are %v", got)
	}
	k.addProof(proof{cell: 148})
	want = slices.DeleteFunc(want, func(cell int32) bool { return cell == 150 })
	want = slices.Insert(want, 15, 148)
	if got := cells(); !slices.Equal(got, want) {
		t.Errorf("one at 148, 2 before another: kept are %v, want %v", got, want)
	}
	k.addProof(proof{cell: 311}) // the last stays, however near it is
	if got := cells(); got[len(got)-1] != 311 || got[0] != 0 || len(got) != maxProofs {
		t.Errorf("one at the end: kept are %v", got)
	}
}

// Proofs that say the same of one place are one, with the tails of both.
func TestKnown_ProofsThatSayTheSameAreOne(t *testing.T) {
	k := &known{}
	k.addProof(proof{cell: 5, n: 7, tails: tails(0).with(1)})
	k.addProof(proof{cell: 5, n: 7, tails: tails(0).with(2)})
	if len(k.proofs) != 1 || k.proofs[0].tails != tails(0).with(1).with(2) {
		t.Errorf("two that say the same: %+v", k.proofs)
	}
	k.addProof(proof{cell: 5, n: 8, tails: tails(0).with(3)})
	k.addProof(proof{cell: 5, n: 7, full: true})
	k.addProof(proof{cell: 6, n: 7})
	if len(k.proofs) != 4 {
		t.Errorf("with three that say something else: %+v", k.proofs)
	}
}

// A place is within a message of several fields up to the last cell of that message, and only in
// messages of calls, or of kinds that are not known.
func TestKnown_IsWithinAMessageOfFieldsUpToItsEnd(t *testing.T) {
	k := &known{text: text{prints: make([]uint32, 30), turns: []turn{{first: 0, kind: user}, {first: 10, kind: call}, {first: 20, kind: other}}}}
	for _, c := range []struct {
		cell int32
		turn int
		want bool
	}{{5, 0, false}, {15, 1, true}, {20, 1, false}, {25, 2, true}, {30, 2, false}} {
		if got := k.fields(place{cell: c.cell, turn: c.turn}); got != c.want {
			t.Errorf("cell %d of message %d: %v, want %v", c.cell, c.turn, got, c.want)
		}
	}
	k.open = true
	if k.fields(place{cell: 15, turn: 1}) {
		t.Error("a prompt without messages has one of several fields")
	}
}
