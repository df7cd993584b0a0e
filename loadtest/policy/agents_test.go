package policy

import (
	"reflect"
	"slices"
	"testing"
)

func TestAgents_TheTraceIsThatOfItsSeed(t *testing.T) {
	for _, name := range []string{"agents-035", "agents-06", "agents-10"} {
		a := scenario(t, name).Agents
		trace := a.workload().trace(name, a.Seed, 0)
		if len(trace.Requests) < 12_000 {
			t.Errorf("%s: %d requests, want 12,000 at least", name, len(trace.Requests))
		}
		if !reflect.DeepEqual(trace, a.workload().trace(name, a.Seed, 0)) {
			t.Errorf("%s: the same seed gives another trace", name)
		}
		other := *a
		other.Seed++
		if reflect.DeepEqual(trace, other.workload().trace(name, other.Seed, 0)) {
			t.Errorf("%s: another seed gives the same trace", name)
		}
		products := map[int32]bool{}
		for i := range trace.Requests {
			r := &trace.Requests[i]
			if err := checkRow(r, len(r.Blocks), trace.Requests[:i]); err != nil {
				t.Fatalf("%s: request %d: %v", name, i, err)
			}
			products[r.Blocks[0]] = true
			if r.Blocks[a.SharedTokens/blockTokens-1]-r.Blocks[0] != int32(a.SharedTokens/blockTokens-1) {
				t.Fatalf("%s: request %d does not begin with its product's blocks", name, i)
			}
		}
		if len(products) != a.Products {
			t.Errorf("%s: %d products, want %d", name, len(products), a.Products)
		}
	}
}

// The queue before the servers that hold the shared prefix grows, and others are free: the
// prefix is computed there too, and no request waits long.
func TestRun_AgentsWaitForNoBusyServerWhileAnotherIsIdle(t *testing.T) {
	s := scenario(t, "agents-06")
	trace := s.workload().trace(s.Name, s.Agents.Seed, 3000)
	for _, p := range []*Policy{arrival, lateBinding, throughput} {
		o, err := Run(trace, s, p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if o.IdleShare > 1 || o.Wait > 30 {
			t.Errorf("%s: waits of %.0f s, of them %.0f s while a server was idle: %.1f times what is allowed", p.Name, o.Wait, o.IdleWait, o.IdleShare)
		}
	}
}

// All requests go to one server, whatever the others do: that is seen.
func TestRun_WaitingBesideAnIdleServerIsMeasured(t *testing.T) {
	s := scenario(t, "agents-06")
	first := &Policy{Name: "first", Kind: Ours, New: stateless(func(*View) Pair { return Pair{} })}
	o, err := Run(s.workload().trace(s.Name, s.Agents.Seed, 300), s, first, 1)
	if err != nil {
		t.Fatal(err)
	}
	if o.IdleShare <= 1 {
		t.Errorf("it waited %.0f s while a server was idle, %.1f times what is allowed", o.IdleWait, o.IdleShare)
	}
}

func TestFindScenarios_ReadsPatterns(t *testing.T) {
	found, err := FindScenarios([]string{"agents*", "B"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range found {
		names = append(names, s.Name)
	}
	if want := []string{"agents-035", "agents-06", "agents-10", "B"}; !slices.Equal(names, want) {
		t.Errorf("found %v, want %v", names, want)
	}
	if all, err := FindScenarios([]string{"all"}); err != nil || len(all) != len(Shipped()) {
		t.Errorf("all: %d, %v", len(all), err)
	}
	if _, err := FindScenarios([]string{"nothing*"}); err == nil {
		t.Error("a pattern that matches nothing: no error")
	}
}
