package pd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/transcript"
	"github.com/tandem-gateway/tandem/pools"
)

// legStream is the stream of one decode leg. One goroutine reads it with Next until
// an error, then or earlier calls Close.
type legStream struct {
	dialect    *api.Dialect
	events     *api.EventReader
	room       eventRoom // of the events
	body       io.Closer
	cancel     context.CancelCauseFunc
	ctx        context.Context        // of the leg; cancelled by the client's leaving or by idle
	idle       *time.Timer            // calls idleOver, at the latest when idleLimit is over
	idleLimit  time.Duration          // of the next event; up to the first content another one runs
	idleFrom   atomic.Int64           // when it began to run, in nanoseconds from begun and one; negative: it does not; 0: idle is set to what it is
	side       func() api.PromptUsage // of the usage, as known now
	server     *pools.Server
	mostTokens int // that the usage can count
	hideUsage  bool
	handoff    *connector.Handoff     // nil without one
	transcript *transcript.Transcript // what could be continued elsewhere; nil where it cannot
	ids        *answerkv.IDs          // of the leg's prompt and answer; nil: they are not wanted
	hideIDs    bool                   // which the client did not ask for, and no transcript hides

	chunk   api.Chunk     // the last event, where it is one of chat or completions
	head    api.EventHead // of such events
	pending []byte        // transformed events up to the first content, not yet returned
	scratch *scratch      // for the last event as the client sees it; nil: it is not in use
	choices api.EndedChoices

	opensLate bool // the engine names the role of a chat, or begins a message, when it has the first token

	opened bool // the first content event was read
	ended  bool // the engine said that the stream is complete
	result StreamResult
	onGap  func(time.Duration)
	heard  atomic.Int64  // nanoseconds from begun to the last content event, for other goroutines too
	begun  time.Time     // with the first one
	at     time.Duration // from begun to the last event

	closing sync.Once
	onEnd   func(StreamResult)
}

// scratch is memory for an event that the client sees otherwise than the engine sent it.
type scratch struct{ shown, changed []byte }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// releaseScratch lets go of what was returned last.
func (s *legStream) releaseScratch() {
	if s.scratch != nil {
		scratches.Put(s.scratch)
		s.scratch = nil
	}
}

// StreamResult is how the stream of one leg went.
type StreamResult struct {
	Err        error // nil after a complete stream
	Usage      api.Usage
	Events     int // content events
	Recomputed bool
	Handoff    []byte // of the answer's own KV, which the engine keeps for a prefill; nil: it keeps none
}

// Next returns the next bytes for the client: one event or several that came
// together. io.EOF follows a complete stream; a *BrokenStreamError any other,
// unless the client left.
func (s *legStream) Next() ([]byte, error) {
	for {
		if out, err := s.next(); len(out) > 0 || err != nil {
			return out, err
		}
	}
}

// Here is Next where that returns something without waiting.
func (s *legStream) Here() (out []byte, here bool) {
	for s.Ready() {
		if out, err := s.next(); len(out) > 0 || err != nil {
			return out, err == nil // Next returns the error again
		}
	}
	return nil, false
}

// next is Next, or nothing of an event that the client does not see.
func (s *legStream) next() ([]byte, error) {
	if out := s.pending; len(out) > 0 {
		s.pending = nil
		return out, nil
	}
	if s.room.back > 0 {
		s.room.give()
	}
	if s.result.Err != nil {
		return nil, s.result.Err
	}
	out, err := s.event()
	s.result.Err = err
	return out, err
}

// Await waits until Next need not, as far as the engine sends whole events, and holds no memory for them meanwhile. What
// Next returned is gone then.
func (s *legStream) Await() {
	if !s.expectsMore() {
		return
	}
	s.releaseScratch()
	s.startIdle()
	s.events.Await()
	if s.events.Buffered() && !s.events.CommentBuffered() {
		s.stopIdle()
	} // else the time limit is that of the rest too
}

// Follow waits as Await does, again and again, and has each called by another goroutine when a whole event is here,
// until that returns false or something else comes. began is false where nothing was waited for.
func (s *legStream) Follow(each func() (goOn bool)) (began bool) {
	if !s.expectsMore() || s.handoff.Waits() {
		return false
	}
	s.releaseScratch()
	s.startIdle()
	return s.events.Follow(func() bool {
		if !s.events.Buffered() {
			return false // the time limit is that of the rest too
		}
		comment := s.events.CommentBuffered()
		if !each() || s.ended {
			s.stopIdle()
			return false
		}
		s.releaseScratch()
		if !comment {
			s.idleFrom.Store(int64(s.at) + 1)
		}
		return true
	})
}

