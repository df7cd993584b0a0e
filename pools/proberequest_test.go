package pools

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
)

// A probe request that gets no answer is reported to all that wait on the server, or on one
// that steps with it: each one anew, until they wait no more.
func TestProof_OneThatHangsIsReportedToAllThatWait(t *testing.T) {
	f := groupFleet(t, 2, nil)
	servers := f.Servers() // one by itself, and the group
	reports, stops := make(map[*Server][]DownCause), make(map[*Server]func())
	for _, s := range servers {
		stops[s] = s.OnDown(new(DownWatch), DownFunc(func(why DownCause) { reports[s] = append(reports[s], why) })).Stop
	}
	sent := time.Now().Add(time.Hour)
	hang := func() {
		clear(reports)
		sent = sent.Add(time.Minute)
		if _, counted := servers[1].BeginProbeRequest(Decode, sent).End(context.DeadlineExceeded, sent.Add(5*time.Second)); !errors.Is(counted, context.DeadlineExceeded) {
			t.Errorf("it counts as %v", counted)
		}
	}
	hung := func(s *Server) bool {
		return len(reports[s]) > 0 && !slices.ContainsFunc(reports[s], func(why DownCause) bool { return why != Hangs })
	}
	for round := range 2 {
		if hang(); !hung(servers[1]) || !hung(servers[2]) || len(reports[servers[0]]) > 0 {
			t.Errorf("round %d: reported are %v", round, reports)
		}
	}
	stops[servers[1]]()
	if hang(); len(reports[servers[1]]) > 0 || !hung(servers[2]) {
		t.Errorf("one waits no more: reported are %v", reports)
	}
}

// Only silence is: a wrong answer came, and what is busy answers others.
func TestProof_WhatIsNoHangIsNotReported(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*Server)
		verdict   error
		counted   error
	}{
		"well":            {nil, nil, nil},
		"wrong":           {nil, breaker.ErrWrongAnswer, breaker.ErrWrongAnswer},
		"cut":             {nil, errEngine, errEngine},
		"others served":   {func(s *Server) { use(t, s, Decode, nil) }, context.DeadlineExceeded, breaker.ErrBusy},
		"others' streams": {func(s *Server) { s.RecordProgress(time.Now()) }, context.DeadlineExceeded, breaker.ErrBusy},
		"others failed":   {func(s *Server) { use(t, s, Decode, errEngine) }, context.DeadlineExceeded, context.DeadlineExceeded},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := NewServer(spec("http://10.0.0.1:1", Decode))
			reported := 0
			defer s.OnDown(new(DownWatch), DownFunc(func(DownCause) { reported++ })).Stop()
			time.Sleep(time.Second)
			proof := s.BeginProbeRequest(Decode, time.Now())
			time.Sleep(time.Second)
			if c.meanwhile != nil {
				c.meanwhile(s)
			}
			time.Sleep(4 * time.Second)
			_, counted := proof.End(c.verdict, time.Now())
			if want := errors.Is(c.counted, context.DeadlineExceeded); !errors.Is(counted, c.counted) || reported > 0 != want {
				t.Errorf("%s: it counts as %v and was reported %d times", name, counted, reported)
			}
		})
	}
}
