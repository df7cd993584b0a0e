package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/gateway/peers"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pools"
)

func always(token string) func() string { return func() string { return token } }

// alonePort is the admin port of a gateway that knows of no other.
var alonePort = peers.NewAsker(peers.Peer{ID: "g", Admin: "http://g", Version: "v1"}, nil, always(""), nil)

// testDrains are those of a gateway that tells nobody of them.
type testDrains struct{ fleet *pools.Fleet }

func (d testDrains) SetDrain(id string, drain bool) bool { return len(d.fleet.SetDrain(id, drain)) > 0 }

func (d testDrains) Pending(id string) bool {
	at := slices.IndexFunc(d.fleet.Servers(), func(s *pools.Server) bool { return s.ID() == id })
	return d.fleet.Servers()[at].Drains()
}

// adminOf is the admin port of a gateway.
func adminOf(t *testing.T, g *running, draining func() bool) (ask func(method, path string) (status int, body string)) {
	t.Helper()
	unready := func() string {
		if draining() {
			return "draining"
		}
		return ""
	}
	admin := httptest.NewServer(Admin(g.fleet, g.pd, g.registry, unready, testDrains{g.fleet}, alonePort))
	t.Cleanup(admin.Close)
	return func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, admin.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
}

// A kubelet learns that the process lives, and a load balancer whether it should send
// requests, and why not.
func TestAdmin_Ready(t *testing.T) {
	var draining atomic.Bool
	ask := adminOf(t, run(t, usual(t), complete().roundTrip, alone(t)), draining.Load)
	if status, _ := ask("GET", "/readyz"); status != 200 {
		t.Errorf("with a server: %d", status)
	}
	draining.Store(true)
	if status, why := ask("GET", "/readyz"); status != 503 || why != "draining\n" {
		t.Errorf("draining: %d %s", status, why)
	}
	if status, _ := ask("GET", "/livez"); status != 200 {
		t.Errorf("it lives: %d", status)
	}
	none := adminOf(t, run(t, usual(t), complete().roundTrip), func() bool { return false })
	if status, why := none("GET", "/readyz"); status != 503 || !strings.Contains(why, "no decode server") {
		t.Errorf("without a server: %d %s", status, why)
	}
}

