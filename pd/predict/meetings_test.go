package predict

import (
	"strconv"
	"testing"
	"time"
)

// Servers that have not met are let meet by one caller, and fetch then; those that failed pause, and are let meet again.
func TestMeetings(t *testing.T) {
	var m Meetings
	now := time.Unix(1e9, 0)
	check := func(what string, met, pauses bool) {
		t.Helper()
		if got := m.HaveMet("d", "p"); got != met {
			t.Errorf("%s: have met: %v", what, got)
		}
		if got := m.Pauses("d", "p", now); got != pauses {
			t.Errorf("%s: pauses: %v", what, got)
		}
	}
	check("at first", false, false)
	if !m.Begin("d", "p", now) || m.Begin("d", "p", now) || !m.Begin("p", "d", now) || !m.Begin("d", "q", now) {
		t.Error("not one caller for each way between two servers")
	}
	check("while they meet", false, true)
	m.Observe("d", "p", true, now)
	check("met", true, false)
	if m.Begin("d", "p", now) {
		t.Error("they meet twice")
	}
	m.Observe("d", "p", false, now)
	check("failed", false, true)
	now = now.Add(meetingPause)
	check("after a while", false, false)
	if !m.Begin("d", "p", now) {
		t.Error("they never meet again")
	}
	for i := range 1000 {
		now = now.Add(meetingLife / 10)
		m.Observe("d", strconv.Itoa(i), true, now)
	}
	if n := len(m.paths); n > 12 {
		t.Errorf("%d are remembered", n)
	}
}
