package pools

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// modelFleet is a fleet in which the servers have the named models: "m", "ada<m" an adapter.
func modelFleet(t *testing.T, directory []Adapter, served ...string) *Fleet {
	t.Helper()
	var specs []Spec
	for i := range served {
		specs = append(specs, spec(fmt.Sprintf("http://10.0.0.%d:1", i+1), Both))
	}
	f := upFleet(t, func(c *Config) { c.Adapters.Directory = directory }, specs...)
	for i, s := range f.Servers() {
		s.ProbePassed(s.Health(), models(served[i]), time.Now())
	}
	return f
}

func models(text string) (all []Model) {
	for _, name := range strings.Fields(text) {
		id, parent, _ := strings.Cut(name, "<")
		all = append(all, Model{ID: id, Parent: parent, MaxModelLen: len(id)})
	}
	return all
}

// The models of a fleet are those of all servers, down ones too, each once, and the adapters
// that one of them can load.
func TestFleet_ModelsAreWhatItServesOrCanLoad(t *testing.T) {
	f := modelFleet(t, []Adapter{{Name: "law", Base: "n"}, {Name: "sql", Base: "absent"}, {Name: "any"}, {Name: "ada", Base: "m"}},
		"n m", "m ada<m eve<m")
	f.Servers()[1].MarkDown("connection refused")
	var ids []string
	for _, m := range f.Models() {
		ids = append(ids, m.ID)
	}
	if want := []string{"ada", "any", "eve", "law", "m", "n"}; !slices.Equal(ids, want) {
		t.Errorf("models %v, want %v", ids, want)
	}
	for id, want := range map[string]string{"m": "", "ada": "m", "law": "n", "any": "n"} {
		if m, known := f.Model(id); !known || m.Parent != want || m.ID != id {
			t.Errorf("%s: %+v, known %v", id, m, known)
		}
	}
	for _, id := range []string{"sql", "other", ""} {
		if m, known := f.Model(id); known {
			t.Errorf("%s: %+v is known", id, m)
		}
	}
	if !f.KnowsModels() || modelFleet(t, nil, "", "").KnowsModels() {
		t.Error("a fleet knows models if a server has told of one")
	}
}

// The longest context of a model is that of the servers that decode, where all of them report it.
func TestFleet_LongestContext(t *testing.T) {
	f := upFleet(t, nil, spec("http://10.0.0.1:1", Prefill), spec("http://10.0.0.2:1", Decode), spec("http://10.0.0.3:1", Both))
	for i, lengths := range [][2]int{{900, 900}, {200, 200}, {300, 0}} {
		served := []Model{{ID: "m", MaxModelLen: lengths[0]}, {ID: "n", MaxModelLen: lengths[1]}}
		f.Servers()[i].ProbePassed(f.Servers()[i].Health(), served, time.Now())
	}
	for model, want := range map[string]int{"m": 300, "n": 0, "other": 0} {
		if got := f.LongestContext(model); got != want {
			t.Errorf("%s: %d tokens, want %d", model, got, want)
		}
	}
	third := f.Servers()[2]
	third.ProbePassed(third.Health(), []Model{{ID: "m", MaxModelLen: 500}, {ID: "n", MaxModelLen: 100}}, time.Now())
	if m, n := f.LongestContext("m"), f.LongestContext("n"); m != 500 || n != 200 {
		t.Errorf("a server was started anew with other lengths: %d and %d tokens", m, n)
	}
	if err := f.Apply([]Spec{spec("http://10.0.0.2:1", Decode)}); err != nil {
		t.Fatal(err)
	}
	if m := f.LongestContext("m"); m != 200 {
		t.Errorf("a server is gone: %d tokens", m)
	}
	for i := range 3 * mostContexts {
		f.LongestContext(fmt.Sprint("unknown ", i))
	}
	if n := len(f.contexts.Load().longest); n > mostContexts || f.LongestContext("m") != 200 {
		t.Errorf("%d models are kept", n)
	}
}

