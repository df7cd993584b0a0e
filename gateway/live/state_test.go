package live

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// Of each server the page shows what it is, whether it takes requests and why not, what runs on it,
// and what it has loaded; what is not known is left out, and is no zero.
func TestState_OfServers(t *testing.T) {
	now := time.Now() // of claims
	s := sourceOf(t,
		pools.Spec{URL: "http://d1:8000", Role: pools.Decode, Rack: "r1", Zone: "z"},
		pools.Spec{URL: "http://p1:8000", Role: pools.Prefill, Connector: "nixl"},
		pools.Spec{URL: "http://b1:8000", Role: pools.Both})
	d1, p1 := s.Fleet.Servers()[0], s.Fleet.Servers()[1]
	for _, server := range []*pools.Server{d1, p1} {
		server.ProbePassed(server.Health(), []pools.Model{{ID: "m"}, {ID: "poet", Parent: "m"}, {ID: "clerk", Parent: "m"}}, now)
	}
	known := func(v float64) load.Gauge { return load.Gauge{Value: v, Known: true} }
	d1.ReportLoad(load.Load{KVUsed: known(0.25), Waiting: known(2), At: now, Adapters: load.Adapters{Known: true, Running: []string{"poet"}}})
	s.Fleet.SetDrain("p1:8000", true)
	lease, err := d1.Claim(pools.Decode, curve.Work{Tokens: 300}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()

	text := shown(t, &s, "", now)
	var order []string
	for _, server := range gjson.Get(text, "servers").Array() {
		order = append(order, server.Get("id").String()+" "+server.Get("state").String())
	}
	if got := strings.Join(order, ", "); got != "p1:8000 alive, b1:8000 down, d1:8000 alive" {
		t.Fatalf("servers %s", got)
	}
	for path, want := range map[string]string{
		"servers.0.draining":        "true",
		"servers.0.connector":       "nixl",
		"servers.0.decode":          "",
		"servers.0.prefill.breaker": "closed",
		"servers.1.reason":          "not probed yet",
		"servers.1.kv_used":         "",
		"servers.1.models.#":        "0",
		"servers.2.draining":        "",
		"servers.2.rack":            "r1",
		"servers.2.kv_used":         "0.25",
		"servers.2.waiting":         "2",
		"servers.2.running":         "",
		"servers.2.models":          `["m"]`,
		"servers.2.adapters":        `[{"name":"poet","running":true},{"name":"clerk"}]`,
		"servers.2.decode.requests": "1",
		"servers.2.decode.own":      "1",
		"servers.2.decode.tokens":   "300",
		"servers.2.prefill":         "",
		"gateway.ready":             "true",
	} {
		if got := gjson.Get(text, path).String(); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

// candidate is a server as links know it.
func candidate(id, rack string) *cost.Candidate {
	return &cost.Candidate{ID: id, Topology: cost.Topology{Rack: rack, Zone: "z"}}
}

// The matrix has the pairs whose servers are there, by their places among the servers: how many
// transfers, how they compare with their class, which failed. What is known of servers that are gone
// is not shown.
func TestState_OfLinks(t *testing.T) {
	s := sourceOf(t, pools.Spec{URL: "http://p1:8000", Role: pools.Prefill}, pools.Spec{URL: "http://d1:8000", Role: pools.Decode}, pools.Spec{URL: "http://d2:8000", Role: pools.Decode})
	links, p1 := s.PD.Binder.Links, candidate("p1:8000", "r1")
	for range 20 {
		links.Observe(p1.LinkEnd(), candidate("d1:8000", "r1").LinkEnd(), 1e9, 20*time.Millisecond, 0, noon)
		links.Observe(p1.LinkEnd(), candidate("d2:8000", "r1").LinkEnd(), 1e9, 900*time.Millisecond, 0, noon)
		links.Observe(p1.LinkEnd(), candidate("gone:8000", "r1").LinkEnd(), 1e9, 20*time.Millisecond, 0, noon)
	}
	text := shown(t, &s, "", noon)
	if n := gjson.Get(text, "links.pairs.#").Int(); n != 2 || gjson.Get(text, "links.classes.#").Int() != 4 {
		t.Fatalf("%d pairs: %s", n, gjson.Get(text, "links"))
	}
	slow, usual := gjson.Get(text, "links.pairs.#(d==2)"), gjson.Get(text, "links.pairs.#(d==1)")
	if slow.Get("p").Int() != 0 || slow.Get("transfers").Int() < 15 || slow.Get("slower").Num < 3 || slow.Get("blamed").String() == "" || slow.Get("distance").String() != "rack" {
		t.Errorf("the slow one %s", slow)
	}
	if usual.Get("transfers").Int() != 20 || usual.Get("slower").Num > 1.5 || usual.Get("failed_at").Exists() {
		t.Errorf("the usual one %s", usual)
	}
}

// What requests took is shown of the model that is asked for, by step; cached shares only where
// engines report what was cached.
func TestState_OfTheLastMinutes(t *testing.T) {
	s := sourceOf(t)
	h := s.PD.History
	h.Model("a", noon).RecordFirst(history.Parts{Wait: 2 * time.Millisecond, Prefill: 30 * time.Millisecond, Transfer: 8500 * time.Microsecond}, noon)
	h.Model("a", noon).RecordAnswer(history.Prompt{Tokens: 100, Predicted: 50, Cached: 25, Reported: true}, 10, noon)
	h.Model("b", noon).RecordAnswer(history.Prompt{Tokens: 100}, 10, noon)
	h.Model("b", noon).RecordGaps([]time.Duration{5 * time.Millisecond}, noon)
	text := shown(t, &s, "a", noon)
	for path, want := range map[string]string{
		"history.points.#":                "90",
		"history.model":                   "a",
		"history.step_s":                  "10",
		"history.points.89.t":             fmt.Sprint(noon.Unix()),
		"history.points.89.parts":         `{"wait_ms":2,"retry_ms":0,"prefill_ms":30,"transfer_ms":8.5,"together_ms":0,"aggregated_ms":0}`,
		"history.points.89.cached":        "0.25",
		"history.lately.cached_predicted": "0.5",
		"history.points.88.cached":        "",
		"history.lately.answers":          "1",
		"models.#.id":                     `["a","b"]`,
		"models.1.cached":                 "",
		"models.1.gaps":                   "1",
	} {
		if got := gjson.Get(text, path).String(); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if all := shown(t, &s, "", noon); gjson.Get(all, "history.lately.answers").Int() != 2 {
		t.Errorf("of all models %s", gjson.Get(all, "history.lately"))
	}
}

// chosen is a decision on a request.
func chosen(id, model, outcome, ofLast string) decision.Record {
	terms := cost.Terms{Queue: 3 * time.Millisecond, Prefill: 40 * time.Millisecond, Transfer: 5 * time.Millisecond, Step: 2 * time.Millisecond, DelayToOthers: 9 * time.Millisecond}
	return decision.Record{
		RequestID: id, Model: model, API: "chat", At: noon, Outcome: outcome,
		Choices: []decision.Choice{{Outcome: "an earlier one failed"}, {
			Demand: cost.Demand{PromptTokens: 900, OutputTokens: 20, Waited: 4 * time.Millisecond}, Chosen: cost.Alternative{Prefill: "p1:8000", Decode: "d1:8000", Terms: terms}, Outcome: ofLast,
			Measured: decision.Measured{Prefill: 44 * time.Millisecond, FirstToken: 52 * time.Millisecond, Usage: api.Usage{Cached: api.Count{Tokens: 64, Known: true}}},
		}},
	}
}

// A decision shows every term of what was chosen beside what was measured; what was not seen is left
// out.
func TestState_OfDecisions(t *testing.T) {
	s := sourceOf(t, pools.Spec{URL: "http://p1:8000", Role: pools.Prefill})
	id := "req-9052028b-2569-4cfb-9254-c5c34ce8a6a4"
	s.PD.Decisions.Add(chosen(id, "m", "served", ""))
	s.PD.Decisions.Add(decision.Record{RequestID: "none", Outcome: "nothing was chosen"})
	text := shown(t, &s, "", noon)
	for path, want := range map[string]string{
		"decisions.#":                        "1",
		"decisions.0.id":                     id,
		"decisions.0.attempts":               "2",
		"decisions.0.outcome":                "served",
		"decisions.0.prompt_tokens":          "900",
		"decisions.0.waited_ms":              "4",
		"decisions.0.chosen.prefill":         "p1:8000",
		"decisions.0.chosen.queue_ms":        "3",
		"decisions.0.chosen.prefill_ms":      "40",
		"decisions.0.chosen.transfer_ms":     "5",
		"decisions.0.chosen.burden_ms":       "9",
		"decisions.0.chosen.first_token_ms":  "50",
		"decisions.0.measured.prefill_ms":    "44",
		"decisions.0.measured.transfer_ms":   "",
		"decisions.0.measured.cached_tokens": "64",
	} {
		if got := gjson.Get(text, path).String(); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

// Nothing that a client wrote is on the page: not its request ID unless that is one that programs
// make, not the errors of engines, which quote prompts, and no model that is none.
func TestState_ShowsNothingThatClientsWrote(t *testing.T) {
	s := sourceOf(t, pools.Spec{URL: "http://d1:8000", Role: pools.Decode})
	server := s.Fleet.Servers()[0]
	server.ProbePassed(server.Health(), []pools.Model{{ID: "m"}}, noon)
	s.PD.Decisions.Add(chosen("alice@secret.example", "secret-model", "decode: secret prompt is too long", "secret"))
	s.PD.Decisions.Add(chosen("secret-0123456789abcdef", "m", "served", "secret: the connection was lost"))
	s.PD.Decisions.Add(chosen("0af7651916cd43dd8448eb211c80319c", "m", "picked", ""))
	s.PD.Decisions.Add(chosen("1af7651916cd43dd8448eb211c80319c", "m", "client left", "client left"))
	text := shown(t, &s, "", noon)
	if strings.Contains(text, "alice") || strings.Contains(strings.ReplaceAll(text, "secret-0123456789abcdef", ""), "secret") {
		t.Error(text)
	}
	got := gjson.Get(text, "decisions.#.outcome").String() + gjson.Get(text, "decisions.#.model").String()
	if got != `["client left","picked","broken","failed"]["m","m","m",""]` {
		t.Error(got)
	}
	for id, shown := range map[string]bool{
		"req-9052028b-2569-4cfb-9254-c5c34ce8a6a4": true, "9052028B-2569-4CFB-9254-C5C34CE8A6A4": true, "0af7651916cd43dd8448eb211c80319c": true,
		"alice": false, "alice-invoice-2026": false, "": false, "deadbeef": false,
		"please summarise 9052028b-2569-4cfb-9254-c5c34ce8a6a4": false, "averylongnameofaclient-0123456789abcdef": false,
	} {
		if generated(id) != shown {
			t.Errorf("%q is shown: %v", id, !shown)
		}
	}
}

// A page of 64 prefill and 64 decode servers, all of whose pairs have moved KV, is sent half a
// megabyte at most.
func TestState_OfAManyServersIsBounded(t *testing.T) {
	s := largeSource(t)
	text := shown(t, &s, "", noon)
	if n := gjson.Get(text, "links.pairs.#").Int(); n != 64*64 {
		t.Fatalf("%d pairs", n)
	}
	if len(text) > 512<<10 {
		t.Errorf("%d bytes", len(text))
	}
}

func largeSource(t testing.TB) Source {
	var specs []pools.Spec
	for i := range 64 {
		specs = append(specs, pools.Spec{URL: fmt.Sprintf("http://prefill-%d.models.svc:8000", i), Role: pools.Prefill, Rack: "r"},
			pools.Spec{URL: fmt.Sprintf("http://decode-%d.models.svc:8000", i), Role: pools.Decode, Rack: "r"})
	}
	s := sourceOf(t, specs...)
	for p := range 64 {
		for d := range 64 {
			s.PD.Binder.Links.Observe(candidate(specs[2*p].ID(), "r").LinkEnd(), candidate(specs[2*d+1].ID(), "r").LinkEnd(), 1e8, 5*time.Millisecond, 0, noon)
		}
	}
	for i := range 64 {
		s.PD.Decisions.Add(chosen(fmt.Sprintf("req-00000000-0000-0000-0000-%012d", i), "m", "served", ""))
	}
	return s
}

// One state of 64 x 64 servers; a page asks for one every two seconds.
func BenchmarkState64(b *testing.B) {
	s := largeSource(b)
	for b.Loop() {
		shown(b, &s, "", noon)
	}
}
