package serving

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/goleak"

	"github.com/tandem-gateway/tandem/cmd/internal/program"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/enginetest"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "tandem" { // a process that a test started, see tandemBinary
		program.Main(program.New("tandem", "", Command()))
		return
	}
	flag.Parse()
	// Tests wait more than they compute: for timeouts, probes, a Redis that fails over.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("8") // it is a number
	}
	goleak.VerifyTestMain(m, sleepers...)
}

// fasthttp keeps two kinds of sleepers that end late or never, go-redis one that sees within a
// second that its pool is closed.
var sleepers = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
	// toxiproxy may leave the pipe of a connection that it cut.
	goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
	goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
	goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).write"),
}

const testModel = "test-model"

// testTimeout bounds what a client waits for an answer, and a test for its gateway's end: where
// there is none, the test fails, and those after it still run.
const testTimeout = 2 * time.Minute

// cluster is a gateway as serve runs it, in front of simulated engines, over
// real sockets.
type cluster struct {
	t       *testing.T
	node    *Node
	prefill []*engine.Engine
	decode  []*engine.Engine
	client  *http.Client
	base    string
	admin   string
	cfg     config       // where a test needs it again
	stop    func() error // drains the gateway; the test's end does it otherwise
}

// shape is what a test wants of its cluster.
type shape struct {
	prefill, decode int
	both            int // servers that do both
	engine          func(*engine.Config)
	config          func(*config)
	log             io.Writer
}

func newCluster(t *testing.T, s shape) *cluster {
	t.Helper()
	c := &cluster{t: t, client: newTestClient(t)}
	cfg := testConfig()
	lists := map[string]*serverList{engine.RolePrefill: &cfg.servers[0], engine.RoleDecode: &cfg.servers[1], engine.RoleBoth: &cfg.servers[2]}
	start := func(role string) *engine.Engine {
		e := startTestEngine(t, role, s.engine)
		list := lists[role]
		state := e.State()
		// Whether it pushes is for the engine to say.
		entry := serverEntry{URL: state.URL, Connector: strings.TrimSuffix(state.Connector, "-push"), KVAddress: state.KVAddress}
		if entry.Connector == "nixl" {
			entry.KVAddress = "" // it is in the hand-off
		}
		list.add(entry)
		return e
	}
	for range s.prefill {
		c.prefill = append(c.prefill, start(engine.RolePrefill))
	}
	for range s.decode {
		c.decode = append(c.decode, start(engine.RoleDecode))
	}
	for range s.both {
		start(engine.RoleBoth)
	}
	if s.config != nil {
		s.config(&cfg)
	}
	c.run(cfg, s.log)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := c.node.AwaitServers(ctx, s.prefill+s.decode+s.both); err != nil {
		t.Fatal(err)
	}
	return c
}

// testConfig has timeouts that fit a test.
func testConfig() config {
	cfg := defaultConfig()
	cfg.ports.listen, cfg.ports.admin = "127.0.0.1:0", "127.0.0.1:0"
	cfg.gateway.ExposePair = true
	cfg.cost.PairsFirst = true // engines without delay compute a prompt sooner than they fetch it
	// A busy machine is no fault of an engine.
	cfg.pools.ProbeInterval, cfg.pools.ProbeTimeout = 100*time.Millisecond, 10*time.Second
	cfg.kv.asking.AskWait = cfg.kv.asking.AskTimeout
	// Connections that the client has closed are noticed in the delay; the HTTP server looks
	// for the end of those that are left only every 100 ms.
	cfg.drain.delay, cfg.drain.timeout = 10*time.Millisecond, 5*time.Second
	return cfg
}

func startTestEngine(t *testing.T, role string, change func(*engine.Config)) *engine.Engine {
	t.Helper()
	return enginetest.Start(t, role, testModel, change)
}

// run starts the gateway; its end is part of the test's.
func (c *cluster) run(cfg config, logTo io.Writer) {
	c.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if logTo != nil {
		log = newTestLog(logTo)
	}
	n, err := newNode(c.t.Context(), cfg, log)
	if err != nil {
		c.t.Fatal(err)
	}
	c.node = n
	ctx, stop := context.WithCancel(context.WithoutCancel(c.t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- n.Run(ctx) }()
	c.stop = sync.OnceValue(func() error {
		c.client.CloseIdleConnections()
		stop()
		select {
		case err := <-stopped:
			return err
		case <-time.After(testTimeout):
			return fmt.Errorf("not within %v", testTimeout)
		}
	})
	c.t.Cleanup(func() {
		if err := c.stop(); err != nil {
			c.t.Errorf("the gateway stopped with: %v", err)
		}
	})
	c.base, c.admin = "http://"+n.ports.clients.Addr().String(), "http://"+n.ports.operator.Addr().String()
}

// answer is what a client got: the whole body, and of a stream its events.
type answer struct {
	status int
	header http.Header
	body   string
	events []string // data of each SSE event
	err    error    // of reading the body
}

func (c *cluster) post(path, body string, headers ...string) answer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	return readResponse(resp)
}

