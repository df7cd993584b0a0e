package pools

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// pairing is a server that is up, as its engine and the configuration describe it.
func pairing(url string, role Role, t traits) *Server {
	spec := Spec{URL: url, Role: role, Connector: t.connector, Weights: t.weights, Layout: t.layout}
	l := newServerState(Default())
	l.capabilities.identity.Store(newIdentity(t.reported, true))
	l.health.Store(&Health{Up: true, Models: []Model{{ID: "m"}, {ID: "adapter", Parent: "m"}}})
	return &Server{Spec: spec, id: spec.ID(), key: configuredKey(spec), serverState: l}
}

func TestPairings_SayHowManyThereAreOrWhatDiffers(t *testing.T) {
	blocks := func(n string) traits { return traits{reported: Identity{Version: "0.32.0", BlockTokens: n}} }
	whole := traits{connector: aggregated}
	for _, x := range []struct {
		name    string
		servers []*Server
		pairs   int
		reason  string
	}{
		{"two and three", []*Server{pairing("http://a:1", Prefill, blocks("16")), pairing("http://b:1", Prefill, blocks("16")), pairing("http://c:1", Decode, blocks("16")),
			pairing("http://d:1", Decode, blocks("16")), pairing("http://e:1", Decode, blocks("32"))}, 4, ""},
		{"servers that do both pair with others", []*Server{pairing("http://a:1", Both, blocks("16")), pairing("http://b:1", Both, blocks("16"))}, 2, ""},
		{"blocks", []*Server{pairing("http://a:1", Prefill, blocks("32")), pairing("http://b:1", Decode, blocks("16"))}, 0, "block_tokens: 32 (prefill), 16 (decode)"},
		{"version and type", []*Server{pairing("http://a:1", Prefill, traits{reported: Identity{Version: "0.32.0", KVType: "auto"}}), pairing("http://b:1", Decode, traits{reported: Identity{Version: "0.31.1", KVType: "fp8"}})}, 0,
			"version: 0.32.0 (prefill), 0.31.1 (decode); kv_type: auto (prefill), fp8 (decode)"},
		{"one says nothing", []*Server{pairing("http://a:1", Prefill, blocks("16")), pairing("http://b:1", Decode, traits{})}, 0,
			"version: 0.32.0 (prefill), not known (decode); block_tokens: 16 (prefill), not known (decode)"},
		{"the closest pair counts", []*Server{pairing("http://a:1", Prefill, traits{weights: "1", reported: Identity{Version: "1"}}), pairing("http://b:1", Prefill, traits{weights: "2", reported: Identity{Version: "1"}}),
			pairing("http://c:1", Decode, traits{weights: "2", reported: Identity{Version: "2"}})}, 0, "version: 1 (prefill), 2 (decode)"},
		{"connectors", []*Server{pairing("http://a:1", Prefill, traits{connector: "mooncake"}), pairing("http://b:1", Decode, traits{})}, 0, "connector: mooncake (prefill), nixl (decode)"},
		{"prefill servers that hand nothing over", []*Server{pairing("http://a:1", Prefill, whole), pairing("http://b:1", Decode, whole)}, 0, "connector: aggregated makes no pairs"},
		{"servers that serve whole requests on purpose", []*Server{pairing("http://a:1", Both, whole), pairing("http://b:1", Both, whole)}, 0, ""},
		{"one server", []*Server{pairing("http://a:1", Both, blocks("16"))}, 0, ""},
		{"one role", []*Server{pairing("http://a:1", Decode, blocks("16")), pairing("http://b:1", Decode, blocks("32"))}, 0, ""},
	} {
		got := Pairings(x.servers)["m"]
		if got.Pairs != x.pairs || got.Reason() != x.reason {
			t.Errorf("%s: %d pairs, %q; want %d, %q", x.name, got.Pairs, got.Reason(), x.pairs, x.reason)
		}
		if _, counted := Pairings(x.servers)["adapter"]; counted {
			t.Errorf("%s: an adapter is counted", x.name)
		}
	}
	down := pairing("http://a:1", Prefill, blocks("16"))
	down.setDown("gone")
	if got := Pairings([]*Server{down, pairing("http://b:1", Decode, blocks("16"))})["m"]; got.Pairs != 0 || got.Missing() {
		t.Errorf("with one that is down: %+v", got)
	}
}

// An engine may list a model under one name twice: it makes no pair with itself.
func TestPairings_AServerThatListsAModelTwiceIsOne(t *testing.T) {
	server := pairing("http://a:1", Both, traits{})
	server.health.Store(&Health{Up: true, Models: []Model{{ID: "m"}, {ID: "m"}}})
	if got := Pairings([]*Server{server})["m"]; got.Pairs != 0 {
		t.Errorf("%d pairs", got.Pairs)
	}
}

