package textsync

import (
	"encoding/binary"
	"iter"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/senttext"
)

// A message is a version, the name of the replica that tells, and records: flags, the server, and then
// the room of its KV, times in microseconds of Unix and marks. Numbers are varints but for the marks and the class
// of the server, which are any 64 bits; names have their length before them.
const (
	version = 1

	isWithdrawn = 1 << 0 // of flags
	sameMarks   = 1 << 1 // the marks are those of the record before
	computes    = 1 << 2 // the server computes the prompt, until a time that follows

	maxName = 1 << 10 // bytes of one that is read
)

// message is what is told at once, and not complete yet.
type message struct {
	bytes   []byte
	records uint64
	marks   []senttext.Mark // of the last record
}

func newMessage(replica string) message {
	return message{bytes: appendName([]byte{version}, replica)}
}

// add appends a record; false where the message would be too long.
func (m *message) add(s senttext.Sent) bool {
	var flags byte
	marks := s.Marks
	if m.records > 0 && slices.Equal(marks, m.marks) { // as of both servers of a pair
		flags, marks = sameMarks, nil
	}
	if s.Withdrawn {
		flags |= isWithdrawn
	}
	if !s.Computes.IsZero() {
		flags |= computes
	}
	const numbers = 64 // bytes, at most
	if len(m.bytes)+len(s.Server.ID)+8*len(marks)+numbers > maxMessage {
		return false
	}
	b := appendName(append(m.bytes, flags), s.Server.ID)
	b = binary.LittleEndian.AppendUint64(b, s.Server.Class)
	b = binary.AppendUvarint(b, uint64(max(0, s.KVTokens)))
	b = binary.AppendVarint(b, s.Held.UnixMicro())
	if flags&computes != 0 {
		b = binary.AppendVarint(b, s.Computes.UnixMicro())
	}
	if flags&sameMarks == 0 {
		b = binary.AppendUvarint(b, uint64(len(marks)))
		for _, mark := range marks {
			b = binary.LittleEndian.AppendUint64(b, uint64(mark))
		}
	}
	m.bytes, m.marks = b, s.Marks
	m.records++
	return true
}

func appendName(b []byte, name string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(name))), name...)
}

// open reads who tells, and the records that follow, up to the first that cannot be read; false where
// it is no message of this version.
func open(data []byte) (replica string, records iter.Seq[senttext.Sent], ok bool) {
	if len(data) == 0 || len(data) > maxMessage || data[0] != version {
		return "", nil, false
	}
	r := &reader{rest: data[1:]}
	replica = r.name()
	return replica, func(yield func(senttext.Sent) bool) {
		var marks []senttext.Mark
		for len(r.rest) > 0 {
			sent := r.record(marks)
			if r.failed || !yield(sent) {
				return
			}
			marks = sent.Marks
		}
	}, !r.failed
}

// reader takes a message apart.
type reader struct {
	rest   []byte
	failed bool // nothing that was read after this counts
}

// record reads a record; before are the marks of the one before it.
func (r *reader) record(before []senttext.Mark) (s senttext.Sent) {
	flags := r.next(1)[0]
	s.Server.ID = r.name()
	s.Server.Class = binary.LittleEndian.Uint64(r.next(8))
	s.KVTokens = int(min(r.number(), 1<<40))
	s.Withdrawn, s.Held = flags&isWithdrawn != 0, r.time()
	if flags&computes != 0 {
		s.Computes = r.time()
	}
	if s.Marks = before; flags&sameMarks != 0 {
		return s
	}
	n := r.number()
	if n > uint64(len(r.rest)/8) {
		r.failed = true
		return s
	}
	s.Marks = make([]senttext.Mark, n)
	for i := range s.Marks {
		s.Marks[i] = senttext.Mark(binary.LittleEndian.Uint64(r.next(8)))
	}
	return s
}

// next takes so many bytes, at most 8 unless they are there.
func (r *reader) next(n int) []byte {
	if n > len(r.rest) {
		r.failed, r.rest = true, nil
		return make([]byte, min(n, 8))
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	r.next(max(size, 0))
	r.failed = r.failed || size <= 0
	return n
}

func (r *reader) time() time.Time {
	n, size := binary.Varint(r.rest)
	r.next(max(size, 0))
	r.failed = r.failed || size <= 0
	return time.UnixMicro(n)
}

func (r *reader) name() string {
	n := r.number()
	if n > maxName {
		r.failed = true
		return ""
	}
	return string(r.next(int(n)))
}
