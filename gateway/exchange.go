package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp/http1"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/messages"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/requestid"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// exchange is one request and its answer, from the gateway's side. Nothing in it
// aliases Fiber's buffers, but for sent.
type exchange struct {
	server  *Server
	dialect *api.Dialect
	id      string             // x-request-id: the client's if it sent one, else ours
	path    string             // label: how it came
	model   string             // label: a model that is served, else UnknownModel
	key     *access.Key        // nil until it is known
	class   int                // of priority: its key's, once its headers were read as they ask and the key allows
	charge  access.QuotaCharge // none until it is admitted
	start   time.Time
	conn    *clientConn     // nil: a proxy asks
	sent    *fields         // nil likewise, and once the handler has ended
	ctx     context.Context // ends when the client leaves or the exchange is over
	life    http1.Interrupt // what ctx is
	span    trace.Span

	watched   bool   // conn is, for the exchange
	stopProxy func() // of a proxy that asks: ends what was begun for it; nil: a client does

	translated bool // a message that engines see as a chat

	observation Observation // by the planner; nil until it is admitted
	output      int         // tokens of the answer; -1 is unknown
	refused     bool        // for lack of capacity
}

// handle is the path of one request: begin, admit, run, reply or relay. What it
// returns is always nil: errors are answered here.
func (s *Server) handle(c *fiber.Ctx, d *api.Dialect) error {
	x := s.begin(c, d)
	defer func() {
		x.sent.release()
		x.sent = nil
	}()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a request", "request_id", x.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			x.fail(c, fmt.Errorf("panic: %v", p))
		}
	}()
	req, err := x.admit(c)
	if err != nil {
		x.fail(c, err)
		return nil
	}
	x.observeStart(req)
	answer, err := s.pd.Run(x.ctx, req)
	if err == nil {
		x.observation.RecordFirstToken(req.PromptTokens, answer.ComputedTokens)
	}
	switch {
	case err != nil:
		x.fail(c, err)
	case answer.Stream == nil:
		x.reply(c, answer)
	default:
		x.relay(c, answer)
	}
	return nil
}

// begin names the request and opens its span, as a child of the client's if it
// sent one. The client's baggage and sampling flag are not taken over.
func (s *Server) begin(c *fiber.Ctx, d *api.Dialect) *exchange {
	sent := fieldsOf(&c.Context().Request.Header)
	x := s.beginExchange(&s.life, sent, d)
	x.sent, x.conn = sent, c.Context().Conn().(*clientConn)
	return x
}

// beginExchange is begin where no connection of a client is watched: the context ends with it.
func (s *Server) beginExchange(ctx context.Context, h header, d *api.Dialect) *exchange {
	x := &exchange{
		server: s, dialect: d, id: requestID(h), path: overHTTP, model: UnknownModel, start: time.Now(), output: -1,
	}
	if parent := h.Get("Traceparent"); parent != "" && len(parent) < 100 {
		carrier := propagation.MapCarrier{"traceparent": strings.Clone(parent)}
		ctx = propagation.TraceContext{}.Extract(ctx, carrier)
	}
	ctx, x.span = spans.StartRequest(ctx, s.tracer, x.id, d)
	x.life.Begin(ctx)
	x.ctx = &x.life
	return x
}

// clientLeft ends all that is done for the client.
func (x *exchange) clientLeft() { x.life.End(nil) }

// stopClientWatch reports whether the client has left.
func (x *exchange) stopClientWatch() (left bool) {
	if x.stopProxy != nil {
		x.stopProxy()
	}
	return x.watched && x.conn.stopWatch()
}

const requestIDHeader = "X-Request-Id"

// nameRequest sends the client the request's id, in the header that the API's SDKs read.
func nameRequest(to headerSetter, d *api.Dialect, id string) {
	to.Set(requestIDHeader, id)
	if d.Anthropic {
		to.Set("Request-Id", id)
	}
}

// requestID returns the client's id if it can stand in a header and a log line.
// It is never sent to an engine: some connectors parse addresses out of it.
func requestID(h header) string {
	id := h.Get(requestIDHeader)
	if id == "" || len(id) > 128 {
		return newRequestID()
	}
	for _, r := range id {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:", r)) {
			return newRequestID()
		}
	}
	return strings.Clone(id)
}

func newRequestID() string {
	id := requestid.New()
	return "req-" + string(id[:])
}

