package pd

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/histogram"
)

// answersLate is a chat of which an engine answers the tokens of the prompt too late: answer has it do so, once the request
// has been located, and waits until they are there.
func (f *testFleet) answersLate(t *testing.T, prompt []uint32, said string) (st *requestState, answer func()) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"token_ids": prompt})
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	f.Binder.Locality = NewLocality(f.Binder.Locality.Index, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode, cfg.AskWait = model, tokens.Engine, time.Millisecond
		return tokens.New(cfg, func(context.Context, string, []byte) ([]byte, error) {
			<-release
			return body, nil
		}, nil)
	})
	t.Cleanup(f.Binder.Locality.Close)
	st = f.arrives(prompt, time.Now())
	st.req.Body = requestOf(t, api.Chat, `{"model":"m","messages":[{"role":"user","content":"`+said+`"}]}`).Body
	return st, func() {
		t.Helper()
		close(release)
		f.await(t, func() bool { _, ok := st.bind.prefix.tokens.Later.Tokens(); return ok })
	}
}

// A request whose tokens an engine answered too late learns of them where it waits for its servers:
// what they hold of it, and how long it is.
func TestLocality_TokensThatComeLateCountWhereTheRequestStillWaits(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 1, prompt)
	st, answer := f.answersLate(t, prompt, strings.Repeat("What is it? ", 1000))
	st.req.Dialect, st.req.PromptTokens = api.Chat, 5000
	f.locatePrompt(t.Context(), st)
	held := func() (tokens, of int) {
		v := f.Binder.snapshotFor(&st.bind, nil, time.Now())
		return v.candidates.Prefill[0].Cached.GPU, f.Binder.demand(&st.bind, time.Now()).PromptTokens
	}
	if n, of := held(); n != 0 || of != 5000 || st.bind.prefix.unknown != tokens.Late {
		t.Errorf("%d of %d tokens are held while none are known: %s", n, of, st.bind.prefix.unknown)
	}
	answer()
	if n, of := held(); n != 1600 || of != len(prompt) || st.bind.certain != len(prompt) || st.bind.prefix.unknown != "" {
		t.Errorf("%d of %d tokens are held once they are known, %d certain, unknown %q", n, of, st.bind.certain, st.bind.prefix.unknown)
	}
}

// What siblings share is computed once, also where not all of their tokens are known yet: the text
// says what a server computes beyond those.
func TestLocality_WhatIsComputedIsKnownByTextBeyondTheKnownTokens(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 1, prompt)
	s := f.Fleet.Servers()
	of := func(last tokens.Chunk) *requestState {
		st := f.arrives(prompt[:1600], time.Now()) // they have 6400, of which the first quarter is known
		st.bind.prefix.tokens.Complete, st.req.PromptTokens = false, 6400
		st.bind.prefix.text = []tokens.Chunk{1, 2, 3, last}
		return st
	}
	first, sibling := of(4), of(5)
	f.Binder.snapshotFor(&first.bind, nil, time.Now())
	predicted := f.Binder.Locality.predict(first.bind.prefix, time.Minute, s[0], s[1])
	predicted.enter()
	held := func() int {
		v := f.Binder.snapshotFor(&sibling.bind, nil, time.Now())
		return v.candidates.Prefill[0].Cached.GPU
	}
	if n := held(); n != 4800-16 { // a block of 16 less
		t.Errorf("%d tokens of a sibling that shares three quarters are believed to be computed", n)
	}
	predicted.takeBack()
	if n := held(); n != 1600 {
		t.Errorf("withdrawn, %d tokens are believed to be held", n)
	}
}

