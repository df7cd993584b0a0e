package pools

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
)

func fleetOf(n int) []*Server {
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = testServer(Decode)
		servers[i].id = fmt.Sprintf("d%d", i)
	}
	return servers
}

func TestCandidates_SoftEjectionIsCappedAndBeyondItAllAreUsed(t *testing.T) {
	for _, c := range []struct {
		servers, ejected, want int
		panics                 bool
	}{
		{1, 1, 1, true}, // nothing else is there
		{2, 1, 1, false},
		{2, 2, 2, true},
		{3, 1, 2, false},
		{3, 2, 3, true},
		{4, 2, 2, false},
		{4, 3, 4, true},
		{10, 5, 5, false},
		{10, 6, 10, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			servers := fleetOf(c.servers)
			for _, s := range servers[:c.ejected] {
				trip(t, s)
			}
			got, panicking := Candidates(nil, servers, "m", Decode, 0.5, time.Now())
			if len(got) != c.want || panicking != c.panics {
				t.Errorf("%d of %d ejected: %d usable, panic %v; want %d, %v", c.ejected, c.servers, len(got), panicking, c.want, c.panics)
			}
		})
	}
}

func TestCandidates_HardDownIsOutsideTheCap(t *testing.T) {
	servers := fleetOf(4)
	for _, s := range servers[:3] {
		s.MarkDown("connection refused")
	}
	got, panicking := Candidates(nil, servers, "m", Decode, 0.5, time.Now())
	if len(got) != 1 || got[0] != servers[3] || panicking {
		t.Errorf("%d usable, panic %v", len(got), panicking)
	}
	servers[3].MarkDown("connection refused")
	if got, panicking = Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 0 || panicking {
		t.Errorf("all down: %d usable, panic %v", len(got), panicking)
	}
}

// A wrong answer to a probe request is certain, so it is outside the cap too.
// When most are late at once, those few that are not do not get the work of all: not until
// the others are silent.
func TestCandidates_WhenMostAreUnresponsiveNoneIsOut(t *testing.T) {
	for _, c := range []struct{ servers, unresponsive, late, want int }{
		{4, 1, 1, 3},
		{4, 2, 1, 2},
		{4, 3, 1, 4},
		{4, 3, silentAfterMost - 1, 4},
		{4, 3, silentAfterMost, 1},
		{10, 9, 2, 10},
		{4, 4, 1, 0}, // the request may wait
		{1, 1, 1, 0},
	} {
		servers := fleetOf(c.servers)
		for _, s := range servers[:c.unresponsive] {
			for range c.late {
				s.late(time.Now())
			}
		}
		if got, panicking := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != c.want || panicking {
			t.Errorf("%d of %d unresponsive by %d late probes: %d usable, panic %v; want %d", c.unresponsive, c.servers, c.late, len(got), panicking, c.want)
		}
	}
}

func TestCandidates_AServerThatFailedItsCheckIsOutsideTheCap(t *testing.T) {
	servers := fleetOf(4)
	fail := func(s *Server) { s.breakers[1].RecordProbe(breaker.ErrWrongAnswer, time.Now()) }
	for _, s := range servers[:3] {
		fail(s)
	}
	if got, panicking := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 1 || got[0] != servers[3] || panicking {
		t.Errorf("%d usable, panic %v", len(got), panicking)
	}
	fail(servers[3])
	if got, panicking := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 4 || !panicking {
		t.Errorf("all failed: %d usable, panic %v", len(got), panicking)
	}
	// That they did not answer says less, that they are busy says nothing.
	other := fleetOf(4)
	for _, s := range other[:3] {
		s.breakers[1].RecordProbe(breaker.ErrBusy, time.Now())
	}
	if got, panicking := Candidates(nil, other, "m", Decode, 0.5, time.Now()); len(got) != 4 || panicking {
		t.Errorf("three busy: %d usable, panic %v", len(got), panicking)
	}
	for _, s := range other[:3] {
		s.breakers[1].RecordProbe(context.DeadlineExceeded, time.Now())
	}
	if got, panicking := Candidates(nil, other, "m", Decode, 0.5, time.Now()); len(got) != 4 || !panicking {
		t.Errorf("three silent: %d usable, panic %v", len(got), panicking)
	}
}

