package agents

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

// All runs have the same prompts: equal loads make equal sessions.
func TestWorkload_IsThatOfItsSeed(t *testing.T) {
	l := DefaultLoad()
	if !reflect.DeepEqual(newWorkload(&l, 1), newWorkload(&l, 1)) {
		t.Error("two workloads of one seed differ")
	}
	other := l
	other.Seed++
	if newWorkload(&l, 1).system == newWorkload(&other, 1).system {
		t.Error("another seed has the same system prompt")
	}
}

// The lengths are those that are asked for.
func TestWorkload_HasTheLengthsAskedFor(t *testing.T) {
	l := DefaultLoad()
	w, tok := newWorkload(&l, 2), bpe.Default()
	if n := len(tok.Encode(w.system)); n < 19_000 || n > 21_000 {
		t.Errorf("the system prompt has %d tokens", n)
	}
	large := 0
	for _, c := range w.all() {
		for i := range c.steps {
			s := &c.steps[i]
			if i > 0 && (s.think < l.ThinkLeast || s.think > l.ThinkMost) {
				t.Errorf("an agent thinks for %v", s.think)
			}
			if s.call == nil {
				if n := len(tok.Encode(s.asks)); n < 80 || n > 2400 {
					t.Errorf("a question has %d tokens", n)
				}
				continue
			}
			if n := len(s.call.result); n > 51_000 {
				t.Errorf("a tool returned %d bytes", n)
			} else if n > 10_000 {
				large++
			}
		}
	}
	if large < 6 {
		t.Errorf("%d results of 10 kB and more", large)
	}
}

// Each turn's body is valid, and begins with that of the turn before, but for marks and ends.
func TestAPIs_BodiesAreOfOneConversation(t *testing.T) {
	l := DefaultLoad()
	w := newWorkload(&l, 1)
	for _, a := range apis {
		head := a.head(modelName, w)
		for _, c := range w.all()[:3] {
			steps := 0
			for turn := range c.steps {
				var body map[string]json.RawMessage
				if err := json.Unmarshal(a.body(head, c, turn), &body); err != nil {
					t.Fatalf("%s, turn %d: %v", a.name, turn, err)
				}
				var items, tools []json.RawMessage
				key := "messages"
				if a == responses {
					key = "input"
				}
				if err := json.Unmarshal(body[key], &items); err != nil || len(items) <= steps {
					t.Errorf("%s, turn %d: %d items after %d: %v", a.name, turn, len(items), steps, err)
				}
				if err := json.Unmarshal(body["tools"], &tools); err != nil || len(tools) != l.Tools {
					t.Errorf("%s: %d tools: %v", a.name, len(tools), err)
				}
				steps = len(items)
			}
		}
	}
}

// The exact tokens of prompts are those that the engine computes, on each API, and a later
// turn's prompt begins with most of the one before.
func TestRequests_AreRenderedAsTheEngineDoes(t *testing.T) {
	l := DefaultLoad()
	l.SystemTokens, l.ResultBytes, l.Sessions, l.SubAgents = 1000, Range{1000, 2000}, 1, 1
	w := newWorkload(&l, 1)
	for _, a := range apis {
		all, err := newRequests(t.Context(), a, w)
		if err != nil {
			t.Fatal(err)
		}
		c := w.sessions[0]
		before, later := all.byTurn[turnKey{c, 0}], all.byTurn[turnKey{c, 1}]
		cache := newLRUs(1, 1<<20)[0]
		cache.serve(before)
		if n := cache.match(later); n < before.tokens*9/10 {
			t.Errorf("%s: the second turn begins with %d of %d tokens of the first", a.name, n, before.tokens)
		}
		if ample, half := all.blocksPerServer(Ample, 2), all.blocksPerServer(Half, 2); ample < all.distinct || half > all.distinct {
			t.Errorf("%s: caches of %d and %d blocks for %d", a.name, ample, half, all.distinct)
		}
	}
}
