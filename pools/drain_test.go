package pools

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// groupFleet is a fleet of a server by itself and of servers that step together; change is
// made to each spec of the group.
func groupFleet(t *testing.T, members int, change func(i int, s *Spec)) *Fleet {
	t.Helper()
	f := newTestFleet(t)
	applyGroup(t, f, members, change)
	return f
}

func applyGroup(t *testing.T, f *Fleet, members int, change func(i int, s *Spec)) {
	t.Helper()
	specs := []Spec{spec("http://10.0.0.9:1", Decode)}
	for i := range members {
		s := spec([]string{"http://10.0.0.1:1", "http://10.0.0.2:1", "http://10.0.0.3:1"}[i], Decode)
		s.Group = "wide"
		if change != nil {
			change(i, &s)
		}
		specs = append(specs, s)
	}
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
}

// draining are the servers that drain; it fails the test if one of them takes a request, or
// another one does not.
func draining(t *testing.T, f *Fleet) (ids []string) {
	t.Helper()
	for _, s := range f.Servers() {
		if s.Drains() {
			ids = append(ids, s.ID())
		}
		lease, err := s.Claim(Decode, curve.Work{}, true, time.Now())
		if (err != nil) != s.Drains() {
			t.Errorf("%s drains: %v, and a claim says %v", s.ID(), s.Drains(), err)
		}
		if err == nil {
			lease.Release()
		}
	}
	return ids
}

// The ranks of a group work in lockstep: whichever of them an operator names, all drain, and
// all take requests again.
func TestSetDrain_TheWholeGroupDrainsAndReturns(t *testing.T) {
	f := groupFleet(t, 3, nil)
	group := []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"}
	for i, one := range group {
		if members := slices.Sorted(slices.Values(f.SetDrain(one, true))); !slices.Equal(members, group) {
			t.Fatalf("%s is to drain, and so do %v", one, members)
		}
		if got := draining(t, f); !slices.Equal(got, group) {
			t.Errorf("%s is to drain: %v drain", one, got)
		}
		applyGroup(t, f, 3, func(_ int, s *Spec) { s.Rack = one })
		if got := draining(t, f); !slices.Equal(got, group) {
			t.Errorf("%s is to drain, and the configuration was read again: %v drain", one, got)
		}
		other := group[(i+1)%len(group)]
		f.SetDrain(other, false)
		if got := draining(t, f); len(got) != 0 {
			t.Errorf("%s drains no more: %v drain", other, got)
		}
	}
	f.SetDrain("10.0.0.9:1", true)
	if got := draining(t, f); !slices.Equal(got, []string{"10.0.0.9:1"}) {
		t.Errorf("the one by itself is to drain: %v drain", got)
	}
	if drains := f.SetDrain("10.0.0.4:1", true); len(drains) > 0 {
		t.Errorf("a server that is not there is to drain: %v do", drains)
	}
}

// A rank that takes the place of another one joins a group that drains.
func TestSetDrain_AServerThatJoinsTheGroupDrainsToo(t *testing.T) {
	f := groupFleet(t, 2, nil)
	f.SetDrain("10.0.0.2:1", true)
	applyGroup(t, f, 3, nil)
	if got := draining(t, f); len(got) != 3 {
		t.Errorf("%v drain, want the group of three", got)
	}
	f.SetDrain("10.0.0.3:1", false)
	if got := draining(t, f); len(got) != 0 {
		t.Errorf("no more: %v drain", got)
	}
}

// What a source says of one member is true of the group, until it says otherwise.
func TestGroup_OneThatDrainsByItsSpecDrainsAll(t *testing.T) {
	for one := range 3 {
		f := groupFleet(t, 3, func(i int, s *Spec) { s.Drain = i == one })
		if got := draining(t, f); len(got) != 3 || slices.Contains(got, "10.0.0.9:1") {
			t.Errorf("member %d drains: %v drain", one, got)
		}
		applyGroup(t, f, 3, nil)
		if got := draining(t, f); len(got) != 0 {
			t.Errorf("none drains any more: %v drain", got)
		}
	}
}

// Scaling in names all units that leave each time: the others, which left before, are back,
// but for those that an operator drains.
func TestSetDrainingUnits_TheUnitsThatAreNotNamedReturn(t *testing.T) {
	f := groupFleet(t, 3, func(i int, s *Spec) { s.Group, s.Unit = "", []string{"u0", "u0", "u1"}[i] })
	f.SetDrain("10.0.0.9:1", true)
	for _, c := range []struct {
		leave map[string]bool
		want  []string
	}{
		{map[string]bool{"u0": true}, []string{"10.0.0.9:1", "10.0.0.1:1", "10.0.0.2:1"}},
		{map[string]bool{"u1": true}, []string{"10.0.0.9:1", "10.0.0.3:1"}},
		{nil, []string{"10.0.0.9:1"}},
	} {
		f.SetDrainingUnits(c.leave)
		if got := draining(t, f); !slices.Equal(got, c.want) {
			t.Errorf("%v leave: %v drain, want %v", c.leave, got, c.want)
		}
	}
}

// The ranks of a group may be of several units: where one of these leaves, none of the group
// gets on, so none takes a request any more.
func TestSetDrainingUnits_AGroupOfSeveralUnitsDrainsTogether(t *testing.T) {
	f := groupFleet(t, 3, func(i int, s *Spec) { s.Unit = []string{"u0", "u0", "u1"}[i] })
	group := []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"}
	for _, c := range []struct {
		leave string
		want  []string
	}{{"u0", group}, {"u1", group}, {"http://10.0.0.9:1", []string{"10.0.0.9:1"}}, {"", nil}} {
		f.SetDrainingUnits(map[string]bool{c.leave: true})
		if got := draining(t, f); !slices.Equal(got, c.want) {
			t.Errorf("%q leaves: %v drain, want %v", c.leave, got, c.want)
		}
	}
}
