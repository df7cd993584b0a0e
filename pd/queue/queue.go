package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Errors of waiting.
var (
	ErrFull      = errors.New("the gateway's queue is full")
	ErrBytes     = fmt.Errorf("%w: requests are held of as many bytes as may be", ErrFull)
	ErrTimeout   = errors.New("the request waited too long in the gateway's queue, or would have")
	ErrDisplaced = errors.New("the request gave up its place in the gateway's queue to one of a higher class, or of a tenant with fewer")
	ErrDeadline  = errors.New("the request cannot be answered by its deadline")
)

// Config bounds what the gateway holds.
type Config struct {
	MaxInFlight int           // requests past the queue, to the end of their streams
	MaxWaiting  int           // requests in the queue
	MaxBytes    int64         // request bodies in the queue and in flight
	MaxWait     time.Duration // in the queue
}

// Default holds what one process can: each stream takes two descriptors.
func Default() Config {
	return Config{MaxInFlight: 4096, MaxWaiting: 4096, MaxBytes: 2 << 30, MaxWait: 30 * time.Second}
}

// Queue is where requests wait, in the order of a fairQueue. A request that leaves it is
// bound to its servers at once, or waits for them past it, and then still counts as one
// that waits.
type Queue struct {
	cfg Config

	mu                sync.Mutex // guards the rest
	waiting           fairQueue
	waitingForServers fairQueue // of those in flight, the requests that wait for servers
	inFlight          int
	bytes             int64
	interval          time.Duration // mean time between two that went on while others waited; 0 is unknown
	lastAdmitted      time.Time     // when the last went on; zero unless requests have waited all the time since
	displaced         uint64
}

// Request is a request as the queue knows it.
type Request struct {
	Model    string
	Class    int // served in this order, 0 first
	Tenant   string
	Bytes    int       // of its body
	Deadline time.Time // zero: none
}

// Entry is one request's in the queue, from its coming to its leaving. The fields
// below gone belong to the queue's lock until it is closed.
type Entry struct {
	Model  string
	class  int
	tenant string
	bytes  int64
	Waited time.Duration // in the queue, once it is past it

	gone      chan struct{} // closed once it waits no more, by whatever way; nil: it has not waited
	displaced bool
	inFlight  bool
	giveUp    func() // while it is held: ends its wait for servers, when it is displaced
}

// New returns an empty queue.
func New(cfg Config) *Queue { return &Queue{cfg: cfg} }

// Enter waits for the request's turn and returns its place, which it is to leave. The
// error is ErrFull, ErrBytes, ErrDisplaced, ErrTimeout, ErrDeadline, or the context's.
// What is predicted to wait too long is refused at once.
func (q *Queue) Enter(ctx context.Context, req Request) (*Entry, error) {
	p := &Entry{Model: req.Model, class: req.Class, tenant: req.Tenant, bytes: int64(req.Bytes)}
	if q.admitAtOnce(p) {
		return p, nil
	}
	p.gone = make(chan struct{})
	now := time.Now()
	limit := LimitedBy(req.Deadline, now.Add(q.cfg.MaxWait), ErrTimeout)
	if err := q.join(p, limit, now); err != nil {
		return nil, err
	}
	if err := q.await(ctx, p, limit); err != nil {
		return nil, err
	}
	if p.displaced {
		return nil, ErrDisplaced
	}
	p.Waited = time.Since(now)
	return p, nil
}

// admitAtOnce lets an entry go on if it need not wait: most need not, and nothing is made for a wait.
func (q *Queue) admitAtOnce(p *Entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inFlight >= q.cfg.MaxInFlight || q.waiting.size > 0 || q.fullLocked(p) {
		return false
	}
	q.bytes += p.bytes
	q.inFlight++
	p.inFlight = true
	return true
}

// await waits until an entry is past the queue, or gives its place up.
func (q *Queue) await(ctx context.Context, p *Entry, limit Limit) error {
	select {
	case <-p.gone:
		return nil
	default:
	}
	patience, cancel := limit.Context(ctx)
	defer cancel()
	select {
	case <-p.gone:
		return nil
	case <-patience.Done():
		q.Leave(p)
		return context.Cause(patience)
	}
}

// join lets an entry wait, unless its wait is predicted to be longer than its limit, or there is no room for it.
func (q *Queue) join(p *Entry, limit Limit, now time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inFlight >= q.cfg.MaxInFlight {
		if wait := time.Duration(q.waiting.ahead(p.class, p.tenant)+1) * q.interval; wait > limit.Until.Sub(now) {
			return limit.Late
		}
	}
	if !q.makeRoomLocked(p) {
		if q.bytes+p.bytes > q.cfg.MaxBytes {
			return ErrBytes
		}
		return ErrFull
	}
	q.bytes += p.bytes
	q.waiting.push(p)
	q.admitNextLocked()
	return nil
}

