package pd

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/ghost"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
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
	answer, err := json.Marshal(map[string]any{"token_ids": prompt})
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	f.Binder.Locality = NewLocality(f.Binder.Locality.Index, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode, cfg.AskWait = model, tokens.Engine, time.Millisecond
		return tokens.New(cfg, func(context.Context, string, []byte) ([]byte, error) {
			<-release
			return answer, nil
		}, nil)
	})
	t.Cleanup(f.Binder.Locality.Close)
	st := f.arrives(prompt, time.Now())
	if st.req.Body, err = api.ParseBody([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`)); err != nil {
		t.Fatal(err)
	}
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
	close(release)
	f.await(t, func() bool { _, ok := r.prefix.tokens.Later.Tokens(); return ok })
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
