package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tinylib/msgp/msgp"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

// testFleet is an orchestrator over servers that are up, in racks of eight, and an index
// that has heard what they hold.
type testFleet struct {
	*Orchestrator
	rng *rand.Rand
}

const (
	testModel  = "m"
	otherModel = "n" // of servers at otherNet
	otherNet   = "10.9.0."
)

// answers makes every server healthy with one model and a full batch.
type answers struct{}

func (answers) RoundTrip(r *http.Request) (*http.Response, error) {
	model := testModel
	if strings.HasPrefix(r.URL.Host, otherNet) {
		model = otherModel
	}
	body := `{"data":[{"id":"` + model + `"}]}`
	switch r.URL.Path {
	case "/is_sleeping": // asked where GPUs are shared
		body = `{"is_sleeping":true}`
	case "/metrics":
		body = "vllm:num_requests_running{} 200\nvllm:kv_cache_usage_perc{} 0.1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"65536\"} 1\n"
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
}

// newTestFleet has so many servers of each role; all hold the first sixteenth of the
// prompt, every eighth more, one a quarter of it.
func newTestFleet(tb testing.TB, each int, prompt []uint32) *testFleet {
	tb.Helper()
	return newProbedFleet(tb, each, prompt, time.Hour) // once is enough
}

// newProbedFleet is the same, whose servers are probed so often.
func newProbedFleet(tb testing.TB, each int, prompt []uint32, interval time.Duration) *testFleet {
	tb.Helper()
	index, err := kvstate.New(kvstate.Default())
	if err != nil {
		tb.Fatal(err)
	}
	cfg, log := pools.Default(), slog.New(slog.DiscardHandler)
	cfg.ProbeInterval, cfg.Measured = interval, true // deadlines count from the first request on
	fleet := pools.NewFleet(cfg, log)
	health.Watch(fleet, answers{}, log)
	tb.Cleanup(func() { _ = fleet.Apply(nil) })
	var specs []pools.Spec
	for i := range 2 * each {
		role := pools.Prefill
		if i >= each {
			role = pools.Decode
		}
		spec := pools.Spec{URL: fmt.Sprintf("http://10.0.%d.%d:8000", i/256, i%256), Role: role, Connector: "nixl", Rack: fmt.Sprint("r", i%8), Zone: "z"}
		specs = append(specs, spec)
		source, err := index.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: spec.ID()}, Model: testModel, BlockTokens: 16})
		if err != nil {
			tb.Fatal(err)
		}
		held := len(prompt) / 16
		if i%8 == 0 {
			held = len(prompt) / (4 + i/8)
		}
		source.ApplyLive(kvstate.Message{Payload: stored(prompt[:held/16*16])})
	}
	if err := fleet.Apply(specs); err != nil {
		tb.Fatal(err)
	}
	queue, suspects := queue.New(queue.Default()), retry.NewQuarantine()
	f := &testFleet{rng: rand.New(rand.NewPCG(1, 1)), Orchestrator: &Orchestrator{
		Config: DefaultConfig().LegConfig, Fleet: fleet,
		Queue: queue, Budget: retry.NewBudget(0.2, 10), Decisions: decision.NewRecords(time.Hour, 1<<20), Suspects: suspects,
		Metrics: NewMetrics(prometheus.NewRegistry(), histogram.Config{}, queue, suspects), Tracer: noop.NewTracerProvider().Tracer(""), Log: log,
	}}
	f.Binder = &Binder{Queue: queue, Tracer: f.Tracer, Chooser: &Chooser{
		Snapshotter: Snapshotter{
			Config: DefaultConfig().BindConfig, Links: cost.NewLinks(cost.DefaultLinks()), Fleet: fleet, Cost: cost.Default(),
			Locality: NewLocality(index, func(string) (*tokens.Source, error) { return nil, tokens.Off }),
		},
		Metrics: f.Metrics,
	}}
	f.await(tb, f.up)
	return f
}

// becomesSGLangPair makes it one prefill server, 10.8.0.1, and one decode server, 10.8.0.2, whose legs run
// together.
func (f *testFleet) becomesSGLangPair(tb testing.TB) {
	tb.Helper()
	if err := f.Fleet.Apply([]pools.Spec{
		{URL: "http://10.8.0.1:8000", Role: pools.Prefill, Connector: "sglang"}, {URL: "http://10.8.0.2:8000", Role: pools.Decode, Connector: "sglang"},
	}); err != nil {
		tb.Fatal(err)
	}
	f.await(tb, f.up)
}

