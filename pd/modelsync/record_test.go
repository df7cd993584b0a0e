package modelsync

import (
	"slices"
	"strings"
	"testing"
)

func newReceivedRecord() *receivedRecord {
	return &receivedRecord{servers: make(map[string]serverRecord)}
}

func TestSync_WhatIsGoneIsForgotten(t *testing.T) {
	h := newReceivedRecord()
	tell := func(servers ...string) {
		r := record{Basis: "same", Servers: make(map[string]serverRecord)}
		for _, id := range servers {
			r.Servers[id] = serverRecord{}
			h.servers[id] = serverRecord{} // taken in
		}
		h.receive(r)
	}
	tell("a", "b")
	tell("b", "c")
	if _, kept := h.servers["a"]; kept || len(h.servers) != 2 {
		t.Errorf("of a server that is gone: %v", h.servers)
	}
	e := Sync{received: map[string]*receivedRecord{"lives": h, "gone": newReceivedRecord()}}
	e.forgetAllBut([]string{"new", "lives"})
	var left []string
	for id := range e.received {
		left = append(left, id)
	}
	if !slices.Equal(left, []string{"lives"}) {
		t.Errorf("records of %v are kept", left)
	}
}

// A server that a record names for the first time has been seen since the record before; the first
// record of a replica, which may be old, says that of none.
func TestSync_OfANewServerAllIsSeenSince(t *testing.T) {
	told := func(ids ...string) record {
		r := record{Basis: "same", Servers: make(map[string]serverRecord)}
		for _, id := range ids {
			r.Servers[id] = serverRecord{}
		}
		return r
	}
	h := newReceivedRecord()
	for i, r := range []record{told("a"), told("a"), told("a", "b")} {
		h.receive(r)
		if _, since := h.servers["a"]; since {
			t.Errorf("record %d: a server of the first record counts as seen since", i)
		}
	}
	if _, since := h.servers["b"]; !since {
		t.Error("a server of a later one does not")
	}
}

// A record is read up to its bound, and where it starts from the same priors.
func TestSync_ReadsRecordsUpToTheirBound(t *testing.T) {
	m := Sync{basis: "7"}
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"a record":          {`{"basis":"7"}`, true},
		"the longest":       {`{"basis":"7"}` + strings.Repeat(" ", maxLearned-len(`{"basis":"7"}`)), true},
		"longer":            {`{"basis":"7"}` + strings.Repeat(" ", maxLearned+1-len(`{"basis":"7"}`)), false},
		"of another basis":  {`{"basis":"8"}`, false},
		"what is no record": {`basis 7`, false},
	} {
		if _, got := m.parse([]byte(c.text)); got != c.want {
			t.Errorf("%s: read %v", name, got)
		}
	}
}
