package pools

import (
	"testing"
	"testing/synctest"
	"time"
)

// Models may be those of a server that was there when the gateway began, decodes and was never up, for as long as an
// engine may load its weights.
func TestAwaitsModels_OfServersThatWereThereAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t)
		wants := func(when string, want bool) {
			t.Helper()
			if got := f.AwaitsModels(time.Now()); got != want {
				t.Errorf("%s: %v", when, got)
			}
		}
		apply := func(specs ...Spec) {
			t.Helper()
			if err := f.Apply(specs); err != nil {
				t.Fatal(err)
			}
		}
		prefill, decode, late := spec("http://10.0.0.1:1", Prefill), spec("http://10.0.0.2:1", Decode), spec("http://10.0.0.3:1", Both)
		wants("without a server", false)
		apply(prefill)
		wants("with one that does not decode", false)
		time.Sleep(foundAtStart - time.Second)
		apply(prefill, decode)
		wants("with one that decodes", true)
		time.Sleep(2 * time.Second)
		apply(prefill, late)
		wants("with one that came later", false)
		apply(prefill, late, decode)
		wants("with one that left and came back", false)

		f = newTestFleet(t)
		apply(decode)
		s := f.Servers()[0]
		s.ProbeFailed(s.Health(), "connection refused")
		time.Sleep(loadingTime - time.Second)
		wants("while it may load its weights", true)
		s.ProbePassed(s.Health(), []Model{{ID: "m"}}, time.Now())
		wants("once it was up", false)
		s.ProbeFailed(s.Health(), "connection refused")
		wants("when it is down again", false)
		f = newTestFleet(t)
		apply(decode)
		time.Sleep(loadingTime)
		wants("when it must be gone for good", false)
	})
}
