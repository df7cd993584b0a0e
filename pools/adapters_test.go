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
		f.Servers()[0].GPUShare().Slept()
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
			if err := <-failed; !errors.Is(err, errLeft) {
				t.Errorf("%s: %v", s.ID(), err)
			}
		}
	})
}
