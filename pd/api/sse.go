package api

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
)

// MaxEvent bounds one SSE event, in bytes; logprobs make long ones.
const MaxEvent = 16 << 20

var ErrEventTooLong = errors.New("an SSE event is longer than 16 MiB")

// ErrEventsHeld is of an event for which there is no room: others that are as long take it.
var ErrEventsHeld = errors.New("long events of other streams take the memory that there is for them")

// Event is one event as it came: Raw with its blank line, Data without field
// name, several data lines joined; nil of a comment. Both are valid until the next read.
type Event struct {
	Raw  []byte
	Data []byte
}

// EventReader splits a stream into events. Lines may end in LF or CRLF and may be
// cut anywhere by the network. Each byte is looked at once, however it is cut.
type EventReader struct {
	// Comments: those with a blank line behind them are returned by themselves.
	Comments bool
	// Room is what the memory of long events is counted against; nil: it is not counted.
	Room Room

	from  io.Reader
	usual *usualBuffer // for usual events; nil: there is none
	long  *[]byte      // for longer ones; nil: there is none
	buf   []byte       // the one of them that is in use; both are borrowed
	r, w  int          // what is between them in buf was read, and not returned
	err   error        // that came with the last of it
	next  eventBounds
}

// Room bounds the memory of several readers.
type Room interface {
	// Grow counts the reader's memory as at least so many bytes, unless there is no room for them.
	Grow(bytes int) bool
	Release()
}

// eventBounds is where the next event stands, as far as it was looked for: in bytes from the first one that
// was not returned.
type eventBounds struct {
	looked   int // at so many
	line     int // begin of the line under way
	from, to int // the data of the first line that has some
	lines    int // of data
	whole    bool
}

// keptEvent is how much room there is for usual events, in bytes. The first event of a stream may have the ids of a
// whole prompt.
const keptEvent = 2 << 10

type usualBuffer [keptEvent]byte

var usualBuffers = sync.Pool{New: func() any { return new(usualBuffer) }}

// longSizes are how long a buffer is that is borrowed for a longer event, in bytes. The last has room for more
// than MaxEvent.
var longSizes = [...]int{16 << 10, 512 << 10, 4 << 20, MaxEvent + 16<<10}

// longBuffers are buffers of the first two of these sizes. Longer ones are rare.
var longBuffers [2]sync.Pool

func NewEventReader(r io.Reader) *EventReader { return &EventReader{from: r} }

// lateReader is a reader that takes the memory which it reads into once something is there. It may return nothing, and
// no error.
type lateReader interface {
	ReadLate(room interface {
		Take() []byte
		Release()
	}) (int, error)
}

// Await waits until something of the next event is here, where nothing is and the reader can do that without a buffer;
// else Read waits. Events that were returned are gone then.
func (s *EventReader) Await() {
	late, is := s.from.(lateReader)
	if !is || s.err != nil || s.r < s.w {
		return
	}
	s.giveBackRoom()
	n, err := late.ReadLate((*lateRoom)(s))
	s.w, s.err = s.w+n, err
	if n == 0 {
		(*lateRoom)(s).Release()
	}
}

// follower is a reader that has another goroutine wait for what comes.
type follower interface {
	Follow(room interface {
		Take() []byte
		Release()
	}, arrived func(n int, err error) (goOn bool)) (began bool)
}

// Follow waits as Await does, again and again, and has each called when something of the next event is here, or the
// reader's end, until that returns false or leaves something of it. Another goroutine calls it, that of many readers:
// it must not wait, and so reads whole events alone ([EventReader.Buffered]), which are gone when it returns true. began
// is false where nothing was waited for, since something is here or the reader cannot.
func (s *EventReader) Follow(each func() (goOn bool)) (began bool) {
	from, is := s.from.(follower)
	if !is || s.err != nil || s.r < s.w {
		return false
	}
	s.giveBackRoom()
	return from.Follow((*lateRoom)(s), func(n int, err error) bool {
		s.w, s.err = s.w+n, err
		if (n > 0 || err != nil) && !each() || s.r < s.w || s.err != nil {
			return false
		}
		(*lateRoom)(s).Release()
		return true
	})
}

// lateRoom is an EventReader of which nothing is left to be read.
type lateRoom EventReader

func (l *lateRoom) Take() []byte {
	s := (*EventReader)(l)
	s.takeUsual()
	s.r, s.w = 0, 0
	return s.buf
}

func (l *lateRoom) Release() { (*EventReader)(l).releaseUsual() }

// takeUsual takes the buffer for usual events, unless there is one.
func (s *EventReader) takeUsual() {
	if s.usual == nil {
		s.usual = usualBuffers.Get().(*usualBuffer)
		s.buf = s.usual[:]
	}
}

// releaseUsual gives it back. Nothing is in it, and it is in use.
func (s *EventReader) releaseUsual() {
	if s.usual != nil {
		usualBuffers.Put(s.usual)
		s.usual, s.buf, s.r, s.w = nil, nil, 0, 0
	}
}

// Close gives all memory back, and with it the events that were returned. It is for after the last Read.
func (s *EventReader) Close() {
	s.r, s.w = 0, 0
	if s.long != nil {
		s.moveTo(nil)
	}
	s.releaseUsual()
}

