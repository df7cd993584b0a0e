package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
	"github.com/tandem-gateway/tandem/pd/messages"
	"github.com/tandem-gateway/tandem/pd/spans"
)

// coalesce bounds what is gathered into one write, in bytes.
const coalesce = 16 << 10

// relay writes a streamed answer to its client, piece by piece as it comes, in the goroutine that serves the
// connection. Events that are there already go out together.
type relay struct {
	x       *exchange
	stream  *pd.Stream
	span    trace.Span
	message *messages.Stream // of a message that engines see as a chat; else nil
	extends usageExtension
	charged int // content events that the key was charged for

	chunks bool // the answer is sent in chunks; else it ends with the connection
	closes bool // the connection, behind the answer

	waits   int // for events, since a loop followed the stream or was asked to
	waitFor int // so many of them before a loop is to follow it

	memory   *[]byte // that pending lies in; nil while there is nothing to be sent
	pending  []byte  // the head of the answer until it is sent, room for a chunk's size, and what is sent next
	head     int     // bytes of the head in pending
	from     int     // where what is sent next begins in pending
	unsent   []byte  // of what was pending, the end that the client did not take at once
	sequence int     // of the next event, where the API counts them
	err      error
	closed   bool
}

func newRelay(x *exchange, answer *pd.Answer) *relay {
	_, span := spans.Start(x.ctx, x.server.tracer, "stream")
	r := &relay{x: x, stream: answer.Stream, span: span, extends: x.usageExtension(answer), waitFor: followFrom}
	if x.translated {
		r.message = &messages.Stream{}
	}
	return r
}

// setHead takes the head of the answer from what was set of it. To a client of HTTP/1.0, which knows no chunks, the
// answer ends with the connection.
func (r *relay) setHead(c *fiber.Ctx) {
	header := &c.Response().Header
	r.memory = pieceMemory.Get().(*[]byte)
	if r.chunks = c.Request().Header.IsHTTP11(); r.chunks {
		if r.closes = c.Request().Header.ConnectionClose() || header.ConnectionClose(); r.closes {
			header.SetConnectionClose()
		}
		header.SetContentLength(-1)
		r.beginPiece(header.AppendBytes(*r.memory))
		return
	}
	r.closes = true
	head := append((*r.memory)[:0], "HTTP/1.0 200 OK\r\nConnection: close\r\n"...)
	for name, value := range header.All() {
		if string(name) != fiber.HeaderContentLength {
			head = append(append(append(append(head, name...), ": "...), value...), "\r\n"...)
		}
	}
	r.beginPiece(append(head, "\r\n"...))
}

// relay writes all of the answer, and reports whether it is whole. After a stream that broke comes an error event, and
// the connection is cut: a clean end would pass for success.
func (r *relay) relay() (whole bool) {
	defer func() { _ = r.Close() }()
	var err error
	for err == nil {
		r.await()
		err = r.next(r.x.conn)
	}
	return errors.Is(err, io.EOF)
}

// await waits for the next event. A stream spends its hours here, and so little is on its stack that the collector
// leaves it 4 KB: it halves a stack of which less than a quarter is used.
func (r *relay) await() {
	defer r.catch()
	if r.waits++; r.waits <= r.waitFor || !r.follow() {
		r.stream.Await()
	}
}

// followFrom is for how many events a stream waits itself before a loop follows it: to hand a connection over and back
// costs 15 us or so, and the loop saves 2 to 5 us an event.
const followFrom = 16

// follow has the loop of the engines' connections wait for the stream's events, and relay them, until one comes that
// needs this goroutine. Where that is soon, the next time is later. began is false where nothing was waited for.
func (r *relay) follow() (began bool) {
	r.waits = 0
	if socket.TCP(r.x.conn.Conn) == nil {
		return false // TLS cannot be written in part
	}
	before := r.stream.Events()
	began = r.stream.Follow(r.relayHere)
	if r.stream.Events()-before < r.waitFor {
		r.waitFor *= 2
	}
	return began
}

