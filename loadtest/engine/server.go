package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// maxBody is the largest request body, in bytes.
const maxBody = 64 << 20

// exchange is one request to the API: its body already read, its faults decided.
type exchange struct {
	w       http.ResponseWriter
	r       *http.Request
	body    []byte
	rank    int    // that the address is of; -1: of all
	id      string // X-Request-Id, or a fresh one
	effects effects
}

// pathKind says what a path is for, which is what faults go by.
type pathKind int

const (
	pathOther  pathKind = iota
	pathModel           // does a model's work
	pathHealth          // health checks
)

// route is what serves a method and path.
type route struct {
	kind  pathKind
	serve func(*Engine, *exchange) error
}

// routes of the API by "METHOD path".
func (e *Engine) routes() map[string]route {
	routes := map[string]route{
		"POST /v1/chat/completions":        {pathModel, (*Engine).chat},
		"POST /v1/completions":             {pathModel, (*Engine).completions},
		"POST /v1/responses":               {pathModel, (*Engine).responses},
		"POST /v1/messages":                {pathModel, (*Engine).messages},
		"POST /v1/messages/count_tokens":   {pathModel, (*Engine).countTokens},
		"POST /tokenize":                   {pathModel, (*Engine).tokenize},
		"POST /detokenize":                 {pathModel, (*Engine).detokenize},
		"POST /v1/chat/completions/render": {pathModel, (*Engine).renderChat},
		"POST /v1/completions/render":      {pathModel, (*Engine).renderCompletions},
		"POST /v1/messages/render":         {pathModel, (*Engine).renderMessages},
		"POST /v1/responses/render":        {pathModel, (*Engine).renderResponses},
		"GET /v1/models":                   {pathOther, (*Engine).models},
		"GET /health":                      {pathHealth, (*Engine).health},
		"GET /ping":                        {pathHealth, (*Engine).health},
		"POST /ping":                       {pathHealth, (*Engine).health},
		"GET /version":                     {pathOther, (*Engine).version},
		"GET /load":                        {pathOther, (*Engine).serverLoad},
		"GET /server_info":                 {pathOther, (*Engine).serverInfo},
		"GET /kv_event_sources":            {pathOther, (*Engine).kvEventSources},
		"POST /v1/load_lora_adapter":       {pathOther, (*Engine).loadAdapter},
		"POST /v1/unload_lora_adapter":     {pathOther, (*Engine).unloadAdapter},
		"POST /reset_prefix_cache":         {pathOther, (*Engine).resetPrefixCache},
		"POST /sleep":                      {pathOther, (*Engine).sleepNow},
		"POST /wake_up":                    {pathOther, (*Engine).wakeUp},
		"POST /collective_rpc":             {pathOther, (*Engine).collectiveRPC},
		"GET /is_sleeping":                 {pathOther, (*Engine).isSleeping},
	}
	switch e.cfg.exposition() {
	case ExpositionTRTLLM:
		routes["GET /prometheus/metrics"] = route{pathOther, (*Engine).metrics}
	case ExpositionSGLang:
		routes["GET /v1/loads"] = route{pathOther, (*Engine).loads}
		fallthrough
	default:
		routes["GET /metrics"] = route{pathOther, (*Engine).metrics}
	}
	if e.cfg.Connector == ConnectorSGLang {
		delete(routes, "GET /version")
		routes["GET /health_generate"] = route{pathModel, (*Engine).healthGenerate}
		routes["GET /health"] = route{pathHealth, (*Engine).healthGenerate}
		if !e.cfg.NoReady {
			routes["GET /ready"] = route{pathHealth, (*Engine).ready}
		}
		routes["POST /generate"] = route{pathModel, (*Engine).generate}
	}
	if e.cfg.Embeddings {
		maps.Copy(routes, poolingRoutes())
	}
	if e.cfg.TransformersServe {
		return transformersRoutes(routes)
	}
	return routes
}

// apiHandler serves the API and, on the same address, /sim/: of one rank, or of all
// with -1.
func (e *Engine) apiHandler(rank int) http.Handler {
	routes, control := e.routes(), e.controlHandler()
	paths := map[string]bool{}
	for pattern := range routes {
		_, path, _ := strings.Cut(pattern, " ")
		paths[path] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/sim/") {
			control.ServeHTTP(w, r)
			return
		}
		route, known := routes[r.Method+" "+r.URL.Path]
		if !known {
			err := errNoRoute
			if paths[r.URL.Path] {
				err = errNoMethod
			}
			route.serve = func(*Engine, *exchange) error { return err }
		}
		if e.cfg.APIKey != "" && strings.HasPrefix(r.URL.Path, "/v1") && r.Header.Get("Authorization") != "Bearer "+e.cfg.APIKey {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		e.serve(w, r, rank, route)
	})
}

// routeError is answered in FastAPI's shape, {"detail": ...}, not OpenAI's.
type routeError struct {
	status int
	detail string
}

func (e *routeError) Error() string { return e.detail }

var (
	errNoRoute  = &routeError{http.StatusNotFound, "Not Found"}
	errNoMethod = &routeError{http.StatusMethodNotAllowed, "Method Not Allowed"}
)

