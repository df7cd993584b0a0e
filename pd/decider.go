package pd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/council"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools"
)

// Decider binds requests late. A request that has been located waits here until the
// prefill server that is best for it is about to be free; which one goes then, and to
// which pair, is decided over all that wait (package order). The decider takes the places
// on the servers for it, and hands them over.
//
// One goroutine decides, woken by requests that come or leave, by work that ends, by
// servers that come up, by what other replicas tell, and by one timer: for the moment when
// the work ahead on a server will have worn off, and now and then while anybody waits,
// since some things change by time alone (a pause that an engine asked for, a ramp).
type Decider struct {
	o   *Orchestrator
	cfg order.Config
	// maxWait is the longest wait, from a request's arrival.
	maxWait time.Duration
	// Elsewhere follows the replica that decides for several; nil: there is none. It is set
	// before the first Bind.
	Elsewhere *council.Follower

	wake   chan struct{}
	closed chan struct{}
	origin time.Time // of the order's times

	mu   sync.Mutex // guards came and left
	came []*waiter
	left []*waiter

	lobbies map[string]*lobby // by base model; belongs to Run
	waits   promises          // of when prefills begin, to those who are let in to wait
}

// beat is how often waiting requests are looked at though nothing was heard.
const beat = 250 * time.Millisecond

// Who is let in to wait is to have its turn in time: one that is told later that it does
// not come has waited in vain.
const (
	// waitsKept is the share of those who wait that are to have it.
	waitsKept = 0.99
	// waitsLeast is how many times as long as predicted a wait is reckoned with at least.
	// What delays one delays all who wait, and to keep servers busy few have to.
	waitsLeast = 1.5
)

// refreshed is how many of the first in order, and how many of the others by turns, are
// priced again at each look. Twice as many cost a look a third more, and in the simulator
// make no mean time to the first token better.
const refreshed = 8

// NewDecider returns a decider that binds an orchestrator's requests.
func NewDecider(o *Orchestrator, cfg order.Config, maxWait time.Duration) *Decider {
	return &Decider{
		o: o, cfg: cfg, maxWait: maxWait, origin: time.Now(),
		wake: make(chan struct{}, 1), closed: make(chan struct{}), lobbies: make(map[string]*lobby),
		waits: promises{least: waitsLeast},
	}
}

// waiter is a request that waits. Until it is granted or has left, its journey belongs to
// the decider.
type waiter struct {
	j      *journey
	base   string // model whose servers may serve it
	ticket order.Ticket
	state  atomic.Int32
	done   chan granted // written once, by the decider

	entered time.Time
	hold    time.Duration // from then, as predicted, until its prefill begins
}

// granted is what a wait ends with.
type granted struct {
	a   assignment
	err error
}

// The states of a waiter: it leaves the first for one of the others, once.
const (
	waits int32 = iota
	isGranted
	hasLeft
	wasLate // it has left because its turn did not come in time
)

// Bind waits for the request's turn and returns its servers, claimed. Another replica
// that decides for this one says whose turn it is. Where several decide apart, each would
// think that it alone keeps the servers busy: then requests are bound at once. Errors:
// ErrQueueTimeout, ErrDeadline, ErrDisplaced, *NoServerError, or the context's.
func (d *Decider) Bind(ctx context.Context, j *journey, base string) (assignment, error) {
	held, release := d.o.Queue.hold(ctx, j.place)
	a, err := d.bind(held, j, base)
	switch displaced := release(); {
	case displaced: // if need be at the very moment of its turn
		if err == nil {
			j.release()
		}
		return assignment{}, ErrDisplaced
	case errors.Is(err, ErrDisplaced):
		d.o.Queue.gaveWay()
	}
	return a, err
}

