package pd

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/leader"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/predict"
)

// A session's requests stay with its servers where all are equally fast, and what another
// tenant calls by the same name goes where that tenant's own was; where each was is known
// afterwards.
func TestSession_OfATenantStaysWithItsServers(t *testing.T) {
	for p := range 2 {
		for d := range 2 {
			t.Run(fmt.Sprintf("p%d/d%d", p, d), func(t *testing.T) {
				f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2})
				if p == d { // and where requests are bound late
					decider := NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log)
					f.Binder.Late = decider
					ctx, stop := context.WithCancel(t.Context())
					var running sync.WaitGroup
					defer running.Wait()
					defer stop()
					running.Go(func() { decider.Run(ctx) })
				}
				at := func(p, d int) cost.Home {
					return cost.Home{Prefill: f.server(f.prefill[p]).ID(), Decode: f.server(f.decode[d]).ID()}
				}
				sessions, now := &f.Binder.sessions, time.Now()
				mine, others := predict.Session{Tenant: "a", Model: testModel, Hash: 7}, predict.Session{Tenant: "b", Model: testModel, Hash: 7}
				sessions.Observe(mine, at(p, d), now)
				sessions.Observe(others, at(1-p, 1-d), now)
				req := f.asks(api.Completions, more(api.Completions, false))
				req.Tenant, req.Session = "a", 7
				got := f.served(req)
				if is := (cost.Home{Prefill: got.Prefill, Decode: got.Decode}); is != at(p, d) || sessions.Home(mine, time.Now()) != is {
					t.Errorf("served at %+v, want %+v", is, at(p, d))
				}
				if is := sessions.Home(others, time.Now()); is != at(1-p, 1-d) {
					t.Errorf("another tenant's is at %+v", is)
				}
				first := f.asks(api.Completions, more(api.Completions, false))
				first.Tenant, first.Session = "c", 9
				got = f.served(first)
				if is := sessions.Home(predict.Session{Tenant: "c", Model: testModel, Hash: 9}, time.Now()); is != (cost.Home{Prefill: got.Prefill, Decode: got.Decode}) {
					t.Errorf("a new session is at %+v, served by %+v", is, got.Answer)
				}
			})
		}
	}
}

// Agents that branch off one conversation share its session, and each has its own servers: a turn
// belongs where the one before it was, though another agent's came in between; the first turns of
// others, and turns of which none is known, belong where the session was last.
func TestSession_EachBranchHasAHomeOfItsOwn(t *testing.T) {
	ch, now := &Chooser{}, time.Now()
	of := func(tenant string, whole, before uint64) *bindRequest {
		return &bindRequest{req: &Request{Tenant: tenant, Model: testModel, Session: 7}, prefix: &prefix{tokens: tokens.Tokens{Opening: 1, Whole: whole, Before: before}}}
	}
	at := func(prefill string) cost.Home { return cost.Home{Prefill: prefill, Decode: "d"} }
	served := func(r *bindRequest, home cost.Home) {
		own, _ := r.turns()
		ch.sessions.Observe(r.session(), home, now)
		ch.turns.Observe(own, home, now)
	}
	served(of("a", 10, 1), at("p0"))
	served(of("a", 20, 1), at("p1"))
	for name, c := range map[string]struct {
		request *bindRequest
		want    cost.Home
	}{
		"a next turn of the first":     {of("a", 11, 10), at("p0")},
		"of the second":                {of("a", 21, 20), at("p1")},
		"another agent":                {of("a", 30, 2), at("p1")},
		"one of which nothing is read": {&bindRequest{req: &Request{Tenant: "a", Model: testModel, Session: 7}}, at("p1")},
		"another tenant's":             {of("b", 11, 10), cost.Home{}},
	} {
		if got := ch.home(c.request, now); got != c.want {
			t.Errorf("%s: at home at %+v, want %+v", name, got, c.want)
		}
	}
}

// A turn that decode computes alone keeps its session's prefill server, so that the next turn with a
// prefill leg goes where those before it went, though another server is as good.
func TestSession_ATurnOfDecodeAloneKeepsItsPrefillServer(t *testing.T) {
	for p := range 2 {
		f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2})
		before := cost.Home{Prefill: f.server(f.prefill[p]).ID(), Decode: f.server(f.decode[0]).ID()}
		mine := predict.Session{Tenant: "a", Model: testModel, Hash: 7}
		f.Binder.sessions.Observe(mine, before, time.Now())
		turn := func(tokens int) reply {
			req := f.asks(api.Completions, more(api.Completions, false))
			req.Tenant, req.Session, req.PromptTokens = "a", 7, tokens
			return f.served(req)
		}
		if got := turn(8); got.Prefill != "" { // less than a block is not handed over
			t.Fatalf("prefilled by %s", got.Prefill)
		}
		if got := f.Binder.sessions.Home(mine, time.Now()); got != before {
			t.Errorf("a turn of decode alone leaves the session at %+v, want %+v", got, before)
		}
		if got := turn(40); got.Prefill != before.Prefill {
			t.Errorf("the turn behind it is prefilled by %s, want %s", got.Prefill, before.Prefill)
		}
	}
}

