package picker

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/enginetest"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

func TestMain(m *testing.M) {
	if target := os.Getenv(benchProxyOf); target != "" {
		if err := runBenchProxy(target); err != nil {
			log.Fatal(err)
		}
		return
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

const testModel = "m"

// setup is what a test wants of a picker and of what it picks from.
type setup struct {
	prefill, decode int // engines; of decode each has llm-d's sidecar where there is prefill
	engine          func(*engine.Config)
	specs           []pools.Spec // in place of engines
	config          Config
	gateway         func(*gateway.Config)
	access          *access.Control
	queue           queue.Config
	pools           func(*pools.Config)
	pd              func(*pd.Orchestrator)
	before          func(*gateway.Server)
	encrypted       bool
}

// pickerFixture is a picker behind a real port, with its gateway, before simulated engines.
type pickerFixture struct {
	t        testing.TB
	gateway  *gateway.Server
	pd       *pd.Orchestrator
	fleet    *pools.Fleet
	queue    *queue.Queue
	registry *prometheus.Registry
	picker   *Server
	prefill  []*engine.Engine
	decode   []*engine.Engine
	client   extproc.ExternalProcessorClient
	conn     *grpc.ClientConn
	http     *http.Client

	encrypted bool // only a proxy of a process of its own can connect
}

func newPicker(t testing.TB, of setup) *pickerFixture {
	t.Helper()
	f := &pickerFixture{t: t, registry: prometheus.NewRegistry(), encrypted: of.encrypted}
	log := slog.New(slog.DiscardHandler)
	specs := of.specs
	start := func(role string, pool pools.Role) *engine.Engine {
		e := enginetest.Start(t, role, testModel, func(c *engine.Config) {
			if of.prefill > 0 {
				c.Connector = engine.ConnectorSidecar
			}
			if of.engine != nil {
				of.engine(c)
			}
		})
		connector := "aggregated"
		if of.prefill > 0 {
			connector = engine.ConnectorSidecar
		}
		specs = append(specs, pools.Spec{URL: e.URL(), Role: pool, Connector: connector})
		return e
	}
	for range of.prefill {
		f.prefill = append(f.prefill, start(engine.RolePrefill, pools.Prefill))
	}
	for range of.decode {
		f.decode = append(f.decode, start(engine.RoleDecode, pools.Decode))
	}
	transport := enginehttp.NewTransport(5 * time.Second)
	t.Cleanup(transport.CloseIdleConnections)
	f.http = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}, Timeout: 2 * time.Minute}
	cfg := pools.Default()
	cfg.ProbeInterval = time.Hour // once they are up they are up
	if of.pools != nil {
		of.pools(&cfg)
	}
	f.fleet = pools.NewFleet(cfg, log)
	health.Watch(f.fleet, transport, log)
	t.Cleanup(f.fleet.Close)
	if err := f.fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	if len(f.decode) > 0 {
		f.eventually("all servers are up", func() bool {
			return !slices.ContainsFunc(f.fleet.Servers(), func(s *pools.Server) bool { return !s.Health().Up })
		})
	}
	if of.queue == (queue.Config{}) {
		of.queue = queue.Default()
	}
	f.queue = queue.New(of.queue)
	suspects, tracer := retry.NewQuarantine(), noop.NewTracerProvider().Tracer("")
	metrics := pd.NewMetrics(f.registry, histogram.Config{}, f.queue, suspects)
	model := cost.Default()
	model.PairsFirst = true // engines without delay compute a prompt sooner than they fetch it
	f.pd = &pd.Orchestrator{
		Config: pd.DefaultConfig().LegConfig, Fleet: f.fleet, Transport: transport, Queue: f.queue, Budget: retry.NewBudget(0.2, 10),
		Decisions: decision.NewRecords(time.Hour, 1<<20), Suspects: suspects, Metrics: metrics, Tracer: tracer, Log: log,
		Binder: &pd.Binder{Queue: f.queue, Tracer: tracer, Chooser: &pd.Chooser{
			Snapshotter: pd.Snapshotter{Config: pd.DefaultConfig().BindConfig, Links: cost.NewLinks(cost.DefaultLinks()), Fleet: f.fleet, Cost: model},
			Outputs:     predict.NewOutputs(), Prompts: predict.NewPrompts(), Metrics: metrics,
		}},
	}
	if of.pd != nil {
		of.pd(f.pd)
	}
	t.Cleanup(f.pd.Wait)
	control := of.access
	if control == nil {
		control = access.New(access.DefaultConfig(), nil)
	}
	clients := gateway.DefaultConfig()
	if of.gateway != nil {
		of.gateway(&clients)
	}
	f.gateway = gateway.New(clients, control, f.pd, gateway.NewMetrics(f.registry, histogram.Config{}))
	if of.before != nil {
		of.before(f.gateway)
	}
	f.serve(of.config, log)
	return f
}

