package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/recover"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/bytebudget"
	"github.com/tandem-gateway/tandem/pd/enginehttp/http1"
	"github.com/tandem-gateway/tandem/pools"
)

// Config is the HTTP side's.
type Config struct {
	MaxBody      int           // bytes of a request body
	MaxArriving  int64         // bytes of request bodies that are being read at once, short ones apart
	MaxHeader    int           // bytes of a request's header block
	ReadTimeout  time.Duration // for a whole request to arrive
	ConnIdle     time.Duration // keep-alive connections between requests
	WriteTimeout time.Duration // for one piece of an answer to be taken by the client
	ExposePair   bool          // name to clients the servers that answered
	Aliases      []Alias
	TenantLabels int  // tenants that metrics name; others are one
	SessionHints bool // what clients call a session breaks ties between servers, and predicts lengths of answers
	Timing       bool // tell clients in Server-Timing what their request's time went to
	// UsageExtension adds what the gateway knows of a request to the usage in its answer.
	UsageExtension bool
	SharedKV       bool     // tenants may share KV on APIs whose engines drop the salt
	Origins        []string // whose pages browsers let ask and read answers: https://chat.example.com, or "*"
	// Fleet is the same of gateways that have the same servers, and of no others: what one of them sends another is a
	// loop.
	Fleet string
}

// DefaultConfig leaves room for long prompts and images.
func DefaultConfig() Config {
	return Config{
		MaxBody:      32 << 20,
		MaxArriving:  2 << 30,
		MaxHeader:    16 << 10,
		ReadTimeout:  60 * time.Second,
		ConnIdle:     120 * time.Second,
		WriteTimeout: 30 * time.Second,
		TenantLabels: 100,
		SessionHints: true,
	}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	if c.MaxBody < 1024 || c.MaxHeader < 1024 {
		return errors.New("max-body and max-header must be at least 1024 bytes")
	}
	if c.ReadTimeout <= 0 || c.ConnIdle <= 0 || c.WriteTimeout <= 0 {
		return errors.New("read-timeout, conn-idle and write-timeout must be positive")
	}
	if c.TenantLabels < 0 {
		return errors.New("tenant-labels must not be negative")
	}
	return checkOrigins(c.Origins)
}

// Server answers OpenAI clients.
type Server struct {
	cfg     Config
	pd      *pd.Orchestrator
	fleet   *pools.Fleet
	access  *access.Control
	tenants tenantLabels
	agent   string // its product, before those of gateways that a request has passed
	metrics *Metrics
	tracer  trace.Tracer
	log     *slog.Logger
	app     *fiber.App

	bodies     *bytebudget.Budget // of those that are still arriving
	bodyMemory bodyMemory
	decoding   chan struct{} // of those that decode bodies now
	observe    Observer
	requests   rate          // answered
	errors     rate          // of them, failed by our fault or an engine's
	outages    pd.LogLimiter // of models

	clients  atomic.Pointer[listener]
	rules    atomic.Pointer[Rules] // nil: none
	draining atomic.Bool
	stopped  atomic.Bool     // Shutdown was called
	life     http1.Interrupt // of all exchanges
}

