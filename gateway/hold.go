package gateway

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

// Holding keeps requests while a role has no server: servers that were scaled to zero
// are started for them. Its zero value holds nothing.
type Holding struct {
	For  time.Duration // longest time that a request is held; 0: it is refused at once
	Most int           // requests held at once
}

// Awaited says what is worth holding for, to a server that holds.
type Awaited struct {
	Model func(model string) bool // it had servers, and may have some again
	Begin func()                  // the first request is held: somebody should start servers
}

// Awaits sets what requests are held for. It is for before Serve.
func (s *Server) Awaits(a Awaited) { s.awaited = a }

// held counts the requests that are held.
type held struct{ n atomic.Int64 }

// enter takes a place, false if there is none; leave gives it back.
func (h *held) enter(most int) (first, ok bool) {
	n := h.n.Add(1)
	if n > int64(most) {
		h.n.Add(-1)
		return false, false
	}
	return n == 1, true
}

func (h *held) leave() { h.n.Add(-1) }

// holdStep is the time between two looks at the fleet.
const holdStep = 50 * time.Millisecond

// run runs a request, and where a role has no server holds it until there is one.
func (x *exchange) run(req *pd.Request) (*pd.Answer, error) {
	answer, err := x.server.pd.Run(x.ctx, req)
	var none *pd.NoServerError
	if !errors.As(err, &none) || x.server.cfg.Holding.For == 0 || !x.server.awaited.Model(baseModel(x.server.fleet, req.Model)) {
		return answer, err
	}
	first, ok := x.server.held.enter(x.server.cfg.Holding.Most)
	if !ok {
		return nil, err
	}
	defer x.server.held.leave()
	if first {
		x.server.awaited.Begin()
	}
	patience := time.NewTimer(x.server.cfg.Holding.For)
	defer patience.Stop()
	look := time.NewTicker(holdStep)
	defer look.Stop()
	for errors.As(err, &none) {
		select {
		case <-x.ctx.Done():
			return nil, x.ctx.Err()
		case <-patience.C:
			return nil, err
		case <-look.C:
		}
		if x.server.serves(req.Model) {
			answer, err = x.server.pd.Run(x.ctx, req)
		}
	}
	return answer, err
}

// serves reports whether each role has a server for a model that is up. Where no
// prefill server is known at all, decode servers are enough.
func (s *Server) serves(model string) bool {
	var known, up [2]bool
	for _, server := range s.fleet.Servers() {
		h := server.Health()
		for i, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			if server.Role.Serves(leg) {
				known[i] = true
				up[i] = up[i] || h.Up && !server.Drain && h.Serves(model)
			}
		}
	}
	return up[1] && (up[0] || !known[0])
}