// serve opens the picker's port, and connects to it.
func (f *pickerFixture) serve(cfg Config, log *slog.Logger) {
	f.t.Helper()
	f.picker = New(cfg, f.gateway, f.gateway.Ready, f.certificate(), log)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.picker.Serve(ln) }()
	if f.conn, err = grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		f.t.Fatal(err)
	}
	f.client = extproc.NewExternalProcessorClient(f.conn)
	f.t.Cleanup(func() {
		_ = f.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		f.picker.Shutdown(ctx)
		if err := <-served; err != nil {
			f.t.Error(err)
		}
	})
}

// certificate is nil for plain text.
func (f *pickerFixture) certificate() *tls.Config {
	if !f.encrypted {
		return nil
	}
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return &tls.Config{Certificates: server.TLS.Certificates}
}

// eventually waits until something has come true.
func (f *pickerFixture) eventually(what string, is func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("it never came true: %s", what)
		}
	}
}

// nothingHeld waits until no request holds anything.
func (f *pickerFixture) nothingHeld() {
	f.t.Helper()
	f.eventually("nothing is held", func() bool {
		waiting, inFlight := f.queue.Len()
		now := time.Now()
		return waiting == 0 && inFlight == 0 && !slices.ContainsFunc(f.fleet.Servers(), func(s *pools.Server) bool {
			return s.InFlight(pools.Decode, now) != (pools.InFlight{}) || s.InFlight(pools.Prefill, now) != (pools.InFlight{})
		})
	})
}

// proxied is one request as Envoy's ext_proc filter carries it, both bodies in full duplex.
type proxied struct {
	f        *pickerFixture
	stream   extproc.ExternalProcessor_ProcessClient
	cancel   context.CancelFunc
	messages []*extproc.ProcessingResponse // all that came, in order
}

// open begins a request's stream.
func (f *pickerFixture) open() *proxied {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := f.client.Process(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(cancel)
	return &proxied{f: f, stream: stream, cancel: cancel}
}

// headerList are header values as Envoy sends them: name and value in turn.
func headerList(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: strings.ToLower(pairs[i]), RawValue: []byte(pairs[i+1])})
	}
	return m
}

func (p *proxied) send(message *extproc.ProcessingRequest) {
	p.f.t.Helper()
	if err := p.stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
		p.f.t.Fatal(err)
	}
}

// headerOption is a header that is set.
type headerOption = corev3.HeaderValueOption

const (
	fullDuplex = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	buffered   = filterv3.ProcessingMode_BUFFERED
)

// requests is how many requests ended so.
func (f *pickerFixture) requests(outcome string) float64 {
	return f.metric("tandem_requests_total", "outcome", outcome, "path", "picker")
}

// metric sums the counters of a name that have some labels, each followed by its value.
func (f *pickerFixture) metric(name string, labels ...string) (n float64) {
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			has := make(map[string]string)
			for _, l := range m.GetLabel() {
				has[l.GetName()] = l.GetValue()
			}
			matches := true
			for i := 0; i < len(labels); i += 2 {
				matches = matches && has[labels[i]] == labels[i+1]
			}
			if matches {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// request sends the head and the body of a POST; Envoy cuts bodies into pieces.
func (p *proxied) request(path string, body []byte, more ...string) {
	p.f.t.Helper()
	p.begin(path, append(slices.Clone(more), "content-length", strconv.Itoa(len(body)))...)
	p.body(body)
}

// begin sends the head of a POST.
func (p *proxied) begin(path string, more ...string) {
	p.f.t.Helper()
	pairs := append([]string{":method", "POST", ":path", path, ":authority", "gateway", "content-type", "application/json"}, more...)
	p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extproc.HttpHeaders{Headers: headerList(pairs...)},
	}})
}

