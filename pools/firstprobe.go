package pools

import (
	"slices"
	"sync"
	"time"
)

// AwaitsFirstProbe reports whether it may turn out soon that a server of a role can take requests which is not
// known to: one was not probed yet, or a source has not reported its servers. The first probe of a server ends
// within its time limits, and StateChanges tells of it.
func (f *Fleet) AwaitsFirstProbe(role Role) bool {
	return f.ExpectsServers() || slices.ContainsFunc(f.Servers(), func(s *Server) bool {
		return s.Role.Serves(role) && s.Health().Reason == notProbed
	})
}

// ExpectsServers reports whether a source has not reported its servers yet.
func (f *Fleet) ExpectsServers() bool { return f.expected.Load() > 0 }

// ExpectServers says that a source is about to report its servers, until arrived is called, once or more often: they
// were applied, or are not waited for any longer.
func (f *Fleet) ExpectServers() (arrived func()) {
	f.expected.Add(1)
	return sync.OnceFunc(func() {
		f.expected.Add(-1)
		f.states.notify()
	})
}

const (
	foundAtStart = time.Minute      // from a gateway's start on: servers that are found by then were there before it
	loadingTime  = 30 * time.Minute // that an engine may take to load its weights; it answers nothing meanwhile
)

// AwaitsModels reports whether a model that no server is known to have may be that of one which has not said yet what it
// has: it was there when the gateway began, and has not been up since. The gateway before this one may have known its
// models, and clients ask for them. One that is found later brings models that nobody could ask for.
func (f *Fleet) AwaitsModels(now time.Time) bool {
	return now.Sub(f.began) < loadingTime && slices.ContainsFunc(f.Servers(), func(s *Server) bool {
		return s.Incarnation() == 0 && s.Role.Serves(Decode) && s.vitals.born.Sub(f.began) < foundAtStart
	})
}
