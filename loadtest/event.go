package loadtest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEvent bounds one server-sent event, in bytes.
const maxEvent = 1 << 20

// An event is one server-sent event. Data stays valid until the next read.
type event struct {
	name string
	data []byte
}

// An eventReader reads server-sent events more strictly than a browser does: a
// line that is no field of the format is a failure, because it is a sign of
// bytes lost, doubled or mixed. Lines end in LF or CRLF; comments are skipped.
type eventReader struct {
	lines *bufio.Reader
	line  []byte
	data  []byte
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{lines: bufio.NewReaderSize(r, 16<<10)}
}

// next returns the next event, io.EOF at a clean end between events, a Truncated
// failure at a clean end within one, and a Malformed failure for anything that
// is not an event.
func (e *eventReader) next() (event, error) {
	var ev event
	e.data = e.data[:0]
	begun := false
	for {
		line, err := e.readLine()
		if errors.Is(err, io.EOF) && (begun || len(line) > 0) {
			return event{}, failuref(Truncated, "the stream ended within an event")
		}
		if err != nil {
			return event{}, err
		}
		if len(line) == 0 {
			if !begun {
				continue
			}
			ev.data = e.data
			return ev, nil
		}
		if line[0] == ':' {
			continue
		}
		if len(e.data)+len(line) > maxEvent {
			return event{}, failuref(Malformed, "an event of more than %d bytes", maxEvent)
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(name) {
		case "data":
			if len(e.data) > 0 {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
		case "event":
			ev.name = string(value)
		case "id", "retry":
		default:
			return event{}, failuref(Malformed, "no field of an event: %.80q", line)
		}
		begun = true
	}
}

// readLine returns the next line without its end. At io.EOF it returns what
// there was of a last line.
func (e *eventReader) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		part, err := e.lines.ReadSlice('\n')
		e.line = append(e.line, part...)
		if errors.Is(err, bufio.ErrBufferFull) && len(e.line) <= maxEvent {
			continue
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			return nil, failuref(Malformed, "a line of more than %d bytes", maxEvent)
		}
		if err != nil {
			return e.line, err
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(e.line, []byte{'\n'}), []byte{'\r'}), nil
	}
}
