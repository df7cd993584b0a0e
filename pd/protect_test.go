package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/ghost"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools"
)

// remembers has the fleet remember prompts, for caches of a million tokens.
func (f *testFleet) remembers() *ghost.Memory {
	f.Binder.Ghosts = new(ghost.Memories)
	memory := f.Binder.Ghosts.Of(testModel)
	memory.Enter(&ghost.Prompt{BlockTokens: 16}, 0, func() int { return 1 << 20 })
	return memory
}

// A prompt of which more is known once it was entered, or whose request begins anew then, does not find itself among those
// that came before.
func TestLookUpSeen_APromptDoesNotFindItself(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 1, nil)
	f.remembers()
	st, answer := f.answersLate(t, prompt, "hi")
	f.locatePrompt(t.Context(), st)
	r := &st.bind
	r.prefix.known, r.prefix.tokens.IDs = true, prompt[:3200]
	enters := func() {
		f.Binder.snapshotFor(r, nil, time.Now())
		f.Binder.enterSeen(r)
	}
	enters()
	if r.returns.seen != 0 || r.returns.new != 3200 {
		t.Errorf("as it comes: %+v", r.returns)
	}
	answer()
	if enters(); r.returns.seen != 0 || r.returns.new != 6400 {
		t.Errorf("once more of it is known: %+v", r.returns)
	}
	f.reset(st)
	r.prefix = f.arrives(prompt, time.Now()).bind.prefix
	if enters(); r.returns.seen != 0 || r.returns.new != 6400 {
		t.Errorf("once its request begins anew: %+v", r.returns)
	}
	again := &f.arrives(prompt, time.Now()).bind
	if f.Binder.snapshotFor(again, nil, time.Now()); again.returns.seen != 3072 {
		t.Errorf("another one that begins alike: %+v", again.returns)
	}
}

// What an endpoint picker is asked for is not remembered, and not looked up: its prompts fetch nothing.
func TestLookUpSeen_NotWhatAProxySends(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 1, nil)
	memory := f.remembers()
	for _, proxied := range []bool{true, false} {
		r := &f.arrives(prompt, time.Now()).bind
		r.req.proxied = proxied
		f.Binder.snapshotFor(r, nil, time.Now())
		f.Binder.enterSeen(r)
		p := r.knownBlocks()
		if seen := memory.Seen(&p); (seen == 0) != proxied || (r.returns.new == 0) != proxied {
			t.Errorf("sent by a proxy %v: %d tokens are remembered, of its own %+v", proxied, seen, r.returns)
		}
	}
}

// As much is remembered as the caches hold that may be protected: of ranks that step together none is.
func TestProtectable_CountsWhatMayBeProtected(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 3, engine: func(cfg *engine.Config) { cfg.Version = "0.32.0" }})
	f.identified()
	known := func(s *pools.Server) bool { return s.Load().KVTokens.Known }
	var specs []pools.Spec
	for _, s := range f.Fleet.Servers() {
		spec := s.Spec
		if s == f.server(f.decode[1]) || s == f.server(f.decode[2]) {
			spec.Group = "ranks"
		}
		specs = append(specs, spec)
		if _, err := f.Binder.Locality.Index.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: spec.ID()}, Model: testModel, BlockTokens: 16}); err != nil {
			t.Fatal(err)
		}
		f.eventually("it says what it holds", func() bool { return known(s) })
	}
	counted := func() int {
		st := f.longRequest(6400, 6400)
		f.Binder.match(&st.bind)
		return f.Binder.protectable(&st.bind)
	}
	each := kvTokens(f.server(f.decode[0]), time.Now())
	if n := counted(); n != 3*each || each == 0 {
		t.Errorf("%d tokens are counted of three servers with %d each", n, each)
	}
	if err := f.Fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	if n := counted(); n != each {
		t.Errorf("%d tokens are counted of one server with %d, and two ranks that step together", n, each)
	}
}
