package curve

import (
	"slices"
	"time"
)

// Work is what one request will cost a server, as predicted when it is claimed.
type Work struct {
	Tokens   int           // prompt tokens for prefill, context tokens for decode
	Estimate time.Duration // engine time, alone on the server
}

// Backlog estimates how much work a server still has, from what was sent to it and
// what came back. The zero value is an idle server.
//
// The server is taken to work on its requests in the order of sending, so only the
// oldest wears off as time passes, and never below a part of its estimate: one that
// runs over says nothing of the others, and must not pay for them either (letting it
// hid whole queues, and made waits of 80 s under noisy predictions).
type Backlog struct {
	items    []workItem // oldest first
	total    Work
	lastDone time.Time
}

type workItem struct {
	Work
	id     uint64
	sent   time.Time
	shared bool // other work was there at the same time
}

// overrun is the least part of its estimate that the oldest request is taken to need
// still, however long it has run.
const overrun = 0.3

// Begin adds a request that is sent now.
func (b *Backlog) Begin(id uint64, w Work, now time.Time) {
	for i := range b.items {
		b.items[i].shared = true
	}
	b.items = append(b.items, workItem{Work: w, id: id, sent: now, shared: len(b.items) > 0})
	b.total.Tokens += w.Tokens
	b.total.Estimate += w.Estimate
}

// Completion is what a request's answer shows of its server.
type Completion struct {
	Work
	// Served is how long the server worked on it by itself, since its own sending or
	// the answer before: what the estimate is to be compared with.
	Served time.Duration
	Alone  bool // it had the server to itself
}

// End removes a request whose answer has come, false if it is not known.
func (b *Backlog) End(id uint64, now time.Time) (Completion, bool) {
	i := slices.IndexFunc(b.items, func(w workItem) bool { return w.id == id })
	if i < 0 {
		return Completion{}, false
	}
	w := b.items[i]
	served := now.Sub(b.startOf(w))
	b.items = slices.Delete(b.items, i, i+1)
	b.total.Tokens -= w.Tokens
	b.total.Estimate -= w.Estimate
	b.lastDone = now
	return Completion{Work: w.Work, Served: max(0, served), Alone: !w.shared}, true
}

// Pause records that the server did something else until now: no request that is
// outstanding has been worked on yet.
func (b *Backlog) Pause(now time.Time) { b.lastDone = now }

// startOf is since when the server has worked on a request if it is the oldest.
func (b *Backlog) startOf(w workItem) time.Time {
	if b.lastDone.After(w.sent) {
		return b.lastDone
	}
	return w.sent
}

// Len is how many requests are outstanding, Tokens their tokens.
func (b *Backlog) Len() int    { return len(b.items) }
func (b *Backlog) Tokens() int { return b.total.Tokens }

// Ahead is the estimated time until all outstanding work is done:
//
//	sum of the estimates but the oldest's + max(oldest - e, 0.3 oldest)
//
// e is the time since the last answer, or since the oldest was sent if that was
// later.
func (b *Backlog) Ahead(now time.Time) time.Duration {
	if len(b.items) == 0 {
		return 0
	}
	worked := now.Sub(b.startOf(b.items[0]))
	return max(b.total.Estimate-worked, b.Floor())
}

// Floor is the part of Ahead that no passing of time takes away, only an answer.
func (b *Backlog) Floor() time.Duration {
	if len(b.items) == 0 {
		return 0
	}
	oldest := b.items[0].Estimate
	return b.total.Estimate - oldest + time.Duration(overrun*float64(oldest))
}

// Progress is the part, 0..1, of the oldest request that its estimate says is done.
func (b *Backlog) Progress(now time.Time) float64 {
	if len(b.items) == 0 || b.items[0].Estimate <= 0 {
		return 0
	}
	return min(1, now.Sub(b.startOf(b.items[0])).Seconds()/b.items[0].Estimate.Seconds())
}

// FallsTo returns in how long Ahead will have fallen to limit by the passing of time
// alone, false if only an answer can bring it there.
func (b *Backlog) FallsTo(limit time.Duration, now time.Time) (in time.Duration, ok bool) {
	ahead := b.Ahead(now)
	if ahead <= limit {
		return 0, true
	}
	if b.Floor() > limit { // it may be below nothing: what others sent is above it by itself
		return 0, false
	}
	return ahead - limit, true
}
