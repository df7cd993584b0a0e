package pools

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// A probe asks what the server has; before the answer is taken in, one more adapter is
// loaded.
func TestSetUp_AListThatIsOlderThanALoadDoesNotCount(t *testing.T) {
	l := newServerState(Default())
	base, ada := Model{ID: "m"}, Model{ID: "ada", Parent: "m"}
	l.setUp(l.health.Load(), []Model{base}, 0, time.Now())
	asked := l.health.Load()
	l.changeModels(func(models []Model) []Model { return append(models, ada) })
	l.setUp(asked, []Model{base}, 0, time.Now())
	if !l.Health().Serves("ada") {
		t.Error("it is forgotten")
	}
	l.setUp(l.health.Load(), []Model{base}, 0, time.Now())
	if l.Health().Serves("ada") {
		t.Error("the next list, which lacks it, does not count")
	}
}

// What requests wait for fails once nothing makes the server ready any more.
func TestPrepare_FailsWhenTheServerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Default()
		cfg.Adapters.Directory = []Adapter{{Name: "ada", Path: "/ada"}}
		f := NewFleet(cfg, slog.New(slog.DiscardHandler))
		defer f.Close()
		if err := f.Apply([]Spec{{URL: "http://10.0.0.1:1", Role: Decode, GPUs: "a"}, spec("http://10.0.0.2:1", Decode)}); err != nil {
			t.Fatal(err)
		}
		f.Servers()[0].GPUShare().RecordSleep()
		for _, s := range f.Servers() {
			lease, err := s.Claim(Decode, curve.Work{}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			failed := make(chan error, 1)
			await := lease.Prepare("ada")
			go func() { failed <- await(t.Context()) }()
			synctest.Wait()
			s.CloseStandby()
			if err := <-failed; !errors.Is(err, errStopped) {
				t.Errorf("%s: %v", s.ID(), err)
			}
		}
	})
}

// While a lease holds an adapter it must not be unloaded: it counts as many as were prepared and
// have not ended, however they end, and each once. Its time unused begins with the last end.
func TestPrepare_AnAdapterIsHeldUntilTheLastLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Default()
		cfg.Adapters.Directory = []Adapter{{Name: "ada", Path: "/ada"}, {Name: "eve", Path: "/eve"}}
		f := NewFleet(cfg, slog.New(slog.DiscardHandler))
		defer f.Close()
		if err := f.Apply([]Spec{spec("http://10.0.0.1:1", Both)}); err != nil {
			t.Fatal(err)
		}
		s := f.Servers()[0]
		s.ProbePassed(s.Health(), []Model{{ID: "m"}, {ID: "ada", Parent: "m"}}, time.Now())
		prepared := func(leg Role, model string) *Lease {
			l, err := s.Claim(leg, curve.Work{}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			l.MarkSent(0, time.Now())
			if ready := l.Prepare(model) == nil; ready != (model != "eve") {
				t.Errorf("%s is ready: %v", model, ready)
			}
			return l
		}
		released, prefilled, base := prepared(Decode, "ada"), prepared(Prefill, "ada"), prepared(Decode, "m")
		last, awaits := prepared(Decode, "ada"), prepared(Decode, "eve")
		for _, step := range []struct {
			what     string
			do       func()
			ada, eve int
			used     bool // ada was, just now
		}{
			{"nothing", func() {}, 3, 1, false},
			{"one for the base model ends", base.Release, 3, 1, false},
			{"one is released", released.Release, 2, 1, true},
			{"again", released.Release, 2, 1, false},
			{"one has prefilled", func() { prefilled.ReleasePrefilled(10, 0, 0) }, 1, 1, true},
			{"and is released", prefilled.Release, 1, 1, false},
			{"one could not be loaded", func() { s.LoadRequests().Finish("eve", errEngine, time.Second, time.Now()) }, 1, 1, false},
			{"the last one ends", last.Release, 0, 1, true},
			{"so does that which waited in vain", awaits.Release, 0, 0, false},
		} {
			time.Sleep(time.Minute)
			step.do()
			used, ada := s.LoadRequests().LastUse("ada", time.Now())
			_, eve := s.LoadRequests().LastUse("eve", time.Now())
			if ada != step.ada || eve != step.eve || used.Equal(time.Now()) != step.used {
				t.Errorf("%s: held %d and %d times, used %v ago", step.what, ada, eve, time.Since(used))
			}
		}
		again := prepared(Decode, "ada")
		if _, held := s.LoadRequests().LastUse("ada", time.Now()); held != 1 {
			t.Errorf("the next one: held %d times", held)
		}
		again.Release()
	})
}