// An adapter may be loaded on servers of its base model, or on all if it names none.
func TestFleet_Loads(t *testing.T) {
	f := modelFleet(t, []Adapter{{Name: "law", Base: "n"}, {Name: "any"}}, "m")
	for _, c := range []struct {
		base, adapter string
		want          bool
	}{{"n", "law", true}, {"m", "law", false}, {"n", "any", true}, {"m", "any", true}, {"m", "sql", false}} {
		if got := f.Loads(c.base, c.adapter); got != c.want {
			t.Errorf("%s on %s: %v", c.adapter, c.base, got)
		}
	}
}

// A server may have hundreds of adapters: each is found, the first of a name counts, and what
// is not there is not found, however many there are.
func TestHealth_EachModelIsFoundAmongMany(t *testing.T) {
	for _, n := range []int{0, 1, fewModels, fewModels + 1, 300} {
		all := make([]Model, n)
		for i := range all {
			all[i] = Model{ID: fmt.Sprintf("m%d", i), Created: int64(i)}
		}
		twice := append(slices.Clone(all), all...)
		for i := range all {
			twice[n+i].Created = -1
		}
		for _, h := range []Health{Health{}.serving(all), Health{}.serving(twice)} {
			for _, m := range all {
				if got, found := h.model(m.ID); !found || got != m || !h.Serves(m.ID) {
					t.Errorf("%s of %d: %+v, found %v", m.ID, len(h.Models), got, found)
				}
			}
			if got, found := h.model("other"); found || got != (Model{}) || h.Serves("other") {
				t.Errorf("one that is not among %d: %+v, found %v", len(h.Models), got, found)
			}
		}
	}
}

// A gateway that has servers, and none that decodes, serves nothing.
func TestFleet_DecodeIsMissingWhereOnlyPrefillHasServers(t *testing.T) {
	for name, c := range map[string]struct {
		servers []Spec
		missing []Role
	}{
		"no server":     {nil, nil},
		"prefill alone": {[]Spec{spec("http://10.0.0.1:1", Prefill)}, []Role{Decode}},
		"decode alone":  {[]Spec{spec("http://10.0.0.1:1", Decode)}, nil},
		"both in one":   {[]Spec{spec("http://10.0.0.1:1", Both)}, nil},
	} {
		f := NewFleet(Default(), slog.New(slog.DiscardHandler))
		t.Cleanup(f.Close)
		if err := f.Apply(c.servers); err != nil {
			t.Fatal(err)
		}
		if got := f.Missing(); !slices.Equal(got, c.missing) {
			t.Errorf("%s: %v missing", name, got)
		}
	}
}

