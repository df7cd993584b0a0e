package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// eventStream writes server-sent events. vLLM answers 200 before it knows whether the
// request will succeed, so a later failure is an event.
type eventStream struct {
	x      *exchange
	tokens int           // pieces passed on
	number int           // of the next named event
	every  time.Duration // a comment in a silence of so long; 0: none
	last   time.Time     // when something was sent
}

// newEventStream sends the headers at once.
func newEventStream(x *exchange) *eventStream {
	x.answerHeaders(true)
	return &eventStream{x: x, last: time.Now()}
}

// data sends one unnamed event.
func (s *eventStream) data(value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return s.write("data: %s\n\n", body)
}

// named sends one event with a name.
func (s *eventStream) named(name string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode event %s: %w", name, err)
	}
	return s.write("event: %s\ndata: %s\n\n", name, body)
}

// done ends the stream; a fault may cut the connection right before.
func (s *eventStream) done() error {
	if s.x.effects.dies && s.tokens >= s.x.effects.dieAfter {
		panic(http.ErrAbortHandler)
	}
	if s.x.effects.noDone {
		return nil
	}
	return s.write("data: [DONE]\n\n")
}

func (s *eventStream) write(format string, args ...any) error {
	if _, err := fmt.Fprintf(s.x.w, format, args...); err != nil {
		return errClientGone
	}
	s.x.flush()
	s.last = time.Now()
	return nil
}

// silent sends a comment where the stream has said nothing for long (vLLM since #51034,
// entrypoints/openai/sse_keep_alive.py).
func (s *eventStream) silent() error {
	if s.every == 0 || time.Since(s.last) < s.every {
		return nil
	}
	return s.write(": keep-alive\n\n")
}

// token counts a piece before it is passed on; a fault may cut the connection there.
func (s *eventStream) token() {
	if s.x.effects.dies && s.tokens >= s.x.effects.dieAfter {
		if s.x.effects.errs {
			_ = s.data(errInternal.body()) // the connection is cut in any case
		}
		panic(http.ErrAbortHandler)
	}
	s.tokens++
}

// fail ends the stream with an error event in OpenAI's shape.
func (s *eventStream) fail(err error) error {
	if errors.Is(err, errClientGone) {
		return nil
	}
	if err := s.data(asAPIError(err).body()); err != nil {
		return err
	}
	return s.done()
}

// failMessage ends the stream with an error event in the shape of /v1/messages.
func (s *eventStream) failMessage(err error) error {
	if errors.Is(err, errClientGone) {
		return nil
	}
	if err := s.named("error", asAPIError(err).messagesBody()); err != nil {
		return err
	}
	return s.done()
}
