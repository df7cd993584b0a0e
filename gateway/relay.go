package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gofiber/fiber/v2"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/messages"
	"github.com/tandem-gateway/tandem/pd/spans"
)

// coalesce bounds what is gathered into one write, in bytes.
const coalesce = 16 << 10

// relay is the body of a streamed answer. The HTTP server takes it in the
// connection's own goroutine, writes and flushes each piece, and closes it when
// the answer or the client ends. Events that are there already go out together.
type relay struct {
	x       *exchange
	stream  *pd.Stream
	span    trace.Span
	message *messages.Stream // of a message that engines see as a chat; else nil
	extends usageExtension
	charged int // content events that the key was charged for
	pending []byte
	spare   []byte
	unread  []byte // of what Read has
	err     error
	closed  bool
	client  *clientConn // that fasthttp writes it to in chunks; nil: it is written otherwise
}

func newRelay(x *exchange, answer *pd.Answer) *relay {
	_, span := spans.Start(x.ctx, x.server.tracer, "stream")
	r := &relay{x: x, stream: answer.Stream, span: span, extends: x.usageExtension(answer)}
	if x.translated {
		r.message = &messages.Stream{}
	}
	return r
}

// WriteTo gives the server each piece as it comes. After a stream that broke comes an error
// event and then an error, so that the connection is cut: a clean end would pass for success.
func (r *relay) WriteTo(w io.Writer) (n int64, err error) {
	for err == nil {
		var m int
		piece, end := r.piece()
		m, err = r.write(w, piece, end)
		n += int64(m)
	}
	if errors.Is(err, io.EOF) {
		return n, nil
	}
	return n, err
}

// write writes a piece, behind which the stream ends or not, and says how it ends: io.EOF of one that is whole. It is
// apart from WriteTo, in whose frame a stream waits for hours.
//
//go:noinline
func (r *relay) write(w io.Writer, piece []byte, end error) (n int, err error) {
	if errors.Is(end, io.EOF) && r.client != nil {
		r.client.joinLastChunk()
	}
	if len(piece) == 0 {
		return 0, end
	}
	n, err = r.writePiece(w, piece)
	return n, cmp.Or(err, end)
}

// shortPiece is how long a piece may be, in bytes, that fits fasthttp's buffer beside the head of the answer.
const shortPiece = 512

// writePiece writes a piece by one call.
func (r *relay) writePiece(w io.Writer, piece []byte) (n int, err error) {
	if r.client == nil || len(piece) <= shortPiece || r.client.gathered != nil {
		return w.Write(piece)
	}
	r.client.gather()
	n, err = w.Write(piece)
	return n, errors.Join(err, r.client.send())
}

// SupportsBodyWriteTo lets fasthttp call WriteTo instead of Read: it has no buffer of its own then.
func (r *relay) SupportsBodyWriteTo() bool { return true }

// Read is WriteTo for who has a buffer.
func (r *relay) Read(p []byte) (n int, err error) {
	if len(r.unread) == 0 {
		if r.unread, err = r.piece(); len(r.unread) == 0 {
			return 0, err
		}
	}
	n = copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

// piece waits for what the client gets next, and says how the stream ends behind it. A panic here would
// end the process, since nothing above recovers.
func (r *relay) piece() (out []byte, end error) {
	defer func() {
		if caught := recover(); caught != nil {
			r.x.server.log.Error("panic in a stream", "request_id", r.x.id, "panic", fmt.Sprint(caught), "stack", string(debug.Stack()))
			r.err = fmt.Errorf("panic: %v", caught)
			out, end = append(r.pending, r.errorEvent(explain(r.err).text)...), r.err
		}
	}()
	if r.err != nil {
		return nil, r.err
	}
	r.fill()
	return r.pending, r.err
}

// fill waits for something to send and takes along what is there already.
func (r *relay) fill() {
	r.pending = r.spare[:0]
	for {
		out, err := r.stream.Next()
		if wrong := r.add(out); err == nil {
			err = wrong
		}
		if err != nil {
			r.end(err)
			break
		}
		if len(r.pending) >= coalesce || len(r.pending) > 0 && !r.stream.Ready() && !r.stream.AtEnd() {
			break
		}
	}
	r.spare = r.pending
	r.charge()
}

// add takes a piece of the stream as it is, or the events of a message that it becomes.
func (r *relay) add(piece []byte) (err error) {
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
func (r *relay) charge() {
	events := r.stream.Events()
	r.x.charge.AddOutput(events-r.charged, time.Now())
	r.charged = events
}

func (r *relay) end(err error) {
	r.err = err
	var broken *pd.BrokenStreamError
	switch {
	case errors.As(err, &broken):
		text := api.ErrorText{Status: http.StatusBadGateway, Type: "api_error", Code: "stream_broken", Message: broken.Message}
		r.pending = append(r.pending, r.errorEvent(text)...)
	case errors.Is(err, errStopping):
		r.pending = append(r.pending, r.errorEvent(explain(err).text)...)
	} // else it is complete, or the client has left
}

// errorEvent is the event that says why the stream ends, behind all that was sent.
func (r *relay) errorEvent(text api.ErrorText) []byte {
	text.Request = r.x.id
	if r.x.dialect == api.Responses {
		text.Sequence = max(api.NextSequence(r.spare), api.NextSequence(r.pending))
	}
	return r.x.dialect.ErrorEvent(text)
}

// Close is called by the server in every case, once the answer is written or
// cannot be. A panic here would end the process as one in Read would.
func (r *relay) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	r.x.buffer.takeBack()
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
	r.x.correctCharge(spent)
	outcome, failed := "ok", error(nil)
	switch {
	case r.err == nil, errors.Is(r.err, context.Canceled):
		outcome = "client_gone"
	case !errors.Is(r.err, io.EOF):
		outcome, failed = "broken_stream", r.err
	}
	spans.EndStream(r.span, r.stream.Events(), failed)
	r.x.finish(outcome, 200)
}

// relayPlain streams to a client of HTTP/1.0, which knows no chunks: the answer ends
// with the connection. fasthttp would send chunks, so it is written past it, in the
// connection's own goroutine, for which a drain waits.
func (x *exchange) relayPlain(c *fiber.Ctx, r *relay) {
	ctx := c.Context()
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(net.Conn) {}) // closes the connection once this handler has returned
	defer func() { _ = r.Close() }()

	head := []byte("HTTP/1.0 200 OK\r\nConnection: close\r\n")
	for name, value := range c.Response().Header.All() {
		if string(name) != fiber.HeaderContentLength {
			head = append(append(append(append(head, name...), ": "...), value...), "\r\n"...)
		}
	}
	if _, err := x.conn.Write(append(head, "\r\n"...)); err != nil {
		return
	}
	_, _ = r.WriteTo(x.conn) // a stream that broke has said so in its last event
}
