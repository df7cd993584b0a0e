package pd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// besideSidecars are engines of which those that decode have llm-d's sidecar.
func besideSidecars(prefill, decode int) fleetShape {
	return fleetShape{prefill: prefill, decode: decode, engine: func(c *engine.Config) { c.Connector = engine.ConnectorSidecar }}
}

func (f *engineFleet) pick(req *Request) *Pick {
	f.t.Helper()
	p, err := f.Pick(f.t.Context(), req)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// proxy sends a picked request, as the proxy that asked would, and returns the answer.
func (f *engineFleet) proxy(p *Pick, d *api.Dialect) (*http.Response, []byte) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, p.Decode().URL+d.Path, bytes.NewReader(p.Body().Bytes()))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header = p.Header()
	if req.Header == nil {
		req.Header = make(http.Header)
	}
	req.Header.Set("Content-Type", "application/json")
	p.MarkSent()
	resp, err := f.Transport.RoundTrip(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, body
}

// The servers of a pick are claimed like those of a run, prefill is named to decode's sidecar, and
// all of it is given back once, however often and whenever it is released.
func TestPick_HoldsItsServersUntilItIsReleased(t *testing.T) {
	f := newEngineFleet(t, besideSidecars(2, 2))
	p := f.pick(f.asks(api.Chat, more(api.Chat, false)))
	from, to := p.Prefill(), p.Decode()
	if from == nil || p.Header().Get("X-Prefiller-Host-Port") != from.Address() {
		t.Fatalf("prefill is %v, decode is told %q", from, p.Header())
	}
	now := time.Now()
	if from.InFlight(pools.Prefill, now).Requests != 1 || to.InFlight(pools.Decode, now).Requests != 1 {
		t.Errorf("%s holds %+v, %s %+v", from.ID(), from.InFlight(pools.Prefill, now), to.ID(), to.InFlight(pools.Decode, now))
	}
	if _, inFlight := f.Queue.Len(); inFlight != 1 {
		t.Errorf("%d are in flight", inFlight)
	}
	if others := p.Fallbacks(5); len(others) != 1 || others[0].ID() == to.ID() || !others[0].Role.Serves(pools.Decode) {
		t.Errorf("it falls back to %v", others)
	}
	p.Release()
	p.Release()
	p.Settle(api.Usage{}) // behind the end: it counts for nothing
	f.nothingIsLeft()
	f.wantMetrics(map[string]float64{"tandem_output_tokens_total": 0})
}

// Of a whole answer that passes by nothing says when its prompt was computed: neither the server that
// decode's sidecar asks nor a decode server without one seems busy until it is there.
func TestPick_AWholeAnswerKeepsNoPromptAhead(t *testing.T) {
	for _, prefill := range []int{0, 1} {
		f := newEngineFleet(t, besideSidecars(prefill, 1))
		req := f.asks(api.Chat, more(api.Chat, false))
		req.PromptTokens = 100_000 // a busy machine takes longer for what follows than a short prompt is believed to
		p := f.pick(req)
		at := p.Decode()
		if prefill > 0 {
			at = p.Prefill()
		}
		p.MarkSent()
		later := time.Now().Add(time.Hour)
		if before, after := at.InFlight(pools.Prefill, time.Now()), at.InFlight(pools.Prefill, later); before.Requests != 1 || after.Requests != 0 || after.Queue != 0 {
			t.Errorf("%d prefill servers: %+v is ahead, an hour later %+v", prefill, before, after)
		}
		p.Settle(api.Usage{Output: api.Count{Tokens: 9, Known: true}})
		p.Release()
		f.nothingIsLeft()
	}
}

