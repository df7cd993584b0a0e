package pools

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
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

// What requests wait for fails once nobody makes the server ready any more.
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
			lease, err := s.Claim(Decode, curve.Work{}, false)
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			s.LoadRequests().Open()
			s.WakeRequests().Open()
			failed := make(chan error, 1)
			await := lease.Prepare("ada")
			go func() { failed <- await(t.Context()) }()
			synctest.Wait()
			s.LoadRequests().Close()
			s.WakeRequests().Close()
			if err := <-failed; !errors.Is(err, errStopped) {
				t.Errorf("%s: %v", s.ID(), err)
			}
		}
	})
}

// While a lease holds an adapter nobody may unload it: it counts as many as were prepared and
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
		s.LoadRequests().Open()
		prepared := func(leg Role, model string) *Lease {
			l, err := s.Claim(leg, curve.Work{}, false)
			if err != nil {
				t.Fatal(err)
			}
			l.MarkSent(0)
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