// Once a server has computed a prompt, and its legs are sent, neither what was predicted nor the request keeps the
// chunks of its text, 6 KB of 200, for as long as its stream goes on, nor the request its ids, 200 KB, and what its servers
// held. What was computed is not taken back.
func TestLocality_AnOpenStreamKeepsNothingOfItsPrompt(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 2, prompt)
	s := f.Fleet.Servers()
	st := f.arrives(prompt, time.Now())
	chunks := []tokens.Chunk{1, 2, 3, 4}
	st.client, st.bind.prefix.text, st.bind.prefix.tokens.Text = st.req, chunks, chunks
	predicted := f.Binder.Locality.predict(st.bind.prefix, time.Minute, s[0], s[1])
	predicted.enter()
	predicted.comeTrue()
	predicted.takeBack()
	of, on := st.bind.prefix.saltedModel(), versionOf(s[0])
	if n := f.Binder.Locality.SentText.Computing(of, on, chunks); n != len(chunks) {
		t.Errorf("%d chunks are believed to be computed", n)
	}
	if predicted.enters != nil || predicted.withdraw != nil || predicted.computed != nil {
		t.Error("the prediction keeps them")
	}
	f.Binder.Locality.match(st.bind.prefix)
	if len(st.bind.prefix.hits.Chain().Hashes) == 0 {
		t.Fatal("nothing was looked up")
	}
	st.dropText()
	if p := st.bind.prefix; p.text != nil || p.tokens.Text != nil || p.tokens.IDs != nil || p.tokens.Hashed != nil {
		t.Error("the request keeps them, or its ids:", p.text, p.tokens.Text, len(p.tokens.IDs))
	}
	if got := st.bind.prefix.tokens.Count(); got != len(prompt) {
		t.Errorf("%d tokens of %d are said to be known", got, len(prompt))
	}
	if n := len(st.bind.prefix.hits.Chain().Hashes); n > 0 {
		t.Errorf("the request keeps %d hashes of its blocks", n)
	}
}

// What was received of a server's blocks is not believed of an engine with other weights that
// took its place.
func TestLocality_BlocksOfAnEngineThatWasReplacedDoNotCount(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 1, prompt)
	s := f.Fleet.Servers()[0]
	for name, c := range map[string]struct {
		classes map[string]uint64
		want    int
	}{
		"nothing is known of classes": {nil, 1600},
		"it is the same engine":       {map[string]uint64{s.ID(): s.CompatibilityKey()}, 1600},
		"it is another engine":        {map[string]uint64{s.ID(): s.CompatibilityKey() + 1}, 0},
		"others are known":            {map[string]uint64{"other": 1}, 1600},
	} {
		if c.classes != nil {
			f.Binder.Locality.SetSourceClasses(c.classes)
		}
		v := f.Binder.snapshotFor(&f.arrives(prompt, time.Now()).bind, nil, time.Now())
		if got := v.candidates.Prefill[0].Cached.GPU; got != c.want {
			t.Errorf("%s: it is believed to hold %d tokens, want %d", name, got, c.want)
		}
	}
}

// Prompts are counted by what an engine says of them; what is known to be held of them counts by
// tier, each token once, and what is guessed counts as nothing.
func TestMetrics_WhatIsGuessedIsNoHit(t *testing.T) {
	for name, c := range map[string]struct {
		prefix *prefix
		held   map[string]float64
		looked float64
	}{
		"its tokens are known":      {&prefix{known: true}, map[string]float64{"gpu": 30, "cpu": 20, "disk": 50}, 100},
		"its tokens are guessed":    {&prefix{known: true, tokens: tokens.Tokens{Chunks: []tokens.Chunk{1}}}, nil, 100},
		"approximate is the choice": {&prefix{known: true, tokens: tokens.Tokens{Chunks: []tokens.Chunk{1}, Mode: tokens.Approximate}}, map[string]float64{"gpu": 30, "cpu": 20, "disk": 50}, 100},
		"nothing is looked up":      {nil, nil, 0},
	} {
		f := newTestFleet(t, 1, testPrompt(160))
		st := f.arrives(testPrompt(160), time.Now())
		st.bind.prefix, st.hits = c.prefix, hits{server: "s", held: cached.Tokens{GPU: 30, CPU: 50, Disk: 900}}
		f.Metrics.countHits(st, api.Count{Known: true, Tokens: 100})
		f.Metrics.countHits(st, api.Count{})
		for _, tier := range []kvstate.Tier{kvstate.GPU, kvstate.CPU, kvstate.Disk} {
			if got := testutil.ToFloat64(f.Metrics.heldToks.WithLabelValues(testModel, tier.String())); got != c.held[tier.String()] {
				t.Errorf("%s: %v tokens count as held on %s, want %v", name, got, tier, c.held[tier.String()])
			}
		}
		if got := testutil.ToFloat64(f.Metrics.lookedUpToks.WithLabelValues(testModel)); got != c.looked {
			t.Errorf("%s: %v tokens count as looked up", name, got)
		}
	}
}

