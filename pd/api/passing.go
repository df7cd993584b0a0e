package api

import (
	"bytes"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// PassingAnswer follows an answer of which another relays the bytes: pieces of a stream or of a
// whole body, cut anywhere. Its zero value follows nothing.
type PassingAnswer struct {
	dialect *Dialect // nil: nothing is looked at any more
	stream  bool
	ended   EndedChoices
	held    []byte // what has come of an event, or of the whole body
	data    []byte // of an event of several lines
	out     []byte // for the client, where not all of it is for it

	// HideUsage: the client gets no event that has only the usage.
	HideUsage bool
	// MostTokens is what the usage can count of a prompt or an output; what is more is left out. 0: no bound is known.
	MostTokens int

	Usage    Usage  // as far as it is reported
	Content  int    // content events so far
	Closing  int    // of them, those that only close the answer: its last ones
	Complete bool   // the engine has said that the stream is complete, or the body is an answer
	Failure  string // the engine's words, where it reported a failure
	Event    []byte // that did
}

// NewPassingAnswer follows an answer in an API, to a request for so many choices.
func NewPassingAnswer(d *Dialect, stream bool, answers int) *PassingAnswer {
	return &PassingAnswer{dialect: d, stream: stream, ended: NewEndedChoices(answers)}
}

// Add takes the next piece. It returns what goes to the client now, which is valid until the next
// call, and how many content events the piece completes.
func (a *PassingAnswer) Add(piece []byte) (out []byte, content int) {
	if a.dialect == nil || a.Complete || a.Failure != "" {
		return piece, 0
	}
	if !a.stream {
		a.hold(piece)
		return piece, 0
	}
	before, rest := a.Content, piece
	if len(a.held) > 0 {
		if beyond := a.hold(piece); beyond != nil {
			return beyond, 0
		}
		rest = a.held
	}
	a.out = a.out[:0]
	for !a.Complete && a.Failure == "" {
		event, after, found := cutEvent(rest)
		if !found {
			break
		}
		if hidden := a.event(event) && a.HideUsage; a.HideUsage && !hidden {
			a.out = append(a.out, event...)
		}
		rest = after
	}
	if a.HideUsage && (a.Complete || a.Failure != "") { // what is behind the end passes as it is
		a.out, rest = append(a.out, rest...), nil
	}
	a.held = append(a.held[:0], rest...)
	if a.HideUsage {
		piece = a.out
	}
	return piece, a.Content - before
}

// End takes the end of the answer, and returns what is left of it for the client. A stream may end
// without its end marker where all choices have ended, as Hugging Face's transformers serve does.
func (a *PassingAnswer) End() (out []byte) {
	if a.stream && a.HideUsage {
		out = a.held
	}
	switch {
	case a.dialect == nil || a.Complete || a.Failure != "":
	case a.stream:
		a.Complete = a.ended.All() && len(bytes.TrimSpace(a.held)) == 0
	case jsonscan.Check(a.held) == nil:
		a.Complete = true
		a.recordUsage(a.held)
	}
	a.held = nil
	return out
}

// hold keeps a piece of what is not complete. What is longer than MaxEvent is followed no more:
// then it returns what the client has not got of it.
func (a *PassingAnswer) hold(piece []byte) (beyond []byte) {
	if len(a.held)+len(piece) <= MaxEvent {
		a.held = append(a.held, piece...)
		return nil
	}
	if beyond = piece; a.HideUsage {
		beyond = append(a.held, piece...)
	}
	*a = PassingAnswer{Usage: a.Usage, Content: a.Content, Closing: a.Closing}
	return beyond
}

// event reads one event, and reports whether it has the usage and nothing else.
func (a *PassingAnswer) event(raw []byte) (onlyUsage bool) {
	data := a.dataOf(raw)
	if data == nil {
		return false
	}
	g := a.dialect.Inspect(data)
	if g.Failure != "" {
		a.Failure, a.Event = g.Failure, bytes.Clone(data)
		return false
	}
	a.ended.Note(g.Finished)
	if g.Content {
		a.Content++
	}
	if g.Closes {
		a.Closing++
	}
	a.Complete = g.End
	return a.recordUsage(data) && HasNoChoices(data)
}

// recordUsage merges a usage report, if there is one.
func (a *PassingAnswer) recordUsage(data []byte) bool {
	u, ok := a.dialect.ReadUsage(data)
	if a.MostTokens > 0 {
		u = u.UpTo(a.MostTokens)
	}
	a.Usage.Merge(u)
	return ok
}

// dataOf is the data of an event, nil where it is a comment; valid until the next call.
func (a *PassingAnswer) dataOf(raw []byte) (data []byte) {
	for line := range bytes.Lines(raw) {
		value, ok := dataLine(bytes.TrimRight(line, "\r\n"))
		switch {
		case !ok:
		case data == nil:
			data = value[:len(value):len(value)]
		default:
			a.data = append(append(append(a.data[:0], data...), '\n'), value...)
			data = a.data[:len(a.data):len(a.data)]
		}
	}
	return data
}

// cutEvent cuts the first event off, with its blank line; false where it is not complete.
func cutEvent(stream []byte) (event, rest []byte, found bool) {
	for at := 0; ; {
		end := bytes.IndexByte(stream[at:], '\n')
		if end < 0 {
			return nil, stream, false
		}
		at += end + 1
		next := stream[at:]
		switch {
		case len(next) > 0 && next[0] == '\n':
			return stream[:at+1], next[1:], true
		case len(next) > 1 && next[0] == '\r' && next[1] == '\n':
			return stream[:at+2], next[2:], true
		}
	}
}
