package pd

import (
	"fmt"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

// Whoever steps with a server that stands still stands still too, and from whom the leg was
// taken before never gets it again: two that stand still must not pass it to and fro.
func TestGivesUp_AServerThatHangsOnlyForOneThatDoesNot(t *testing.T) {
	for _, c := range []struct {
		groups []string // of the decode servers, of which the first hangs
		before []int    // of them that the leg was taken from
		why    pools.DownCause
		want   bool
	}{
		{[]string{""}, nil, pools.Hangs, false},
		{[]string{""}, nil, pools.Silent, false},
		{[]string{"", ""}, nil, pools.Silent, true},
		{[]string{"g", "g"}, nil, pools.Silent, false},
		{[]string{""}, nil, pools.ProbesFailed, true},
		{[]string{"", ""}, nil, pools.Hangs, true},
		{[]string{"", ""}, []int{1}, pools.Hangs, false},
		{[]string{"", ""}, []int{1}, pools.ProbesFailed, true},
		{[]string{"", "", ""}, []int{1}, pools.Hangs, true},
		{[]string{"g", "g"}, nil, pools.Hangs, false},
		{[]string{"g", "g"}, nil, pools.ProbesFailed, true},
		{[]string{"g", "g", "h", "h"}, nil, pools.Hangs, true},
	} {
		f := newTestFleet(t, 1, testPrompt(100))
		var specs []pools.Spec
		for i, group := range c.groups {
			specs = append(specs, pools.Spec{URL: fmt.Sprintf("http://d%d:8000", i), Role: pools.Decode, Connector: "nixl", Group: group})
		}
		if err := f.Fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		f.await(t, f.up)
		hangs := f.Fleet.Servers()[0]
		var tried priorAttempts
		for _, i := range c.before {
			tried.record(&LegError{Leg: DecodeLeg, Server: f.Fleet.Servers()[i].ID(), Kind: Timeout}, false)
		}
		for _, again := range []bool{false, true} { // the fleet was told while the leg is under way
			if again {
				if err := f.Fleet.Apply(specs); err != nil {
					t.Fatal(err)
				}
			}
			if got := f.Binder.shouldAbandon(testModel, DecodeLeg, hangs, tried.servers(DecodeLeg), c.why); got != c.want {
				t.Errorf("decode servers of the groups %q, taken from %v before, %v, told again %v: %v", c.groups, c.before, c.why, again, got)
			}
		}
	}
}