// admit parses the request and decides whether it may come in.
func (x *exchange) admit(c *fiber.Ctx) (req *pd.Request, err error) {
	_, span := spans.Start(x.ctx, x.server.tracer, "admit")
	defer func() { endAdmit(span, err) }()
	coding, err := x.checkHeader(x.sent)
	if err != nil {
		return nil, err
	}
	body, memory, err := x.server.readBody(c, x.tenantOfBody())
	if err != nil {
		return nil, err
	}
	x.conn.watchFor(x)
	x.watched = true
	if req, err = x.accept(x.sent, body, coding); err != nil {
		return nil, err
	}
	if passed := agents(x.sent.Get("User-Agent")); passed != "" {
		if req.Header == nil {
			req.Header = make(http.Header, 1)
		}
		req.Header["User-Agent"] = []string{x.server.agent + " " + passed}
	}
	if memory != nil && liesIn(req.Body, body) {
		req.Memory = memory
	}
	return req, nil
}

// liesIn reports whether a request's body is what was read, and not decoded, stripped or translated from it.
func liesIn(body api.Body, read []byte) bool {
	source := body.Source()
	return len(source) == len(read) && len(read) > 0 && &source[0] == &read[0]
}

// checkHeader finds the key of a request, and the coding of its body, before that is read.
func (x *exchange) checkHeader(h header) (coding string, err error) {
	if x.key, coding, err = x.server.checkHeader(h); err != nil {
		return "", err
	}
	x.class = x.key.Class
	return coding, nil
}

// checkHeader is exchange's.
func (s *Server) checkHeader(h header) (key *access.Key, coding string, err error) {
	if coding, err = contentCoding(h); err != nil {
		return nil, "", err
	}
	key, err = s.authenticate(h)
	return key, coding, err
}

// tenantOfBody is whose share of the room for bodies the request takes; "": there is nobody to share it with.
func (x *exchange) tenantOfBody() string {
	if !x.server.access.HasSeveralTenants() {
		return ""
	}
	return x.key.Tenant
}

// accept parses a body, and holds what it asks for to what its key allows.
func (x *exchange) accept(h header, body []byte, coding string) (req *pd.Request, err error) {
	costly := coding != "" || len(body) > freeBytes // to decode and parse, also where it is refused for what it says
	if costly {
		if x.charge, err = x.key.Admit(0, time.Now()); err != nil {
			return nil, err
		}
	}
	if req, err = x.read(body, coding); err != nil {
		return nil, err
	}
	if x.server.cfg.SessionHints {
		req.Session = sessionOf(h, x.dialect, req.Body)
	}
	req.ID, req.Header = x.id, engineHeader(h, x.server.access.AllowsAnonymous())
	if err = x.applyPolicy(h, req); err != nil {
		return nil, err
	}
	if err = x.knownModel(req); err != nil {
		return nil, err
	}
	x.traceRequest(req)
	if req, err = x.taken(req); err != nil { // it may be a chat from here on
		return nil, err
	}
	if req, err = x.salt(req); err != nil { // likewise
		return nil, err
	}
	x.predictPrompt(req)
	if costly {
		return req, x.charge.ChargePrompt(req.PromptTokens, time.Now())
	}
	x.charge, err = x.key.Admit(req.PromptTokens, time.Now())
	return req, err
}