// A request belongs to the session that its client names, else to the conversation that its prompt
// shows, and else to none.
func TestSession_WithoutANameIsThatOfTheConversation(t *testing.T) {
	opened := &prefix{tokens: tokens.Tokens{Opening: 5}}
	for name, c := range map[string]struct {
		named  uint64
		prefix *prefix
		want   uint64
	}{
		"the client names it":    {7, opened, 7},
		"its prompt is read":     {0, opened, 5},
		"it opens no session":    {0, &prefix{}, 0},
		"its prompt is not read": {0, nil, 0},
	} {
		r := &bindRequest{req: &Request{Tenant: "a", Model: testModel, Session: c.named}, prefix: c.prefix}
		if got := r.session(); got != (predict.Session{Tenant: "a", Model: testModel, Hash: c.want}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The length of a session's next answer is predicted by its earlier ones, where the tenant names
// the session; another tenant's session of the same name is predicted as before.
func TestSession_ItsAnswersPredictTheNext(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	ask := func(tenant string, session uint64) int {
		req := f.asks(api.Completions, more(api.Completions, false))
		req.Tenant, req.Session, req.OutputTokens = tenant, session, predict.UnknownOutput
		req.MaxOutput, req.MaxField = 0, "" // the bound of its body is not known to the gateway
		f.served(req)
		return req.OutputTokens
	}
	for range 200 { // of all, longer than the engine's
		f.Binder.Outputs.Observe(predict.Answer{Model: testModel, Tenant: "a"}, 400, time.Now())
		f.Binder.Outputs.Observe(predict.Answer{Model: testModel, Tenant: "b"}, 400, time.Now())
	}
	if first := ask("a", 7); first < 300 {
		t.Fatalf("the first is predicted to have %d tokens", first)
	}
	ask("a", 7)
	if got := ask("a", 7); got > 200 {
		t.Errorf("the third of a session whose answers are short is predicted to have %d tokens", got)
	}
	for what, got := range map[string]int{"another tenant's": ask("b", 7), "another session's": ask("a", 8), "one without a session": ask("a", 0)} {
		if got < 300 {
			t.Errorf("%s is predicted to have %d tokens", what, got)
		}
	}
}

// leading is the order of a replica that leads.
type leading struct {
	leader.Order
	noReports
}

// Where another replica leads, a session's requests stay with its servers too: that replica never
// served the session, and gets to know where it was. Of a home that is gone nothing comes.
func TestSession_StaysWithItsServersWhereAnotherReplicaLeads(t *testing.T) {
	for i := range 4 {
		f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2}) // each anew: servers that have shown their speed seldom tie
		leads := &Chooser{Snapshotter: f.Binder.Snapshotter, Outputs: predict.NewOutputs(), Metrics: f.Metrics}
		decider := NewDecider(leads, order.DefaultConfig(), time.Minute, f.Log)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { decider.Run(ctx) })
		f.Binder.Late = NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Minute, f.Log) // whose turns nobody waits for
		f.Binder.Leader = follow(t, leading{Order: decider.RemoteRequests()}, noWork{})
		mine := predict.Session{Tenant: "a", Model: testModel, Hash: 7}
		home := cost.Home{Prefill: f.server(f.prefill[i/2]).ID(), Decode: f.server(f.decode[i%2]).ID()}
		f.Binder.sessions.Observe(mine, home, time.Now())
		ask := func() cost.Home {
			req := f.asks(api.Completions, more(api.Completions, false))
			req.Tenant, req.Session = "a", 7
			got := f.served(req)
			return cost.Home{Prefill: got.Prefill, Decode: got.Decode}
		}
		if got := ask(); got != home {
			t.Errorf("served at %+v, want %+v", got, home)
		}
		if is := leads.sessions.Home(mine, time.Now()); is != (cost.Home{}) {
			t.Errorf("the leader keeps another replica's session: %+v", is)
		}
		f.Binder.sessions.Observe(mine, cost.Home{Prefill: "gone:1", Decode: "gone:2"}, time.Now())
		if got := ask(); got.Decode == "" || f.Binder.sessions.Home(mine, time.Now()) != got {
			t.Errorf("behind a home that is gone: served at %+v", got)
		}
		stop()
		running.Wait()
	}
}
