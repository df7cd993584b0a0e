package predict

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

var sessionsBegin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A session is where it was last, for as long as caches may hold it.
func TestSessions_RememberTheLastServersForAWhile(t *testing.T) {
	var s Sessions
	session, first, second := Session{"a", "m", 7}, cost.Home{Prefill: "p0", Decode: "d0"}, cost.Home{Decode: "d1"}
	is := func(what string, at time.Time, want cost.Home) {
		t.Helper()
		if got := s.Home(session, at); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	is("before", sessionsBegin, cost.Home{})
	s.Observe(session, first, sessionsBegin)
	is("after", sessionsBegin.Add(sessionLife), first)
	is("too late", sessionsBegin.Add(sessionLife+1), cost.Home{})
	s.Observe(session, second, sessionsBegin.Add(sessionLife))
	is("elsewhere", sessionsBegin.Add(2*sessionLife), second)
}

// What one tenant calls a session says nothing of another's, nor of another model's; no name is
// no session.
func TestSessions_AreTheTenantsOwn(t *testing.T) {
	var s Sessions
	s.Observe(Session{"a", "m", 7}, cost.Home{Decode: "d0"}, sessionsBegin)
	s.Observe(Session{"a", "m", 0}, cost.Home{Decode: "d0"}, sessionsBegin)
	for _, other := range []Session{{"b", "m", 7}, {"", "m", 7}, {"a", "n", 7}, {"a", "m", 8}, {"a", "m", 0}} {
		if got := s.Home(other, sessionsBegin); got != (cost.Home{}) {
			t.Errorf("%+v is served at %+v", other, got)
		}
	}
	s.Observe(Session{"b", "m", 7}, cost.Home{Decode: "d1"}, sessionsBegin)
	if got := s.Home(Session{"a", "m", 7}, sessionsBegin); got.Decode != "d0" {
		t.Errorf("another tenant has moved it to %+v", got)
	}
}

// A tenant that makes up a session for each request forgets its own, oldest first; others keep
// theirs, and memory is bounded.
func TestSessions_ALiarPushesOutItsOwn(t *testing.T) {
	var s Sessions
	at := cost.Home{Decode: "d"}
	honest := Session{"honest", "m", 1}
	s.Observe(honest, at, sessionsBegin)
	for i := range 3 * tenantSessionsMost {
		s.Observe(Session{"liar", "m", uint64(i + 1)}, at, sessionsBegin)
	}
	if s.Home(honest, sessionsBegin) != at {
		t.Error("an honest tenant's session is forgotten")
	}
	kept := 0
	for i := range 3 * tenantSessionsMost {
		if s.Home(Session{"liar", "m", uint64(i + 1)}, sessionsBegin) == at {
			kept++
			if i < 2*tenantSessionsMost {
				t.Fatalf("session %d is still there", i)
			}
		}
	}
	if kept != tenantSessionsMost || len(s.homes.tenants["liar"].entries) != tenantSessionsMost || s.homes.tenants["liar"].order.Len() != tenantSessionsMost {
		t.Errorf("%d sessions are kept", kept)
	}
	for i := range 2 * maxKeys {
		s.Observe(Session{fmt.Sprint(i), "m", 1}, at, sessionsBegin)
	}
	if len(s.homes.tenants) > maxKeys || s.Home(honest, sessionsBegin) != at {
		t.Errorf("%d tenants are remembered", len(s.homes.tenants))
	}
}

// Where a tenant has no more room, the session that was longest without a request goes, though
// others were named after it.
func TestSessions_TheLongestIdleMakesRoom(t *testing.T) {
	var s Sessions
	at := cost.Home{Decode: "d"}
	for i := range tenantSessionsMost {
		s.Observe(Session{"a", "m", uint64(i + 1)}, at, sessionsBegin)
	}
	s.Observe(Session{"a", "m", 1}, at, sessionsBegin) // the first is used again
	s.Observe(Session{"a", "m", tenantSessionsMost + 1}, at, sessionsBegin)
	for hash, want := range map[uint64]cost.Home{1: at, 2: {}, 3: at, tenantSessionsMost + 1: at} {
		if got := s.Home(Session{"a", "m", hash}, sessionsBegin); got != want {
			t.Errorf("session %d is at %+v, want %+v", hash, got, want)
		}
	}
}

// Each request of a session says where it is: to note that takes no memory.
func TestSessions_AKnownOneTakesNoMemory(t *testing.T) {
	var s Sessions
	session, at := Session{"a", "m", 7}, cost.Home{Decode: "d"}
	if n := testing.AllocsPerRun(100, func() { s.Observe(session, at, sessionsBegin) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