// makeRoomLocked reports whether there is room for a place, if need be after
// displacing those that have less claim to it.
func (q *Queue) makeRoomLocked(p *Entry) bool {
	var displaced []*Entry
	for q.fullLocked(p) {
		v := q.displaceableLocked(p)
		if v == nil {
			for _, v := range slices.Backward(displaced) {
				q.restoreLocked(v)
			}
			return false
		}
		q.removeLocked(v)
		displaced = append(displaced, v)
	}
	for _, v := range displaced {
		q.displaced++
		v.displaced = true
		if v.inFlight {
			v.giveUp()
		} else {
			close(v.gone)
		}
	}
	return true
}

// fullLocked reports whether there is no room for a place: it would have to wait, and as
// many do as may, or the bodies are too long together.
func (q *Queue) fullLocked(p *Entry) bool {
	waits := q.inFlight >= q.cfg.MaxInFlight || q.waitingForServers.size > 0
	return waits && q.waiting.size+q.waitingForServers.size >= q.cfg.MaxWaiting || q.bytes+p.bytes > q.cfg.MaxBytes
}

// displaceableLocked is the waiting request with the least claim to a place, nil if none has less
// than a newcomer: of the later class, there of those that are not even past the queue.
func (q *Queue) displaceableLocked(p *Entry) *Entry {
	v, held := q.waiting.displaceable(p.class, p.tenant), q.waitingForServers.displaceable(p.class, p.tenant)
	if v == nil || held != nil && held.class > v.class {
		return held
	}
	return v
}

func (q *Queue) removeLocked(p *Entry) {
	q.bytes -= p.bytes
	if p.inFlight {
		q.waitingForServers.remove(p)
		q.inFlight--
	} else {
		q.waiting.remove(p)
	}
}

func (q *Queue) restoreLocked(p *Entry) {
	q.bytes += p.bytes
	if p.inFlight {
		q.waitingForServers.push(p)
		q.inFlight++
	} else {
		q.waiting.push(p)
	}
}

// admitNextLocked lets those go on whose turn it is.
func (q *Queue) admitNextLocked() {
	for q.inFlight < q.cfg.MaxInFlight && q.waiting.size > 0 {
		p := q.waiting.pop()
		q.inFlight++
		p.inFlight = true
		close(p.gone)
		q.learnIntervalLocked(time.Now())
	}
	if q.waiting.size == 0 {
		q.lastAdmitted = time.Time{} // a lull says nothing of how fast the queue moves
	}
}

// intervalGain is the share of a new interval that the mean takes over.
const intervalGain = 0.1

// learnIntervalLocked learns how fast the queue moves.
func (q *Queue) learnIntervalLocked(now time.Time) {
	took := now.Sub(q.lastAdmitted)
	switch {
	case q.lastAdmitted.IsZero():
	case q.interval == 0:
		q.interval = took
	default:
		q.interval += time.Duration(intervalGain * float64(took-q.interval))
	}
	q.lastAdmitted = now
}

// Leave ends an entry, waiting or past the queue; once is as good as twice.
func (q *Queue) Leave(p *Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case p.displaced:
		return
	case p.inFlight:
		p.inFlight = false
		q.inFlight--
		q.bytes -= p.bytes
		q.admitNextLocked()
	case q.waiting.remove(p):
		q.bytes -= p.bytes
	}
}

// MaxInFlight is how many requests may be past the queue at once.
func (q *Queue) MaxInFlight() int { return q.cfg.MaxInFlight }

// CountWaiting counts a place that is past the queue as one that waits still, for its servers,
// until release. The context ends with ErrDisplaced if it is displaced meanwhile; release
// reports it too.
func (q *Queue) CountWaiting(ctx context.Context, p *Entry) (held context.Context, release func() (displaced bool)) {
	held, end := context.WithCancelCause(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	p.giveUp = func() { end(ErrDisplaced) }
	q.waitingForServers.push(p)
	return held, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		end(nil)
		q.waitingForServers.remove(p)
		return p.displaced
	}
}

// Waiting returns how many requests wait, for a place or for their servers, by model.
func (q *Queue) Waiting() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := make(map[string]int)
	for _, l := range []*fairQueue{&q.waiting, &q.waitingForServers} {
		for p := range l.all {
			waiting[p.Model]++
		}
	}
	return waiting
}

// CountDisplaced counts one that waited for its servers and gave up its turn to others.
func (q *Queue) CountDisplaced() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.displaced++
}

// Len returns how many requests wait, for a place or for their servers, and how many run.
func (q *Queue) Len() (waiting, inFlight int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.size + q.waitingForServers.size, q.inFlight - q.waitingForServers.size
}

// Bytes returns how long the bodies of those in the queue and in flight are together.
func (q *Queue) Bytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// Displaced returns how many requests gave up their place, or their turn, to others.
func (q *Queue) Displaced() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.displaced
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	if c.MaxInFlight < 1 || c.MaxWaiting < 0 || c.MaxBytes < 1 || c.MaxWait <= 0 {
		return errors.New("max-in-flight, max-held and max-wait must be positive, max-waiting not negative")
	}
	return nil
}