// New returns a server that is not listening yet.
func New(cfg Config, a *access.Control, o *pd.Orchestrator, metrics *Metrics) *Server {
	s := &Server{
		cfg: cfg, pd: o, fleet: o.Fleet, access: a, metrics: metrics, tracer: o.Tracer, log: o.Log, observe: func(Arrival) Observation { return unobserved{} },
		bodies: bytebudget.New(cfg.MaxArriving), decoding: make(chan struct{}, mostDecoders()),
		agent:   AgentOf(cfg.Fleet),
		tenants: tenantLabels{most: cfg.TenantLabels, named: make(map[string]bool)},
	}
	s.life.Begin(context.Background())
	s.app = fiber.New(fiber.Config{
		AppName:               "tandem",
		ServerHeader:          "",
		DisableStartupMessage: true,
		StrictRouting:         true,
		CaseSensitive:         true,
		BodyLimit:             cfg.MaxBody,
		StreamRequestBody:     true, // readBody reads it
		ReduceMemoryUsage:     true, // else a request keeps the beginning of its body until the next one
		// Forms would be read whole before a handler is called.
		DisablePreParseMultipartForm: true,
		ReadBufferSize:               cfg.MaxHeader, // fasthttp has no larger head than its buffer
		WriteBufferSize:              1 << 10,       // for a head; what is larger passes it by
		ReadTimeout:                  cfg.ReadTimeout,
		IdleTimeout:                  cfg.ConnIdle,
		// One write deadline for a whole answer would cut every long stream;
		// deadlines are set anew for each piece instead.
		WriteTimeout: 0,
		ErrorHandler: s.refuse,
	})
	s.app.Server().HeaderReceived = spellExpect
	s.app.Server().ExpectHandler = s.answerExpect
	s.app.Use(recover.New()) // for the small handlers; requests recover by themselves
	s.app.Use(s.closeIfBodyUnread)
	s.app.Use(s.closeIfDraining)
	if len(cfg.Origins) > 0 {
		s.app.Use(crossOrigin(cfg.Origins))
	}
	s.app.Use(s.refuseLoop)
	for _, d := range api.Dialects() {
		serve := s.handle
		if d.Native {
			serve = s.native
		}
		s.app.Post(d.Path, func(c *fiber.Ctx) error { return serve(c, d) })
	}
	s.app.Get("/v1/responses/:id", s.notStored)
	s.app.Delete("/v1/responses/:id", s.notStored)
	s.app.Post("/v1/responses/:id/cancel", s.notStored)
	s.app.Get("/v1/responses/:id/input_items", s.notStored)
	s.app.Get("/v1/models", s.models)
	s.app.Get("/v1/models/+", s.model) // names may have slashes, which not all clients escape
	s.app.Get("/health", s.health)
	return s
}

// Serve answers on the listener until Shutdown, also where that comes first.
func (s *Server) Serve(ln net.Listener) error {
	clients := newListener(ln, s.cfg, s.log)
	s.clients.Store(clients)
	if s.stopped.Load() { // Shutdown may have looked for the listener before it was stored
		return clients.Close()
	}
	if err := s.app.Listener(connections{clients, s.app.Server()}); err != nil {
		return fmt.Errorf("serve clients: %w", err)
	}
	return nil
}

// Drain makes /health say that no more requests should come, and each answer that none should on
// its connection: a balancer of connections sends new ones elsewhere, but leaves those that are open.
func (s *Server) Drain() { s.draining.Store(true) }

// closeIfDraining closes the connections on which requests come while the gateway drains: a client
// that goes on using its own would meet the end of it with a request that it may not send twice.
func (s *Server) closeIfDraining(c *fiber.Ctx) error {
	defer s.closeWhereDraining(c) // drains since the request came
	s.closeWhereDraining(c)       // a stream's head is written before its handler returns
	return c.Next()
}

func (s *Server) closeWhereDraining(c *fiber.Ctx) {
	if s.draining.Load() {
		c.Context().SetConnectionClose()
	}
}

// errStopping ends what has not ended when the gateway must.
var errStopping = errors.New("the gateway is shutting down")

// shutdownNotice is how long before the end of a shutdown clients get an error that it will not
// wait for them.
const shutdownNotice = time.Second

// Shutdown takes no new connection and waits for requests and streams, until the
// context ends. Those that are left shortly before its deadline end with an error. A request
// whose client stops sending it is not waited for.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.stopped.Store(true)
	var lastRead time.Time
	if deadline, limited := ctx.Deadline(); limited {
		left := time.Until(deadline)
		left -= min(shutdownNotice, left/4)
		lastRead = time.Now().Add(left)
		last := time.AfterFunc(left, func() {
			s.log.Warn("the time to drain is over: what is still answered ends with an error")
			s.life.End(errStopping)
		})
		defer last.Stop()
	}
	clients := s.clients.Load()
	if clients != nil {
		clients.closeSilent(lastRead)
		if err := clients.Close(); err != nil { // fasthttp closes only what it serves already
			return fmt.Errorf("close the listener: %w", err)
		}
	}
	err := s.app.ShutdownWithContext(ctx)
	if err == nil && clients != nil {
		err = clients.awaitServed(ctx)
	}
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return nil
}

// health is for load balancers: 200 while a request could be served, or held.
func (s *Server) health(c *fiber.Ctx) error {
	if !s.Ready() {
		c.Status(fiber.StatusServiceUnavailable)
	}
	return nil
}