// bind is Bind, for one that is held.
func (d *Decider) bind(ctx context.Context, j *journey, base string) (assignment, error) {
	until, late := d.patience(j)
	patience, cancel := context.WithDeadlineCause(ctx, until, late)
	defer cancel()
	if d.Elsewhere.Follows() {
		a, err := d.follow(patience, j, base)
		if !errors.Is(err, council.ErrAway) {
			return a, err
		}
		return d.o.choose(j)
	}
	if d.o.Fleet.OthersBusy(time.Now()) && !d.Elsewhere.Decides() {
		return d.o.choose(j)
	}
	a, err := d.await(patience, j, base)
	if errors.Is(err, errUndecided) {
		return d.o.choose(j)
	}
	return a, err
}

// await lets a request wait here until the context ends.
func (d *Decider) await(patience context.Context, j *journey, base string) (assignment, error) {
	w := &waiter{j: j, base: base, done: make(chan granted, 1)}
	d.mu.Lock()
	d.came = append(d.came, w)
	d.mu.Unlock()
	d.wakeUp()
	why := context.Canceled
	select {
	case g := <-w.done:
		return g.a, g.err
	case <-patience.Done():
		why = context.Cause(patience)
	case <-d.closed:
	}
	left := hasLeft
	if errors.Is(why, ErrQueueTimeout) || errors.Is(why, ErrDeadline) {
		left = wasLate
	}
	if !w.state.CompareAndSwap(waits, left) {
		g := <-w.done // granted at this very moment
		g.a.release()
		return assignment{}, errors.Join(g.err, why)
	}
	d.mu.Lock()
	d.left = append(d.left, w)
	d.mu.Unlock()
	d.wakeUp()
	return assignment{}, why
}

// patience is until when a request waits, and what it is told then.
func (d *Decider) patience(j *journey) (until time.Time, late error) {
	until, late = j.arrived.Add(d.maxWait), ErrQueueTimeout
	if !j.req.Deadline.IsZero() && j.req.Deadline.Before(until) {
		until, late = j.req.Deadline, ErrDeadline
	}
	return until, late
}

func (d *Decider) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run decides until the context ends; whoever waits then gives up.
func (d *Decider) Run(ctx context.Context) {
	changed, stop := d.o.Fleet.Changes()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			close(d.closed)
			return
		case <-d.wake:
		case <-changed:
		case <-timer.C:
		}
		if in := d.decide(time.Now()); in > 0 {
			timer.Reset(in)
		}
	}
}

// decide lets those go who may, and returns when to look again: 0 if nobody waits.
func (d *Decider) decide(now time.Time) (again time.Duration) {
	d.mu.Lock()
	came, left := d.came, d.left
	d.came, d.left = nil, nil
	d.mu.Unlock()
	for _, w := range left {
		if l := d.lobbies[w.base]; l != nil {
			l.left = append(l.left, w)
		}
	}
	for _, w := range came {
		if w.state.Load() != waits { // it has left already
			continue
		}
		l := d.lobbies[w.base]
		if l == nil {
			l = newLobby(d, w.base)
			d.lobbies[w.base] = l
		}
		l.came = append(l.came, w)
	}
	for base, l := range d.lobbies {
		if !l.decideOrGiveUp(now) || len(l.waiting) == 0 {
			delete(d.lobbies, base)
			continue
		}
		if in := min(beat, l.wakes(now)); again == 0 || in < again {
			again = in
		}
	}
	return again
}

// grant ends a wait, false if the request has left.
func (w *waiter) grant(g granted) bool {
	if !w.state.CompareAndSwap(waits, isGranted) {
		return false
	}
	w.done <- g
	return true
}

// lobby is the waiting requests of one base model, and its servers as they were looked at
// last. It belongs to the decider's goroutine.
type lobby struct {
	*Decider
	base    string
	order   *order.Order
	waiting map[int64]*waiter
	came    []*waiter
	left    []*waiter
	next    int64 // ID of a ticket

	view    view
	servers order.Servers
	stale   []*order.Ticket
}

func newLobby(d *Decider, base string) *lobby {
	return &lobby{Decider: d, base: base, order: order.New(d.cfg), waiting: make(map[int64]*waiter)}
}

// errUndecided ends a wait that came to nothing by a fault of this program.
var errUndecided = errors.New("the decider failed")

