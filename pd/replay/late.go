package replay

import (
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// late is a replay whose requests wait for their turn.
type late struct {
	*Replay
	cfg     order.Config
	settle  func(*Request, Placement, bool)
	order   *order.Order
	servers order.Servers
	waiting map[int64]*waiter
	arrived []*waiter // those that wait, and some that do so no longer, by their arrival
	stale   []*order.Ticket
	ids     int64
}

// waiter is a request that waits.
type waiter struct {
	req    *Request
	ticket order.Ticket
	left   bool // it waits no longer
}

// Late places the requests of a log, which are in the order of their arrival, when the gateway's own
// order says that it is their turn. settle is told of each as it goes: where to, or that no server can
// take it, or that it has waited for all of the order's Patience.
func (r *Replay) Late(requests []Request, cfg order.Config, settle func(*Request, Placement, bool)) {
	l := &late{Replay: r, cfg: cfg, settle: settle, order: order.New(cfg), waiting: make(map[int64]*waiter)}
	l.servers.Gate = true
	for next, now := 0, time.Duration(0); next < len(requests) || l.order.Len() > 0; {
		switch {
		case l.order.Len() == 0:
			now = requests[next].At
		case next < len(requests):
			now = min(l.wake(now), max(now, requests[next].At))
		default:
			now = l.wake(now)
		}
		l.describe(now)
		for ; next < len(requests) && requests[next].At <= now; next++ {
			l.arrive(&requests[next], now)
		}
		l.look(now)
	}
}

// wake is when there may be a turn after this moment, if nothing arrives: when a server is about to be
// free, when a stream makes room, when patience ends, or a look later.
func (l *late) wake(now time.Duration) time.Duration {
	soonest := now + order.LookInterval
	if l.cfg.Patience > 0 && len(l.arrived) > 0 {
		if end := l.arrived[0].req.At + l.cfg.Patience; end > now {
			soonest = min(soonest, end)
		}
	}
	look := func(s *server, ahead time.Duration) {
		if free := s.freeAt - ahead; free > now {
			soonest = min(soonest, free)
		}
		for _, t := range s.streams {
			if t.until > now {
				soonest = min(soonest, t.until)
			}
		}
	}
	for p, s := range l.prefill {
		look(s, l.cfg.AheadOn(l.servers.Prefill[p].PerStep))
	}
	for _, s := range l.decode {
		look(s, l.cfg.AheadOnDecode)
	}
	return soonest
}

// describe writes the state of the servers now.
func (l *late) describe(now time.Duration) {
	l.describeLoad(now)
	l.fleet.Model.PriceServers(&l.candidates, &l.servers)
	l.servers.Now = now
	l.servers.Start = order.Pair{Prefill: l.tie.IntN(max(len(l.prefill), 1)), Decode: l.tie.IntN(max(len(l.decode), 1))}
}

// price writes what a request costs on each server now.
func (l *late) price(w *waiter, now time.Duration) {
	l.describeCached(w.req)
	l.fleet.Model.PriceRequest(l.demand(w.req, now), &l.candidates, &w.ticket)
}

// arrive lets a request wait that some server can take.
func (l *late) arrive(req *Request, now time.Duration) {
	l.ids++
	w := &waiter{req: req}
	l.price(w, now)
	w.ticket.ID, w.ticket.Arrived = l.ids, req.At
	if !l.servers.Servable(&w.ticket) {
		l.settle(req, Placement{}, false)
		return
	}
	l.order.Add(&w.ticket, l.servers.Links)
	l.waiting[l.ids] = w
	l.arrived = append(l.arrived, w)
}

// look lets go all whose turn it is, and those whose patience has ended.
func (l *late) look(now time.Duration) {
	l.giveUp(now)
	l.stale = l.order.Stale(order.RepricedPerLook, l.stale[:0])
	for _, t := range l.stale {
		l.price(l.waiting[t.ID], now)
		l.order.Update(t, l.servers.Links)
	}
	for {
		turn, ok := l.order.Next(&l.servers)
		if !ok {
			return
		}
		w := l.waiting[turn.Ticket.ID]
		l.forget(w)
		l.describe(now) // Next reserves room in it for others
		l.price(w, now)
		chosen := l.candidates.Alternative(&l.servers, &w.ticket, turn.Pair, turn.Price)
		l.settle(w.req, l.bind(w.req, now, &chosen), true)
		l.describe(now)
	}
}

// giveUp lets go those that have waited for all of their patience.
func (l *late) giveUp(now time.Duration) {
	for len(l.arrived) > 0 && (l.arrived[0].left || l.cfg.Patience > 0 && now-l.arrived[0].req.At >= l.cfg.Patience) {
		w := l.arrived[0]
		l.arrived = l.arrived[1:]
		if w.left {
			continue
		}
		l.order.Remove(&w.ticket)
		l.forget(w)
		l.settle(w.req, Placement{Waited: now - w.req.At}, false)
	}
}

func (l *late) forget(w *waiter) {
	w.left = true
	delete(l.waiting, w.ticket.ID)
}
