package pools

import "sync"

// missing remembers which roles no server is left for, so that each change is logged once.
type missing struct {
	mu    sync.Mutex // guards roles
	roles [2]bool    // prefill, decode
}

// Missing returns the roles that servers are there for, all of which are down as far as
// they were probed.
func (f *Fleet) Missing() (roles []Role) {
	for _, role := range []Role{Prefill, Decode} {
		there, able := false, false
		for _, s := range f.Servers() {
			if s.Role.Serves(role) {
				there, able = true, able || s.ownState() != Down || s.Health().Reason == notProbed
			}
		}
		if there && !able {
			roles = append(roles, role)
		}
	}
	return roles
}

// noteMissing logs which roles have lost their last server, or have one again.
func (f *Fleet) noteMissing() {
	f.missing.mu.Lock()
	defer f.missing.mu.Unlock()
	var now [2]bool
	for _, role := range f.Missing() {
		now[LegIndex(role)] = true
	}
	for i, role := range []Role{Prefill, Decode} {
		switch was := f.missing.roles[i]; {
		case now[i] && !was:
			f.log.Warn("role without a server: all of its servers are down", "role", role.String())
		case was && !now[i]:
			f.log.Info("role has a server again", "role", role.String())
		}
	}
	f.missing.roles = now
}
