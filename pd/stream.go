package pd

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

// Stream is a streamed answer whose first content event is in hand. Where its leg
// breaks and the request allows it, it goes on with another. One goroutine reads
// it with Next until an error, then or earlier calls Close.
type Stream struct {
	leg        *legStream
	behind     *restOfStream                                     // the leg behind one that only begins the answer; nil: none
	hold       *hold                                             // keeps that beginning from the client; nil: it is given at once
	continueOn func(*BrokenStreamError) (*Stream, []byte, error) // nil where nothing can be continued
	events     int                                               // content events of the legs before
	broke      bool                                              // one of them did
	ended      bool                                              // by us: its last leg broke behind the answer
	once       sync.Once
	leave      func() // the queue
}

// Next returns the next bytes for the client: one event or several that came
// together, valid until the next call. io.EOF follows a complete stream; a
// *BrokenStreamError any other, unless the client left.
func (s *Stream) Next() ([]byte, error) {
	if s.ended {
		return nil, io.EOF
	}
	for {
		out, err := s.next()
		if err == nil || s.continueOn == nil {
			return out, err
		}
		var broken *BrokenStreamError // on the heap: not once for each event
		if !errors.As(err, &broken) {
			return out, err
		}
		next, ending, cannot := s.continueOn(broken)
		if ending != nil {
			s.ended = true
			return ending, nil
		}
		if cannot != nil {
			s.continueOn = nil
			if errors.Is(cannot, context.Canceled) {
				return nil, cannot
			}
			return nil, err
		}
		s.broke = true
		s.follow(next.leg)
		s.behind, s.continueOn = next.behind, next.continueOn
	}
}

// Await waits until Next need not, where the stream can wait without memory for what comes; else Next waits. What Next
// returned is gone then.
func (s *Stream) Await() {
	if s.ended || s.behind != nil {
		return
	}
	s.leg.Await()
}

// Follow waits as Await does, again and again, and has each called when Here returns something, by another goroutine,
// that of many streams: it must not wait, and so calls neither Next nor Close. It ends when each returns false, and when
// Next might wait or has to say how the stream ends. began is false where nothing was waited for.
func (s *Stream) Follow(each func() (goOn bool)) (began bool) {
	if s.ended || s.behind != nil {
		return false
	}
	return s.leg.Follow(each)
}

// Here is Next where that returns something and need not wait; else it is for Next, and is not here.
func (s *Stream) Here() (out []byte, here bool) {
	if s.ended || s.behind != nil {
		return nil, false
	}
	return s.leg.Here()
}

// next reads the leg, and the one behind it.
func (s *Stream) next() ([]byte, error) {
	if s.hold != nil && s.behind != nil {
		s.hold.await(s.behind)
	}
	out, err := s.leg.Next()
	if !errors.Is(err, io.EOF) || s.behind == nil {
		return out, err
	}
	leg, err := s.openBehind()
	if err != nil {
		return nil, err
	}
	s.follow(leg)
	return s.leg.Next()
}

// openBehind asks for the leg behind the beginning, unless that was done while it was held, and returns
// it at its first event.
func (s *Stream) openBehind() (*legStream, error) {
	behind := s.behind
	s.behind = nil
	if s.hold == nil {
		return behind.open(behind.send())
	}
	return behind.open(s.hold.result())
}

// follow goes on with another leg.
func (s *Stream) follow(leg *legStream) {
	s.events += s.leg.result.Events
	s.leg.Close()
	s.leg = leg
}

// Events returns the number of content events so far.
func (s *Stream) Events() int { return s.events + s.leg.result.Events }

// LastEvent is when the last event was read, of a stream that is followed.
func (s *Stream) LastEvent() time.Time { return s.leg.lastEvent() }

// Usage is what the engine has reported so far. Of a stream that was continued it is not
// known how much each leg reported.
func (s *Stream) Usage() api.Usage {
	if s.broke {
		return api.Usage{}
	}
	return s.leg.result.Usage
}

// Ready reports whether another event can be had without waiting.
func (s *Stream) Ready() bool { return !s.ended && s.leg.Ready() }

// AtEnd reports whether the stream has ended, and its engine's answer with it: Next says so at once, and Close
// waits for nothing.
func (s *Stream) AtEnd() bool { return s.behind == nil && (s.ended || s.leg.atEnd()) }

// Close ends the stream, at whatever point it is; one that is closed before its end counts as
// left by the client. What it holds is given back in this order, each also after a panic in
// what comes before it:
//
//  1. the engine's connection, with the leg's timers   legStream.Close
//  2. the watch on the server                          its onEnd
//  3. the server's breaker                             endLeg
//  4. the counts                                       endLeg
//  5. the lease on the server                          endLeg
//  6. the place in the queue                           here
//
// A leg that another one continues goes through 1 to 5 when that has its first content event.
func (s *Stream) Close() {
	s.once.Do(func() {
		defer s.leave()
		if s.hold == nil {
			s.leg.Close()
			return
		}
		defer s.hold.cancel()
		defer func() { s.leg.Close() }() // whichever it is then
		if s.behind != nil && s.hold.isSent() {
			s.hold.cancel()
			if leg, _ := s.openBehind(); leg != nil { // nobody has read it
				s.follow(leg)
			}
		}
	})
}

// endLeg is the end of a leg on the gateway's side, once its connection is closed.
func (o *Orchestrator) endLeg(st *requestState, b *binding, r StreamResult) {
	defer b.releaseDecode()
	server := b.decode.Server()
	var broken *BrokenStreamError
	defer b.span.End()
	if errors.As(r.Err, &broken) {
		b.span.Fail("broken_stream", broken.Status, broken)
		if !broken.ours() {
			b.decode.RecordBrokenStream(broken)
		}
		o.Metrics.brokenAfter.WithLabelValues(server.ID()).Inc()
		o.Log.Warn("the stream of a leg broke", "request_id", st.req.ID, "server", server.ID(), "error", broken.Err.Error())
		if !o.continuesStreamOf(st) { // else continueStream has looked
			o.recordDeathBehind(st, server.ID(), broken)
		}
	}
	if r.Recomputed {
		o.Metrics.recomputes.WithLabelValues(server.ID()).Inc()
	}
	if r.Handoff != nil {
		answerKV{o}.record(st, b, r.Handoff, b.legIDs, r.Usage)
	}
	events := r.Events
	if b.handoff.GoesOn() {
		events++ // prefill's
	}
	counted, now := b.countedUsage(r.Usage), time.Now()
	o.countAnswer(st, counted, events, now)
	st.measureUsage(b, counted, now)
	st.recordEnd(o.Decisions, b, broken)
	if r.Err == nil {
		o.compareCounts(st, b, r.Usage)
		o.Binder.learnOutput(st, r.Usage, now)
		o.Suspects.Acquit(st.client, b.handoff.HasKV())
	}
}