// relayHere relays what is here, for [pd.Stream.Follow].
func (r *relay) relayHere() (goOn bool) {
	whole, now := r.fillHere(), r.stream.LastEvent()
	if r.count(now); !whole {
		return false
	}
	out := r.frame(false)
	if n := r.x.conn.sendNow(out, now); n < len(out) {
		r.unsent = out[n:]
		return false
	}
	r.releaseMemory()
	return true
}

// catch is deferred: a panic behind it would end the process, since nothing above recovers. It ends the stream instead.
func (r *relay) catch() {
	if caught := recover(); caught != nil {
		r.endByPanic(caught)
	}
}

func (r *relay) endByPanic(caught any) {
	r.x.server.log.Error("panic in a stream", "request_id", r.x.id, "panic", fmt.Sprint(caught), "stack", string(debug.Stack()))
	r.err = fmt.Errorf("panic: %v", caught)
	r.addError(explain(r.err).text)
}

// next waits for the next piece and writes it by one call, behind the head if it is the first. It says how the stream
// ends behind it: io.EOF of one that is whole.
//
//go:noinline
func (r *relay) next(to io.Writer) error {
	if rest := r.unsent; len(rest) > 0 {
		r.unsent = nil
		_, err := to.Write(rest)
		r.releaseMemory()
		return err
	}
	r.piece()
	end := r.err
	if out := r.frame(errors.Is(end, io.EOF)); len(out) > 0 {
		if _, err := to.Write(out); err != nil {
			end = err
		}
	}
	r.releaseMemory()
	return end
}

// sizeRoom is room for the size of a chunk, in bytes.
const sizeRoom = len("ffffffff\r\n")

// pieceMemory is memory for what is sent to a client, while it is.
var pieceMemory = sync.Pool{New: func() any {
	b := make([]byte, 0, 2<<10)
	return &b
}}

// takeMemory takes memory for what is sent next, unless it is there.
func (r *relay) takeMemory() {
	if r.memory == nil {
		r.memory = pieceMemory.Get().(*[]byte)
		r.beginPiece((*r.memory)[:0])
	}
}

// beginPiece begins what is sent next, behind a head or nothing.
func (r *relay) beginPiece(head []byte) {
	r.head, r.pending = len(head), head
	if r.chunks {
		r.pending = append(r.pending, "ffffffff\r\n"...)
	}
	r.from = len(r.pending)
}

// releaseMemory is for when what was pending is written.
func (r *relay) releaseMemory() {
	if r.memory == nil {
		return
	}
	if cap(r.pending) <= 4*coalesce {
		*r.memory = r.pending[:0]
		pieceMemory.Put(r.memory)
	}
	r.memory, r.pending, r.head, r.from = nil, nil, 0, 0
}

// frame is what goes out: what is pending, as a chunk, with the head before it and the last chunk behind it; nothing
// where the stream ends without a word.
func (r *relay) frame(last bool) (out []byte) {
	length := len(r.pending) - r.from
	switch {
	case length == 0 && !last:
		return nil
	case !r.chunks:
		return r.pending
	}
	r.takeMemory()
	out = r.pending[:r.head]
	if length > 0 {
		var size [sizeRoom]byte
		line := append(strconv.AppendInt(size[:0], int64(length), 16), "\r\n"...)
		skipped := sizeRoom - len(line)
		copy(r.pending[skipped:], r.pending[:r.head])
		copy(r.pending[skipped+r.head:], line)
		r.pending = append(r.pending, "\r\n"...)
		out = r.pending[skipped:]
	}
	if last {
		out = append(out, "0\r\n\r\n"...)
	}
	return out
}

// piece adds what the client gets next, or how the stream ends.
func (r *relay) piece() {
	defer r.catch()
	if r.err == nil {
		r.fill()
	}
}

// fill waits for something to send and takes along what is there already.
func (r *relay) fill() {
	for more := true; more; {
		var out []byte
		var err error
		if len(r.pending) == r.from || r.stream.AtEnd() {
			out, err = r.stream.Next()
		} else if out, more = r.stream.Here(); !more {
			break // of the events that are here the client sees none
		}
		more = r.take(out, err)
	}
	r.count(time.Now())
}

