package pools

import (
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools/load"
)

// liveness is what is known of whether a server is up.
type liveness struct {
	health      atomic.Pointer[Health]
	vitals      vitals
	downSince   atomic.Pointer[time.Time] // nil while up, and before the server was ever up
	incarnation atomic.Uint64             // counts how often the server came up
	recheck     chan struct{}             // the next probe is due at once

	downMu sync.Mutex // guards onDown, and where those in it are
	// onDown are called when the server is not expected to answer any more; see OnDown.
	onDown []*DownWatch
}

// Incarnation returns a number that changes when the server was down and is up again: what an
// engine reported before may not hold.
func (l *liveness) Incarnation() uint64 { return l.incarnation.Load() }

// Health returns the state as of the last probe or failed connection. Callers must not change it.
func (l *liveness) Health() *Health { return l.health.Load() }

// DownSince is since when the server is down, zero while it is up: what it reported of its
// health before does not count.
func (l *liveness) DownSince() time.Time {
	if since := l.downSince.Load(); since != nil {
		return *since
	}
	return time.Time{}
}

// ProbeDue is notified when the next probe is due at once.
func (l *liveness) ProbeDue() <-chan struct{} { return l.recheck }

// ProbeNow makes the next probe due at once.
func (l *liveness) ProbeNow() {
	select {
	case l.recheck <- struct{}{}:
	default:
	}
}

// MarkDown takes the server out at once, because a connection to it was refused.
// The next successful probe brings it back; one is due at once.
func (l *serverState) MarkDown(reason string) {
	l.setDown(reason)
	l.ProbeNow()
}

// setDown keeps the models, so that the error of a request for one of them is that no
// server is there and not that there is no such model. They are asked for again
// before the server takes anything.
func (l *serverState) setDown(reason string) {
	was := l.health.Load()
	l.health.Store(&Health{Reason: reason, Models: was.Models, at: was.at})
	l.vitals.clear()
	l.countChange()
	if was.Up {
		now := time.Now()
		l.downSince.Store(&now)
		l.changed.notify()
	}
	if was.Up || was.Reason == notProbed {
		l.states.notify()
	}
}

// setUp lets the server in again: gradually, and proved first if it was ejected.
//
// asked is the health from before they were asked for: an adapter that was loaded or
// unloaded since may not be in them as it is, and the next probe asks again.
func (l *serverState) setUp(asked *Health, models []Model, slowStart time.Duration, now time.Time) {
	var was *Health
	reported := Health{Up: true}.serving(models)
	for set := false; !set; {
		was = l.health.Load()
		next := reported
		if was.Up && was != asked {
			next.Models, next.at = was.Models, was.at
		}
		set = l.health.CompareAndSwap(was, &next)
	}
	l.countChange()
	l.RecordAlive(now)
	if was.Up {
		if !slices.Equal(was.Models, l.health.Load().Models) {
			l.states.notify()
		}
		return
	}
	defer l.downSince.Store(nil)
	l.RecordHandoff() // it may have been started anew with a connector
	away := slowStart // a server that is new is as cold as one that was long away
	if since := l.downSince.Load(); since != nil {
		away = now.Sub(*since)
	}
	for i, leg := range []Role{Prefill, Decode} {
		l.beginSlowStart(leg, away, slowStart, now)
		l.breakers[i].ProbeNow(now)
	}
	l.countChange()
	l.changed.notify()
	l.states.notify()
}

// changeModels changes what the server is known to serve, until it lists it itself.
func (l *serverState) changeModels(change func([]Model) []Model) {
	for {
		was := l.health.Load()
		next := was.serving(change(slices.Clone(was.Models)))
		if l.health.CompareAndSwap(was, &next) {
			l.countChange()
			l.states.notify()
			return
		}
	}
}

// DownCause is why a server is not expected to answer what it has not answered yet.
type DownCause uint8

const (
	ProbesFailed DownCause = iota // two probes in a row failed: it is certain
	Silent                        // probes are late and it gives no other sign of life: it is down, or hangs
	Hangs                         // a probe request was not answered: the engine is stuck, for good or for a while
)