// serve reads and records a request, lets faults happen to it, and answers it.
func (e *Engine) serve(w http.ResponseWriter, r *http.Request, rank int, route route) {
	e.recorder.count(r.URL.Path)
	x := &exchange{w: w, r: r, rank: rank, id: r.Header.Get("X-Request-Id")}
	if x.id == "" {
		x.id = newID("")
	}
	var err error
	if x.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		writeError(w, r.URL.Path, badRequest("", "Request body could not be read: %v", err))
		return
	}
	if r.Method == http.MethodPost {
		e.recorder.record(r, x.body)
	}
	if e.cfg.TransformersServe {
		if err := x.asTransformers(); err != nil {
			x.answerError(err)
			return
		}
	}
	shape := e.shapeOf(x)
	x.effects = e.faults.hit(r.URL.Path, route.kind, shape)
	if route.kind == pathModel {
		e.load.Add(1)
		defer e.load.Add(-1)
	}
	if e.listeners[max(rank, 0)].suspended() {
		x.effects.reset = true // its connection outlived the closing of the listener
	}
	if e.applyFaults(x, shape.stream) {
		return
	}
	if done, err := e.besideSidecar(x); done || err != nil {
		x.answerError(err)
		return
	}
	x.answerError(route.serve(e, x))
}

// answerError answers with the error of a request that has none yet; nil means that
// it has.
func (x *exchange) answerError(err error) {
	var noRoute *routeError
	var known *apiError
	switch {
	case err == nil || errors.Is(err, errClientGone):
		return
	case errors.As(err, &noRoute):
		writeJSON(x.w, noRoute.status, map[string]string{"detail": noRoute.detail})
		return
	case !errors.As(err, &known):
		slog.Error("request failed", "path", x.r.URL.Path, "request_id", x.id, "error", err)
	}
	writeError(x.w, x.r.URL.Path, err)
}

// shape is what faults and the prefill rule need to know of a request.
type shape struct {
	stream, prefillLeg bool
	rank               int // that it names, or its address; -1: none
}

// shapeOf reads it; of a body that is no JSON it knows little.
func (e *Engine) shapeOf(x *exchange) shape {
	rank := x.rank
	if named, err := strconv.Atoi(x.r.Header.Get("X-Data-Parallel-Rank")); err == nil {
		rank = named
	}
	var fields struct {
		Rank   *int `json:"routed_dp_rank"`
		Stream bool `json:"stream"`
		Params struct {
			DoRemoteDecode bool `json:"do_remote_decode"`
		} `json:"kv_transfer_params"`
	}
	byRole := e.cfg.Connector != ConnectorNIXL && e.cfg.Role == RolePrefill
	if json.Unmarshal(x.body, &fields) != nil {
		return shape{prefillLeg: byRole, rank: rank}
	}
	if fields.Rank != nil {
		rank = *fields.Rank
	}
	prefillLeg := fields.Params.DoRemoteDecode
	if e.cfg.Connector != ConnectorNIXL { // whose engines can be both at once
		prefillLeg = byRole
	}
	return shape{stream: fields.Stream, prefillLeg: prefillLeg, rank: rank}
}

// applyFaults applies the faults that leave nothing of an answer; true if one did.
func (e *Engine) applyFaults(x *exchange, stream bool) bool {
	fx := x.effects
	switch {
	case fx.reset:
		resetConnection(x.w)
	case fx.hangBefore:
		e.hang(x.r.Context())
		panic(http.ErrAbortHandler)
	case fx.status != 0 || fx.unhealthy:
		status := fx.status
		if fx.unhealthy {
			status = http.StatusServiceUnavailable
		}
		writeError(x.w, x.r.URL.Path, &apiError{status, strings.ReplaceAll(http.StatusText(status), " ", "") + "Error", http.StatusText(status), ""})
	case fx.hangAfter:
		x.answerHeaders(stream)
		e.hang(x.r.Context())
		panic(http.ErrAbortHandler)
	case fx.empty:
		x.answerHeaders(stream)
		if stream {
			fmt.Fprint(x.w, "data: [DONE]\n\n")
		}
	case fx.garbage:
		x.answerHeaders(stream)
		fmt.Fprint(x.w, "data: {\"choices\":[{\"delta\":{\"content\":\"\x00\xff\n\n<html>502</html>\n\ndata: ]}\n\nevent\n\n")
	default:
		return false
	}
	return true
}

// hang waits until the client has gone or the engine closes.
func (e *Engine) hang(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-e.life.Done():
	}
}

// resetConnection closes the connection with a TCP reset, without an answer.
func resetConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // closes it less rudely
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // on failure it closes less rudely
	}
	_ = conn.Close()
}

// answerHeaders sends 200 and the headers of a stream or of JSON at once.
func (x *exchange) answerHeaders(stream bool) {
	kind := "application/json"
	if stream {
		kind = "text/event-stream; charset=utf-8"
	}
	x.w.Header().Set("Content-Type", kind)
	x.w.WriteHeader(http.StatusOK)
	x.flush()
}

// flush sends what was written. A broken connection shows up as the end of the
// request's context, so its error is not looked at.
func (x *exchange) flush() { _ = http.NewResponseController(x.w).Flush() }

// decode reads the body as JSON into fields, or says in vLLM's words why not.
func (x *exchange) decode(fields any) error {
	if kind := x.r.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/json") {
		return badRequest("", "Unsupported Media Type: Only 'application/json' is allowed")
	}
	err := json.Unmarshal(x.body, fields)
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrongType):
		return badRequest(wrongType.Field, "Validation error: field '%s' cannot be a %s", wrongType.Field, wrongType.Value)
	}
	var known *apiError
	if errors.As(err, &known) {
		return known
	}
	return badRequest("", "JSON decode error: %v", err)
}