// What people see of a source is what was received of it; how late and how long ago is -1 where
// nothing came.
func TestLocality_StatusSaysWhatCameAndHowLate(t *testing.T) {
	var off *Locality
	if s := off.Status(); s.Sources == nil || s.Models == nil || len(s.Sources)+len(s.Models) != 0 {
		t.Errorf("without a locality: %+v", s)
	}
	index, err := kvstate.New(kvstate.Default())
	if err != nil {
		t.Fatal(err)
	}
	prompt := testPrompt(160)
	for server, age := range map[string]time.Duration{"now": time.Minute, "long ago": 48 * time.Hour, "silent": -1} {
		source, err := index.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: server, Rank: 1}, Model: testModel, BlockTokens: 16})
		if err != nil {
			t.Fatal(err)
		}
		if age >= 0 {
			source.ApplyLive(kvstate.Message{Seq: 7, Payload: storedAt(time.Now().Add(-age), prompt)})
		}
	}
	status := NewLocality(index, nil).Status()
	if len(status.Sources) != 3 || len(status.Models) != 1 {
		t.Fatalf("%+v", status)
	}
	for _, s := range status.Sources {
		blocks, batches, seq := len(prompt)/16, uint64(1), uint64(7)
		lag, age := s.LagSeconds >= 60 && s.LagSeconds < 120, s.AgeSeconds >= 0 && s.AgeSeconds < 60
		switch s.Server {
		case "silent":
			blocks, batches, seq = 0, 0, 0
			age = s.AgeSeconds == -1
			lag = s.LagSeconds == -1
		case "long ago": // by a clock that cannot be right
			lag = s.LagSeconds == -1
		}
		if !lag || !age || s.GPU != blocks || s.CPU+s.Disk != 0 || s.Batches != batches || s.Seq != seq || s.Rank != 1 || s.Model != testModel {
			t.Errorf("%+v", s)
		}
	}
}

// Series of servers that are gone are dropped, of every metric that has a server for a label; all others
// stay.
func TestMetrics_KeepDropsTheSeriesOfServersThatAreGone(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1})
	m := f.Metrics
	for _, server := range []string{"stays", "gone"} {
		for _, v := range []histogram.ByServer{m.prefill, m.firstEvent, m.itl} {
			v.Observe(t.Context(), "m", server, time.Second)
		}
		for _, v := range []*prometheus.CounterVec{m.missing, m.foreign, m.recomputes, m.mismatches, m.stranded, m.retained, m.brokenAfter} {
			v.WithLabelValues(server).Inc()
		}
		m.wait.WithLabelValues(server).Observe(1) // a model of that name
	}
	m.Keep(func(server string) bool { return server == "stays" })
	families, err := f.scraped.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, family := range families {
		for _, series := range family.GetMetric() {
			if has(series, []string{"server", "gone"}) {
				t.Errorf("%s has series of a server that is gone", family.GetName())
			}
			if has(series, []string{"server", "stays"}) {
				kept++
			}
		}
	}
	if models := f.metric("tandem_wait_seconds"); kept != 10 || models != 2 {
		t.Errorf("%d series of the other server are kept, %v of models", kept, models)
	}
}

// Of which requests no tokens are looked for, and why; and an adapter's prompt is the adapter's.
func TestFindTokens_WhereNoneAreLookedFor(t *testing.T) {
	cfg := tokens.Default()
	cfg.Model, cfg.Mode = testModel, tokens.Approximate
	l := NewLocality(nil, func(string) (*tokens.Source, error) { return tokens.New(cfg, nil, nil) })
	defer l.Close()
	for _, c := range []struct {
		dialect    *api.Dialect
		aggregated bool
		model      string
		want       tokens.Reason
		adapter    string
	}{
		{api.Embeddings, false, testModel, tokens.NotGenerated, ""},
		{api.Chat, true, testModel, tokens.Aggregated, ""},
		{api.Chat, false, testModel, "", ""},
		{api.Completions, false, "ada", "", "ada"},
	} {
		req := requestOf(t, c.dialect, `{"model":"m",`+strings.ReplaceAll(promptOf(c.dialect), longPrompt, strings.Repeat(longPrompt, 50))+`}`)
		req.Aggregated, req.Model = c.aggregated, c.model
		p := l.findTokens(t.Context(), req, testModel)
		if looked := c.want == ""; (p.source != nil) != looked || !looked && p.unknown != c.want || p.known != looked || p.prompt.Adapter != c.adapter || p.model != testModel {
			t.Errorf("%s, whole %v, %s: %+v", c.dialect.Name, c.aggregated, c.model, p)
		}
	}
}