// What a proxy reports of an answer counts and teaches what the same answer does that passes
// through: tokens, lengths, times, and what becomes of the decision.
func TestPick_AnAnswerThatPassesByTeachesAsOneOfRun(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newEngineFleet(t, besideSidecars(1, 1))
		f.Binder.Prompts = predict.NewPrompts()
		asked := more(api.Chat, stream)
		if stream {
			asked += `,"stream_options":{"include_usage":true}`
		}
		request := func() *Request {
			req := f.asks(api.Chat, asked)
			req.Size = predict.Prompt{Model: testModel, API: api.Chat.Name, Rough: 1000}
			return req
		}
		names := []string{"tandem_prompt_tokens_total", "tandem_output_tokens_total", "tandem_prompt_prediction_ratio", "tandem_output_prediction_ratio",
			"tandem_ttft_seconds", "tandem_decode_first_event_seconds", "tandem_itl_seconds"}
		read := func() (sums []float64) {
			for _, name := range names {
				sums = append(sums, f.metric(name))
			}
			return sums
		}
		before := read()
		f.served(request())
		f.nothingIsLeft()
		run := read()
		p := f.pick(request())
		_, body := f.proxy(p, api.Chat)
		a := api.NewPassingAnswer(api.Chat, stream, 1)
		_, n := a.Add(body)
		for range n {
			p.RecordContent(false, time.Now())
		}
		a.End()
		if !a.Complete {
			t.Fatalf("the answer is not complete: %s", body)
		}
		p.Settle(a.Usage)
		p.Release()
		f.nothingIsLeft()
		for i, sum := range read() {
			if got, want := sum-run[i], run[i]-before[i]; got != want {
				t.Errorf("stream %v: %s grows by %v, by %v when it passes through", stream, names[i], got, want)
			}
		}
		decision, found := f.Decisions.Find("r")
		if !found || decision.Outcome != "picked" || decision.Choices[0].Outcome != "" || decision.Choices[0].Measured.Whole == 0 {
			t.Errorf("stream %v: the decision is %+v", stream, decision)
		}
	}
}

// A proxy sends one leg: servers of which decode does not call prefill itself run alone.
func TestPick_APairNeedsADecodeThatCallsPrefill(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	p := f.pick(f.asks(api.Chat, more(api.Chat, false)))
	defer p.Release()
	if p.Prefill() != nil || len(p.Header()) != 0 {
		t.Errorf("prefill is %v, decode is told %v", p.Prefill(), p.Header())
	}
}

// Where a proxy limits a request to some servers it goes to none beside them, and nowhere if none
// of them can take it.
func TestPick_StaysInItsSubset(t *testing.T) {
	f := newEngineFleet(t, besideSidecars(2, 3))
	want := f.server(f.decode[2])
	for range 10 {
		req := f.asks(api.Chat, more(api.Chat, false))
		req.Subset = pools.NewSubset([]string{want.Address(), f.server(f.prefill[0]).Address()})
		p := f.pick(req)
		if p.Decode().ID() != want.ID() || len(p.Fallbacks(5)) != 0 {
			t.Errorf("it goes to %s, then to %v", p.Decode().ID(), p.Fallbacks(5))
		}
		p.Release()
	}
	for _, addresses := range [][]string{nil, {"10.1.1.1:80"}} {
		req := f.asks(api.Chat, more(api.Chat, false))
		req.Subset = pools.NewSubset(addresses)
		var none *NoServerError
		if _, err := f.Pick(t.Context(), req); !errors.As(err, &none) {
			t.Errorf("of %v: %v", addresses, err)
		}
	}
	f.nothingIsLeft()
}

// What goes wrong with an answer is held against the server as it is when the answer passes
// through, and the place is given back.
func TestPick_FailuresCountAgainstTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		report  func(*Pick)
		ejected bool
	}{
		"a 500":          {func(p *Pick) { p.Refuse(500, http.Header{}, []byte(`{}`)) }, true},
		"no connection":  {func(p *Pick) { p.Unsent() }, true},
		"cut short":      {func(p *Pick) { p.Break("", nil, api.Usage{}) }, true},
		"an error event": {func(p *Pick) { p.Break("no memory", []byte(`{"error":{"code":500}}`), api.Usage{}) }, true},
		"a stream that broke": {func(p *Pick) {
			p.RecordContent(false, time.Now())
			p.Break("", nil, api.Usage{})
		}, true},
		"the request's own fault": {func(p *Pick) { p.Refuse(400, http.Header{}, []byte(`{}`)) }, false},
		"a client that left":      {func(p *Pick) { p.Leave(api.Usage{}) }, false},
	} {
		f := newEngineFleet(t, fleetShape{decode: 2})
		bad := f.server(f.decode[0])
		refused := false // and perhaps back since: its engine passes the probe request that a failure asks for
		for range 40 {
			req := f.asks(api.Chat, more(api.Chat, true))
			req.Subset = pools.NewSubset([]string{bad.Address()})
			p, err := f.Pick(t.Context(), req)
			if refused = err != nil; refused {
				break
			}
			p.MarkSent()
			c.report(p)
			p.Release()
			f.Wait()
		}
		if refused != c.ejected {
			t.Errorf("%s, many times: ejected %v, want %v", name, refused, c.ejected)
		}
		f.nothingIsLeft()
	}
}