// expectsMore reports whether the next event is still to come. An engine may be late to end its answer behind the last.
func (s *legStream) expectsMore() bool { return s.result.Err == nil && !s.ended && !s.Ready() }

// startIdle begins the time limit of the next event, unless it runs.
func (s *legStream) startIdle() {
	if s.idleFrom.Load() <= 0 {
		s.idleFrom.Store(int64(time.Since(s.begun)) + 1)
		s.idle.Reset(s.idleLimit)
	}
}

func (s *legStream) stopIdle() {
	s.idleFrom.Store(-1)
	s.idle.Stop()
}

// idleOver ends the leg if its time limit is over: a loop that follows the stream moves that on with each event, and leaves
// the timer as it is. It may come late, when the limit runs no more or has begun anew.
func (s *legStream) idleOver() {
	from := s.idleFrom.Load()
	if from < 0 {
		return
	}
	if left := s.idleLimit - time.Since(s.begun) + time.Duration(from-1); from > 0 && left > 0 {
		if s.idle.Reset(left); s.idleFrom.Load() != from {
			s.idle.Reset(0) // which may have set it meanwhile
		}
		return
	}
	s.cancel(errSilent)
}

// lastEvent is when the last event was read of a stream that has begun.
func (s *legStream) lastEvent() time.Time { return s.begun.Add(s.at) }

// Ready reports whether another event can be had without waiting.
func (s *legStream) Ready() bool {
	return len(s.pending) > 0 || !s.ended && s.events.Buffered()
}

// atEnd reports whether the engine has ended its answer behind the end of the stream.
func (s *legStream) atEnd() bool { return s.ended && len(s.pending) == 0 && s.events.AtEnd() }

// event reads one event and returns what of it goes to the client.
func (s *legStream) event() ([]byte, error) {
	if s.ended {
		return nil, io.EOF
	}
	// Up to the first content one time limit runs on; afterwards each event has its
	// own, and a slow client does not use it up.
	waits := s.opened && !s.events.Buffered()
	if waits {
		s.startIdle()
	}
	ev, err := s.events.Read()
	comment := err == nil && ev.Data == nil
	if waits && !comment {
		s.stopIdle()
	}
	if errors.Is(err, io.EOF) && s.choices.All() {
		s.ended = true
		return s.ending(), nil
	}
	if err != nil {
		return nil, s.broken(err)
	}
	if comment { // that the server lives says nothing of its engine
		return ev.Raw, nil
	}
	return s.take(ev)
}

// take notes what an event says and returns what of it goes to the client.
func (s *legStream) take(ev api.Event) ([]byte, error) {
	now := time.Now()
	var prompts api.PromptReader
	if s.transcript != nil {
		prompts = s.transcript
	}
	g := s.dialect.ReadEvent(ev.Data, &s.chunk, prompts, &s.head)
	if g.Failure != "" {
		return nil, failedByEngine(g.Failure, ev.Data)
	}
	recordIDs(s.ids, &s.chunk)
	s.ended = g.End
	s.choices.Note(g.Finished)
	if g.Content {
		s.server.RecordProgress(now)
		s.count(g.Closes, now)
	}
	s.at = now.Sub(s.begun)
	return s.transform(ev)
}

// ending is what the client lacks where all choices have ended and the engine ends its
// stream cleanly without the end marker, as Hugging Face's transformers serve does.
func (s *legStream) ending() []byte {
	if s.transcript != nil {
		if ending := s.transcript.Ending(); ending != nil {
			return ending
		}
	}
	return []byte("data: [DONE]\n\n")
}

// count counts an event with content. What only closes the answer comes right behind its last token.
func (s *legStream) count(closes bool, now time.Time) {
	if s.result.Events++; s.result.Events == 1 {
		s.begun = now
		return
	}
	at := now.Sub(s.begun)
	last := s.heard.Swap(int64(at))
	if !closes {
		s.onGap(at - time.Duration(last))
	}
}

// silentFor reports whether the last content event is longer ago.
func (s *legStream) silentFor(d time.Duration) bool {
	return time.Since(s.begun)-time.Duration(s.heard.Load()) > d
}

// transform returns the event as the client may see it, nil if it may not. The result is valid
// until the next event is read.
func (s *legStream) transform(ev api.Event) (_ []byte, err error) {
	data := ev.Data
	if s.scratch == nil {
		s.scratch = scratches.Get().(*scratch)
	}
	if !s.chunk.Ordinary {
		if data, err = s.clean(data); data == nil {
			return nil, err
		}
	}
	if s.transcript != nil {
		if data = s.transcript.Record(&s.scratch.shown, &s.chunk, data); data == nil {
			return nil, nil
		}
	} else if s.hideIDs && s.chunk.Choices >= 0 {
		data = s.chunk.Without(nil, data)
	}
	if bytes.Equal(data, ev.Data) {
		return ev.Raw, nil
	}
	s.scratch.changed = ev.AppendWithData(s.scratch.changed[:0], data)
	return s.scratch.changed, nil
}

