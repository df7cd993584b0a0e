package predict

import (
	"testing"
	"time"
)

// Servers that have not met are let meet by one caller, and fetch then; those that failed pause, and are let meet again.
func TestMeetings(t *testing.T) {
	var m Meetings
	now := time.Unix(1e9, 0)
	who := Meeting{From: "d", To: "p", FromLife: 1, Life: 1}
	check := func(what string, met bool) {
		t.Helper()
		if got := m.HaveMet(who); got != met {
			t.Errorf("%s: have met: %v", what, got)
		}
	}
	check("at first", false)
	if !m.Begin(who, now) || m.Begin(who, now) || !m.Begin(Meeting{From: "p", To: "d"}, now) || !m.Begin(Meeting{From: "d", To: "q"}, now) {
		t.Error("not one caller for each way between two servers")
	}
	m.Observe(who, true, now)
	check("met", true)
	if m.Begin(who, now) {
		t.Error("they meet twice")
	}
	again := who
	again.Life++
	if m.HaveMet(again) || !m.Begin(again, now) {
		t.Error("they do not meet anew in another life")
	}
	m.Observe(who, false, now)
	check("failed", false)
	if m.Begin(who, now.Add(meetingPause-1)) || !m.Begin(who, now.Add(meetingPause)) {
		t.Error("they do not meet anew after a pause")
	}
	for i := range uint64(1000) {
		now = now.Add(meetingLife / 10)
		m.Observe(Meeting{From: "d", To: "p", Life: 10 + i}, true, now)
	}
	if n := len(m.seen); n > 12 {
		t.Errorf("%d are remembered", n)
	}
}