// Where the proxy has gone on to a fallback, that server carries the request, and the first is
// looked at.
func TestPick_MovesToTheServerThatServed(t *testing.T) {
	f := newEngineFleet(t, besideSidecars(1, 2))
	p := f.pick(f.asks(api.Chat, more(api.Chat, false)))
	first, second := p.Decode(), p.Fallbacks(1)[0]
	p.MarkSent()
	p.MoveTo("10.1.1.1:80") // none of ours
	p.MoveTo(second.Address())
	now := time.Now()
	if first.InFlight(pools.Decode, now).Requests != 0 || second.InFlight(pools.Decode, now).Requests != 1 || p.Decode().ID() != second.ID() {
		t.Errorf("%+v at the first, %+v at the second", first.InFlight(pools.Decode, now), second.InFlight(pools.Decode, now))
	}
	p.Settle(api.Usage{Prompt: api.Count{Tokens: 40, Known: true}, Output: api.Count{Tokens: 3, Known: true}})
	p.Release()
	f.nothingIsLeft()
}

// A client that leaves while its request waits for a place leaves nothing behind.
func TestPick_AClientThatLeavesWhileItWaits(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := f.Pick(ctx, f.asks(api.Chat, more(api.Chat, false))); err == nil {
		p.Release() // there was a place at once
	}
	f.nothingIsLeft()
}

// The cheapest other server comes first among those to fall back to.
func TestPick_FallbacksAreInTheOrderOfTheirCost(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 4})
	req := func() *Request { return f.asks(api.Chat, more(api.Chat, false)) }
	var busy []*Pick
	for i, n := range []int{0, 1, 2, 3} {
		for range n * 8 {
			only := req()
			only.Subset = pools.NewSubset([]string{f.server(f.decode[i]).Address()})
			busy = append(busy, f.pick(only))
		}
	}
	p := f.pick(req())
	got := []string{p.Decode().ID()}
	for _, s := range p.Fallbacks(5) {
		got = append(got, s.ID())
	}
	var want []string
	for _, e := range f.decode {
		want = append(want, f.server(e).ID())
	}
	if !slices.Equal(got, want) {
		t.Errorf("it goes to %v, want %v", got, want)
	}
	for _, p := range append(busy, p) {
		p.Release()
	}
	f.nothingIsLeft()
}

// Prefill has done its part when the answer begins, or when it is there at once: its place is given
// back then, while decode's is held on.
func TestPick_AnAnswerThatBeginsFreesPrefill(t *testing.T) {
	for name, report := range map[string]func(*Pick){
		"its first content": func(p *Pick) { p.RecordContent(false, time.Now()) },
		"all of it":         func(p *Pick) { p.Settle(api.Usage{}) },
	} {
		f := newEngineFleet(t, besideSidecars(1, 1))
		req := f.asks(api.Chat, more(api.Chat, false))
		req.PromptTokens = 100_000 // a busy machine takes longer for what follows than a short prompt is believed to
		p := f.pick(req)
		p.MarkSent()
		if n := p.Prefill().InFlight(pools.Prefill, time.Now()).Requests; n != 1 {
			t.Errorf("%s: %d are on prefill before", name, n)
		}
		from := p.Prefill()
		report(p)
		if n := from.InFlight(pools.Prefill, time.Now()).Requests; n != 0 {
			t.Errorf("%s: %d are on prefill behind it", name, n)
		}
		p.Release()
		f.nothingIsLeft()
	}
}

// The rank that decodes is named to a server of several, and what engines schedule by is in the body.
func TestPick_NamesTheRankAndThePriority(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	rank := 3
	if err := f.Fleet.Apply([]pools.Spec{{URL: "http://10.8.0.1:8000", Role: pools.Decode, Connector: "nixl", Rank: &rank}}); err != nil {
		t.Fatal(err)
	}
	f.await(t, f.up)
	for _, by := range []bool{false, true} {
		f.Config.EnginePriority = by
		p, err := f.Pick(t.Context(), f.pairRequest(t, false))
		if err != nil {
			t.Fatal(err)
		}
		if named := p.Header().Get("X-Data-Parallel-Rank"); named != "3" {
			t.Errorf("rank 3 is named %q", named)
		}
		body := p.Body()
		if has := !body.Get("priority").Null(); has != by {
			t.Errorf("by priority %v: the body has one: %v", by, has)
		}
		p.Release()
	}
}