// clean notes the usage and removes what belongs between engines; nil if nothing is left.
func (s *legStream) clean(data []byte) ([]byte, error) {
	if usage, ok := s.dialect.ReadUsage(data); ok {
		s.recordUsage(s.handoff.Usage(usage.UpTo(s.mostTokens)), s.dialect.LastUsage(data))
		if s.hideUsage && api.HasNoChoices(data) {
			return nil, nil
		}
	}
	if handoff := api.AnswerHandoff(data); handoff != nil {
		s.result.Handoff = handoff
	}
	data, err := s.handoff.Complete(s.ctx, data)
	if err != nil {
		return nil, s.broken(err)
	}
	data, err = s.dialect.CleanAnswer(data, s.clientSide())
	if err != nil {
		return nil, &BrokenStreamError{Message: "the engine sent an event that cannot be read", Err: err}
	}
	s.chunk = api.ReadChunk(data) // of which other things stand elsewhere
	return data, nil
}

// recordUsage merges a usage report. Only the last
// one tells whether a prompt that was handed over was computed again.
func (s *legStream) recordUsage(u api.Usage, last bool) {
	s.result.Usage.Merge(u)
	if u.Cached.Known {
		s.server.RecordCachedTokens()
	}
	if last {
		s.judge()
	}
}

func (s *legStream) judge() {
	if side := s.side(); side.Override && api.Recomputed(s.result.Usage, side.Handed, s.server.ReportsCachedTokens()) {
		s.result.Recomputed = true
	}
}

// clientSide says whose prompt and cached tokens the client sees: decode's own when it
// computed the prompt again.
func (s *legStream) clientSide() api.PromptUsage {
	if s.result.Recomputed {
		return api.PromptUsage{}
	}
	return s.side()
}

func (s *legStream) broken(err error) error {
	if cause := context.Cause(s.ctx); cause != nil && !errors.Is(cause, errSilent) && !errors.Is(cause, errServerDown) {
		return cause // the client left
	} else if cause != nil {
		return &BrokenStreamError{Message: "the engine stopped sending", Err: cause}
	}
	if errors.Is(err, io.EOF) {
		err = errTruncated
	}
	if errors.Is(err, api.ErrEventsHeld) {
		return &BrokenStreamError{Message: "the gateway has no memory left for the engine's long event", Err: err}
	}
	return &BrokenStreamError{Message: "the connection to the engine was lost", Err: err}
}

// Close ends the stream, at whatever point it is, and reports how it went. A
// stream that is closed before its end counts as left by the client.
func (s *legStream) Close() {
	s.closing.Do(func() {
		defer func() { // also after a panic
			s.idle.Stop()
			s.cancel(nil)
			s.onEnd(s.result)
			s.releaseScratch()
			s.events.Close()
			s.room.give()
		}()
		if s.result.Err == nil && !s.ended {
			s.result.Err = context.Canceled
		}
		if errors.Is(s.result.Err, io.EOF) {
			s.result.Err = nil
		}
		if s.ended {
			// An engine that keeps the connection open for longer loses it.
			s.idleFrom.Store(0)
			s.idle.Reset(drainTime)
			s.events.Drain()
		}
		_ = s.body.Close()
	})
}

// drainTime is how long a complete stream may take to end its body.
const drainTime = 100 * time.Millisecond

// open reads up to the first content event. Everything before it may be
// retried, so an error here is a *LegError for the caller to build. first hears when the engine has shown that
// the prompt's KV is there: with that event or, where the engine opensLate, with the role or message_start before it.
func (s *legStream) open(first func(now time.Time)) error {
	shown := false
	for s.result.Events == 0 {
		out, err := s.event()
		if err == nil && !shown && (s.result.Events > 0 || s.opensLate && (s.chunk.Role || s.dialect == api.Messages)) {
			shown = true
			first(time.Now())
		}
		if errors.Is(err, io.EOF) {
			return errEmpty
		}
		if err != nil {
			var broken *BrokenStreamError
			if errors.As(err, &broken) && errors.Is(broken.Err, errTruncated) {
				return errEmpty
			}
			return err
		}
		s.pending = append(s.pending, out...)
		if len(s.pending) > api.MaxEvent {
			return api.ErrEventTooLong
		}
		if !s.room.holdBack(len(s.pending)) {
			return api.ErrEventsHeld
		}
	}
	s.opened, s.events.Comments = true, true
	s.idle.Stop()
	return nil
}

func isEventStream(resp *http.Response) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
}
