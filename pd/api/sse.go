package api

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"iter"
)

// MaxEvent bounds one SSE event, in bytes; logprobs make long ones.
const MaxEvent = 16 << 20

var ErrEventTooLong = errors.New("an SSE event is longer than 16 MiB")

// Event is one event as it came: Raw with its blank line, Data without field
// name, several data lines joined. Both are valid until the next read.
type Event struct {
	Raw  []byte
	Data []byte
}

// EventReader splits a stream into events. Lines may end in LF or CRLF and may be
// cut anywhere by the network.
type EventReader struct {
	in   *bufio.Reader
	raw  []byte
	data []byte
}

// keptEvent is how much room for events is kept for as long as a stream is open, in bytes: for some usual
// ones. The first event of a stream may have the ids of a whole prompt.
const keptEvent = 2 << 10

func NewEventReader(r io.Reader) *EventReader {
	return &EventReader{in: bufio.NewReaderSize(r, keptEvent)}
}

// Read returns the next event that carries data; comments before it are part of
// its Raw. io.EOF says that the stream ended between events, ErrUnexpectedEOF
// that it ended inside one.
func (s *EventReader) Read() (Event, error) {
	if s.raw, s.data = s.raw[:0], s.data[:0]; cap(s.raw) > keptEvent {
		s.raw, s.data = nil, nil // before it waits
	}
	if _, err := s.in.Peek(1); err != nil {
		return Event{}, err
	}
	for {
		ev, usual := s.whole()
		if ev.Data != nil {
			return ev, nil
		}
		if !usual || s.in.Buffered() == s.in.Size() {
			break
		}
		if here, err := s.in.Peek(s.in.Buffered() + 1); errors.Is(err, io.EOF) && len(here) > 0 {
			return Event{}, io.ErrUnexpectedEOF
		} else if err != nil {
			return Event{}, err
		}
	}
	lineStart, hasData := 0, false
	for {
		part, err := s.in.ReadSlice('\n')
		s.raw = append(s.raw, part...)
		if len(s.raw) > MaxEvent {
			return Event{}, ErrEventTooLong
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue // the line goes on
		}
		if errors.Is(err, io.EOF) {
			if len(bytes.TrimSpace(s.raw)) > 0 {
				return Event{}, io.ErrUnexpectedEOF
			}
			return Event{}, io.EOF
		}
		if err != nil {
			return Event{}, err
		}
		line := bytes.TrimRight(s.raw[lineStart:], "\r\n")
		lineStart = len(s.raw)
		if value, ok := dataLine(line); ok {
			if hasData {
				s.data = append(s.data, '\n')
			}
			s.data = append(s.data, value...)
			hasData = true
		}
		if len(line) == 0 && hasData {
			return Event{Raw: s.raw, Data: s.data}, nil
		}
	}
}

// whole takes an event out of the buffer where all of it is there, and is one line of data as engines
// write it. Then nothing is copied. usual: it may be such a one once more of it is there.
func (s *EventReader) whole() (ev Event, usual bool) {
	const field = "data:"
	here, _ := s.in.Peek(s.in.Buffered()) // no error: it is buffered
	if !bytes.HasPrefix(here, []byte(field[:min(len(field), len(here))])) {
		return ev, false
	}
	value, _ := dataLine(here)
	end := bytes.IndexByte(value, '\n')
	switch {
	case end < 0:
		return ev, true
	case end == 0, value[end-1] == '\r':
		return ev, false
	case end+1 == len(value):
		return ev, true
	case value[end+1] != '\n':
		return ev, false
	}
	n := len(here) - len(value) + end + 2
	_, _ = s.in.Discard(n) // no error: it is buffered
	return Event{Raw: here[:n:n], Data: value[:end:end]}, true
}

// Events are the data of each event in a piece of a Stream, which is always whole events;
// valid until the next one.
func Events(piece []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		in := NewEventReader(bytes.NewReader(piece))
		for {
			ev, err := in.Read()
			if err != nil || !yield(ev.Data) {
				return
			}
		}
	}
}

func dataLine(line []byte) ([]byte, bool) {
	value, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return nil, false
	}
	return bytes.TrimPrefix(value, []byte(" ")), true
}

// Buffered reports whether a whole next event is already here, so that a reader may
// go on without waiting. Part of one, or a comment, would make it wait.
func (s *EventReader) Buffered() bool {
	here, err := s.in.Peek(s.in.Buffered())
	hasData := false
	for line := range bytes.Lines(here) {
		if line[len(line)-1] != '\n' || err != nil {
			return false
		}
		line = bytes.TrimRight(line, "\r\n")
		_, isData := dataLine(line)
		hasData = hasData || isData
		if len(line) == 0 && hasData {
			return true
		}
	}
	return false
}

// Drain reads what is left behind the end marker, which is the body's own end: a
// connection is reused only when nothing is left on it.
func (s *EventReader) Drain() { _, _ = io.CopyN(io.Discard, s.in, 4<<10) }

// AppendWithData appends the event's bytes to out, with its data replaced. All lines that are
// not data stay.
func (e Event) AppendWithData(out, data []byte) []byte {
	const before, after = "data: ", "\n\n"
	if len(e.Raw) == len(before)+len(e.Data)+len(after) && bytes.HasPrefix(e.Raw, []byte(before)) { // there are no others
		return append(append(append(out, before...), data...), after...)
	}
	for line := range bytes.Lines(e.Raw) {
		trimmed := bytes.TrimRight(line, "\r\n")
		if _, isData := dataLine(trimmed); isData || len(trimmed) == 0 {
			continue
		}
		out = append(out, line...)
	}
	out = append(out, "data: "...)
	out = append(out, data...)
	return append(out, "\n\n"...)
}