// Read returns the next event that carries data, or a comment that stands alone; else comments before it are part of
// its Raw. io.EOF says that the stream ended between events, ErrUnexpectedEOF
// that it ended inside one.
func (s *EventReader) Read() (Event, error) {
	s.giveBackRoom() // before it waits
	for empty := 0; !s.look(); {
		if s.w-s.r > MaxEvent {
			return Event{}, ErrEventTooLong
		}
		n, err := s.fill()
		switch {
		case n > 0:
			empty = 0
		case errors.Is(err, io.EOF) && len(bytes.TrimSpace(s.buf[s.r:s.w])) > 0:
			return Event{}, io.ErrUnexpectedEOF
		case err != nil:
			return Event{}, err
		default:
			if empty++; empty == maxEmptyReads {
				return Event{}, io.ErrNoProgress
			}
		}
	}
	if s.next.looked > MaxEvent {
		return Event{}, ErrEventTooLong
	}
	return s.take(), nil
}

// maxEmptyReads is how often a reader may return nothing, and no error.
const maxEmptyReads = 100

// look looks for the end of the next event in what was read.
func (s *EventReader) look() (whole bool) {
	here, e := s.buf[s.r:s.w], &s.next
	for !e.whole {
		end := bytes.IndexByte(here[e.looked:], '\n')
		if end < 0 {
			e.looked = len(here)
			return false
		}
		e.looked += end + 1
		line := bytes.TrimRight(here[e.line:e.looked], "\r\n")
		if value, is := dataLine(line); is {
			if e.lines++; e.lines == 1 {
				e.to = e.line + len(line)
				e.from = e.to - len(value)
			}
		}
		e.whole = len(line) == 0 && (e.lines > 0 || s.Comments && e.line > 0)
		e.line = e.looked
	}
	return true
}

// take returns the event that was found.
func (s *EventReader) take() Event {
	e := s.next
	raw := s.buf[s.r : s.r+e.looked : s.r+e.looked]
	s.r, s.next = s.r+e.looked, eventBounds{}
	switch e.lines {
	case 0:
		return Event{Raw: raw}
	case 1:
		return Event{Raw: raw, Data: raw[e.from:e.to:e.to]}
	}
	var data [][]byte
	for line := range bytes.Lines(raw) {
		if value, is := dataLine(bytes.TrimRight(line, "\r\n")); is {
			data = append(data, value)
		}
	}
	return Event{Raw: raw, Data: bytes.Join(data, []byte{'\n'})}
}

// fill reads once, into a longer buffer where there is no room left. An error that comes with something is
// that of the next time.
func (s *EventReader) fill() (n int, err error) {
	if s.err != nil {
		err, s.err = s.err, nil
		return 0, err
	}
	s.takeUsual()
	if s.r > 0 {
		s.r, s.w = 0, copy(s.buf, s.buf[s.r:s.w])
	}
	if s.w == len(s.buf) {
		size := longSizes[slices.IndexFunc(longSizes[:], func(size int) bool { return size > len(s.buf) })]
		if s.Room != nil && !s.Room.Grow(size) {
			return 0, ErrEventsHeld
		}
		s.moveTo(longBuffer(size))
	}
	n, err = s.from.Read(s.buf[s.w:])
	if s.w += n; n > 0 {
		s.err, err = err, nil
	}
	return n, err
}

// giveBackRoom gives a borrowed buffer back, unless more is in it than the one for usual events holds.
func (s *EventReader) giveBackRoom() {
	if s.long != nil && s.w-s.r < keptEvent {
		s.moveTo(nil)
	}
}

// moveTo goes on in another buffer that is borrowed, nil: in the one for usual events.
func (s *EventReader) moveTo(long *[]byte) {
	to := s.usual[:]
	if long != nil {
		to = *long
	} else if s.Room != nil {
		s.Room.Release()
	}
	s.r, s.w = 0, copy(to, s.buf[s.r:s.w])
	if was := s.long; was != nil {
		if i := slices.Index(longSizes[:len(longBuffers)], len(*was)); i >= 0 {
			longBuffers[i].Put(was)
		}
	}
	s.buf, s.long = to, long
}

// longBuffer is a buffer of one of longSizes.
func longBuffer(size int) *[]byte {
	if i := slices.Index(longSizes[:len(longBuffers)], size); i >= 0 {
		if b, is := longBuffers[i].Get().(*[]byte); is {
			return b
		}
	}
	b := make([]byte, size)
	return &b
}

// Events are the data of each event in a piece of a Stream, which is always whole events;
// valid until the next one.
func Events(piece []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		in := NewEventReader(bytes.NewReader(piece))
		defer in.Close()
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
func (s *EventReader) Buffered() bool { return s.look() }

// CommentBuffered reports whether the next event is here, and a comment.
func (s *EventReader) CommentBuffered() bool { return s.look() && s.next.lines == 0 }

// AtEnd reports whether it is known that nothing is behind what was returned.
func (s *EventReader) AtEnd() bool { return s.r == s.w && errors.Is(s.err, io.EOF) }

// Drain reads what is left behind the end marker, which is the body's own end: a
// connection is reused only when nothing is left on it.
func (s *EventReader) Drain() { _, _ = io.CopyN(io.Discard, s.from, int64(max(0, 4<<10-(s.w-s.r)))) }

// AppendWithData appends the event's bytes to out, with its data replaced. All lines that are
// not data stay.
func (e Event) AppendWithData(out, data []byte) []byte {
	const before, after = "data: ", "\n\n"
	if len(e.Raw) == len(before)+len(e.Data)+len(after) && bytes.HasPrefix(e.Raw, []byte(before)) { // there are no others
		out = slices.Grow(out, len(before)+len(data)+len(after)) // and not by doubling: it is kept
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