// newTestLocality is one whose engines render chats, so that messages are translated.
func newTestLocality(t *testing.T) *Locality {
	t.Helper()
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode, cfg.AskOver = model, tokens.Engine, 0
		return tokens.New(cfg, func(_ context.Context, path string, _ []byte) ([]byte, error) {
			if path != "/v1/chat/completions/render" {
				return nil, tokens.ErrNotServed
			}
			return []byte(`{"token_ids":[1,2,3]}`), nil
		}, nil)
	})
	t.Cleanup(l.Close)
	return l
}

// In which contexts the translation of prompts is wrong, one replica knows from what another one's
// answers have counted: before its first request of that agent.
func TestLocality_ReplicasKnowWhichTranslationsAreWrong(t *testing.T) {
	a, b := newTestLocality(t), newTestLocality(t)
	message := func(text string) *Request {
		return requestOf(t, api.Messages, `{"model":"`+testModel+`","max_tokens":9,"system":"be brief","messages":[{"role":"user","content":"`+text+`"}]}`)
	}
	finds := func(l *Locality, text string) *prefix { return l.findTokens(t.Context(), message(text), testModel) }
	reports := func(to *Locality) {
		now := time.Now()
		to.Tokens.ReceiveDisproved(a.Tokens.Disproved(now), 0, now)
	}
	if p := finds(b, "before"); !p.isClaimed() {
		t.Fatalf("the translation is not used: %+v", p)
	}
	finds(a, "one").counted(4)
	reports(b)
	for _, text := range []string{"before", "another"} {
		if p := finds(b, text); p.isClaimed() || p.unknown != tokens.Wrong {
			t.Errorf("b uses the translation that a found wrong: %q, known %v, %q", text, p.known, p.unknown)
		}
	}
	late := newTestLocality(t) // whose models' sources open after it was told
	reports(late)
	finds(late, "opens it")
	reports(late)
	if p := finds(late, "another"); p.isClaimed() {
		t.Error("one that starts uses the translation that a found wrong")
	}
}

// A prompt of whose tokens nothing is known goes by its text, and that counts as known: what was
// sent where is known of text as well.
func TestLocality_APromptThatIsNotKnownGoesByItsText(t *testing.T) {
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode = model, tokens.Learned
		return tokens.New(cfg, nil, nil)
	})
	defer l.Close()
	long := requestOf(t, api.Completions, `{"model":"m","prompt":"`+strings.Repeat("the river and the bridge ", 400)+`"}`)
	if p := l.findTokens(t.Context(), long, testModel); !p.known || len(p.tokens.Chunks) == 0 || !p.isGuessed() {
		t.Errorf("known %v, %d chunks, guessed %v", p.known, len(p.tokens.Chunks), p.isGuessed())
	}
	long.Aggregated = true
	if p := l.findTokens(t.Context(), long, testModel); p.known || p.source != nil {
		t.Error("a request that shares nothing is looked up")
	}
}

// The token ids that a prefill server answers are learned, and the next equal prompt is known by
// them; an answer without ids teaches nothing.
func TestLocality_LearnsThePromptsTokensFromPrefillsAnswer(t *testing.T) {
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Model, cfg.Mode = model, tokens.Learned
		return tokens.New(cfg, nil, nil)
	})
	defer l.Close()
	req := requestOf(t, api.Completions, `{"model":"m","prompt":"`+strings.Repeat("the river and the bridge ", 40)+`"}`)
	finds := func() *prefix { return l.findTokens(t.Context(), req, testModel) }
	l.learn(finds(), answered(t, `{"choices":[]}`))
	if p := finds(); len(p.tokens.IDs) != 0 {
		t.Fatalf("%d tokens are known of an answer without ids", len(p.tokens.IDs))
	}
	l.learn(finds(), answered(t, `{"prompt_token_ids":[`+strings.TrimSuffix(strings.Repeat("7,", 240), ",")+`]}`))
	if p := finds(); len(p.tokens.IDs) == 0 {
		t.Error("nothing is known of the prompt that was learned")
	}
}

// Where nothing is known of what servers hold a request is counted as one whose tokens are not looked for.
func TestLocatePrompt_WithoutALocality(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1, orchestrator: func(o *Orchestrator) { o.Binder.Locality = nil }})
	f.served(f.asks(api.Chat, more(api.Chat, false)))
	f.wantMetrics(map[string]float64{"tandem_tokens_unknown_total": 1, "tandem_tokens_unknown_total{reason=" + string(tokens.Off) + "}": 1})
	if slices.Contains(f.steps(), "locate") {
		t.Errorf("its steps are %v", f.steps())
	}
	f.nothingIsLeft()
}