// DownWatch waits for a server to be down, for each leg that it has: it is a part of what the leg has anyway. It may not be
// copied once OnDown was given it.
type DownWatch struct {
	down DownWatcher
	of   *liveness
	at   int // in of.onDown; of.downMu guards it
}

// DownWatcher is called when a server is down, in a prober's goroutine.
type DownWatcher interface{ ServerDown(why DownCause) }

// DownFunc is a function as a DownWatcher.
type DownFunc func(why DownCause)

// ServerDown calls the function.
func (f DownFunc) ServerDown(why DownCause) { f(why) }

// OnDown calls down when the server, or one that steps with it, has failed two probes in a row,
// is silent, or let a probe request wait, and at each further probe or probe request, until w,
// which it returns, is stopped. A call that is under way then goes on.
func (l *liveness) OnDown(w *DownWatch, down DownWatcher) *DownWatch {
	l.downMu.Lock()
	defer l.downMu.Unlock()
	w.down, w.of, w.at = down, l, len(l.onDown)
	l.onDown = append(l.onDown, w)
	return w
}

// Stop ends the watch, if it was not ended before.
func (w *DownWatch) Stop() {
	l := w.of
	l.downMu.Lock()
	defer l.downMu.Unlock()
	last := len(l.onDown) - 1
	if w.at > last || l.onDown[w.at] != w {
		return
	}
	moved := l.onDown[last]
	l.onDown[w.at], moved.at = moved, w.at
	l.onDown[last] = nil
	l.onDown = l.onDown[:last]
}

// reportDown calls all that wait on the server, or on one that steps with it.
func (l *serverState) reportDown(why DownCause) {
	l.reportDownAlone(why)
	if g := l.group.Load(); g != nil {
		for _, m := range g.members {
			m.reportDownAlone(why)
		}
	}
}

func (l *liveness) reportDownAlone(why DownCause) {
	l.downMu.Lock()
	waiting := slices.Clone(l.onDown)
	l.downMu.Unlock()
	for _, w := range waiting {
		w.down.ServerDown(why)
	}
}

// What a prober reports of a server: each probe ends as one of ProbePassed, ProbeLate and
// ProbeFailed, and ReportLoad follows one that passed.

// ProbePassed takes in a probe that was answered well, with the models that the engine
// serves. before is the health from before it was sent: an adapter that was loaded or
// unloaded since may not be in them as it is, and the next probe asks again.
func (s *Server) ProbePassed(before *Health, models []Model, now time.Time) {
	s.setUp(before, models, s.fleet.cfg.SlowStart, now)
	if !before.Up {
		s.incarnation.Add(1)
		s.countChange()
		s.fleet.updateMissing()
	}
}

// ProbeLate takes in that a probe of a server that was up has no answer yet, and reports
// whether the server is unresponsive now. What was sent to it may be worth sending to another.
func (s *Server) ProbeLate(sent time.Time) (unresponsive bool) {
	d := s.late(sent)
	if d.silent(s.fleet.mostLate()) {
		s.reportDown(Silent)
	}
	return d.late > 0
}

// ProbeFailed takes in a probe that was answered badly, or not at all by a server that was
// not up before either.
func (s *Server) ProbeFailed(before *Health, reason string) {
	s.setDown(reason)
	if !before.Up {
		s.reportDown(ProbesFailed)
	}
	s.fleet.updateMissing()
}

// ReportLoad keeps the load that was read from the engine, and learns from what it says of prefills.
func (s *Server) ReportLoad(load load.Load) {
	if load.Prefills.Known && load.PrefillSeconds.Known {
		s.prefill.ReadMeter(load.Prefills.Value, load.PrefillSeconds.Value, load.At)
	}
	if load.TokenBytes.Known {
		s.tokenBytes.Store(math.Float64bits(load.TokenBytes.Value))
	}
	s.scraped.Store(s.withExternal(load))
	s.countChange()
}

// NewServer returns a server that no fleet has, to be asked once.
func NewServer(spec Spec) *Server {
	f := NewFleet(Default(), slog.New(slog.DiscardHandler))
	s := f.server(spec, newServerState(f.cfg))
	f.snapshot.Store(&[]*Server{s})
	return s
}