func readResponse(resp *http.Response) answer {
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, header: resp.Header, body: string(body), err: err}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		for line := range bytes.Lines(body) {
			if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok {
				a.events = append(a.events, string(data))
			}
		}
	}
	return a
}

// get reads a path of the admin port.
func (c *cluster) get(path string) answer {
	c.t.Helper()
	return c.raw(http.MethodGet, c.admin+path)
}

// raw sends a request without a body to any address.
func (c *cluster) raw(method, url string) answer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, url, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	return readResponse(resp)
}

func newTestClient(t *testing.T) *http.Client {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: testTimeout}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// metric sums the samples of a metric whose labels all contain what is given.
func (c *cluster) metric(name string, labels ...string) float64 {
	c.t.Helper()
	sum := 0.0
	for line := range strings.Lines(c.get("/metrics").body) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || (series != name && !strings.HasPrefix(series, name+"{")) {
			continue
		}
		matches := true
		for _, l := range labels {
			matches = matches && strings.Contains(series, l)
		}
		if matches {
			sum += gjson.Parse(value).Float()
		}
	}
	return sum
}

// text joins the text of an answer, streamed or not, of any API.
func (a answer) text() string {
	if len(a.events) == 0 {
		for _, path := range []string{"choices.0.message.content", "choices.0.text", "output.0.content.0.text", "content.0.text"} {
			if r := gjson.Get(a.body, path); r.Exists() {
				return r.String()
			}
		}
		return ""
	}
	var b strings.Builder
	for _, e := range a.events {
		for _, path := range []string{"choices.0.delta.content", "choices.0.text", "delta.text"} {
			b.WriteString(gjson.Get(e, path).String())
		}
		if gjson.Get(e, "type").String() == "response.output_text.delta" {
			b.WriteString(gjson.Get(e, "delta").String())
		}
	}
	return b.String()
}

// sum adds up a number over engines.
func sum(engines []*engine.Engine, of func(engine.State) int) (n int) {
	for _, e := range engines {
		n += of(e.State())
	}
	return n
}

// requests are all that reached the engines on a path.
func requests(engines []*engine.Engine, path string) (all []engine.Request) {
	for _, e := range engines {
		for _, r := range e.State().Requests {
			if r.Path == path {
				all = append(all, r)
			}
		}
	}
	return all
}

// eventually waits for a condition: patiently, since machines are shared.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventuallyIn(t, testTimeout, what, holds)
}

// eventuallyIn is the same with another patience.
func eventuallyIn(t *testing.T, patience time.Duration, what string, holds func() bool) {
	t.Helper()
	if !comesTrue(patience, holds) {
		t.Fatalf("not within %v: %s", patience, what)
	}
}

// comesTrue reports whether a condition comes to hold in time. It looks less often the
// longer it takes: many conditions cost a page of metrics.
func comesTrue(patience time.Duration, holds func() bool) bool {
	pause := 2 * time.Millisecond
	for deadline := time.Now().Add(patience); !holds(); pause = min(pause*5/4, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// reference is what one engine that does everything answers: the truth that an
// answer through prefill and decode must equal. Each new engine gives the same, so one is
// asked for all tests that want the same answer.
func reference(t *testing.T, path, body string) answer {
	t.Helper()
	if known, ok := references.Load(path + body); ok {
		return known.(answer)
	}
	a := askEngine(t, startTestEngine(t, engine.RoleBoth, nil), path, body)
	references.Store(path+body, a)
	return a
}

// references are answers by path and body of the request.
var references sync.Map

// chatBody is a chat request with a prompt of some hundred tokens.
func chatBody(extra string) string {
	prompt, _ := json.Marshal(longPrompt)
	return `{"model":"` + testModel + `","max_tokens":24,"messages":[{"role":"user","content":` + string(prompt) + `}]` + extra + `}`
}

var longPrompt = strings.Repeat("Two riders on one bicycle must pedal together or not at all. ", 40)

// collector receives traces as an OTLP collector does.
func newCollector(t *testing.T, received func(body []byte)) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a broken export fails the test that waits for it
		received(body)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func newTestLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// tandemBinary is the command, for tests that start it as a process: this very binary,
// which is the command when it goes by its name. To build it would take minutes where
// nothing is built yet.
func tandemBinary(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tandem")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}