// fillHere is fill without waiting, and without counting. Where it reports false something has to be waited for, or ends
// the stream.
func (r *relay) fillHere() (whole bool) {
	for more := true; more; {
		var out []byte
		if out, whole = r.stream.Here(); !whole {
			break
		}
		more = r.take(out, nil)
	}
	return whole && r.err == nil
}

// take takes a piece of the stream, or what ends it, and reports whether another one is to go out with it.
func (r *relay) take(out []byte, err error) (more bool) {
	if wrong := r.add(out); err == nil {
		err = wrong
	}
	if err != nil {
		r.end(err)
		return false
	}
	waiting := len(r.pending) - r.from
	return waiting < coalesce && (waiting == 0 || r.stream.Ready() || r.stream.AtEnd())
}

// count counts what is sent next.
func (r *relay) count(now time.Time) {
	if r.x.dialect == api.Responses {
		r.sequence = max(r.sequence, api.NextSequence(r.pending[r.from:]))
	}
	r.charge(now)
}

// add takes a piece of the stream as it is, or the events of a message that it becomes.
func (r *relay) add(piece []byte) (err error) {
	if len(piece) == 0 {
		return nil
	}
	r.takeMemory()
	from := len(r.pending)
	defer func() { r.pending = r.extends.inEvents(r.pending, from) }()
	if r.message == nil {
		r.pending = append(r.pending, piece...)
		return nil
	}
	for data := range api.Events(piece) {
		if r.pending, err = r.message.Append(r.pending, data); err != nil {
			return &pd.BrokenStreamError{Message: "the engine sent an event that cannot be read", Err: err}
		}
	}
	return nil
}

// charge charges the key with the tokens that have come: an event is one, until the
// engine reports how many they were.
func (r *relay) charge(now time.Time) {
	events := r.stream.Events()
	r.x.charge.AddOutput(events-r.charged, now)
	r.charged = events
}

func (r *relay) end(err error) {
	r.err = err
	var broken *pd.BrokenStreamError
	switch {
	case errors.As(err, &broken):
		r.addError(api.ErrorText{Status: http.StatusBadGateway, Type: "api_error", Code: "stream_broken", Message: broken.Message})
	case errors.Is(err, errStopping):
		r.addError(explain(err).text)
	} // else it is complete, or the client has left
}

// addError adds the event that says why the stream ends, behind all that was sent.
func (r *relay) addError(text api.ErrorText) {
	r.takeMemory()
	text.Request = r.x.id
	if r.x.dialect == api.Responses {
		text.Sequence = max(r.sequence, api.NextSequence(r.pending[r.from:]))
	}
	r.pending = append(r.pending, r.x.dialect.ErrorEvent(text)...)
}

// Close ends the stream once the answer is written or cannot be. A panic here would end the process as one in piece
// would.
func (r *relay) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	defer r.account()
	defer func() {
		if caught := recover(); caught != nil {
			r.x.server.log.Error("panic in a stream's end", "request_id", r.x.id, "panic", fmt.Sprint(caught), "stack", string(debug.Stack()))
			r.err = fmt.Errorf("panic: %v", caught)
		}
	}()
	r.stream.Close()
	return nil
}

// account settles what the stream cost, and ends the exchange.
func (r *relay) account() {
	spent := tokensOf(r.stream.Usage())
	if spent.Output < 0 {
		spent.Output = r.charged
	}
	now := time.Now()
	r.x.correctCharge(spent, now)
	outcome, failed := "ok", error(nil)
	switch {
	case r.err == nil, errors.Is(r.err, context.Canceled):
		outcome = "client_gone"
	case !errors.Is(r.err, io.EOF):
		outcome, failed = "broken_stream", r.err
		r.x.server.log.Error("stream broke", "request_id", r.x.id, "model", r.x.model, "error", r.err.Error())
	}
	spans.EndStream(r.span, r.stream.Events(), failed)
	r.x.finish(outcome, 200, now)
}