// What was proved wrong is trusted again when it is proved right, and not when a probe
// merely has no answer or no place.
func TestCandidates_AWrongAnswerIsForgottenOnlyWhenAProbePasses(t *testing.T) {
	for name, verdict := range map[string]error{
		"timed out": context.DeadlineExceeded, "429": breaker.ErrBusy, "cut": errEngine,
	} {
		servers := fleetOf(4)
		b := servers[0].breakers[1]
		b.RecordProbe(breaker.ErrWrongAnswer, time.Now())
		b.RecordProbe(verdict, time.Now())
		for _, s := range servers[1:] { // beyond the cap on those that are only ejected
			trip(t, s)
		}
		if got, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); slices.Contains(got, servers[0]) {
			t.Errorf("after a wrong answer and then %s it is used", name)
		}
		b.RecordProbe(nil, time.Now())
		if got, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); !slices.Contains(got, servers[0]) {
			t.Errorf("after a wrong answer, %s and a probe that passed it is not used", name)
		}
	}
}

// Decode can do without prefill, so a pool that is all busy or all broken is not
// tried: each try would be a retry.
func TestCandidates_PrefillIsLeftOutRatherThanTriedInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prefill := []*Server{testServer(Prefill), testServer(Prefill)}
		for _, s := range prefill {
			s.MarkBusy(time.Second)
		}
		if got, _ := Candidates(nil, prefill, "m", Prefill, 0.5, time.Now()); len(got) != 0 {
			t.Errorf("all busy: %d usable", len(got))
		}
		time.Sleep(time.Second)
		for _, s := range prefill {
			s.breakers[0].RecordProbe(breaker.ErrWrongAnswer, time.Now())
		}
		if got, _ := Candidates(nil, prefill, "m", Prefill, 0.5, time.Now()); len(got) != 0 {
			t.Errorf("all failed their probes: %d usable", len(got))
		}
		for _, s := range prefill { // whose decode never works alone
			s.Spec.Connector = "sglang"
		}
		if got, panicking := Candidates(nil, prefill, "m", Prefill, 0.5, time.Now()); len(got) != 2 || !panicking {
			t.Errorf("all that are needed: %d usable, panic %v", len(got), panicking)
		}
	})
}

func TestCandidates_BusyServersRestWhileOthersRemain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := fleetOf(2)
		servers[0].MarkBusy(time.Second)
		if got, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 1 || got[0] != servers[1] {
			t.Errorf("one busy: %d usable", len(got))
		}
		servers[1].MarkBusy(3 * time.Second)
		if got, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 2 {
			t.Errorf("all busy: %d usable", len(got))
		}
		time.Sleep(time.Second)
		if got, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 1 || got[0] != servers[0] {
			t.Errorf("after the pause of the one: %d usable", len(got))
		}
		time.Sleep(2 * time.Second)
		if got, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 2 {
			t.Errorf("after the other's: %d usable", len(got))
		}
	})
}

func TestCandidates_AShorterPauseNeverReplacesALongerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := fleetOf(2)
		servers[0].MarkBusy(10 * time.Second)
		servers[0].MarkBusy(time.Second)
		time.Sleep(5 * time.Second)
		if got, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 1 {
			t.Errorf("within the longer pause: %d usable", len(got))
		}
		time.Sleep(6 * time.Second)
		if got, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now()); len(got) != 2 {
			t.Errorf("after it: %d usable", len(got))
		}
	})
}

func TestCandidates_OnlyServersOfTheModelAndRole(t *testing.T) {
	servers := fleetOf(2)
	if got, _ := Candidates(nil, servers, "other", Decode, 0.5, time.Now()); len(got) != 0 {
		t.Errorf("another model: %d usable", len(got))
	}
	if got, _ := Candidates(nil, servers, "m", Prefill, 0.5, time.Now()); len(got) != 0 {
		t.Errorf("another role: %d usable", len(got))
	}
}