// await returns when something has come true.
func (f *testFleet) await(tb testing.TB, what func() bool) {
	tb.Helper()
	for range looks {
		if what() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	tb.Fatal("it never came true")
}

func (f *testFleet) up() bool {
	for _, s := range f.Fleet.Servers() {
		if !s.Health().Up || !s.Load().KVTokens.Known {
			return false
		}
	}
	return true
}

// stored is a message of an engine that has stored the blocks of a prompt.
func stored(prompt []uint32) []byte { return storedAt(time.Unix(1e9, 0), prompt) }

// storedAt is the same, by the engine's clock.
func storedAt(at time.Time, prompt []uint32) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), float64(at.UnixMicro())/1e6)
	b = msgp.AppendString(msgp.AppendArrayHeader(msgp.AppendArrayHeader(b, 1), 5), "BlockStored")
	b = msgp.AppendArrayHeader(b, uint32(len(prompt)/16))
	for i := range len(prompt) / 16 {
		b = msgp.AppendUint64(b, uint64(i+1)) // the engine's own names of the blocks
	}
	b = msgp.AppendArrayHeader(msgp.AppendNil(b), uint32(len(prompt)))
	for _, token := range prompt {
		b = msgp.AppendUint32(b, token)
	}
	return msgp.AppendInt(b, 16)
}

// testPrompt is n tokens.
func testPrompt(n int) []uint32 {
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	prompt := make([]uint32, n)
	for i := range prompt {
		prompt[i] = rng.Uint32N(100_000)
	}
	return prompt
}

// arrives is a request whose tokens are known.
func (f *testFleet) arrives(prompt []uint32, now time.Time) *requestState {
	req := &Request{ID: "r", Model: testModel, Dialect: api.Chat, PromptTokens: len(prompt), OutputTokens: 300, Header: http.Header{}}
	st := &requestState{client: req, arrived: now, entry: &queue.Entry{}}
	f.reset(st)
	st.bind.prefix = &prefix{model: testModel, known: true, tokens: tokens.Tokens{IDs: prompt, Complete: true}}
	return st
}

// enter is a request's place in a queue that is empty.
func enter(t *testing.T, q *queue.Queue) *queue.Entry {
	t.Helper()
	p, err := q.Enter(t.Context(), queue.Request{Model: testModel})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// holdsNothing checks that no server has a place taken.
func (f *testFleet) holdsNothing(t *testing.T) {
	t.Helper()
	for _, s := range f.Fleet.Servers() {
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			if n := s.InFlight(role, time.Now()).Requests; n != 0 {
				t.Errorf("%d requests are held on %s of %s", n, role, s.ID())
			}
		}
	}
}

// serverOf is the server that a leg is sent to.
func (f *testFleet) serverOf(r *http.Request) *pools.Server {
	for _, s := range f.Fleet.Servers() {
		if s.ID() == r.URL.Host {
			return s
		}
	}
	panic("a leg to " + r.URL.Host)
}

// answersOf answers a leg as an engine does that keeps its KV for another: prefill with a hand-off,
// decode with one token.
func (f *testFleet) answersOf(r *http.Request, stream bool) *http.Response {
	kind, body := "application/json", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],`+
		`"usage":{"prompt_tokens":14000,"completion_tokens":1},"kv_transfer_params":{"remote_block_ids":[[1]]}}`
	if stream && f.serverOf(r).Role == pools.Decode {
		kind, body = "text/event-stream", textEvent+"data: [DONE]\n\n"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

// pairRequest is a chat whose prompt is long enough for a pair.
func (f *testFleet) pairRequest(t *testing.T, stream bool) *Request {
	t.Helper()
	f.Binder.Cost.PairsFirst = true
	req := requestOf(t, api.Chat, fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":"hi"}]}`, stream))
	req.PromptTokens, req.OutputTokens = 14_000, 300
	return req
}

// ends runs a request and reads its answer to the end.
func (f *testFleet) ends(ctx context.Context, req *Request) (*Answer, error) {
	answer, err := f.Run(ctx, req)
	if err != nil || answer.Stream == nil {
		return answer, err
	}
	defer answer.Stream.Close()
	for err == nil {
		_, err = answer.Stream.Next()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return answer, err
}
