package pools

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Requests that are held for a model are woken when a server comes to serve it.
func TestStateChanges_TellOfNewModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		if err := f.Apply([]Spec{spec("http://10.0.0.1:1", Decode)}); err != nil {
			t.Fatal(err)
		}
		f.Servers()[0].ProbePassed(f.Servers()[0].Health(), []Model{{ID: "m"}}, time.Now())
		changed, stop := f.StateChanges()
		defer stop()
		told := func() bool {
			select {
			case <-changed:
				return true
			default:
				return false
			}
		}
		s := f.Servers()[0]
		s.changeModels(func(models []Model) []Model { return append(models, Model{ID: "adapter", Parent: "m"}) })
		if !told() {
			t.Error("an adapter that the gateway loaded is not told of")
		}
		models := append(slices.Clone(s.Health().Models), Model{ID: "other", Parent: "m"})
		s.setUp(s.health.Load(), models, 0, time.Now())
		if !told() {
			t.Error("an adapter that a probe found is not told of")
		}
		s.setUp(s.health.Load(), models, 0, time.Now())
		if told() {
			t.Error("told though nothing has changed")
		}
	})
}