// A server that drains, or is down, makes no pair; one of which nothing is known neither.
func TestPairings_OnlyServersThatTakeRequestsCount(t *testing.T) {
	f := upFleet(t, nil, spec("http://10.0.0.1:1", Prefill), spec("http://10.0.0.2:1", Decode), spec("http://10.0.0.3:1", Decode))
	pairs := func() int { return Pairings(f.Servers())["m"].Pairs }
	if got := pairs(); got != 2 {
		t.Errorf("%d pairs of three servers", got)
	}
	f.SetDrain("10.0.0.3:1", true)
	if got := pairs(); got != 1 {
		t.Errorf("one drains: %d pairs", got)
	}
	f.SetDrain("10.0.0.3:1", false)
	f.Servers()[0].MarkDown("connection refused")
	if got := pairs(); got != 0 {
		t.Errorf("the prefill server is down: %d pairs", got)
	}
}

// What is said to differ is what the choice goes by.
func TestDifferences_AreThoseOfTheClass(t *testing.T) {
	draw := rapid.Custom(func(t *rapid.T) traits {
		one := func(label string) string { return rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, label) }
		return traits{
			connector: rapid.SampledFrom([]string{"", "nixl", "mooncake"}).Draw(t, "connector"), weights: one("weights"), layout: one("layout"),
			reported: Identity{Version: one("version"), BlockTokens: one("blocks"), KVType: one("type"), Connector: rapid.SampledFrom([]string{"", "nixl", "store"}).Draw(t, "told")},
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		p, d := pairing("http://a:1", Prefill, draw.Draw(t, "prefill")), pairing("http://b:1", Decode, draw.Draw(t, "decode"))
		if differ := Differences(p, d); (len(differ) == 0) != (p.CompatibilityKey() == d.CompatibilityKey()) {
			t.Fatalf("classes equal: %v, differences %v", p.CompatibilityKey() == d.CompatibilityKey(), differ)
		}
	})
}

func TestPairWatch_SaysEachChangeOnce(t *testing.T) {
	var out strings.Builder
	w := pairWatch{log: slog.New(slog.NewTextHandler(&out, nil)), seen: make(map[string]string), logged: make(map[string]string)}
	look := func(of string, times int) {
		for range times {
			p := Pairing{Pairs: 1}
			if of != "" {
				p = Pairing{Differ: []Difference{{of, "1", "2"}}}
			}
			w.look(map[string]Pairing{"m": p})
		}
	}
	look("", 3)
	look("block_tokens", 1) // while servers come up one after the other
	look("", 3)
	if out.Len() > 0 {
		t.Errorf("said before anything was sure: %s", out.String())
	}
	look("block_tokens", 4)
	look("version", 4)
	look("", 4)
	w.look(nil) // the model is gone, and comes back as it was before all this
	look("version", 4)
	for text, want := range map[string]int{"level=WARN": 3, `block_tokens: 1 (prefill), 2 (decode)`: 1, `version: 1 (prefill)`: 2, "make pairs again": 1} {
		if got := strings.Count(out.String(), text); got != want {
			t.Errorf("%q is there %d times, want %d:\n%s", text, got, want, out.String())
		}
	}
}

// The fleet is looked at with each probe, until it is watched no more.
func TestWatchPairs_LooksAtTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testlog.Buffer
		f := NewFleet(Default(), slog.New(slog.NewTextHandler(&out, nil)))
		defer f.Close()
		other := spec("http://10.0.0.2:1", Decode)
		other.Connector = "mooncake"
		if err := f.Apply([]Spec{spec("http://10.0.0.1:1", Prefill), other}); err != nil {
			t.Fatal(err)
		}
		for _, s := range f.Servers() {
			s.ProbePassed(s.Health(), []Model{{ID: "m"}}, time.Now())
		}
		ctx, cancel := context.WithCancel(t.Context())
		go f.WatchPairs(ctx)
		time.Sleep(f.ProbeInterval())
		synctest.Wait()
		if text := out.Take(); text != "" {
			t.Errorf("said after one look: %s", text)
		}
		time.Sleep(10 * f.ProbeInterval())
		synctest.Wait()
		if text := out.Take(); strings.Count(text, `differ="connector: nixl (prefill), mooncake (decode)"`) != 1 {
			t.Errorf("not said once: %s", text)
		}
		cancel()
		other.Weights = "2"
		if err := f.Apply([]Spec{spec("http://10.0.0.1:1", Prefill), other}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * f.ProbeInterval())
		synctest.Wait()
		if text := out.Take(); text != "" {
			t.Errorf("said though nothing watches: %s", text)
		}
	})
}
