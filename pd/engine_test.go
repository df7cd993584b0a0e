package pd

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// A leg says which rank it is for and which attempt it is, and what its answer reports of the
// engine's load is the server's.
func TestSend_NamesTheRankAndReadsTheLoad(t *testing.T) {
	var got http.Header
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		w.Header().Set(load.ORCAHeader, "TEXT num_requests_waiting=7")
	}))
	t.Cleanup(engine.Close)
	for _, ranked := range []bool{false, true} {
		fleet := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
		t.Cleanup(fleet.Close)
		spec, want := pools.Spec{URL: engine.URL, Role: pools.Both, Connector: "nixl"}, ""
		if ranked {
			rank := 0
			spec.Rank, want = &rank, "0"
		}
		if err := fleet.Apply([]pools.Spec{spec}); err != nil {
			t.Fatal(err)
		}
		s := fleet.Servers()[0]
		body, err := api.ParseBody([]byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := send(t.Context(), http.DefaultTransport, s, "/v1/completions", "attempt-1", http.Header{"Authorization": {"Bearer x"}}, connector.LegRequest{Body: body}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got.Get("X-Data-Parallel-Rank") != want || got.Get("X-Request-Id") != "attempt-1" || got.Get("Authorization") != "Bearer x" {
			t.Errorf("ranked %v: the engine gets %v", ranked, got)
		}
		if l := s.FreshLoad(time.Now()); l.Waiting.Value != 7 {
			t.Errorf("ranked %v: the load is %+v", ranked, l)
		}
	}
}

// A prefill leg asks the engine for its load where that is configured, and no other leg does: the
// connector's own headers stay as they are.
func TestAskLoad_OnPrefillLegsWhereItIsWanted(t *testing.T) {
	for _, format := range []string{"", "TEXT", "JSON", "BIN"} {
		cfg := pools.Default()
		cfg.ORCA = format
		fleet := pools.NewFleet(cfg, slog.New(slog.DiscardHandler))
		t.Cleanup(fleet.Close)
		if err := fleet.Apply([]pools.Spec{{URL: "http://10.0.0.1:8000", Role: pools.Both, Connector: "nixl"}}); err != nil {
			t.Fatal(err)
		}
		for _, leg := range []Leg{PrefillLeg, DecodeLeg, AggregatedLeg} {
			want := ""
			if leg == PrefillLeg {
				want = format
			}
			for _, own := range []http.Header{nil, {"X-Data-Parallel-Rank": {"1"}}} {
				got := askLoad(connector.LegRequest{Header: own}, leg, fleet.Servers()[0]).Header
				if _, set := got[load.ORCAFormatHeader]; got.Get(load.ORCAFormatHeader) != want || set != (want != "") || got.Get("X-Data-Parallel-Rank") != own.Get("X-Data-Parallel-Rank") || len(own) > 1 {
					t.Errorf("%q, %s: the leg has %v, and of its connector %v", format, leg, got, own)
				}
			}
		}
	}
}
