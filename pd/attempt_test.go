package pd

import (
	"fmt"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

// Whoever steps with a server that stands still stands still too.
func TestGivesUp_AServerThatHangsOnlyForOneThatDoesNot(t *testing.T) {
	for _, c := range []struct {
		groups []string // of the decode servers, of which the first hangs
		why    pools.Fall
		want   bool
	}{
		{[]string{""}, pools.Hangs, false},
		{[]string{""}, pools.Down, true},
		{[]string{"", ""}, pools.Hangs, true},
		{[]string{"g", "g"}, pools.Hangs, false},
		{[]string{"g", "g"}, pools.Down, true},
		{[]string{"g", "g", "h", "h"}, pools.Hangs, true},
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
		for _, again := range []bool{false, true} { // the fleet was told while the leg is under way
			if again {
				if err := f.Fleet.Apply(specs); err != nil {
					t.Fatal(err)
				}
			}
			if got := f.givesUp(testModel, DecodeLeg, hangs, c.why); got != c.want {
				t.Errorf("decode servers of the groups %q, %v, told again %v: %v", c.groups, c.why, again, got)
			}
		}
	}
}
