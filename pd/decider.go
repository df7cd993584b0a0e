package pd

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/queue"
)

// Decider binds requests late. A request that has been located waits here until the
// prefill server that is best for it is about to be free; which one goes then, and to
// which pair, is decided over all that wait (package order). The decider takes the places
// on the servers for it, and hands them over.
//
// One goroutine at a time decides. A request that comes while none waits decides for itself, so that
// no other goroutine has to wake up for it. For those that wait one goroutine decides (Run),
// woken by requests that come or leave, by work that ends, by
// servers that come up, by what other replicas report, and by one timer: for the moment when
// the work ahead on a server will have worn off, and now and then while requests wait,
// since some things change by time alone (a pause that an engine asked for, a ramp).
type Decider struct {
	ch      *Chooser
	cfg     order.Config
	maxWait time.Duration // the longest wait, from a request's arrival
	log     *slog.Logger

	wake   chan struct{}
	closed chan struct{}
	origin time.Time // of the order's times

	waiters sync.Pool // of requests whose waits ended at once, as most do

	mu         sync.Mutex // guards arrivals and departures
	arrivals   []*waiter
	departures []*waiter
	spare      []*waiter // for the next arrivals, while those before are read; belongs to who decides

	deciding   sync.Mutex             // held by who decides, and guards what follows
	queues     map[string]*modelQueue // by base model
	waitMargin predict.Margin         // of when prefills begin, for the requests with a deadline that are let in to wait
	longMargin predict.Margin         // the same of those that may wait for as long as any may
	waits      bool                   // a request does
	runs       bool                   // Run does
}

// A request that is let in to wait is to have its turn in time: one that learns later that it does
// not come has waited in vain.
const (
	// waitShare is the share of waiting requests that are to have it.
	waitShare = 0.99
	// longShare is that of those that only max-wait bounds.
	longShare = 0.75
	// leastWaitMargin is how many times as long as predicted the wait of a request with a deadline is
	// reckoned with at least. What delays one delays all that wait, and to keep servers busy few have to.
	// One without a deadline is refused only where it would wait too long: its waits count as they are predicted.
	leastWaitMargin = 1.5
	// tellingShare is the least part of the longest wait, as waits are reckoned with, that one without a deadline says
	// something of: what is shorter is let in, and scatters more. Were it of the wait as predicted, a margin that has risen
	// to four would stay: nothing that is predicted to be so long would be let in to show that it is not longer.
	tellingShare = 0.25
)

// NewDecider returns a decider over the servers that a chooser sees.
func NewDecider(ch *Chooser, cfg order.Config, maxWait time.Duration, log *slog.Logger) *Decider {
	return &Decider{
		ch: ch, cfg: cfg, maxWait: maxWait, log: log, origin: time.Now(),
		wake: make(chan struct{}, 1), closed: make(chan struct{}), queues: make(map[string]*modelQueue),
		waitMargin: predict.Margin{Least: leastWaitMargin},
	}
}

// waiter is a request that waits. Until it is bound or has left, the request belongs
// to the decider.
type waiter struct {
	request *bindRequest
	ticket  order.Ticket
	state   atomic.Int32
	done    chan bindResult // written once, by the decider
	looked  bool            // the request has decided for itself: nobody else looks at it any more

	margin        *predict.Margin // of its wait
	entered       time.Time
	predictedWait time.Duration // from then, as predicted, until its prefill begins
	look          int64         // the last one at which it was priced
}

// bindResult is what a wait ends with.
type bindResult struct {
	b   *binding
	err error
}

// result is what a settled wait has ended with. Nothing of it is read again.
func (d *Decider) result(w *waiter) bindResult {
	g := <-w.done
	if w.looked {
		*w = waiter{done: w.done}
		d.waiters.Put(w)
	}
	return g
}

// newWaiter is a request before anybody has looked at it.
func (d *Decider) newWaiter(r *bindRequest) *waiter {
	w, is := d.waiters.Get().(*waiter)
	if !is {
		w = &waiter{done: make(chan bindResult, 1)}
	}
	w.request = r
	return w
}

// received is what the request gets, whose goroutine it is.
func (g bindResult) received() (*binding, error) {
	if g.b != nil {
		g.b.prediction.enter()
	}
	return g.b, g.err
}

// observeWait notes how long a request has waited, and how long it was predicted to.
func (d *Decider) observeWait(w *waiter, predicted, took time.Duration) {
	if w.margin == &d.longMargin && max(d.longMargin.Bound(predicted), took).Seconds() < tellingShare*d.maxWait.Seconds() {
		return
	}
	w.margin.Observe(predicted, took, d.share(w))
}

// share is the share of such requests that are to have their turn in time.
func (d *Decider) share(w *waiter) float64 {
	if w.margin == &d.longMargin {
		return longShare
	}
	return waitShare
}

// observeMiss notes that a request has left since its turn did not come in time. Where that was promised, all are to be
// promised less. Else it has waited for as long as any may, and what was predicted is wrong by no more than that shows: of
// those that one forecast let in many leave.
func (d *Decider) observeMiss(w *waiter) {
	if w.margin == &d.longMargin {
		w.margin.ObserveAtLeast(w.predictedWait, d.maxWait, longShare)
		return
	}
	w.margin.ObserveMiss(waitShare)
}

// observeGivenUp notes that a request that was let in has to give way, or comes too late for its deadline at its turn. One
// that only max-wait bounds was promised nothing, and whoever is served before it says nothing of how waits are predicted.
func (d *Decider) observeGivenUp(w *waiter) {
	if w.margin == &d.waitMargin {
		w.margin.ObserveMiss(waitShare)
	}
}