// Of a stream that its client left counts what came of it; the server is to blame for nothing.
func TestPick_WhatALeftStreamSaidCounts(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1})
	for name, c := range map[string]struct {
		events int
		grows  float64
	}{"it had begun": {1, 3}, "nothing came": {0, 0}} {
		before := f.metric("tandem_output_tokens_total")
		p := f.pick(f.asks(api.Chat, more(api.Chat, true)))
		p.MarkSent()
		for range c.events {
			p.RecordContent(false, time.Now())
		}
		p.Leave(api.Usage{Output: api.Count{Tokens: 3, Known: true}})
		p.Release()
		if grows := f.metric("tandem_output_tokens_total") - before; grows != c.grows {
			t.Errorf("%s: %v tokens count", name, grows)
		}
		f.nothingIsLeft()
	}
	if s := f.server(f.decode[0]); !s.Health().Up || s.Breaker(pools.Decode, time.Now()) != breaker.Closed {
		t.Error("the server is out")
	}
}

// A request of which servers have died gets none, and one whose servers cannot be made ready fails as
// it does in a run, and says so where decisions are kept.
func TestPick_WhereThereIsNoneToPick(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1, adapters: []string{"ada"}, orchestrator: func(o *Orchestrator) { o.Config.MaxRetries = 0 }})
	deadly := f.asks(api.Chat, more(api.Chat, false))
	for i, server := range []string{"a:1", "b:1"} {
		f.Suspects.RecordDeath(deadly.Fingerprint(), retry.Death{Server: server, Sent: time.Now().Add(time.Duration(i) * time.Hour)}, time.Now())
	}
	if p, err := f.Pick(t.Context(), deadly); p != nil || !errors.Is(err, retry.ErrQuarantined) {
		t.Errorf("two servers died of it: %v, %v", p, err)
	}
	f.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: "/v1/load_lora_adapter"})
	var failed *LegError
	p, err := f.Pick(t.Context(), requestOf(t, api.Chat, `{"model":"ada",`+promptOf(api.Chat)+`}`))
	if p != nil || !errors.As(err, &failed) || failed.Kind != Unready {
		t.Errorf("its adapter is not there: %v, %v", p, err)
	}
	if decision, found := f.Decisions.Find("r"); !found || decision.Outcome == "picked" || decision.Outcome == "" {
		t.Errorf("its adapter is not there: %+v", decision)
	}
	f.nothingIsLeft()
}

// How an answer failed is kept beside the choice of its servers.
func TestPick_AFailureIsKeptBesideItsChoice(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 1})
	p := f.pick(f.asks(api.Chat, more(api.Chat, false)))
	p.MarkSent()
	p.Refuse(http.StatusInternalServerError, http.Header{}, []byte(`{}`))
	p.Release()
	if decision, found := f.Decisions.Find("r"); !found || !strings.Contains(decision.Choices[0].Outcome, "500") {
		t.Errorf("the decision is %+v", decision)
	}
	f.nothingIsLeft()
}

// Once a request is sent nothing reads its text: where an engine is asked for its tokens still, that is by a copy.
func TestPick_NothingReadsItsTextOnceItIsSent(t *testing.T) {
	overwritten, asked := make(chan struct{}), make(chan string, 8)
	asking := func(_ context.Context, _ string, body []byte) ([]byte, error) {
		<-overwritten
		asked <- string(body)
		return nil, tokens.ErrRefused
	}
	f := newEngineFleet(t, besideSidecars(1, 1))
	f.Binder.Locality = NewLocality(f.Binder.Locality.Index, func(model string) (*tokens.Source, error) {
		cfg := tokens.Default()
		cfg.Mode, cfg.Model, cfg.AskWait = tokens.Engine, model, time.Millisecond
		return tokens.New(cfg, asking, nil)
	})
	t.Cleanup(f.Binder.Locality.Close)
	req := requestOf(t, api.Chat, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("word ", 1000)+`"}],"max_tokens":8}`)
	source := req.Body.Source()
	p := f.pick(req)
	p.MarkSent()
	clear(source)
	close(overwritten)
	if body := <-asked; !strings.Contains(body, "word word") {
		t.Errorf("the engine was asked for %.200s", body)
	}
	p.Release()
}
