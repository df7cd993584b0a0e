package tokens

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// questionOn is a question on a document, and its tokens.
func questionOn(t testing.TB, document string, i int) (*text, []uint32) {
	talk := []message{{"system", document}, {"user", fmt.Sprintf("Which of it matters to %d?", i)}}
	return textOfTalk(t, talk), encode(appends(talk, 0))
}

// checkBytes compares what the memory counts with what its prompts take, and the memory of ids with who begins there.
func checkBytes(t testing.TB, m *memory) {
	t.Helper()
	var bytes int64
	groups := map[*sharedIDs]bool{}
	for k := m.oldest; k != nil; k = k.newer {
		bytes += k.bytes()
		if s := k.shared; s != nil {
			groups[s] = true
			if !slices.Contains(s.by, k) {
				t.Error("a prompt is not among those with which it shares")
			}
		}
	}
	for s := range groups {
		bytes += s.bytes()
		for _, k := range s.by {
			if k.shared != s || &k.ids[0] != &s.all[0] || len(k.ids) > len(s.all) {
				t.Error("prompts that share lie apart")
			}
		}
	}
	if bytes != m.bytes {
		t.Errorf("%d bytes are counted, they take %d", m.bytes, bytes)
	}
}

// The tokens of a document are there once, however many questions on it are known, and each is known to its end.
func TestMemory_QuestionsOnADocumentShareItsTokens(t *testing.T) {
	m := newMemory(1 << 30)
	document := words(rand.New(rand.NewPCG(3, 3)), 4000)
	const questions = 4
	for i := range questions {
		text, ids := questionOn(t, document, i)
		m.learn(text, ids, ByEngine)
		checkBytes(t, m)
	}
	in := map[*uint32]bool{}
	for k := m.oldest; k != nil; k = k.newer {
		in[&k.ids[0]] = true
	}
	if len(in) != 1 || m.count != questions {
		t.Errorf("%d prompts lie in %d pieces of memory", m.count, len(in))
	}
	for i := range questions {
		text, ids := questionOn(t, document, i)
		if c := m.recall(text); !c.complete || !slices.Equal(c.ids, ids) {
			t.Errorf("question %d: %d tokens of %d, complete %v", i, len(c.ids), len(ids), c.complete)
		}
		checkBytes(t, m)
	}
	for m.oldest != nil {
		m.dropLocked(m.oldest)
		checkBytes(t, m)
	}
}

// A claim about a document that others share copies nothing.
func TestMemory_AClaimAboutADocumentLiesInItsMemory(t *testing.T) {
	m := newMemory(1 << 30)
	document := words(rand.New(rand.NewPCG(4, 4)), 4000)
	for i := range 2 {
		text, ids := questionOn(t, document, i)
		m.learn(text, ids, ByEngine)
	}
	text, ids := questionOn(t, document, 2)
	c := m.recall(text)
	if n := shared(c.ids, ids); n < len(c.ids) || n < leastShared || &c.ids[0] != &m.newest.ids[0] {
		t.Errorf("%d tokens are claimed, %d are right", len(c.ids), n)
	}
}

// The next turn of a question that begins in the memory of another one covers it to its end.
func TestMemory_ANextTurnCoversAPromptThatShares(t *testing.T) {
	m, rng := newMemory(1<<30), rand.New(rand.NewPCG(7, 7))
	document := words(rng, 4000)
	first := []message{{"system", document}, {"user", words(rng, 60)}}
	other := []message{{"system", document}, {"user", words(rng, 60)}}
	next := append(first[:2:2], message{"assistant", words(rng, 20)}, message{"user", "Why?"})
	for _, talk := range [][]message{first, other, next} {
		m.learn(textOfTalk(t, talk), encode(appends(talk, 0)), ByEngine)
		checkBytes(t, m)
	}
	if m.count != 2 {
		t.Errorf("%d prompts are known, want the other one and the next turn", m.count)
	}
}

// Prompts that have their tokens in memory of their own again, since they were sent again, are forgotten where there is no
// room for it.
func TestMemory_WhatIsSharedNoMoreStaysWithinItsBytes(t *testing.T) {
	document := words(rand.New(rand.NewPCG(5, 5)), 4000)
	m := newMemory(1 << 30)
	const questions = 20
	for i := range questions {
		text, ids := questionOn(t, document, i)
		m.learn(text, ids, ByEngine)
	}
	m.limit = m.bytes
	for i := range questions {
		text, _ := questionOn(t, document, i)
		m.recall(text)
		if m.bytes > m.limit {
			t.Fatalf("%d bytes, the limit is %d", m.bytes, m.limit)
		}
	}
	checkBytes(t, m)
	if m.count == questions {
		t.Error("nothing was forgotten")
	}
}

// What is claimed stays true while documents, questions on them and conversations about those come in any order, and
// little is remembered at once.
func TestMemory_SharedTokensAreTrue(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	var documents []string
	for range 4 {
		documents = append(documents, words(rng, 2000))
	}
	for _, limit := range []int64{100 << 10, 1 << 20} {
		m := newMemory(limit)
		for range 400 {
			talk := []message{{"system", documents[rng.IntN(len(documents))]}, {"user", fmt.Sprintf("Which of it matters to %d?", rng.IntN(20))}}
			if rng.IntN(3) == 0 {
				talk = append(talk, message{"assistant", fmt.Sprint("Part ", rng.IntN(3))}, message{"user", "Why?"})
			}
			text, truth := textOfTalk(t, talk), encode(appends(talk, 0))
			c := m.recall(text)
			if shared(c.ids, truth) < len(c.ids) || c.complete && len(c.ids) != len(truth) {
				t.Fatalf("of %d tokens %d are claimed, and %d right", len(truth), len(c.ids), shared(c.ids, truth))
			}
			if !c.complete {
				m.learn(text, truth, ByEngine)
			}
			checkBytes(t, m)
			if m.bytes > limit {
				t.Fatalf("%d bytes", m.bytes)
			}
		}
	}
}