// decideOrGiveUp is decide; a panic in it costs those who wait their turn, and no more: it
// is false then, and they are bound at once.
func (l *lobby) decideOrGiveUp(now time.Time) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			l.o.Log.Error("the decider panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			for _, w := range append(slices.Collect(maps.Values(l.waiting)), l.came...) {
				w.grant(granted{err: errUndecided})
			}
		}
	}()
	l.decide(now)
	return true
}

// decide takes in who came, lets go who left, and binds whose turn it is.
func (l *lobby) decide(now time.Time) {
	for _, w := range l.left {
		l.forget(w)
	}
	l.left = nil
	l.o.Metrics.looks.Inc()
	l.look(now)
	for _, w := range l.came {
		l.enter(w, now)
	}
	l.came = nil
	l.stale = l.order.Stale(refreshed, l.stale[:0])
	for _, t := range l.stale {
		w := l.waiting[t.ID]
		l.price(w, now)
		if !l.servers.Servable(t) {
			l.order.Remove(t)
			delete(l.waiting, t.ID)
			w.grant(granted{err: l.view.missing()})
			continue
		}
		l.order.Update(t, l.servers.Links)
	}
	for {
		turn, ok := l.order.Next(&l.servers)
		if !ok {
			return
		}
		w := l.waiting[turn.Ticket.ID]
		if l.bind(w, turn, now) {
			delete(l.waiting, turn.Ticket.ID)
		} else {
			l.order.PutBack(turn)
		}
		l.weigh(now)
	}
}

// forget lets go one that has left, if it was let in.
func (l *lobby) forget(w *waiter) {
	if l.waiting[w.ticket.ID] != w {
		return
	}
	if w.state.Load() == wasLate {
		l.waits.broke(waitsKept)
	}
	l.order.Remove(&w.ticket)
	delete(l.waiting, w.ticket.ID)
}

// enter lets a request wait, or tells it at once that no server can serve it or that its
// turn will not come in time.
func (l *lobby) enter(w *waiter, now time.Time) {
	l.next++
	w.ticket.ID, w.ticket.Arrived = l.next, w.j.arrived.Sub(l.origin)
	w.ticket.Class, w.ticket.Tenant = w.j.req.Class, w.j.req.Tenant
	l.price(w, now)
	if !l.servers.Servable(&w.ticket) {
		w.grant(granted{err: l.view.missing()})
		return
	}
	gaveWay, err := l.admit(w, now)
	if err != nil {
		w.grant(granted{err: err})
		return
	}
	l.waiting[l.next] = w
	for _, t := range gaveWay {
		l.waits.broke(waitsKept)
		l.waiting[t.ID].grant(granted{err: ErrDisplaced})
		delete(l.waiting, t.ID)
	}
}

// admit says who gives way to a request, or why it is not let in.
func (l *lobby) admit(w *waiter, now time.Time) (gaveWay []*order.Ticket, err error) {
	until, late := l.latest(w)
	w.ticket.Latest = until.Sub(l.origin)
	hold, gaveWay, ok := l.order.Admit(&w.ticket, &l.servers, l.waits.by)
	if !ok && errors.Is(late, ErrDeadline) && w.j.isTrial(now) {
		w.ticket.Latest = w.j.arrived.Add(l.maxWait).Sub(l.origin)
		hold, gaveWay, ok = l.order.Admit(&w.ticket, &l.servers, l.waits.by)
	}
	if !ok {
		return nil, late
	}
	w.entered, w.hold = now, hold
	return gaveWay, nil
}

// latest is until when a request's prefill must begin, and what it is told where that
// cannot be.
func (l *lobby) latest(w *waiter) (until time.Time, late error) {
	until, late = w.j.arrived.Add(l.maxWait), ErrQueueTimeout
	if w.j.req.Deadline.IsZero() {
		return until, late
	}
	rest := duration(l.servers.Quickest(&w.ticket))
	if by := w.j.req.Deadline.Add(-w.j.firsts.soon.by(rest)); by.Before(until) {
		return by, ErrDeadline
	}
	return until, late
}

