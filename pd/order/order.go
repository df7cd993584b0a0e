package order

import (
	"errors"
	"math"
	"slices"
	"time"
)

// Order holds the requests that wait for their servers, and says which one goes next and to
// which servers. It decides as late as it can: a request goes when the prefill server that is
// best for it, the wait included, is about to be free. Which of several goes is decided then, in
// this order: the higher class; those that can still meet their objective for the first token;
// tenants in turn; the shortest prefill, less Ageing times the wait.
//
// All times count from one origin, which the caller fixes. The caller keeps the state of the
// servers (work ahead, KV room) and passes it with each question. An Order is not safe for
// concurrent use.
type Order struct {
	cfg           Config
	queues        tenantQueues
	size          int
	work          float64       // seconds of prefill that wait, as Ticket.leastWork, but for rounding
	kv            int           // tokens of KV that those that wait need on decode: of Ticket.kv
	output        float64       // tokens of answers that those that wait are expected to have
	firstLatest   time.Duration // none that waits has an earlier Ticket.Latest
	begun         []*Ticket     // of those that wait: Ticket.Begun
	overdueCredit float64       // overdue requests that may go
	turn          int           // of the ticket to price again next
	rate          serviceRate   // of the requests that go
	went          []wentRequest // the last ones that did, the oldest first
	gaps          longGaps      // that they make on decode

	// declinedFor is, by prefill server, the seconds for which requests have waited for it and
	// left a free one, since one of them went elsewhere, however many they were; isDeclinedFor
	// says that one did so at the last look.
	declinedFor   []float64
	isDeclinedFor []bool

	surveyed time.Duration // when Next or Serve last looked at all that wait

	predicted, supported backlog // scratch of Admit and GiveUp
	forecasts            int     // calls of GiveUp

	look // scratch of Next
}

// Config are the settings of an Order.
type Config struct {
	// Ahead is the work that a prefill server may still have when it gets the next request, where a step
	// of it takes less (AheadOn), and AheadOnDecode that of a decode server that computes prompts. With 0
	// the engine would idle for a round trip, and with less than a step of it takes, one request a
	// step is all that it gets.
	Ahead, AheadOnDecode time.Duration
	// WaitMargin is by which part of itself a predicted wait for a busy server counts more than it is where
	// nobody else waits: requests that arrive meanwhile and go first are not in the prediction. 0: it counts
	// as it is.
	WaitMargin float64
	// Ageing is how many seconds of prefill a second of waiting takes off a request's place in
	// the order.
	Ageing float64
	// BegunShare is the part that counts of what is left of a prefill that has begun, 0..1: the
	// request keeps KV room on decode, and holds shorter ones up for no more than its next piece.
	BegunShare float64
	// A request is overdue after a wait of OverdueAfter + OverdueFactor x its prefill, and may then
	// go before shorter ones. OverdueShare is the largest share of turns, 0..1, that overdue
	// requests get: under overload every request is overdue, and without the bound the order
	// would be first come, first served.
	OverdueAfter  time.Duration
	OverdueFactor float64
	OverdueShare  float64
	// Patience is the longest that a request waits; 0 is without end. A request is overdue after
	// half of it at the latest: one that gives up before it is overdue would never get a turn.
	Patience time.Duration
}

// DefaultConfig returns the settings that did best over the shipped scenarios of the simulator.
func DefaultConfig() Config {
	return Config{
		Ahead: 20 * time.Millisecond, AheadOnDecode: 50 * time.Millisecond, WaitMargin: 1, Ageing: 0.2, BegunShare: 0.4,
		OverdueAfter: 20 * time.Second, OverdueFactor: 2, OverdueShare: 0.02,
	}
}

// Validate returns an error if a setting is negative, or a share is more than 1.
func (c Config) Validate() error {
	if c.Ahead < 0 || c.AheadOnDecode < 0 || c.WaitMargin < 0 || c.Ageing < 0 || c.BegunShare < 0 || c.BegunShare > 1 || c.OverdueAfter < 0 || c.OverdueFactor < 0 ||
		c.OverdueShare < 0 || c.OverdueShare > 1 || c.Patience < 0 {
		return errors.New("weights of the order must not be negative, overdue-share and begun-share at most 1")
	}
	return nil
}

// AheadOn is the work that a prefill server may still have when it gets the next request, if a step of it takes
// so many seconds whatever is in it.
func (c *Config) AheadOn(perStep float64) time.Duration {
	return max(c.Ahead, time.Duration(perStep*float64(time.Second)))
}

