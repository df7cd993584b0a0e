package pools

import (
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
)

// Breaker returns the state of the server's breaker for one leg.
func (l *live) Breaker(leg Role, now time.Time) breaker.State {
	return l.breakers[LegIndex(leg)].State(now)
}

// Suspect asks for a probe of the leg: a transfer failed, and only the server's
// own work can tell whether it was the server's fault.
func (l *live) Suspect(leg Role) { l.breakers[LegIndex(leg)].Suspect() }