// isSettled reports whether the wait is over: the result is there, or about to be.
func (w *waiter) isSettled() bool { return w.state.Load() == isBound }

// The states of a waiter: it leaves the first for one of the others, once.
const (
	stillWaits int32 = iota
	isBound
	hasLeft
	leftLate // it has left because its turn did not come in time
)

// limit is until when a request waits for its turn.
func (d *Decider) limit(r *bindRequest) queue.Limit {
	if r.begun != nil { // what is prefilled of it would be lost
		return queue.LimitedBy(time.Time{}, time.Now().Add(d.maxWait), queue.ErrTimeout)
	}
	return queue.LimitedBy(r.req.Deadline, r.arrived.Add(d.maxWait), queue.ErrTimeout)
}

// arrive lets a request in, which mostly settles it: nobody waits, and a server is free. What servers
// hold of its prompt is looked up before, so that those who wait do not wait for its blocks to be
// hashed as well.
func (d *Decider) arrive(r *bindRequest) *waiter {
	d.ch.match(r)
	w := d.newWaiter(r)
	d.mu.Lock()
	d.arrivals = append(d.arrivals, w)
	d.mu.Unlock()
	if w.looked = d.decideAtOnce(); !w.looked {
		d.wakeUp()
	}
	return w
}

// await returns the servers of a request that has arrived, claimed, when it is its turn, or until its
// limit or the context ends.
func (d *Decider) await(ctx context.Context, w *waiter) (*binding, error) {
	select {
	case g := <-w.done: // whatever else has happened
		return g.received()
	default:
	}
	ctx, cancel := d.limit(w.request).Context(ctx)
	defer cancel()
	why := context.Canceled
	select {
	case g := <-w.done:
		return g.received()
	case <-ctx.Done():
		why = context.Cause(ctx)
	case <-d.closed:
	}
	left := hasLeft
	if errors.Is(why, queue.ErrTimeout) || errors.Is(why, queue.ErrDeadline) {
		left = leftLate
	}
	if !w.state.CompareAndSwap(stillWaits, left) {
		g := <-w.done // bound at this very moment
		g.b.undo()
		return nil, errors.Join(g.err, why)
	}
	d.mu.Lock()
	d.departures = append(d.departures, w)
	d.mu.Unlock()
	d.wakeUp()
	if w.request.begun != nil { // its request goes on, or tries again
		d.awaitLook()
	}
	return nil, why
}

// awaitLook returns when the look that is under way has ended, in which a request that has left may be priced still.
func (d *Decider) awaitLook() {
	d.deciding.Lock()
	defer d.deciding.Unlock()
}

func (d *Decider) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// decideAtOnce decides if no request waits, and nobody decides. It is false where Run has to.
func (d *Decider) decideAtOnce() bool {
	if !d.deciding.TryLock() {
		return false
	}
	defer d.deciding.Unlock()
	if d.waits || !d.runs {
		return false
	}
	return d.decideLocked(time.Now()) == 0 // else Run looks again
}

func (d *Decider) setRuns(runs bool) {
	d.deciding.Lock()
	defer d.deciding.Unlock()
	d.runs = runs
}

// Run decides for requests that wait until the context ends; they give up then.
func (d *Decider) Run(ctx context.Context) {
	changed, stop := d.ch.Fleet.Changes()
	defer stop()
	var whileWaiting <-chan struct{} // changed, while a request waits for it
	timer := time.NewTimer(0)
	defer timer.Stop()
	d.setRuns(true)
	for {
		select {
		case <-ctx.Done():
			d.setRuns(false)
			close(d.closed)
			return
		case <-d.wake:
		case <-whileWaiting:
		case <-timer.C:
		}
		if whileWaiting != nil {
			// What is ready to run may bring more arrivals and free servers: one look is for all of them.
			// Where the gateway has processors to spare nothing is ready.
			runtime.Gosched()
		}
		whileWaiting = nil
		if in := d.decide(); in > 0 {
			whileWaiting = changed
			timer.Reset(in)
		}
	}
}

// decide lets requests go that may, and returns when to look again: 0 if none waits. It is for what holds once nobody
// else decides: those who came until then have come before.
func (d *Decider) decide() (again time.Duration) {
	d.deciding.Lock()
	defer d.deciding.Unlock()
	return d.decideLocked(time.Now())
}

// decideLocked is decide at a time.
func (d *Decider) decideLocked(now time.Time) (again time.Duration) {
	defer func() { d.waits = again > 0 }()
	d.mu.Lock()
	came, left := d.arrivals, d.departures
	d.arrivals, d.departures = d.spare, nil
	d.mu.Unlock()
	for _, w := range left {
		if l := d.queues[w.request.base]; l != nil {
			l.departures = append(l.departures, w)
		}
	}
	for _, w := range came {
		if w.state.Load() != stillWaits { // it has left already
			continue
		}
		l := d.queues[w.request.base]
		if l == nil {
			l = newModelQueue(d, w.request.base)
			d.queues[w.request.base] = l
		}
		l.arrivals = append(l.arrivals, w)
	}
	clear(came)
	d.spare = came[:0]
	for base, l := range d.queues {
		if !l.hasWork() {
			continue
		}
		switch {
		case !l.decideOrGiveUp(now), len(l.waiting)+len(l.snapshot.prefill)+len(l.snapshot.decode) == 0:
			delete(d.queues, base)
			continue
		case len(l.waiting) == 0: // what its order remembers of servers stays
			continue
		}
		if in := min(order.LookInterval, l.nextLook(now)); again == 0 || in < again {
			again = in
		}
	}
	return again
}

// complete ends a wait, unless the request has left.
func (w *waiter) complete(g bindResult) {
	if w.state.CompareAndSwap(stillWaits, isBound) {
		w.done <- g
	}
}
