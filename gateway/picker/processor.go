package picker

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// processor answers Envoy's ext_proc filter, one stream for each HTTP request.
type processor struct {
	extproc.UnimplementedExternalProcessorServer
	cfg     Config
	gateway *gateway.Server
	log     *slog.Logger
	modes   pd.LogLimiter // of filters that show no whole bodies: each of their requests fails
	open    openStreams
}

// Process is the conversation about one request. Where it returns without an error Envoy goes on
// by itself.
func (p *processor) Process(stream extproc.ExternalProcessor_ProcessServer) (err error) {
	growStack()
	c := &conversation{processor: p, stream: stream}
	p.open.add(&c.progress)
	defer p.open.remove(&c.progress)
	defer c.end()
	defer func() {
		if caught := recover(); caught != nil {
			p.log.Error("panic in a request that is picked for", "panic", fmt.Sprint(caught), "stack", string(debug.Stack()))
			c.panicked(caught)
			err = grpcstatus.Error(codes.Internal, "the endpoint picker failed")
		}
	}()
	for !c.over {
		message, err := c.receive()
		if errors.Is(err, io.EOF) || grpcstatus.Code(err) == codes.Canceled {
			return nil
		}
		if err == nil {
			c.record()
			err = c.handle(message)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// growStack gives the goroutine the stack that a pick needs while little has to be moved for it: amid the
// pick it costs ten times as much.
//
//go:noinline
func growStack() {
	var stack [12 << 10]byte
	use(stack[:])
}

//go:noinline
func use([]byte) {}

// conversation is one request and its answer, in Envoy's messages. Its answers to those of the
// request go out in the order of HTTP: headers, body, trailers.
type conversation struct {
	*processor
	stream   extproc.ExternalProcessor_ProcessServer
	exchange *gateway.PickExchange // nil before the request's headers
	subset   *pools.Subset         // nil: Envoy does not limit the request
	buffered bool                  // Envoy keeps the request until it is answered as a whole
	progress
	answers filterv3.ProcessingMode_BodySendMode
	early   chan received // what is received while a choice was made that took long; nil: nothing
	over    bool          // Envoy got the last answer that it expects
	shown   shownMessage  // the message that is handled, but for one of early
	piece   newPiece      // of the answer, that was sent last
}

type received struct {
	message *shownMessage
	err     error
}

// record records that a message came. While the request is answered nobody asks when.
func (c *conversation) record() {
	if !c.picked.Load() {
		c.heard.Store(time.Now().UnixNano())
	}
}

// receive returns the next message.
func (c *conversation) receive() (*shownMessage, error) {
	if c.early == nil {
		return &c.shown, c.stream.RecvMsg(&c.shown)
	}
	next := <-c.early
	c.early = nil
	return next.message, next.err
}

func (c *conversation) handle(shown *shownMessage) error {
	defer shown.release()
	if shown.piece {
		if shown.ofAnswer {
			return c.answerBody(shown)
		}
		return c.requestBody(shown)
	}
	if shown.head {
		if shown.ofAnswer {
			return c.answerHeaders(shown)
		}
		return c.requestHeaders(shown)
	}
	switch shown.other.GetRequest().(type) {
	case *extproc.ProcessingRequest_RequestTrailers:
		if err := c.pick(false); err != nil || c.over {
			return err
		}
		return c.stream.SendMsg(requestTrailers)
	case *extproc.ProcessingRequest_ResponseTrailers:
		return c.answerTrailers()
	}
	return grpcstatus.Error(codes.InvalidArgument, "a message of no kind that an endpoint picker knows")
}

// requestHeaders begins the request. Its headers are answered when its body has come, since they
// name the server; of one without a body at once.
func (c *conversation) requestHeaders(head *shownMessage) error {
	if c.exchange != nil {
		return grpcstatus.Error(codes.InvalidArgument, "a second request in one stream")
	}
	if addresses, limited := subsetOf(head.other); limited {
		c.subset = pools.NewSubset(addresses)
	}
	if err := c.obey(head.other.GetProtocolConfig(), head.end); err != nil {
		return err
	}
	h := head.headers
	if head.end && h.Get(":method") != http.MethodPost {
		return c.pickAny(h)
	}
	var err error
	if c.exchange, err = c.gateway.BeginPick(c.stream.Context(), h.Get(":method"), h.Get(":path"), h, shown(c.answers)); err != nil {
		return c.refuse(err)
	}
	switch {
	case head.end:
		return c.pick(true)
	case c.buffered:
		return c.stream.SendMsg(showBody)
	}
	return nil
}

// obey takes over how the proxy shows bodies, which it does not say in tests of ours alone; without
// says that the request has none.
func (c *conversation) obey(mode *extproc.ProtocolConfiguration, without bool) error {
	c.answers = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	if mode == nil {
		return nil
	}
	c.answers = mode.GetResponseBodyMode()
	switch asked := mode.GetRequestBodyMode(); {
	case without, asked == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
	case asked == filterv3.ProcessingMode_BUFFERED:
		c.buffered = true
	default:
		if refused := c.modes.Add("", time.Now()); refused > 0 {
			c.log.Error("the proxy's ext_proc filter does not show whole bodies of requests: set request_body_mode to FULL_DUPLEX_STREAMED or BUFFERED", "request_body_mode", asked.String(), "refused", refused)
		}
		return grpcstatus.Error(codes.FailedPrecondition, "request_body_mode must be FULL_DUPLEX_STREAMED or BUFFERED")
	}
	return nil
}

// shown is what a mode shows of an answer's body.
func shown(mode filterv3.ProcessingMode_BodySendMode) gateway.AnswerBody {
	switch mode {
	case filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		return gateway.AnswerEdited
	case filterv3.ProcessingMode_NONE:
		return gateway.AnswerHidden
	}
	return gateway.AnswerShown
}

// pickAny sends a request without a body to any server.
func (c *conversation) pickAny(h headers) error {
	server, err := c.gateway.PickAny(c.stream.Context(), h.Get(":method"), h.Get(":path"), h, c.subset)
	if err != nil {
		c.over = true
		return c.stream.Send(refuse(c.gateway.RefusePick(err, h)))
	}
	c.picked.Store(true)
	head := &newHead{addresses: []string{server.Address()}, remove: steering}
	c.replaceKey(head)
	return c.stream.SendMsg(head.encode(newRequestHead, nil))
}

// requestBody takes a piece of the body, and makes the choice when it is the last.
func (c *conversation) requestBody(piece *shownMessage) error {
	if c.exchange == nil {
		return grpcstatus.Error(codes.InvalidArgument, "a body before its request")
	}
	for _, part := range piece.parts {
		if err := c.exchange.AddBody(part); err != nil {
			return c.refuse(err)
		}
	}
	if !piece.end && !c.buffered { // what is buffered is whole, and may have trailers
		return nil
	}
	return c.pick(piece.end)
}

// pick chooses the servers, and sends the request to them; whole says that its body ends it.
func (c *conversation) pick(whole bool) error {
	if c.exchange == nil || c.picked.Load() {
		return nil // it has its server
	}
	c.picked.Store(true)
	pick, err := c.choose()
	if c.exchange.Cancelled() {
		c.over = true // Envoy has gone
		return nil
	}
	if err != nil {
		return c.refuse(err)
	}
	if err := c.send(pick, whole); err != nil {
		return err
	}
	c.exchange.MarkSent()
	return nil
}

// send sends the request to the servers of a pick.
func (c *conversation) send(pick *pd.Pick, whole bool) error {
	body := pick.Body()
	if c.buffered {
		if !c.exchange.Changes(body) {
			return c.stream.SendMsg(c.newHead(pick).encode(newRequestBody, nil))
		}
		return c.stream.SendMsg(c.newHead(pick, lengthOf(body)).encode(newRequestBody, body.Bytes()))
	}
	if err := c.stream.SendMsg(c.newHead(pick, lengthOf(body)).encode(newRequestHead, nil)); err != nil {
		return err
	}
	for piece := range requestPieces(heldBody{c.exchange}, body.Parts(), whole) {
		if err := c.stream.SendMsg(piece); err != nil {
			return err
		}
	}
	return nil
}

// lengthOf is the header that announces a body: Envoy answers 500 itself where the client's is sent with another body.
func lengthOf(body api.Body) headerField {
	return headerField{"content-length", strconv.Itoa(body.Len())}
}

// watchedAfter is how long a choice takes before the client is watched meanwhile: most take less than 1 ms, and
// a goroutine with its stack costs a tenth of that.
const watchedAfter = 10 * time.Millisecond

// choose makes the choice, and receives meanwhile where that takes long: nothing but the end of the stream says
// that the client has left.
func (c *conversation) choose() (*pd.Pick, error) {
	early := make(chan received, 1)
	watch := time.AfterFunc(watchedAfter, func() { // ends with the stream
		message := &shownMessage{}
		err := c.stream.RecvMsg(message)
		if err != nil {
			c.exchange.Cancel()
		}
		early <- received{message, err}
	})
	defer func() {
		if !watch.Stop() {
			c.early = early
		}
	}()
	return c.exchange.Pick(c.subset)
}

// newHead names the servers, and what they are sent besides the client's headers.
func (c *conversation) newHead(pick *pd.Pick, more ...headerField) *newHead {
	h := &newHead{addresses: []string{pick.Decode().Address()}, set: more, remove: steeringAndCoding}
	for _, fallback := range pick.Fallbacks(c.cfg.Fallbacks) {
		h.addresses = append(h.addresses, fallback.Address())
	}
	if trace := c.exchange.TraceHeader(); trace != "" {
		h.set = append(h.set, headerField{"traceparent", trace})
	}
	header := pick.Header()
	for _, name := range sortedNames(header) {
		h.set = append(h.set, headerField{strings.ToLower(name), header.Get(name)})
	}
	c.replaceKey(h)
	return h
}

// replaceKey has a server get the engines' key in place of the client's, where that is for this gateway.
func (p *processor) replaceKey(h *newHead) {
	if !p.gateway.HidesCredentials() {
		return
	}
	h.remove = append(slices.Clone(h.remove), "x-api-key", "authorization")
	if p.cfg.EngineKey == nil {
		return
	}
	if key := p.cfg.EngineKey(); key != "" {
		h.set = append(h.set, headerField{"authorization", "Bearer " + key})
	}
}

// answerHeaders takes the answer's head.
func (c *conversation) answerHeaders(head *shownMessage) error {
	if c.exchange != nil {
		c.exchange.AnswerHead(statusOf(head.headers), answerHeader(head.headers), servedBy(head.other))
		if head.end {
			c.exchange.AnswerEnd()
		}
	}
	c.over = head.end
	return c.stream.SendMsg(answerHead)
}

// answerBody takes a piece of the answer, and gives it back.
func (c *conversation) answerBody(message *shownMessage) error {
	piece, end := message.joined(), message.end
	if c.exchange != nil {
		piece = c.exchange.AnswerPiece(piece)
		if end {
			piece = append(piece[:len(piece):len(piece)], c.exchange.AnswerEnd()...)
		}
	}
	c.over = end
	if c.answers != filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return c.stream.SendMsg(asItCame)
	}
	if len(piece) == 0 && !end {
		return nil
	}
	return c.sendAnswer(piece, end)
}

// sendAnswer sends bytes of the answer in messages, the last of which ends it or not.
func (c *conversation) sendAnswer(answer []byte, end bool) error {
	for {
		some := answer[:min(len(answer), longestPiece)]
		answer = answer[len(some):]
		c.piece = newPiece{field: newAnswerBody, parts: append(c.piece.parts[:0], some), end: end && len(answer) == 0}
		if err := c.stream.SendMsg(&c.piece); err != nil {
			return err
		}
		if len(answer) == 0 {
			return nil
		}
	}
}

// answerTrailers takes the end of an answer with trailers.
func (c *conversation) answerTrailers() error {
	c.over = true
	if c.exchange != nil {
		if rest := c.exchange.AnswerEnd(); len(rest) > 0 {
			if err := c.sendAnswer(rest, false); err != nil {
				return err
			}
		}
	}
	return c.stream.SendMsg(answerTrailers)
}

// refuse answers the request itself.
func (c *conversation) refuse(err error) error {
	c.over = true
	return c.stream.Send(refuse(c.exchange.Refuse(err)))
}

func (c *conversation) panicked(caught any) {
	if c.exchange != nil {
		c.exchange.Panicked(caught)
	}
}

// end gives back what the request holds still.
func (c *conversation) end() {
	if c.exchange != nil {
		c.exchange.End()
	}
}

func sortedNames(h http.Header) []string { return slices.Sorted(maps.Keys(h)) }
