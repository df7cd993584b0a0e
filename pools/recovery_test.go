package pools

import (
	"testing"
	"testing/synctest"
	"time"
)

// due reports whether a channel says something, and takes it.
func due(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Some events make the next probe due at once, however lately the last one was.
func TestProbeDue_AtOnce(t *testing.T) {
	for name, event := range map[string]func(*Server){
		"a refused connection":             func(s *Server) { s.MarkDown("connection refused") },
		"one that was not made in time":    func(s *Server) { s.RecordLate(time.Now()) },
		"shared GPUs that are free to use": func(s *Server) { s.CloseGPUShare(false) },
	} {
		s := testServer(Both)
		for round := range 2 {
			s.CloseGPUShare(true)
			if due(s.ProbeDue()) {
				t.Fatalf("%s, round %d: due before it", name, round)
			}
			event(s)
			if !due(s.ProbeDue()) {
				t.Errorf("%s, round %d: the next probe is not due", name, round)
			}
			s.gpus.setClosed(false)
		}
	}
}

// An ejected server that comes back is most likely another process: it is proved at once, for
// both legs, and not only when its ejection is over.
func TestRecovery_AnEjectedServerIsProvedAtOnce(t *testing.T) {
	models := []Model{{ID: "m"}}
	for name, c := range map[string]struct{ lost, back func(*Server) }{
		"it was down": {
			func(s *Server) { s.MarkDown("connection refused") },
			func(s *Server) { s.ProbePassed(s.Health(), models, time.Now()) },
		},
		"it was unresponsive": {
			func(s *Server) { s.RecordLate(time.Now()) },
			func(s *Server) { s.RecordAlive(time.Now()) },
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := NewServer(spec("http://10.0.0.1:1", Both))
			s.ProbePassed(s.Health(), models, time.Now())
			for round := range 2 {
				for _, b := range s.breakers {
					for range 5 {
						b.RecordProbe(errEngine, time.Now())
					}
					due(b.Changed())
				}
				c.lost(s)
				time.Sleep(time.Second)
				c.back(s)
				for _, leg := range []Role{Prefill, Decode} {
					at, wanted, changed := s.ProbeRequestDue(leg)
					if !wanted || at.After(time.Now()) {
						t.Errorf("%s, round %d: a probe request of %s is wanted %v, in %v", name, round, leg, wanted, time.Until(at))
					}
					if !due(changed) {
						t.Errorf("%s, round %d: the prober that sends those of %s waits on", name, round, leg)
					}
				}
			}
		})
	}
}
