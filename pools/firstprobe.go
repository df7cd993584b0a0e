package pools

import (
	"slices"
	"sync"
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