// New returns an empty order.
func New(cfg Config) *Order { return &Order{cfg: cfg} }

// Len returns the number of requests that wait.
func (o *Order) Len() int { return o.size }

// Add lets a request wait. Unlike Admit it refuses none.
func (o *Order) Add(t *Ticket, links *LinkTable) {
	o.begin(t, links)
	o.enqueue(t)
}

// begin writes what a request that comes is ordered by.
func (o *Order) begin(t *Ticket, links *LinkTable) {
	t.derive(links)
	t.rank, t.rankedPrefill, t.late = o.rank(t), t.leastPrefill, false
	t.declined, t.isDeclining = 0, false
}

// enqueue lets a request wait that may have waited before.
func (o *Order) enqueue(t *Ticket) {
	if o.size == 0 {
		o.work, o.output, o.firstLatest = 0, 0, math.MaxInt64
	}
	o.queues.add(t)
	o.size++
	o.work, o.firstLatest = o.work+t.leastWork, min(o.firstLatest, t.latest())
	o.kv, o.output = o.kv+t.kv, o.output+t.output
	if t.Begun {
		o.begun = append(o.begun, t)
	}
}

// Update puts a waiting request in its new place after its costs or the links have changed.
func (o *Order) Update(t *Ticket, links *LinkTable) {
	o.derive(t, links)
	o.place(t)
}

// derive writes what follows from the new costs of a waiting request but its place.
func (o *Order) derive(t *Ticket, links *LinkTable) {
	work, kv, output := t.leastWork, t.kv, t.output
	t.derive(links)
	o.work, o.kv, o.output = o.work+t.leastWork-work, o.kv+t.kv-kv, o.output+t.output-output
}

// place puts a waiting request where its costs say.
func (o *Order) place(t *Ticket) {
	if rank := o.rank(t); rank != t.rank {
		o.queues.move(t, rank)
	}
	t.rankedPrefill = t.leastPrefill
}

// Remove takes a request out; it returns false if the request does not wait.
func (o *Order) Remove(t *Ticket) bool {
	if !o.queues.remove(t) {
		return false
	}
	o.size--
	o.work, o.kv, o.output = o.work-t.leastWork, o.kv-t.kv, o.output-t.output
	if t.Begun {
		o.begun = slices.DeleteFunc(o.begun, func(b *Ticket) bool { return b == t })
	}
	return true
}

// ForgetServers forgets what is remembered of servers by their numbers. Call it when the numbers
// mean other servers.
func (o *Order) ForgetServers() {
	clear(o.declinedFor)
	clear(o.isDeclinedFor)
}

// All appends the requests that wait to a slice: by queue (class, lateness, tenant), each by rank.
func (o *Order) All(to []*Ticket) []*Ticket {
	for _, q := range o.queues.sorted {
		to = append(to, q.waiting...)
	}
	return to
}

// LookInterval is how often those that wait are to be looked at though nothing was signalled: one that
// left a server free may go by the passing of time alone.
const LookInterval = 250 * time.Millisecond

// RepricedPerLook is how many of the first in order, and how many of the others by turns, are to be
// priced again at each look (Stale). Twice as many cost a look a third more, and in the simulator make
// no mean time to the first token better.
const RepricedPerLook = 8

// Stale appends to a slice the requests whose prices are to be renewed now: the first n, and n of
// the others in rotation. What servers hold changes while a request waits, but pricing a thousand
// requests each time would take milliseconds.
func (o *Order) Stale(n int, to []*Ticket) []*Ticket {
	first := min(n, o.size)
	to = o.from(0, first, to)
	others := o.size - first
	if others == 0 {
		return to
	}
	n = min(n, others)
	begin := (o.turn + 1) % others
	o.turn += n
	end := min(n, others-begin)
	return o.from(first, n-end, o.from(first+begin, end, to))
}

// from appends n tickets from a place on.
func (o *Order) from(place, n int, to []*Ticket) []*Ticket {
	for _, q := range o.queues.sorted {
		if n == 0 {
			break
		}
		if place >= len(q.waiting) {
			place -= len(q.waiting)
			continue
		}
		some := q.waiting[place:min(place+n, len(q.waiting))]
		to = append(to, some...)
		place, n = 0, n-len(some)
	}
	return to
}

// rank is the shortest prefill less Ageing x waited, but for what is the same for
// all: so it does not change as time passes.
func (o *Order) rank(t *Ticket) float64 {
	seconds := t.leastPrefill
	if t.Begun {
		seconds *= o.cfg.BegunShare
	}
	return seconds + o.cfg.Ageing*t.Arrived.Seconds()
}
