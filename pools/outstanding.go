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
}

type workItem struct {
	Work
	seq uint64
}

func (o *outstanding) add(item workItem, now time.Time) {
	if len(o.items) == 0 {
		o.progress = now
	}
	o.items = append(o.items, item)
	o.tokens += item.Tokens
}

func (o *outstanding) remove(seq uint64, now time.Time) {
	i := slices.IndexFunc(o.items, func(it workItem) bool { return it.seq == seq })
	if i < 0 {
		return
	}
	o.tokens -= o.items[i].Tokens
	o.items = slices.Delete(o.items, i, i+1)
	o.progress = now
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
