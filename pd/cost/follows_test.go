package cost

import (
	"slices"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// A request follows another one where a prefill server computes a beginning of its prompt that none
// has yet: a server that has it makes waiting for another needless.
func TestCandidates_Follow(t *testing.T) {
	for name, c := range map[string]struct {
		held []cached.Tokens
		want bool
	}{
		"nothing is held":                 {[]cached.Tokens{{}, {}}, false},
		"a beginning is being computed":   {[]cached.Tokens{{GPU: 20_000, Pending: 20_000}, {}}, true},
		"another server has as much":      {[]cached.Tokens{{GPU: 20_000, Pending: 20_000}, {GPU: 19_500}}, false},
		"another server has a part of it": {[]cached.Tokens{{GPU: 20_000, Pending: 20_000}, {GPU: 8000}}, true},
		"the end of what it has":          {[]cached.Tokens{{GPU: 20_000, Pending: 500}, {}}, false},
	} {
		var f Candidates
		for _, held := range c.held {
			f.Prefill = append(f.Prefill, Candidate{Cached: held})
		}
		if got := f.follows(make([]bool, len(f.Prefill))); got != c.want {
			t.Errorf("%s: follows %v", name, got)
		}
	}
}

// Of the servers that compute a beginning of a prompt all are told, also where another has as much.
func TestCandidates_FollowsOn(t *testing.T) {
	f := Candidates{Prefill: []Candidate{
		{Cached: cached.Tokens{GPU: 20_000}}, {Cached: cached.Tokens{GPU: 20_000, Pending: 20_000}}, {Cached: cached.Tokens{GPU: 20_000, Pending: 1000}},
	}}
	on := make([]bool, 3)
	if f.follows(on) || !slices.Equal(on, []bool{false, true, false}) {
		t.Errorf("it follows on %v", on)
	}
}

// What a decode server computes itself is to be moved there all the same.
func TestMissing_WhatIsBeingComputedIsNotThere(t *testing.T) {
	m, w := Default(), newWork(20_000)
	held := m.missing(&Candidate{Cached: cached.Tokens{GPU: 16_000}}, &w)
	computed := m.missing(&Candidate{Cached: cached.Tokens{GPU: 16_000, Pending: 16_000}}, &w)
	if none := m.missing(&Candidate{}, &w); computed != none || held >= none {
		t.Errorf("%v bytes move where it is computed, %v where it is held, %v where nothing is", computed, held, none)
	}
}