// read decodes a body and parses it, few at once of those that must be decoded: they are longer than what was sent.
func (x *exchange) read(body []byte, coding string) (*pd.Request, error) {
	if coding != "" {
		done, err := x.server.beginDecoding(x.ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		if body, err = x.server.decode(x.tenantOfBody(), body, coding); err != nil {
			return nil, err
		}
	}
	if x.key.Salt != "" && !x.server.cfg.SharedKV {
		var err error
		if body, err = withoutMediaNames(body); err != nil {
			return nil, err
		}
	}
	return parse(x.dialect, body)
}

// traceRequest records what is asked for where the request is traced.
func (x *exchange) traceRequest(req *pd.Request) {
	if !x.span.IsRecording() {
		return
	}
	tenant := ""
	if x.key.Tenant != "" {
		tenant = x.server.tenants.label(x.key.Tenant)
	}
	spans.RecordRequest(x.span, spans.Request{
		Model: x.model, Dialect: x.dialect, Stream: req.Stream, MaxOutput: req.MaxOutput, Class: x.server.access.Class(x.class), Tenant: tenant,
	})
}

// knownModel refuses models that no server serves or will serve, and answers that no
// server of the model could hold. What is not known yet, since servers were not probed, it waits for.
func (x *exchange) knownModel(req *pd.Request) (err error) {
	asked := req.Model // of an alias: that name, whatever is behind it
	waits := queue.Request{Model: req.Model, Class: req.Class, Tenant: req.Tenant, Bytes: req.Body.Len(), Deadline: req.Deadline}
	refused := x.server.pd.Binder.AwaitFirstProbes(x.ctx, waits, func() bool {
		if asked == "" {
			if asked, err = x.impliedModel(); err != nil {
				return true
			}
			if req.Model = asked; asked != "" && !x.dialect.Native { // whose bodies name none
				nameModel(req, asked)
			}
		}
		err = x.lookUpModel(req, x.key.May(asked))
		return !mayBecomeKnown(err)
	})
	return cmp.Or(refused, err)
}

// mayBecomeKnown reports whether an error of lookUpModel is that no server has the model.
func mayBecomeKnown(err error) bool {
	if err == nil {
		return false
	}
	var none *pd.NoServerError
	return errors.Is(err, errUnknownModel) || errors.As(err, &none)
}

// lookUpModel is knownModel for a model that the key allows or not, as far as is known now.
func (x *exchange) lookUpModel(req *pd.Request, allowed bool) error {
	if x.dialect.Native && x.server.nativeIsClosed() {
		return errNotFound
	}
	if req.Model == "" { // it names none, and no server has said which it has
		return &pd.NoServerError{Role: pools.Decode}
	}
	served := x.server.resolveAlias(req)
	m, known := x.server.fleet.Model(req.Model)
	if served && known && allowed {
		x.model = m.ID
		if err := x.server.checkSamples(req); err != nil {
			return err
		}
		if req.MaxOutput == 0 {
			return nil
		}
		longest := x.server.fleet.LongestContext(cmp.Or(m.Parent, m.ID))
		if longest > 0 && req.MaxOutput > longest { // vLLM since 0.32 gives as much as there is room for
			// Not as a context that is exceeded: clients would shorten their conversation, and get the same again.
			return invalid(req.MaxField, "%s=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", req.MaxField, req.MaxOutput, longest)
		}
		return nil
	}
	if _, comes := x.server.pd.ScaleFromZero.WillServe(req.Model); allowed && served && comes {
		x.model = req.Model
		return nil
	}
	if !x.server.fleet.KnowsModels() && len(x.server.pd.ScaleFromZero.WillServeModels()) == 0 { // nothing is known yet
		return &pd.NoServerError{Role: pools.Decode}
	}
	if allowed && x.server.fleet.AwaitsModels(time.Now()) {
		return &pd.NoServerError{Role: pools.Decode, Unsaid: true}
	}
	return errUnknownModel
}

// reply sends a whole answer.
func (x *exchange) reply(c *fiber.Ctx, answer *pd.Answer) {
	taken := false // by what sends it
	defer func() {
		if !taken {
			answer.Held.Release()
		}
	}()
	body := answer.Body
	if x.translated {
		var err error
		if body, err = messages.FromChat(body); err != nil {
			x.fail(c, &pd.LegError{Leg: pd.DecodeLeg, Server: answer.Decode, Kind: pd.Broken, Err: err})
			return
		}
	}
	body = x.usageExtension(answer).inBody(body)
	now := time.Now()
	x.correctCharge(tokensOf(answer.Usage), now)
	x.setCommonHeaders(c, answer)
	c.Response().Header.SetContentType(answer.ContentType)
	if answer.Metadata != "" {
		c.Set(api.BinaryMetadata, answer.Metadata)
	}
	c.Status(answer.Status)
	if answer.Held.IsCounted() {
		taken = true
		c.Context().SetBodyStream(&heldBody{Reader: bytes.NewReader(body), answer: answer}, len(body))
	} else {
		_ = c.Send(body) // it only fills the response
	}
	if x.finish("ok", answer.Status, now) {
		c.Context().SetConnectionClose()
	}
}

// heldBody is a long answer, which is counted until it is sent, or given up.
type heldBody struct {
	*bytes.Reader
	answer *pd.Answer
}

// Close is for fasthttp.
func (b *heldBody) Close() error {
	b.answer.Held.Release()
	return nil
}

// relay leaves the stream to who serves the connection.
func (x *exchange) relay(c *fiber.Ctx, answer *pd.Answer) {
	x.setCommonHeaders(c, answer)
	c.Response().Header.SetContentType("text/event-stream; charset=utf-8")
	c.Set(fiber.HeaderCacheControl, "no-cache")
	c.Set("X-Accel-Buffering", "no")
	r := newRelay(x, answer)
	r.setHead(c)
	x.conn.takeOver(c.Context(), r)
}

// setCommonHeaders sets what every answer carries.
func (x *exchange) setCommonHeaders(c *fiber.Ctx, answer *pd.Answer) {
	to := answerHeader{&c.Response().Header}
	nameRequest(to, x.dialect, x.id)
	x.setRateLimitHeaders(to)
	if format := x.sent.Get(load.ORCAFormatHeader); format != "" {
		if report := orcaHeader(x.server.LoadReport(time.Now()), format); report != "" {
			to.Set(load.ORCAHeader, report)
		}
	}
	if x.server.cfg.Timing && answer != nil {
		to.Set(timingHeader, timingText(answer.Timing, time.Since(x.start)))
	}
	if x.server.cfg.ExposePair && answer != nil {
		if answer.Prefill != "" {
			to.Set("X-Tandem-Prefill", answer.Prefill)
		}
		to.Set("X-Tandem-Decode", answer.Decode)
	}
}

// withoutEnginesKey makes an engine's 401 a failure of the engine where there are keys here:
// the client's was right, and what the engine was sent or not is nothing of the client's.
func (x *exchange) withoutEnginesKey(err error) error {
	var leg *pd.LegError
	if x.server.access.AllowsAnonymous() || !errors.As(err, &leg) || leg.Kind != pd.Refused || leg.Status != fiber.StatusUnauthorized {
		return err
	}
	return &pd.LegError{Leg: leg.Leg, Server: leg.Server, Kind: pd.Broken, Status: leg.Status, Err: leg.Err}
}

// fail answers an error in the shape of the API that was called.
func (x *exchange) fail(c *fiber.Ctx, err error) {
	f := x.explain(err)
	x.setCommonHeaders(c, nil)
	_ = f.send(c, x.dialect) // it only fills the response
	if x.finish(f.outcome, f.text.Status, time.Now()) {
		c.Context().SetConnectionClose()
	}
}

// explain is what the client gets for an error, and accounts for it.
func (x *exchange) explain(err error) failure {
	if errors.Is(context.Cause(x.ctx), errStopping) {
		err = errStopping
	}
	f := explain(x.withoutEnginesKey(err)).in(x.dialect)
	if x.key != nil && lacksModel(err) {
		f.text.Message += x.server.saysServed(x.key)
	}
	x.refused = f.lacksCapacity()
	x.refund(f)
	x.server.metrics.countCause(x.model, f)
	if f.limit != "" {
		x.server.metrics.limited.WithLabelValues(x.server.tenants.label(x.key.Tenant), f.limit).Inc()
	}
	switch {
	case f.text.Status < 500 || f.shed(): // of those that are shed there are many, and metrics count them
	case isOutage(err):
		if refused := x.server.outages.Add(x.model, time.Now()); refused > 0 {
			x.server.log.Error("no server takes requests of a model", "model", x.model, "refused", refused, "request_id", x.id, "error", err.Error())
		}
	default:
		x.server.log.Error("request failed", "request_id", x.id, "model", x.model, "status", f.text.Status, "error", err.Error())
	}
	return f
}

// finish accounts for the exchange, which is over now, and reports whether the client has left. It
// must be the last that the exchange does.
func (x *exchange) finish(outcome string, status int, now time.Time) (clientGone bool) {
	clientGone = x.stopClientWatch()
	x.life.End(nil)
	x.observeEnd(outcome, status)
	took := now.Sub(x.start)
	x.server.requests.add(now)
	if status >= 500 || outcome == "broken_stream" {
		x.server.errors.add(now)
	}
	x.server.metrics.requests.WithLabelValues(x.dialect.Name, x.model, outcome, x.path).Inc()
	histogram.ObserveIn(x.span.SpanContext(), x.server.metrics.duration.WithLabelValues(x.dialect.Name, x.model, outcome, x.path), took.Seconds())
	if x.key != nil && x.key.Tenant != "" {
		x.server.metrics.tenantRequests.WithLabelValues(x.server.tenants.label(x.key.Tenant), x.server.access.Class(x.class), outcome).Inc()
	}
	if log := x.server.log; log.Enabled(context.Background(), slog.LevelDebug) { // else its values would be made for nobody
		log.Debug("request done", "request_id", x.id, "api", x.dialect.Name, "model", x.model,
			"outcome", outcome, "status", status, "seconds", took.Seconds())
	}
	spans.EndRequest(x.span, spans.Outcome{Model: x.model, Path: x.path, Outcome: outcome, Status: status, Output: x.output})
	return clientGone
}

// endAdmit ends the span of an admission. Its words are for clients: the status says enough.
func endAdmit(span trace.Span, err error) { spans.EndAdmit(span, err == nil, statusOfRefusal(err)) }

// statusOfRefusal is the HTTP status of a request that is at fault, 0 for other errors.
func statusOfRefusal(err error) int {
	if err == nil {
		return 0 // before there is memory for what it may be
	}
	var bad *badRequest
	var long *pd.ContextLengthError
	if errors.As(err, &bad) || errors.As(err, &long) {
		return explain(err).text.Status
	}
	return 0
}