// look gathers the servers.
func (l *lobby) look(now time.Time) {
	prefill, decode := l.view.prefill, l.view.decode
	l.o.gatherAgain(&l.view, l.base, now)
	l.weigh(now)
	same := func(a, b []*pools.Server) bool {
		return slices.EqualFunc(a, b, func(a, b *pools.Server) bool { return a.ID() == b.ID() })
	}
	if same(prefill, l.view.prefill) && same(decode, l.view.decode) {
		return
	}
	for _, w := range l.waiting { // their slices are of other servers
		l.o.refit(w.j, &l.view, now)
		l.o.Cost.Price(l.o.demand(w.j, now), &l.view.field, &w.ticket)
		l.order.Update(&w.ticket, l.servers.Links)
	}
}

// weigh takes over the state of the servers, after a look or a claim.
func (l *lobby) weigh(now time.Time) {
	l.o.Cost.Weigh(&l.view.field, &l.servers)
	l.servers.Gate, l.servers.Now = true, now.Sub(l.origin)
	l.servers.Start = order.Pair{
		Prefill: rand.IntN(max(1, len(l.servers.Prefill))),
		Decode:  rand.IntN(max(1, len(l.servers.Decode))),
	}
}

// price writes what a request costs on each server now.
func (l *lobby) price(w *waiter, now time.Time) {
	l.o.fit(w.j, &l.view, now)
	l.o.Cost.Price(l.o.demand(w.j, now), &l.view.field, &w.ticket)
}

// bind claims the servers of a turn for its request and hands them over. It is false if a
// server refused; then the request waits on.
func (l *lobby) bind(w *waiter, turn order.Turn, now time.Time) (gone bool) {
	l.o.fit(w.j, &l.view, now)
	chosen := l.view.field.alternative(&l.servers, &w.ticket, turn.Pair, turn.Price)
	if l.late(w, &chosen.Terms, now) {
		w.grant(granted{err: ErrDeadline})
		return true
	}
	a, err := l.o.claim(w.j, &l.view, chosen)
	if err != nil {
		l.view.leaveOut(a.refusedBy)
		return false
	}
	if !w.state.CompareAndSwap(waits, isGranted) {
		a.release()
		return true
	}
	defer func() { w.done <- granted{a: a} }() // also after a panic: it waits for nothing else
	if w.j.guest {
		l.o.firsts.trials.note(l.base, now)
	} else {
		l.o.bound(w.j, &l.view, &a, now) // with the servers as they were before
	}
	l.waits.came(w.hold, now.Sub(w.entered)+chosen.Terms.Queue, waitsKept)
	l.claimed(turn.Pair, now)
	return true
}

// late reports whether it is too late for a request whose turn it is. One that comes in
// only now must be sure of its first token; one that was let in to wait is given up only
// where it is predicted to come too late.
func (l *lobby) late(w *waiter, chosen *Terms, now time.Time) bool {
	if !now.After(w.entered) {
		return w.j.late(w.j.firsts.by(chosen), now)
	}
	if !w.j.late(chosen.TTFT(), now) {
		return false
	}
	l.waits.broke(waitsKept)
	return true
}

// claimed takes over what two servers are like with one request more.
func (l *lobby) claimed(pair order.Pair, now time.Time) {
	if pair.Prefill != order.Alone {
		l.view.field.Prefill[pair.Prefill].loaded(l.o.present(l.view.prefill[pair.Prefill], now))
	}
	l.view.field.Decode[pair.Decode].loaded(l.o.present(l.view.decode[pair.Decode], now))
}

// wakes is in how long the work ahead on a server will have worn off.
func (l *lobby) wakes(now time.Time) time.Duration {
	soonest := time.Duration(math.MaxInt64)
	for _, servers := range [][]*pools.Server{l.view.prefill, l.view.decode} {
		for _, s := range servers {
			if in, ok := s.FallsTo(l.cfg.Ahead, now); ok {
				soonest = min(soonest, in)
			}
		}
	}
	return max(soonest, time.Millisecond)
}
