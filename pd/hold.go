package pd

import (
	"sync"
	"time"
)

// restOfStream is the leg behind one that only begins an answer.
type restOfStream struct {
	send func() *LegError                    // asks for it, and waits for its first event
	open func(*LegError) (*legStream, error) // what came of that, in the goroutine that reads the stream
}

// hold keeps the beginning of a stream from the client, and has the rest asked for meanwhile: prefill's
// token is held so that the gap to decode's first one, for which the KV travels, is no longer than the
// request's objective allows. It is given once the rest has been asked for and so much longer, as it is
// forecast then, or when the rest is there. A Stream owns it, with the goroutine that asks.
type hold struct {
	asked   chan struct{}        // closed when the rest is asked for
	longer  func() time.Duration // for how long from then on, as it is forecast before that
	lasts   time.Duration        // what longer said; set when asked is closed
	legs    *sync.WaitGroup      // of the goroutines of legs
	cancel  func()               // ends the rest, asked for or not
	onGiven func(time.Time)      // says when the beginning was given, once the rest uses the request no more
	given   time.Time            // zero: it was not
	sent    chan struct{}        // closed when failed or caught is there; nil: the rest was not asked for
	failed  *LegError
	caught  any // of a panic
}

// isSent reports whether the rest was asked for.
func (h *hold) isSent() bool { return h.sent != nil }

// await asks for the rest, the first time, and returns when the beginning is to be given.
func (h *hold) await(rest *restOfStream) {
	if h.isSent() {
		return
	}
	h.sent = make(chan struct{})
	h.legs.Go(func() { h.send(rest) })
	if h.wait() {
		h.given = time.Now()
	}
}

// ask says that the rest is asked for now. What it moves is not under way yet: its own transfer would be
// counted twice.
func (h *hold) ask() {
	h.lasts = h.longer()
	close(h.asked)
}

// send asks for the rest. A panic here would end the process: it is thrown again in the goroutine that
// reads the stream.
func (h *hold) send(rest *restOfStream) {
	defer close(h.sent)
	defer func() { h.caught = recover() }()
	h.failed = rest.send()
}

// wait returns when the beginning is to be given, false if its client has left.
func (h *hold) wait() (stays bool) {
	select {
	case <-h.asked:
	case <-h.sent:
	}
	timer := time.NewTimer(h.lasts)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-h.sent:
		return h.failed == nil || h.failed.Kind != Gone
	}
}

// result waits until the rest has its first event or has failed.
func (h *hold) result() *LegError {
	<-h.sent
	if h.caught != nil {
		panic(h.caught)
	}
	if !h.given.IsZero() {
		h.onGiven(h.given)
	}
	return h.failed
}

// holdFirst is for how long prefill's token is held, now that decode is asked for the rest. Of a prompt whose
// pieces decode has pulled what moves is the rest.
func (ch *Chooser) holdFirst(b *binding, itl time.Duration, now time.Time) time.Duration {
	bytes := float64(ch.lacking(b, b.handoff.Coverage().Tokens)) * b.tokenBytes
	moves := ch.Links.Forecast(linkEndOf(b.handoff.From), linkEndOf(b.decode.Server()), bytes, now)
	return ch.firstGap.Hold(ch.Cost.HandOff+moves+b.chosen.Terms.KVRoom+b.chosen.Terms.Step, itl)
}