// What operators see of servers: what they are, what runs on them, whether they drain.
func TestAdmin_Servers(t *testing.T) {
	both, prefill := alone(t), alone(t)
	both.Host, both.Rack, both.Zone = "h", "r", "z"
	prefill.Role, prefill.Connector = pools.Prefill, "sglang"
	g := run(t, usual(t), endless, both, prefill)
	ask := adminOf(t, g, func() bool { return false })
	server := func(id string) gjson.Result {
		t.Helper()
		status, body := ask("GET", "/debug/servers")
		if n := gjson.Get(body, "#").Int(); status != 200 || n != 2 {
			t.Fatalf("%d %s", status, body)
		}
		return gjson.Get(body, `#(id=="`+id+`")`)
	}
	id := strings.TrimPrefix(both.URL, "http://")
	idle := server(id)
	for field, want := range map[string]string{
		"role": "both", "connector": "nixl", "host": "h", "rack": "r", "zone": "z", "up": "true", "draining": "false", "in_doubt": "false", "models.0": "m",
		"breakers.prefill": "closed", "breakers.decode": "closed", "in_flight.decode.requests": "0", "in_flight.prefill.requests": "0", "kv.#": "0",
	} {
		if got := idle.Get(field).String(); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	other := server(strings.TrimPrefix(prefill.URL, "http://"))
	if other.Get("role").String() != "prefill" || other.Get("connector").String() != "sglang" || other.Get("in_flight.decode").Exists() || other.Get("breakers.decode").Exists() {
		t.Errorf("one that prefills only: %s", other)
	}
	if idle.Get("breaker_reasons").Exists() {
		t.Errorf("no breaker is open, because of %s", idle.Get("breaker_reasons"))
	}
	g.openStream()
	if n := server(id).Get("in_flight.decode.requests").Int(); n != 1 {
		t.Errorf("%d requests in flight, want one", n)
	}
	for _, x := range []struct {
		method, id string
		status     int
		drains     bool
	}{{"POST", id, 204, true}, {"DELETE", id, 204, false}, {"POST", "nobody:1", 404, false}, {"DELETE", "nobody:1", 404, false}} {
		if status, body := ask(x.method, "/drain/"+x.id); status != x.status {
			t.Errorf("%s %s: %d %s", x.method, x.id, status, body)
		}
		if got, pending := server(id).Get("draining").Bool(), server(id).Get("drain_pending").Bool(); got != x.drains || pending != x.drains {
			t.Errorf("after %s %s it drains: %v, and others do not know: %v", x.method, x.id, got, pending)
		}
	}
}

// Who ends an operator's drain of a server that something else drains too learns that it goes on, and where that ends.
func TestAdmin_UndoOfADrainThatGoesOn(t *testing.T) {
	listed, found, usualOne := alone(t), alone(t), alone(t)
	listed.Drain, listed.Group, found.Group = true, "g", "g"
	usualOne.Unit = "pod-2"
	g := run(t, usual(t), complete().roundTrip, listed, found, usualOne)
	ask := adminOf(t, g, func() bool { return false })
	undo := func(spec pools.Spec, status int, words ...string) {
		t.Helper()
		got, body := ask("DELETE", "/drain/"+spec.ID())
		if got != status {
			t.Errorf("%s: %d %s, want %d", spec.ID(), got, body, status)
		}
		for _, word := range words {
			if !strings.Contains(body, word) {
				t.Errorf("%s: %q does not say %q", spec.ID(), body, word)
			}
		}
	}
	ask("POST", "/drain/"+listed.ID())
	undo(listed, 409, listed.ID()+" goes on draining", "drain: true", "tandem/drain")
	undo(found, 409, "its group")
	undo(usualOne, 204)
	g.fleet.SetDrainingUnits(map[string]bool{"pod-2": true})
	undo(usualOne, 409, "scaling in")
}

// Why a request went where it did is told by its id, as long as it is remembered.
func TestAdmin_Decisions(t *testing.T) {
	of := usual(t, "ada may-set=[objectives]")
	e := complete()
	g := run(t, of, e.roundTrip, alone(t))
	ask := adminOf(t, g, func() bool { return false })
	g.post(`{"model":"m","prompt":"hi there","max_tokens":9}`, append(as("ada"), "X-Request-Id", "mine", "X-Tandem-Ttft-Slo-Ms", "700", "X-Tandem-Itl-Slo-Ms", "30")...)
	e.answer = response(500, "text/plain", "no")
	g.post(`{"model":"m","prompt":"hi there"}`, append(as("ada"), "X-Request-Id", "failed")...)
	status, body := ask("GET", "/debug/decisions/mine")
	for field, want := range map[string]string{
		"request_id": "mine", "model": "m", "api": "completions", "attempts.#": "1", "attempts.0.outcome": "served", "attempts.0.prompt_tokens": "2",
		"attempts.0.ttft_slo_ms": "700", "attempts.0.itl_slo_ms": "30", "attempts.0.panic": "",
	} {
		if got := gjson.Get(body, field).String(); status != 200 || got != want {
			t.Errorf("%s is %q, want %q: %d %s", field, got, want, status, body)
		}
	}
	if n := gjson.Get(body, "attempts.0.alternatives.#").Int(); n == 0 || n > explainLimit {
		t.Errorf("%d alternatives", n)
	}
	if _, body := ask("GET", "/debug/decisions/failed"); gjson.Get(body, "attempts.0.outcome").String() == "served" || gjson.Get(body, "attempts.0.outcome").String() == "" {
		t.Errorf("one that failed: %s", body)
	}
	if status, _ := ask("GET", "/debug/decisions/nobody"); status != 404 {
		t.Errorf("one that is not remembered: %d", status)
	}
	if got := ms(1500 * time.Microsecond); got != 1.5 {
		t.Errorf("%v ms", got)
	}
}

// The other pages are there, as JSON or as metrics.
func TestAdmin_Pages(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	g.post(`{"model":"m","prompt":"hi"}`)
	ask := adminOf(t, g, func() bool { return false })
	if status, body := ask("GET", "/metrics"); status != 200 || !strings.Contains(body, `tandem_requests_total{api="completions",model="m",outcome="ok",path="http"} 1`) {
		t.Errorf("metrics: %d", status)
	}
	for _, path := range []string{"/debug/kv", "/debug/suspects"} {
		if status, body := ask("GET", path); status != 200 || !gjson.Valid(body) || body == "" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _ := ask("GET", "/nothing"); status != 404 {
		t.Errorf("nothing: %d", status)
	}
}

// basic is how a browser shows the token that its user has typed as a password.
func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// Where the port asks for certificates alone, an empty password is none.
func TestGuarded_NoTokenIsNoPassword(t *testing.T) {
	admin := RequireToken(always(""), true, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }))
	for _, sent := range []string{"Bearer ", basic("", "")} {
		req := httptest.NewRequest(http.MethodGet, "/ui/", nil)
		req.Header.Set("Authorization", sent)
		got := httptest.NewRecorder()
		if admin.ServeHTTP(got, req); got.Code != 401 || strings.Contains(strings.Join(got.Header().Values("WWW-Authenticate"), ","), "Basic") {
			t.Errorf("%q: %d %v", sent, got.Code, got.Header())
		}
	}
}

