package pools

import (
	"testing"
	"testing/synctest"
	"time"
)

// The fifth prefill in a row without a hand-off leaves the server out for half a minute, once;
// after the pause each further one does, until one hands over, or the server is started anew.
func TestHandoffs_AServerThatHandsNothingOverIsLeftOut(t *testing.T) {
	for name, recovers := range map[string]func(*Server){
		"a hand-off": func(s *Server) { s.RecordHandoff() },
		"a restart": func(s *Server) {
			s.MarkDown("connection refused")
			s.ProbePassed(s.Health(), []Model{{ID: "m"}}, time.Now())
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := upFleet(t, nil, spec("http://10.0.0.1:1", Prefill)).Servers()[0]
			miss := func(n int) (news int) {
				for range n {
					if s.RecordMissingHandoff(time.Now()) {
						news++
					}
				}
				return news
			}
			out := func() bool { return s.MissesHandoffs(time.Now()) }
			for round := range 2 {
				if news := miss(4); news != 0 || out() {
					t.Errorf("%s, round %d: left out after four", name, round)
				}
				if news := miss(1); news != 1 || !out() {
					t.Errorf("%s, round %d: after five: said %d times, out %v", name, round, news, out())
				}
				if news := miss(3); news != 0 {
					t.Errorf("%s, round %d: those that were under way are news %d times", name, round, news)
				}
				time.Sleep(30*time.Second - 1)
				if !out() {
					t.Errorf("%s, round %d: back before the pause is over", name, round)
				}
				time.Sleep(time.Nanosecond)
				if out() {
					t.Errorf("%s, round %d: out beyond the pause", name, round)
				}
				if news := miss(1); news != 1 || !out() {
					t.Errorf("%s, round %d: one more after the pause: said %d times, out %v", name, round, news, out())
				}
				if recovers(s); out() {
					t.Errorf("%s, round %d: out after it", name, round)
				}
			}
		})
	}
}

// A foreign host is news once in each incarnation of the server.
func TestNoteForeign_IsNewsOncePerIncarnation(t *testing.T) {
	s := upFleet(t, nil, spec("http://10.0.0.1:1", Prefill)).Servers()[0]
	for round := range 2 {
		if !s.RecordForeign("192.0.2.1") || s.RecordForeign("192.0.2.1") {
			t.Errorf("round %d: not news once", round)
		}
		s.MarkDown("connection refused")
		s.ProbePassed(s.Health(), nil, time.Now())
	}
}
