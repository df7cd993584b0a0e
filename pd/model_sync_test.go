package pd

import (
	"slices"
	"testing"
)

func newHeard() *heard {
	return &heard{servers: make(map[string]serverRecord)}
}

func TestExperience_WhatIsGoneIsForgotten(t *testing.T) {
	h := newHeard()
	tell := func(servers ...string) {
		r := experienceRecord{Basis: "same", Servers: make(map[string]serverRecord)}
		for _, id := range servers {
			r.Servers[id] = serverRecord{}
			h.servers[id] = serverRecord{} // taken in
		}
		h.hear(r)
	}
	tell("a", "b")
	tell("b", "c")
	if _, kept := h.servers["a"]; kept || len(h.servers) != 2 {
		t.Errorf("of a server that is gone: %v", h.servers)
	}
	e := Experience{heard: map[string]*heard{"lives": h, "gone": newHeard()}}
	e.forgetBut([]string{"new", "lives"})
	var left []string
	for id := range e.heard {
		left = append(left, id)
	}
	if !slices.Equal(left, []string{"lives"}) {
		t.Errorf("records of %v are kept", left)
	}
}
