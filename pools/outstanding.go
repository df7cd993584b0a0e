package pools

import (
	"slices"
	"time"
)

// Work is what one request will cost a server, as predicted when it is claimed.
type Work struct {
	Tokens   int           // prompt tokens for prefill, context tokens for decode
	Estimate time.Duration // engine time, alone on the server
}

// outstanding is the work dispatched to one server and not yet released, oldest
// first. Servers prefill first come first served, so only the oldest progresses.
type outstanding struct {
	items    []workItem
	tokens   int
	progress time.Time // when the server last completed a piece, or got work while idle
	busy     window
}

type workItem struct {
	Work
	seq    uint64
	since  time.Time
	shared bool // other work was there at the same time
}

// window sums up a stretch in which the server was busy all the time: how long it
// took, and how long its works were predicted to take. It tells the server's
// speed when works are never alone.
type window struct {
	start     time.Time
	predicted time.Duration
	works     int
}

// fullWindow is how many works end a window of a server that is never idle.
const fullWindow = 16

func (o *outstanding) add(item workItem, now time.Time) {
	if len(o.items) == 0 {
		o.progress = now
		o.busy = window{start: now}
	} else {
		item.shared = true
		for i := range o.items {
			o.items[i].shared = true
		}
	}
	item.since = now
	o.items = append(o.items, item)
	o.tokens += item.Tokens
}

// remove ends a work and returns it. done says that the server did all of it; the
// window that it completes, if any, is returned with its end.
func (o *outstanding) remove(seq uint64, done bool, now time.Time) (item workItem, full window) {
	i := slices.IndexFunc(o.items, func(it workItem) bool { return it.seq == seq })
	if i < 0 {
		return workItem{}, window{}
	}
	item = o.items[i]
	o.tokens -= item.Tokens
	o.items = slices.Delete(o.items, i, i+1)
	o.progress = now
	if !done {
		o.busy = window{start: now} // part of the stretch went to work that did not count
		return item, window{}
	}
	o.busy.works++
	o.busy.predicted += item.Estimate
	if len(o.items) == 0 && o.busy.works >= fullWindow/4 || o.busy.works >= fullWindow {
		full = o.busy
		o.busy = window{start: now}
	}
	return item, full
}

// remaining predicts the time until all of it is done: the estimates of all but
// the oldest, and of the oldest what is left of it, at least three tenths. An
// overrun of the oldest is never credited to the others: that let one slow
// prompt hide a whole queue.
func (o *outstanding) remaining(now time.Time) time.Duration {
	if len(o.items) == 0 {
		return 0
	}
	oldest := o.items[0].Estimate
	left := max(oldest-now.Sub(o.progress), oldest*3/10)
	for _, it := range o.items[1:] {
		left += it.Estimate
	}
	return left
}
