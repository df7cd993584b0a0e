package policy

import "time"

// Backlog estimates how much work a prefill server still has, from what was sent
// to it and what came back. Times are since any fixed origin. The zero value is
// an idle server.
//
// The server is taken to work on its requests in the order of sending, so only
// the oldest wears off as time passes, and never below a part of its estimate:
// one that runs over says nothing of the others, and must not pay for them
// either (letting it made waits of 80 s under noisy predictions).
type Backlog struct {
	work     []outstanding // oldest first
	total    time.Duration // of the estimates
	lastDone time.Duration
}

type outstanding struct {
	id       int64
	estimate time.Duration
	sent     time.Duration
}

// overrun is the least part of its estimate that the oldest request is taken to
// need still, however long it has run.
const overrun = 0.3

// Begin adds a request that was just sent.
func (b *Backlog) Begin(id int64, estimate, now time.Duration) {
	b.work = append(b.work, outstanding{id: id, estimate: estimate, sent: now})
	b.total += estimate
}

// End removes a request whose answer has come. It returns how long the server
// worked on it by itself, since its own sending or the answer before: what the
// estimate is to be compared with. An unknown request is false.
func (b *Backlog) End(id int64, now time.Duration) (served time.Duration, known bool) {
	for i, w := range b.work {
		if w.id != id {
			continue
		}
		served = now - max(w.sent, b.lastDone)
		b.work = append(b.work[:i], b.work[i+1:]...)
		b.total -= w.estimate
		b.lastDone = now
		return max(0, served), true
	}
	return 0, false
}

// Len is how many requests are outstanding.
func (b *Backlog) Len() int { return len(b.work) }

// Ahead is the estimated time until all outstanding work is done:
//
//	sum of the estimates but the oldest's + max(oldest - e, 0.3 oldest)
//
// e is the time since the last answer, or since the oldest was sent if that was
// later.
func (b *Backlog) Ahead(now time.Duration) time.Duration {
	if len(b.work) == 0 {
		return 0
	}
	oldest := b.work[0]
	worked := now - max(oldest.sent, b.lastDone)
	least := time.Duration(overrun * float64(oldest.estimate))
	return b.total - oldest.estimate + max(oldest.estimate-worked, least)
}

// Progress is the part, 0..1, of the oldest request that its estimate says is done.
func (b *Backlog) Progress(now time.Duration) float64 {
	if len(b.work) == 0 || b.work[0].estimate <= 0 {
		return 0
	}
	worked := now - max(b.work[0].sent, b.lastDone)
	return min(1, worked.Seconds()/b.work[0].estimate.Seconds())
}

// FallsTo returns when Ahead will have fallen to limit by the passing of time
// alone, false if only an answer can bring it there.
func (b *Backlog) FallsTo(limit, now time.Duration) (at time.Duration, ok bool) {
	ahead := b.Ahead(now)
	if ahead <= limit {
		return now, true
	}
	oldest := b.work[0]
	least := b.total - oldest.estimate + time.Duration(overrun*float64(oldest.estimate))
	if least > limit {
		return 0, false
	}
	return now + ahead - limit, true
}
