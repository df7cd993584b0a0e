package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

// roundTripper is an engine's side that a test invents.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// healthy is the address of a server that answers probes.
func healthy(t testing.TB) string {
	return listing(t, `{"data":[{"id":"m"}]}`)
}

// listing is the address of a server that answers probes, with this list of models.
func listing(t testing.TB, models string) string {
	probes := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = fmt.Fprint(w, models)
		}
	}))
	t.Cleanup(probes.Close)
	return probes.URL
}

// serveWith runs a gateway whose engine legs go to the round tripper, in front of these
// servers, of which it returns the first.
func serveWith(t *testing.T, legs roundTripper, specs ...pools.Spec) (base string, queue *queue.Queue, server *pools.Server) {
	t.Helper()
	return serveBehind(t, access.New(access.DefaultConfig(), nil), legs, specs...)
}

// serveBehind is serveWith behind an access control.
func serveBehind(t *testing.T, a *access.Control, legs roundTripper, specs ...pools.Spec) (base string, queue *queue.Queue, server *pools.Server) {
	t.Helper()
	return serveAs(t, shape{access: a, pools: pools.Default(), cost: cost.Default()}, legs, specs...)
}

// serveAs is serveWith by a gateway of a shape.
func serveAs(t *testing.T, of shape, legs roundTripper, specs ...pools.Spec) (base string, queue *queue.Queue, server *pools.Server) {
	t.Helper()
	g := run(t, of, legs, specs...)
	return g.base, g.queue, g.fleet.Servers()[0]
}

// shape is what tests change of a gateway.
type shape struct {
	access *access.Control
	pools  pools.Config
	cost   cost.Model
	config func(*Config)
	queue  func(*queue.Config)
	from0  *scalefromzero.Activator
	tracer trace.Tracer
	log    slog.Handler
	before func(*Server) // it serves
}

// usual is the shape of a gateway with these keys, open without any. Each is what the file of
// keys has after its hash and its tenant, which is named like the key.
func usual(t testing.TB, keys ...string) shape {
	t.Helper()
	of := shape{access: access.New(access.DefaultConfig(), nil), pools: pools.Default(), cost: cost.Default()}
	of.pools.ProbeInterval = time.Hour // once they are up they are up
	if len(keys) == 0 {
		return of
	}
	file := "secret: 0123456789abcdef0123456789abcdef\nkeys:\n"
	for _, key := range keys {
		name, fields, _ := strings.Cut(key, " ")
		file += "  - sha256: " + access.Hash("sk-"+name) + "\n    tenant: " + name + "\n"
		for field := range strings.FieldsSeq(fields) {
			name, value, _ := strings.Cut(field, "=")
			file += "    " + name + ": " + value + "\n"
		}
	}
	read, err := access.ReadKeys([]byte(file), access.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	of.access.Apply(read)
	return of
}

// running is a gateway that serves.
type running struct {
	t        testing.TB
	base     string
	server   *Server
	pd       *pd.Orchestrator
	fleet    *pools.Fleet
	queue    *queue.Queue
	registry *prometheus.Registry
	stop     func(context.Context) error // shuts it down; the first call counts
}

// run runs a gateway of a shape.
func run(t testing.TB, of shape, legs roundTripper, specs ...pools.Spec) *running {
	t.Helper()
	var log *slog.Logger
	if of.log == nil {
		of.log = slog.DiscardHandler
	}
	log = slog.New(of.log)
	if of.tracer == nil {
		of.tracer = noop.NewTracerProvider().Tracer("")
	}
	transport := &http.Transport{}
	fleet := pools.NewFleet(of.pools, log)
	health.Watch(fleet, transport, log)
	t.Cleanup(transport.CloseIdleConnections)
	t.Cleanup(fleet.Close)
	if err := fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	down := func(s *pools.Server) bool { return !s.Health().Up }
	for deadline := time.Now().Add(30 * time.Second); slices.ContainsFunc(fleet.Servers(), down); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not all servers are up")
		}
	}
	bounds := queue.Default()
	if of.queue != nil {
		of.queue(&bounds)
	}
	queue := queue.New(bounds)
	reg, suspects := prometheus.NewRegistry(), retry.NewQuarantine()
	metrics := pd.NewMetrics(reg, histogram.Config{}, queue, suspects)
	binder := &pd.Binder{Queue: queue, Tracer: of.tracer, Chooser: &pd.Chooser{
		Snapshotter: pd.Snapshotter{Config: pd.DefaultConfig().BindConfig, Links: cost.NewLinks(cost.DefaultLinks()), Fleet: fleet, Cost: of.cost},
		Metrics:     metrics,
	}}
	o := &pd.Orchestrator{
		Config: pd.DefaultConfig().LegConfig, Binder: binder, Fleet: fleet, Transport: legs, Queue: queue, ScaleFromZero: of.from0, Budget: retry.NewBudget(0.2, 10),
		Decisions: decision.NewRecords(time.Hour, 1<<20), History: history.New(), Suspects: suspects, Metrics: metrics, Tracer: of.tracer, Log: log,
	}
	cfg := DefaultConfig()
	if of.config != nil {
		of.config(&cfg)
	}
	s := New(cfg, of.access, o, NewMetrics(reg, histogram.Config{}))
	if of.before != nil {
		of.before(s)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	var once sync.Once
	g := &running{t: t, base: "http://" + ln.Addr().String(), server: s, pd: o, fleet: fleet, queue: queue, registry: reg}
	g.stop = func(ctx context.Context) (err error) {
		once.Do(func() { err = errors.Join(s.Shutdown(ctx), <-served) })
		return err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := g.stop(ctx); err != nil {
			t.Error(err)
		}
	})
	g.ask(http.MethodGet, "/health", "") // it serves: a shutdown before would find nothing to stop
	return g
}

