package queue

import (
	"errors"
	"time"
)

// Refusal is a wait that would have been in vain, which is ErrTimeout or ErrDeadline, and in how long there is room
// for the request if all that were refused before come back in their turn.
type Refusal struct {
	Late   error
	Return time.Duration
}

func (r *Refusal) Error() string { return r.Late.Error() }
func (r *Refusal) Unwrap() error { return r.Late }

// mostReturn is the longest time in which a refused request is asked to come back: OpenAI's SDKs heed a minute.
const mostReturn = 30 * time.Second

// ReturnTimes spreads the requests that are refused over the time in which the queue has room for them. Told the same
// time they would come back together, and all but a few be refused again. Its zero value has refused none.
type ReturnTimes struct {
	at    time.Time
	ahead time.Duration // what those take that are to come back before the next, from at on
}

// Next is in how long a request is to come back that is refused now, since it would wait for so much too long, and takes
// so much of its servers' time.
func (r *ReturnTimes) Next(excess, service time.Duration, now time.Time) time.Duration {
	r.ahead = max(0, r.ahead-now.Sub(r.at))
	r.at = now
	in := max(0, excess) + r.ahead
	r.ahead = min(mostReturn, r.ahead+service)
	return min(in, mostReturn)
}

// ReturnIn is in how long the request of an error is to come back, 0 where that is not known.
func ReturnIn(err error) time.Duration {
	var refused *Refusal
	if !errors.As(err, &refused) {
		return 0
	}
	return refused.Return
}