// refuse answers what no handler saw: malformed HTTP, and paths that do not
// exist. Fiber's own text repeats the request's bytes, keys included.
func (s *Server) refuse(c *fiber.Ctx, err error) error {
	if bad, dialect := refusedMessage(c); bad != nil {
		letPageRead(c, string(c.Context().Conn().(*clientConn).framing.head.origin), s.cfg.Origins)
		s.metrics.requests.WithLabelValues("none", NoModel, "bad_request", overHTTP).Inc()
		nameRequest(c, dialect, requestID(c))
		return explain(bad.request()).send(c, dialect)
	}
	if conn, ok := c.Context().Conn().(*clientConn); ok {
		if d, left := conn.leftAmid(); left {
			return s.refuseLeft(c, s.unlessClosed(d))
		}
	}
	status := fiber.StatusInternalServerError
	var known *fiber.Error
	if errors.As(err, &known) {
		status = known.Code
	}
	closed := c.Path() == api.Generate.Path && s.nativeIsClosed() // whatever the method
	// OpenAI's /v1/responses/input_tokens and /compact are not here, and are no responses.
	closed = closed || c.Method() == fiber.MethodPost && strings.HasPrefix(c.Path(), api.Responses.Path+"/")
	if status == fiber.StatusMethodNotAllowed && closed {
		status = fiber.StatusNotFound
		c.Response().Header.Del(fiber.HeaderAllow)
	}
	text := api.ErrorText{Status: status, Type: "invalid_request_error"}
	switch status {
	case fiber.StatusNotFound:
		missing := notFound(c.Path())
		text.Code, text.Message = missing.code, missing.message
	case fiber.StatusMethodNotAllowed: // Fiber has set Allow
		text.Code, text.Message = "method_not_allowed", "This path is not for this method."
	case fiber.StatusRequestHeaderFieldsTooLarge:
		text.Message = "The request headers are too large."
	case fiber.StatusRequestTimeout:
		text.Message = "The request did not arrive in time."
	case fiber.StatusInternalServerError:
		text.Type, text.Message = "api_error", "The gateway failed to handle the request."
	default:
		text.Message = "The HTTP request is malformed."
	}
	s.metrics.requests.WithLabelValues("none", NoModel, "bad_request", overHTTP).Inc()
	dialect := shapeOf(c)
	nameRequest(c, dialect, requestID(c))
	return failure{text: text}.send(c, dialect)
}

// refuseLeft ends a request whose client left before all of it was read, of an API or of none.
func (s *Server) refuseLeft(c *fiber.Ctx, d *api.Dialect) error {
	name, model := "none", NoModel
	if d != nil {
		name, model = d.Name, UnknownModel
	}
	f := explain(context.Canceled)
	s.metrics.requests.WithLabelValues(name, model, f.outcome, overHTTP).Inc()
	dialect := shapeOf(c)
	nameRequest(c, dialect, requestID(c))
	return f.send(c, dialect)
}

// shapeOf is the API in whose shape errors go out where the path has none of its own:
// Anthropic's below its path, and for its clients, which name its version (anthropic 2.12
// _client.py), wherever else they ask. Of a request that stopped coming fasthttp knows no path.
func shapeOf(c *fiber.Ctx) *api.Dialect {
	below := strings.HasPrefix(c.Path(), api.Messages.Path+"/") || c.Path() == api.Messages.Path
	if conn, ok := c.Context().Conn().(*clientConn); ok && c.Path() == "/" {
		below = conn.framing.head.messages
	}
	if below || c.Get("Anthropic-Version") != "" {
		return api.Messages
	}
	return api.Chat
}

// errNotStored answers what asks for a response of before.
var errNotStored = &badRequest{status: fiber.StatusNotFound, code: "response_not_found",
	message: "Responses are not kept here, whatever their store said: each is gone when it has been answered."}

// notStored answers requests for what the Responses API keeps elsewhere.
func (s *Server) notStored(c *fiber.Ctx) error {
	if _, err := s.authenticate(c); err != nil {
		return s.replyError(c, api.Responses.Name, err)
	}
	return s.replyError(c, api.Responses.Name, errNotStored)
}

// refusedMessage is what is wrong with the message that the connection's parser got last,
// nil if nothing, and the API that it was for as far as that is known.
func refusedMessage(c *fiber.Ctx) (*badMessage, *api.Dialect) {
	conn, ok := c.Context().Conn().(*clientConn)
	if !ok || conn.refused == nil {
		return nil, nil
	}
	if conn.framing.head.messages {
		return conn.refused, api.Messages
	}
	return conn.refused, api.Chat
}