// alone is a server of both roles that answers probes.
func alone(t *testing.T) pools.Spec {
	return pools.Spec{URL: healthy(t), Role: pools.Both, Connector: "nixl"}
}

// reply is an answer as its client got it.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// client is the tests' HTTP client: no connection outlives a test, and no test waits for ever.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Minute}

// ask sends a request with these headers, name and value in turn, on a connection of its own.
func (g *running) ask(method, path, body string, headers ...string) reply {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), method, g.base+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(text), err}
}

// post asks for a completion.
func (g *running) post(body string, headers ...string) reply {
	g.t.Helper()
	return g.ask(http.MethodPost, "/v1/completions", body, headers...)
}

// as are the headers of a request with the key of a name.
func as(name string) []string { return []string{"Authorization", "Bearer sk-" + name} }

// dial opens a connection on which a test says what it likes.
func (g *running) dial() net.Conn {
	g.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.base, "http://"))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

// say writes bytes on a connection of their own and returns all that comes back until the
// gateway closes it.
func (g *running) say(text string) string {
	g.t.Helper()
	conn := g.dial()
	if _, err := io.WriteString(conn, text); err != nil {
		g.t.Fatal(err)
	}
	back, err := io.ReadAll(conn)
	if err != nil {
		g.t.Errorf("%.60q: %v after %q", text, err, back)
	}
	return string(back)
}

// leg is what an engine got.
type leg struct {
	host, path, body string
	header           http.Header
}

// engines answer all legs alike and keep what they got.
type engines struct {
	mu     sync.Mutex // guards legs
	legs   []leg
	answer func() *http.Response
}

func (e *engines) roundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	_ = r.Body.Close()
	e.mu.Lock()
	e.legs = append(e.legs, leg{r.URL.Host, r.URL.Path, string(body), r.Header.Clone()})
	e.mu.Unlock()
	return e.answer(), nil
}

// take returns what they got since the last call.
func (e *engines) take() []leg {
	e.mu.Lock()
	defer e.mu.Unlock()
	legs := e.legs
	e.legs = nil
	return legs
}

// body is that of the one leg since the last call.
func (e *engines) body(t *testing.T) string {
	t.Helper()
	legs := e.take()
	if len(legs) != 1 {
		t.Fatalf("%d legs, want one: %+v", len(legs), legs)
	}
	return legs[0].body
}

// response is an engine's answer.
func response(status int, kind, body string) func() *http.Response {
	return func() *http.Response {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body))}
	}
}

const (
	completion = `{"choices":[{"index":0,"text":"Hello","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`
	chat       = `{"choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`
	streamed   = `data: {"choices":[{"index":0,"text":"Hel","finish_reason":null}]}` + "\n\n" + `data: {"choices":[{"index":0,"text":"lo","finish_reason":"stop"}]}` + "\n\n" +
		`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}` + "\n\ndata: [DONE]\n\n"
)

// complete answers with a completion, whole or streamed.
func complete() *engines { return &engines{answer: response(200, "application/json", completion)} }

func stream() *engines { return &engines{answer: response(200, "text/event-stream", streamed)} }

// eventually waits for what becomes true behind an answer's last byte.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