func TestParseAdapter(t *testing.T) {
	for text, want := range map[string]Adapter{
		"ada=/ada":     {Name: "ada", Path: "/ada"},
		"ada@m=/ada":   {Name: "ada", Base: "m", Path: "/ada"},
		"ada@m=/a=b@c": {Name: "ada", Base: "m", Path: "/a=b@c"},
		"ada":          {}, "ada=": {}, "=/ada": {}, "@m=/ada": {}, "": {},
	} {
		got, err := ParseAdapter(text)
		if got != want || (err == nil) != (want != Adapter{}) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// What is known of an adapter on a server: whether it must be loaded first, at whose cost, and
// whether the batch has a place for it. A base model is no adapter, nor is an unknown name.
func TestServer_WhatIsKnownOfAnAdapter(t *testing.T) {
	f := modelFleet(t, []Adapter{{Name: "law", Base: "m"}, {Name: "ada"}, {Name: "tax"}}, "m ada<m eve<m")
	s, now := f.Servers()[0], time.Now()
	for _, c := range []struct {
		name      string
		model     string
		perServer int
		batch     load.Adapters
		want      AdapterView
		none      bool
	}{
		{name: "a base model", model: "m", none: true},
		{name: "an unknown name", model: "other", none: true},
		{name: "the engine's own", model: "eve", want: AdapterView{Loaded: true}},
		{name: "a loaded one of the directory", model: "ada", perServer: 1, want: AdapterView{Loaded: true}},
		{name: "one to be loaded", model: "law"},
		{name: "one for which there is room", model: "law", perServer: 2},
		{name: "one in the place of another", model: "law", perServer: 1, want: AdapterView{Evicts: true}},
		{name: "one that runs", model: "ada", batch: load.Adapters{Known: true, Running: []string{"ada", "eve"}, Max: 2}, want: AdapterView{Loaded: true, Running: true}},
		{name: "a full batch", model: "ada", batch: load.Adapters{Known: true, Running: []string{"eve", "law"}, Waiting: []string{"x", "y", "z"}, Max: 2},
			want: AdapterView{Loaded: true, Full: true, Waiting: 3}},
		{name: "a full batch, as vLLM tells of it", model: "ada", batch: load.Adapters{Known: true, Running: []string{"eve", "law", "x"}, Waiting: []string{"eve", "law", "x"}, Max: 2},
			want: AdapterView{Loaded: true, Full: true, Waiting: 1}},
		{name: "a batch with a place, as vLLM tells of it", model: "ada", batch: load.Adapters{Known: true, Running: []string{"eve"}, Waiting: []string{"eve"}, Max: 2}, want: AdapterView{Loaded: true}},
		{name: "a batch with a place", model: "ada", batch: load.Adapters{Known: true, Running: []string{"eve"}, Max: 2}, want: AdapterView{Loaded: true}},
		{name: "a batch of any size", model: "ada", batch: load.Adapters{Known: true, Running: []string{"eve"}}, want: AdapterView{Loaded: true}},
	} {
		f.cfg.Adapters.PerServer = c.perServer
		s.ReportLoad(load.Load{Adapters: c.batch, At: now})
		got, adapter := s.Adapter(c.model, now)
		if adapter == c.none || got != c.want {
			t.Errorf("%s: %+v, an adapter: %v; want %+v", c.name, got, adapter, c.want)
		}
	}
}

// Loading takes as long as it took lately: the first time as it was, then the mean of the last
// few. What was loaded, unloaded or lost is known at once, before the next probe.
func TestServer_AdaptersComeAndGo(t *testing.T) {
	f := modelFleet(t, []Adapter{{Name: "ada", Base: "m", Path: "/ada"}}, "m eve<m")
	s := f.Servers()[0]
	view := func() AdapterView { v, _ := s.Adapter("ada", time.Now()); return v }
	base, _ := s.Health().model("m")
	for i, c := range []struct{ took, believed time.Duration }{{4 * time.Second, 4 * time.Second}, {8 * time.Second, 5 * time.Second}, {time.Second, 4 * time.Second}} {
		s.RecordAdapterLoad(f.cfg.Adapters.Directory[0], base, c.took)
		if v := view(); v.Load != c.believed || !v.Loaded {
			t.Errorf("load %d took %v: %+v", i, c.took, v)
		}
		if m, _ := s.Health().model("ada"); m.Parent != "m" || m.MaxModelLen != base.MaxModelLen {
			t.Errorf("it is listed as %+v", m)
		}
		if i == 1 {
			if !s.ForgetAdapter("ada") {
				t.Error("another gateway unloaded it, and it cannot be loaded again")
			}
		} else {
			s.ForgetModel("ada")
		}
		if view().Loaded {
			t.Errorf("load %d: it is there after it was unloaded", i)
		}
	}
	if s.ForgetAdapter("eve") || !s.Health().Serves("eve") {
		t.Error("what cannot be loaded again is forgotten")
	}
}

// 1 an adapter is loaded; 2 a probe finds it; 3 the load is taken in: the server has it once,
// and room for another one.
func TestRecordAdapterLoad_OneThatAProbeFoundFirstCountsOnce(t *testing.T) {
	f := modelFleet(t, []Adapter{{Name: "ada"}, {Name: "law"}}, "m ada<m")
	f.cfg.Adapters.PerServer = 2
	s := f.Servers()[0]
	s.RecordAdapterLoad(Adapter{Name: "ada"}, Model{ID: "m"}, time.Second)
	if v, _ := s.Adapter("law", time.Now()); v.Evicts || len(s.Health().Models) != 2 {
		t.Errorf("another one evicts %v; it lists %v", v.Evicts, s.Health().Models)
	}
}

// A server takes requests for what it has, and for what it can load unless it could not just
// now; while it sleeps only if it can be woken.
func TestServer_ServesWhatItHasOrCanLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := modelFleet(t, []Adapter{{Name: "law", Base: "n"}, {Name: "ada", Base: "m"}, {Name: "any"}}, "m eve<m")
		s := f.Servers()[0]
		s.GPUs = "a"
		serves := func() (ids string) {
			for _, id := range []string{"m", "eve", "ada", "any", "law", "other"} {
				if s.Serves(id, time.Now()) {
					ids += id + " "
				}
			}
			return ids
		}
		expect := func(when, want string) {
			t.Helper()
			if got := serves(); got != want {
				t.Errorf("%s: it serves %q, want %q", when, got, want)
			}
		}
		expect("at first", "m eve ada any ")
		asked := claim(t, s, Decode, curve.Work{})
		await := asked.Prepare("ada")
		s.LoadRequests().Finish("ada", errEngine, time.Minute, time.Now())
		if err := await(t.Context()); !errors.Is(err, errEngine) {
			t.Errorf("it could not be loaded: %v", err)
		}
		expect("one could not be loaded", "m eve any ")
		time.Sleep(time.Minute)
		expect("a minute later", "m eve ada any ")
		asked.Release()
		s.GPUShare().RecordSleep()
		expect("asleep", "m eve ada any ")
		s.WakeRequests().Ask()
		s.WakeRequests().Finish(errEngine, time.Minute, time.Now())
		expect("it could not be woken", "")
		s.GPUShare().RecordWake(time.Second, time.Now())
		expect("it woke all the same", "m eve ada any ")
		s.GPUShare().RecordSleep()
		time.Sleep(time.Minute)
		expect("asleep a minute later", "m eve ada any ")
		s.GPUs = ""
		s.WakeRequests().Ask()
		s.WakeRequests().Finish(errEngine, time.Minute, time.Now())
		expect("of GPUs of its own", "m eve ada any ")
	})
}
