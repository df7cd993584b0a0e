package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
)

// PickExchange is one request that a proxy sends to a server itself: it brings the request, is
// told where to send it and what, and reports the answer as that passes by. In this order:
// AddBody, Pick, MarkSent, then AnswerHead, AnswerPiece and AnswerEnd; or Refuse at any point before an
// answer. End comes last, in every case. One goroutine uses it.
type PickExchange struct {
	x      *exchange
	header header
	coding string
	shown  AnswerBody
	body   *bodyBuffer
	pick   *pd.Pick // nil until one is made
	answer pickedAnswer
	closed bool
}

// Refusal is an answer that is given in place of a server's.
type Refusal struct {
	Status int
	Header http.Header
	Body   []byte
}

// Set is for what writes the headers of answers.
func (r *Refusal) Set(name, value string) { r.Header.Set(name, value) }

// AnswerBody says what of an answer's body a proxy shows.
type AnswerBody uint8

const (
	AnswerEdited AnswerBody = iota // all of it, and the client gets what AnswerPiece and AnswerEnd return
	AnswerShown                    // all of it, and the client gets it as it came
	AnswerHidden                   // none of it
)

// Header reads the headers of a request that is picked for.
type Header = header

// BeginPick begins a request to a path. The context is the proxy's: it ends when that has gone.
// An error is one for Refuse, as in all that follows.
func (s *Server) BeginPick(ctx context.Context, method, path string, h Header, shown AnswerBody) (*PickExchange, error) {
	path, _, _ = strings.Cut(path, "?")
	d := s.dialectOf(path)
	shape := d
	if shape == nil {
		shape = api.Chat
		if strings.HasPrefix(path, api.Messages.Path) {
			shape = api.Messages
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(&s.life, func() { cancel(context.Cause(&s.life)) })
	x := s.beginExchange(ctx, h, shape)
	x.path = forPicker
	x.stopProxy = func() {
		stop()
		cancel(nil)
	}
	e := &PickExchange{x: x, header: h, shown: shown, body: s.newBodyBuffer(announcedLength(h))}
	switch {
	case d == nil:
		return e, notFound(path)
	case method != http.MethodPost:
		return e, errPickMethod
	}
	var err error
	if e.coding, err = x.checkHeader(h); err == nil {
		e.body.counted.tenant = x.tenantOfBody()
	}
	return e, err
}

// announcedLength is how many bytes a request says that its body has, -1 where it does not say.
func announcedLength(h Header) int {
	length, err := strconv.Atoi(h.Get("Content-Length"))
	if err != nil || length < 0 {
		return -1
	}
	return length
}

var errPickMethod = &badRequest{status: http.StatusMethodNotAllowed, code: "method_not_allowed", message: "This path is not for this method."}

// dialectOf is the API of a path, nil where there is none: what the path ends in, with /v1 or without. A route's
// prefix may stand before that, since Envoy rewrites paths only once the picker has been asked.
func (s *Server) dialectOf(path string) *api.Dialect {
	if d := dialectAt[path]; d != nil {
		return s.unlessClosed(d)
	}
	var found *api.Dialect
	longest := 0
	for known, d := range dialectAt {
		if end := strings.TrimPrefix(known, "/v1"); len(end) > longest && strings.HasSuffix(path, end) {
			found, longest = d, len(end)
		}
	}
	return s.unlessClosed(found)
}

// Cancel says that the client has left. Any goroutine may call it.
func (e *PickExchange) Cancel() { e.x.life.End(nil) }

// Cancelled reports whether the client has left, so that there is nobody to answer.
func (e *PickExchange) Cancelled() bool { return errors.Is(context.Cause(e.x.ctx), context.Canceled) }

// AddBody takes a piece of the request's body.
func (e *PickExchange) AddBody(piece []byte) error {
	err := e.body.add(piece)
	if errors.Is(err, errBodyTooLarge) {
		return e.x.server.tooLarge()
	}
	return err
}

// Pick chooses the servers of the request, among those of a subset where there is one, once its
// body is whole.
func (e *PickExchange) Pick(subset *pools.Subset) (*pd.Pick, error) {
	req, err := e.admit()
	if err != nil {
		return nil, err
	}
	req.Subset = subset
	e.x.observeStart(req)
	if e.pick, err = e.x.server.pd.Pick(e.x.ctx, req); err != nil {
		return nil, err
	}
	e.answer = pickedAnswer{e: e, req: req}
	return e.pick, nil
}

// admit is exchange.admit for a body that is here.
func (e *PickExchange) admit() (req *pd.Request, err error) {
	_, span := spans.Start(e.x.ctx, e.x.server.tracer, "admit")
	defer func() { endAdmit(span, err) }()
	defer e.body.counted.release()
	if req, err = e.x.accept(e.header, e.body.data, e.coding); err != nil {
		return nil, err
	}
	if e.x.translated {
		return nil, errTranslated
	}
	if req.HideUsage && e.shown != AnswerEdited { // it would not be hidden
		req.Body, req.HideUsage = req.Body.With(api.Remove("stream_options")), false
	}
	return req, nil
}

// errTranslated refuses what would go to an engine as another API: the proxy sends what it has.
var errTranslated = &badRequest{status: http.StatusBadRequest, code: "tenants_not_separated",
	message: "The engines of this model cannot keep tenants apart on " + api.Messages.Path + ". Use " + api.Chat.Path + "."}

// MarkSent records that the proxy sends the request now, and lets go of its text, whose memory is used for
// another body unless somebody holds it (HoldBody). The parts of the pick's body must not be
// read behind it otherwise.
func (e *PickExchange) MarkSent() {
	e.pick.MarkSent()
	sent := *e.answer.req
	sent.Body = api.Body{}
	e.answer.req, e.body.data = &sent, nil
	e.body.held.Release()
}

// HoldBody lets the parts of the pick's body be read behind MarkSent, until ReleaseBody is called as often. It is
// for before MarkSent.
func (e *PickExchange) HoldBody() { e.body.held.Hold() }

// ReleaseBody ends a HoldBody. Any goroutine may call it.
func (e *PickExchange) ReleaseBody() { e.body.held.Release() }

// Changes reports whether a body differs from the one that the client sent.
func (e *PickExchange) Changes(body api.Body) bool {
	rest := e.body.data
	for part := range body.Parts() {
		if !bytes.HasPrefix(rest, part) {
			return true
		}
		rest = rest[len(part):]
	}
	return len(rest) > 0
}

// TraceHeader is what joins an engine's spans to the request's.
func (e *PickExchange) TraceHeader() (traceparent string) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(e.x.ctx, carrier)
	return carrier["traceparent"]
}

// ID names the request, as decisions and logs have it.
func (e *PickExchange) ID() string { return e.x.id }

// HidesCredentials reports whether clients' keys are for this gateway, and not for engines.
func (s *Server) HidesCredentials() bool { return !s.access.AllowsAnonymous() }

// Refuse is the answer to an error, and the end of the exchange.
func (e *PickExchange) Refuse(err error) Refusal {
	f := e.x.explain(err)
	if f.shed() {
		f.text.Status = http.StatusTooManyRequests
	}
	r := Refusal{Status: f.text.Status, Header: make(http.Header, 4)}
	nameRequest(&r, e.x.dialect, e.x.id)
	e.x.setRateLimitHeaders(&r)
	r.Body = f.write(&r, e.x.dialect, e.x.id)
	e.finish(f.outcome, f.text.Status)
	return r
}

// Panicked accounts for a panic, and gives everything back.
func (e *PickExchange) Panicked(caught any) {
	e.Refuse(fmt.Errorf("panic: %v", caught))
	e.End()
}

// End gives back what is held still: the proxy reports no more.
func (e *PickExchange) End() {
	if e.pick != nil {
		defer e.pick.Release()
		e.answer.leave()
	}
	e.finish("client_gone", statusClientGone)
}

// finish accounts for the exchange, once.
func (e *PickExchange) finish(outcome string, status int) {
	if e.closed {
		return
	}
	e.closed = true
	if e.pick == nil {
		e.body.counted.release()
		if outcome == "client_gone" {
			e.x.refund(failure{text: api.ErrorText{Status: statusClientGone}})
		}
	}
	e.x.finish(outcome, status, time.Now())
}

// pickedAnswer is the answer of a server as it passes by.
type pickedAnswer struct {
	e       *PickExchange
	req     *pd.Request
	status  int // 0 before its head
	header  http.Header
	passing *api.PassingAnswer // nil where it is not followed
	failed  []byte             // the body of an answer that is no success, as far as it is looked at
	charged int
}

// AnswerHead takes the status and the headers of the answer, and the address of the server that
// gave it, "" where the proxy does not say.
func (e *PickExchange) AnswerHead(status int, h http.Header, served string) {
	a := &e.answer
	if a.status != 0 || e.pick == nil {
		return
	}
	a.status, a.header = status, h
	if served != "" {
		e.pick.MoveTo(served)
	}
	coded := h.Get("Content-Encoding") != "" && h.Get("Content-Encoding") != "identity"
	if status == http.StatusOK && !coded && !a.req.Dialect.IsBinary(h.Get("Content-Type")) {
		stream := strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
		a.passing = api.NewPassingAnswer(a.req.Dialect, stream, a.req.Answers)
		a.passing.HideUsage, a.passing.MostTokens = a.req.HideUsage, a.e.pick.MostTokens()
	}
}

// AnswerPiece takes the next bytes of the answer's body, and returns those that go to the client
// now, valid until the next call.
func (e *PickExchange) AnswerPiece(piece []byte) []byte {
	a := &e.answer
	if a.status != http.StatusOK {
		a.failed = append(a.failed, piece[:min(len(piece), maxErrorBody-len(a.failed))]...)
		return piece
	}
	if a.passing == nil {
		return piece
	}
	closed := a.passing.Closing
	out, n := a.passing.Add(piece)
	if n == 0 {
		return out
	}
	now := time.Now()
	if a.passing.Content == n {
		a.first()
	}
	tokens := n - (a.passing.Closing - closed)
	for i := range n {
		e.pick.RecordContent(i >= tokens, now)
	}
	e.x.charge.AddOutput(n, now)
	a.charged += n
	return out
}

// first reports to the planner that the answer has begun.
func (a *pickedAnswer) first() {
	_, computed := a.e.pick.PredictedCache()
	a.e.x.observation.RecordFirstToken(a.req.PromptTokens, computed)
}

// AnswerEnd takes the end of the answer, and returns what is left of it for the client.
func (e *PickExchange) AnswerEnd() (out []byte) {
	a := &e.answer
	if e.pick == nil || e.closed {
		return nil
	}
	defer e.pick.Release()
	switch {
	case a.status != http.StatusOK:
		a.refused()
	case a.passing == nil:
		a.settle(api.Usage{})
	default:
		out = a.passing.End()
		a.judge()
	}
	return out
}

// refused judges an answer that is no success. Of a proxy that reached no server it is the
// proxy's own.
func (a *pickedAnswer) refused() {
	if a.status == http.StatusServiceUnavailable && unreachable(a.failed) {
		a.e.pick.Unsent()
		a.fail(&pd.LegError{Kind: pd.Unsent})
		return
	}
	a.e.pick.Refuse(a.status, a.header, a.failed)
	a.fail(&pd.LegError{Kind: pd.KindOf(a.status), Status: a.status, Body: a.failed})
}

// fail accounts for a leg's failure that the client has seen.
func (a *pickedAnswer) fail(leg *pd.LegError) {
	f := explainLeg(leg)
	a.e.x.refused = f.lacksCapacity()
	a.e.x.refund(f)
	a.e.finish(f.outcome, a.status)
}

// unreachable reports whether a body is what Envoy's router says of a server that it has not
// reached, or lost before its answer (source/common/router/router.cc, onUpstreamReset).
func unreachable(body []byte) bool {
	return strings.HasPrefix(string(body), "upstream connect error or disconnect/reset before headers") || string(body) == "no healthy upstream"
}

// judge accounts for an answer that is over, whole or not.
func (a *pickedAnswer) judge() {
	p := a.passing
	if p.Complete {
		a.settle(p.Usage)
		return
	}
	a.e.pick.Break(p.Failure, p.Event, p.Usage)
	a.correct(p.Usage)
	a.e.finish("broken_stream", http.StatusOK)
}

func (a *pickedAnswer) settle(u api.Usage) {
	if a.charged == 0 {
		a.first() // of a whole answer
	}
	a.e.pick.Settle(u)
	a.correct(u)
	a.e.finish("ok", http.StatusOK)
}

// correct charges the key with what the answer cost.
func (a *pickedAnswer) correct(u api.Usage) {
	spent := tokensOf(u)
	if spent.Output < 0 && a.charged > 0 {
		spent.Output = a.charged
	}
	a.e.x.correctCharge(spent, time.Now())
}

// leave accounts for an answer whose rest the proxy does not report.
func (a *pickedAnswer) leave() {
	if a.e.closed {
		return
	}
	if a.e.shown == AnswerHidden && a.status == http.StatusOK {
		a.settle(api.Usage{}) // its head is all that there is to see
		return
	}
	var u api.Usage
	if a.passing != nil {
		if a.passing.Complete { // only the end of its bytes was not seen
			a.settle(a.passing.Usage)
			return
		}
		u = a.passing.Usage
	}
	a.e.pick.Leave(u)
	a.correct(u)
}

// PickAny is a server for a request without a body, such as one for the list of models: of those
// of a subset that are up the one with the least to do.
func (s *Server) PickAny(ctx context.Context, method, path string, h Header, subset *pools.Subset) (least *pools.Server, err error) {
	if !mayAskAny(method, path) {
		return nil, errNotFound
	}
	key := new(access.Key) // of a browser's preflight, which has none
	if !isPreflight(method, h) {
		if key, err = s.authenticate(h); err != nil {
			return nil, err
		}
	}
	err = s.pd.Binder.AwaitFirstProbes(ctx, waitingAs(key), func() bool {
		least = s.leastBusy(subset)
		return least != nil
	})
	if err != nil {
		return nil, err
	}
	if least == nil {
		return nil, &pd.NoServerError{Role: pools.Decode}
	}
	return least, nil
}

// isPreflight reports whether a browser asks whether a page of another site may send a request: engines answer that as
// they are set up, without a key as well (vLLM's --allowed-origins).
func isPreflight(method string, h Header) bool {
	return method == http.MethodOptions && h.Get("Origin") != "" && h.Get("Access-Control-Request-Method") != ""
}

// mayAskAny reports whether an engine may be asked for a path without a body: for models and health, below the prefix of
// a route too. Other paths of engines are for who operates them, and some do what nobody else may: SGLang empties its
// cache on GET /flush_cache and gives its memory back on GET /release_memory_occupation (srt/entrypoints/http_server.py).
func mayAskAny(method, path string) bool {
	path, _, _ = strings.Cut(path, "?")
	switch method {
	case http.MethodOptions:
		return true
	case http.MethodGet, http.MethodHead:
		if strings.Contains(strings.ReplaceAll(strings.ToLower(path), "%2e", "."), "/..") { // it leads elsewhere
			return false
		}
		return strings.HasSuffix(path, "/models") || strings.Contains(path, "/v1/models/") || strings.HasSuffix(path, "/health")
	}
	return false
}

// leastBusy is the decode server of a subset that is up and has the least to do, nil if there is none.
func (s *Server) leastBusy(subset *pools.Subset) (least *pools.Server) {
	now := time.Now()
	for _, server := range s.fleet.Servers() {
		if !server.Role.Serves(pools.Decode) || server.State() != pools.Alive || !subset.Has(server) {
			continue
		}
		if least == nil || server.InFlight(pools.Decode, now).Requests < least.InFlight(pools.Decode, now).Requests {
			least = server
		}
	}
	return least
}

// RefusePick is the answer to an error of PickAny.
func (s *Server) RefusePick(err error, h Header) Refusal {
	f := explain(err).in(api.Chat)
	if f.shed() {
		f.text.Status = http.StatusTooManyRequests
	}
	s.metrics.requests.WithLabelValues("none", NoModel, f.outcome, forPicker).Inc()
	s.metrics.countCause(NoModel, f)
	r := Refusal{Status: f.text.Status, Header: make(http.Header, 4)}
	id := requestID(h)
	nameRequest(&r, api.Chat, id)
	r.Body = f.write(&r, api.Chat, id)
	return r
}

// MaxBody is how many bytes a request's body may have.
func (s *Server) MaxBody() int { return s.cfg.MaxBody }

// Ready reports whether requests are of use here, as /health does.
func (s *Server) Ready() bool {
	ready, _ := s.pd.Ready()
	return ready && !s.draining.Load()
}