// bodyPiece sends a piece of the request's body.
func (p *proxied) bodyPiece(piece []byte, end bool) {
	p.f.t.Helper()
	p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: piece, EndOfStream: end}}})
}

// body sends the request's body.
func (p *proxied) body(body []byte) {
	p.f.t.Helper()
	for {
		piece := body[:min(len(body), 16<<10)]
		body = body[len(piece):]
		p.bodyPiece(piece, len(body) == 0)
		if len(body) == 0 {
			return
		}
	}
}

// receive returns the next message.
func (p *proxied) receive() *extproc.ProcessingResponse {
	p.f.t.Helper()
	m, err := p.stream.Recv()
	if err != nil {
		p.f.t.Fatalf("after %d messages: %v", len(p.messages), err)
	}
	p.messages = append(p.messages, m)
	return m
}

// routed is where a request goes, and as what.
type routed struct {
	addresses []string
	header    http.Header // that is set
	removed   []string
	body      []byte
	refused   *extproc.ImmediateResponse // nil where it has a server
}

// routing receives the answer to a request: its server and its body, or a refusal.
func (p *proxied) routing() routed {
	p.f.t.Helper()
	m := p.receive()
	if refused := m.GetImmediateResponse(); refused != nil {
		return routed{refused: refused}
	}
	mutation := m.GetRequestHeaders().GetResponse().GetHeaderMutation()
	r := routed{header: make(http.Header), removed: mutation.GetRemoveHeaders()}
	for _, h := range mutation.GetSetHeaders() {
		r.header.Set(h.GetHeader().GetKey(), string(h.GetHeader().GetRawValue()))
	}
	r.addresses = strings.Split(r.header.Get(destination), ",")
	if named := m.GetDynamicMetadata().GetFields()[destinationSpace].GetStructValue().GetFields()[destination].GetStringValue(); named != r.header.Get(destination) {
		p.f.t.Errorf("the header names %q, metadata %q", r.header.Get(destination), named)
	}
	for {
		piece := p.receive().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if len(piece.GetBody()) > longestPiece {
			p.f.t.Errorf("a piece has %d bytes", len(piece.GetBody()))
		}
		r.body = append(r.body, piece.GetBody()...)
		if piece.GetEndOfStream() {
			return r
		}
	}
}

// forward sends the request to its server, as Envoy would, with the client's headers.
func (p *proxied) forward(r routed, path string, client ...string) *http.Response {
	p.f.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+r.addresses[0]+path, bytes.NewReader(r.body))
	if err != nil {
		p.f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(client); i += 2 {
		req.Header.Set(client[i], client[i+1])
	}
	for _, name := range r.removed {
		req.Header.Del(name)
	}
	for name := range r.header {
		req.Header.Set(name, r.header.Get(name))
	}
	resp, err := p.f.http.Do(req)
	if err != nil {
		p.f.t.Fatal(err)
	}
	return resp
}

// head shows the picker the head of an answer.
func (p *proxied) head(status, contentType string) {
	p.f.t.Helper()
	p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extproc.HttpHeaders{Headers: headerList(":status", status, "content-type", contentType)},
	}})
	if p.receive().GetResponseHeaders() == nil {
		p.f.t.Error("the answer's head was not answered")
	}
}

// piece shows the picker a piece of an answer.
func (p *proxied) piece(piece []byte, end bool) {
	p.f.t.Helper()
	p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{
		ResponseBody: &extproc.HttpBody{Body: piece, EndOfStream: end},
	}})
}

// answer shows the picker an answer in pieces of at most so many bytes, and returns what the client
// gets of it.
func (p *proxied) answer(resp *http.Response, size int) []byte {
	p.f.t.Helper()
	defer func() { _ = resp.Body.Close() }()
	p.head(strconv.Itoa(resp.StatusCode), resp.Header.Get("Content-Type"))
	for piece := make([]byte, size); ; {
		n, err := resp.Body.Read(piece)
		if n > 0 {
			p.piece(piece[:n], false)
		}
		if err != nil {
			p.piece(nil, true)
			return p.rest()
		}
	}
}

// rest receives the rest of the answer's body.
func (p *proxied) rest() (body []byte) {
	p.f.t.Helper()
	for {
		piece := p.receive().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		body = append(body, piece.GetBody()...)
		if piece.GetEndOfStream() {
			return body
		}
	}
}