// A browser shows its certificate, and a password that was typed once, whatever page makes it ask; a
// token to be sent as Bearer it does not know.
func TestGuarded_WhatABrowserShowsIsNotEnoughForAPageOfAnotherSite(t *testing.T) {
	admin := RequireToken(always("t0ken"), true, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }))
	verified := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	for _, x := range []struct {
		name  string
		tls   *tls.ConnectionState
		token string
		site  string
		want  int
	}{
		{"certificate", verified, "", "", 202},
		{"certificate, own page", verified, "", "same-origin", 202},
		{"certificate, other page", verified, "", "cross-site", 403},
		{"certificate that was not verified", &tls.ConnectionState{}, "", "", 401},
		{"token, other page", verified, "Bearer t0ken", "cross-site", 202},
		{"wrong token", nil, "Bearer token", "", 401},
		{"nothing", nil, "", "", 401},
		{"password", nil, basic("operator", "t0ken"), "same-origin", 202},
		{"password, other page", nil, basic("operator", "t0ken"), "cross-site", 403},
		{"wrong password", nil, basic("t0ken", "token"), "", 401},
		{"empty password", nil, basic("", ""), "", 401},
	} {
		req := httptest.NewRequest(http.MethodPost, "/drain/a", nil)
		req.TLS = x.tls
		req.Header.Set("Authorization", x.token)
		req.Header.Set("Sec-Fetch-Site", x.site)
		got := httptest.NewRecorder()
		admin.ServeHTTP(got, req)
		if got.Code != x.want {
			t.Errorf("%s: %d, want %d", x.name, got.Code, x.want)
		}
	}
}

// What was not measured of an attempt is absent, and what was is told in milliseconds and tokens.
func TestDescribeMeasured(t *testing.T) {
	if got := describeMeasured(&decision.Measured{}); got != (MeasuredStatus{}) {
		t.Errorf("nothing was measured: %+v", got)
	}
	got := describeMeasured(&decision.Measured{
		Prefill: time.Nanosecond, Transfer: 2 * time.Millisecond, FirstToken: 3 * time.Millisecond, Whole: 4 * time.Millisecond,
		Usage: api.Usage{Prompt: api.Count{Tokens: 5, Known: true}, Cached: api.Count{Known: true}, Output: api.Count{Tokens: 7, Known: true}},
	})
	if *got.Prefill != 0 || *got.Transfer != 2 || *got.FirstToken != 3 || *got.Whole != 4 || *got.PromptTokens != 5 || *got.CachedTokens != 0 || *got.OutputTokens != 7 {
		t.Errorf("%+v", got)
	}
}

// An operator is told how many servers a choice was among, where only some of them are remembered.
func TestDescribeDecision_SaysWhatIsNotRemembered(t *testing.T) {
	few := cost.Candidates{Prefill: make([]cost.Candidate, 3), Decode: make([]cost.Candidate, 2)}
	if got := among(&few); got != "" {
		t.Errorf("all are remembered: %q", got)
	}
	few.Whole = &cost.Whole{Prefills: 256, Decodes: 128}
	if got := among(&few); got != "256 prefill and 128 decode servers, of which 3 and 2 are remembered" {
		t.Errorf("%q", got)
	}
}

// Operators see the load that an engine reports of itself.
func TestAdmin_AnEnginesLoad(t *testing.T) {
	of := usual(t)
	of.pools.ProbeInterval = 20 * time.Millisecond
	g := run(t, of, complete().roundTrip, pools.Spec{URL: measured(t, "vllm:kv_cache_usage_perc 0.25\n"), Role: pools.Both, Connector: "nixl"})
	ask := adminOf(t, g, func() bool { return false })
	eventually(t, "its load is there", func() bool {
		_, body := ask("GET", "/debug/servers")
		load := gjson.Get(body, "0.engine").Map()
		for _, value := range load {
			if value.Num == 0.25 {
				return true
			}
		}
		return false
	})
}