// A role is missing when all of its servers are down, those that were not probed yet left
// aside; that is said once, and once that it is back.
func TestFleet_ARoleIsMissingWhenItsServersAreDown(t *testing.T) {
	var out strings.Builder
	f := NewFleet(Default(), slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(f.Close)
	if err := f.Apply([]Spec{spec("http://10.0.0.1:1", Prefill), spec("http://10.0.0.2:1", Prefill), spec("http://10.0.0.3:1", Decode)}); err != nil {
		t.Fatal(err)
	}
	s := f.Servers()
	for _, s := range s {
		s.vitals.born = time.Now().Add(-time.Hour) // none may be starting
	}
	keep := func(specs ...Spec) {
		if err := f.Apply(specs); err != nil {
			t.Error(err)
		}
	}
	reload := func(drain bool) {
		specs := []Spec{s[0].Spec, s[1].Spec, s[2].Spec}
		specs[2].Drain = drain
		keep(specs...)
	}
	pass := func(s *Server) { s.ProbePassed(s.Health(), nil, time.Now()) }
	fail := func(s *Server) { s.ProbeFailed(s.Health(), "ill") }
	for i, step := range []struct {
		do      func()
		missing []Role
		said    string
	}{
		{func() {}, nil, ""},
		{func() { fail(s[0]) }, nil, ""}, // the other one was not probed
		{func() { fail(s[1]) }, []Role{Prefill}, "role without a server: there is none, or all are down or drain\" role=prefill"},
		{func() { fail(s[1]) }, []Role{Prefill}, ""},
		{func() { pass(s[0]) }, nil, "role has a server again\" role=prefill"},
		{func() { s[0].late(time.Now()) }, nil, ""}, // unresponsive is not down
		{func() { pass(s[1]); pass(s[2]) }, nil, ""},
		{func() { fail(s[2]) }, []Role{Decode}, "role without a server: there is none, or all are down or drain\" role=decode"},
		{func() { fail(s[0]); fail(s[1]) }, []Role{Prefill, Decode}, "role without a server: there is none, or all are down or drain\" role=prefill"},
		{func() { pass(s[2]) }, []Role{Prefill}, "role has a server again\" role=decode"},
		{func() { f.SetDrain(s[2].ID(), true) }, []Role{Prefill, Decode}, "role without a server: there is none, or all are down or drain\" role=decode"},
		{func() { f.SetDrain(s[2].ID(), false) }, []Role{Prefill}, "role has a server again\" role=decode"},
		{func() { reload(true) }, []Role{Prefill, Decode}, "role without a server: there is none, or all are down or drain\" role=decode"},
		{func() { reload(false) }, []Role{Prefill}, "role has a server again\" role=decode"},
		{func() { keep(s[2].Spec) }, nil, "the servers of a role are gone: none is listed or found\" role=prefill"},
		{func() { keep() }, nil, ""},
		{func() { keep(s[0].Spec) }, []Role{Decode}, "role without a server: there is none, or all are down or drain\" role=decode"},
		{func() { keep() }, nil, "the servers of a role are gone: none is listed or found\" role=decode"},
	} {
		out.Reset()
		step.do()
		if got := f.Missing(); !slices.Equal(got, step.missing) {
			t.Errorf("step %d: %v missing, want %v", i, got, step.missing)
		}
		if said := out.String(); !strings.Contains(said, step.said) || strings.Count(said, "\n") > 1 || (step.said == "") != (said == "") {
			t.Errorf("step %d: said %q, want %q", i, said, step.said)
		}
	}
}

// Servers that were found just now may be starting: their role is missing only once two
// intervals of probes have passed without any of them up. One that was up gets no such time.
func TestFleet_ARoleIsNotMissingWhileItsServersMayStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		f := NewFleet(Default(), slog.New(slog.NewTextHandler(&out, nil)))
		defer f.Close()
		if err := f.Apply([]Spec{spec("http://10.0.0.1:1", Prefill), spec("http://10.0.0.2:1", Decode)}); err != nil {
			t.Fatal(err)
		}
		prefill, decode := f.Servers()[0], f.Servers()[1]
		fail := func(s *Server) { s.ProbeFailed(s.Health(), "connection refused") }
		check := func(when string, want ...Role) {
			t.Helper()
			if got := f.Missing(); !slices.Equal(got, want) || strings.Count(out.String(), "role without a server") != len(want) {
				t.Errorf("%s: %v missing, want %v; said %q", when, got, want, out.String())
			}
		}
		fail(prefill)
		fail(decode)
		check("at once")
		decode.ProbePassed(decode.Health(), nil, time.Now())
		fail(decode)
		check("one was up, and is not any more", Decode)
		time.Sleep(2*f.cfg.ProbeInterval - 1)
		fail(prefill)
		check("just before two intervals", Decode)
		time.Sleep(time.Nanosecond)
		fail(prefill)
		check("after two intervals", Prefill, Decode)
	})
}

// No servers of a role is a deployment without it, and nothing that is missing.
func TestFleet_ARoleThatNobodyHasIsNotMissing(t *testing.T) {
	f := upFleet(t, nil, spec("http://10.0.0.1:1", Decode))
	if missing := f.Missing(); len(missing) > 0 {
		t.Errorf("%v missing", missing)
	}
}

// That a server is ejected is logged once for each leg, with what it failed with.
func TestFleet_LogsAnEjection(t *testing.T) {
	var out strings.Builder
	f := NewFleet(Default(), slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(f.Close)
	if err := f.Apply([]Spec{spec("http://10.0.0.1:1", Both)}); err != nil {
		t.Fatal(err)
	}
	s := f.Servers()[0]
	for range Default().Breaker.Consecutive {
		for _, leg := range []Role{Prefill, Decode} {
			lease, err := s.Claim(leg, curve.Work{}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			lease.RecordResult(errors.New("status 502"))
			lease.Release()
		}
	}
	for _, leg := range []string{"prefill", "decode"} {
		if n := strings.Count(out.String(), `server=10.0.0.1:1 leg=`+leg+` reason="status 502"`); n != 1 {
			t.Errorf("%s: said %d times: %s", leg, n, out.String())
		}
	}
}
