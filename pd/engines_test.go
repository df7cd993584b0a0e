package pd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/tidwall/gjson"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/enginetest"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
	"github.com/tandem-gateway/tandem/pools/standby"
)

// engineFleet is an orchestrator before simulated engines, over real sockets.
type engineFleet struct {
	*Orchestrator
	t       *testing.T
	prefill []*engine.Engine
	decode  []*engine.Engine
	spans   *tracetest.SpanRecorder
	scraped *prometheus.Registry
}

// fleetShape is what a test wants of its engines.
type fleetShape struct {
	prefill, decode int
	engine          func(*engine.Config)
	adapters        []string // that are loaded on demand
	orchestrator    func(*Orchestrator)
}

func newEngineFleet(t *testing.T, shape fleetShape) *engineFleet {
	t.Helper()
	f := &engineFleet{t: t, spans: tracetest.NewSpanRecorder(), scraped: prometheus.NewRegistry()}
	var specs []pools.Spec
	start := func(role string, of pools.Role) *engine.Engine {
		e := startEngine(t, role, shape.engine)
		state := e.State()
		spec := pools.Spec{URL: e.URL(), Role: of, Connector: strings.TrimSuffix(state.Connector, "-push"), KVAddress: state.KVAddress}
		if spec.Connector == engine.ConnectorNIXL {
			spec.KVAddress = "" // it is in the hand-off
		}
		specs = append(specs, spec)
		return e
	}
	for range shape.prefill {
		f.prefill = append(f.prefill, start(engine.RolePrefill, pools.Prefill))
	}
	for range shape.decode {
		f.decode = append(f.decode, start(engine.RoleDecode, pools.Decode))
	}
	log := slog.New(slog.DiscardHandler)
	transport := enginehttp.NewTransport(5 * time.Second)
	t.Cleanup(transport.CloseIdleConnections)
	cfg := pools.Default()
	cfg.ProbeInterval = time.Hour  // no probe comes to a request's help
	cfg.ProbeTimeout = time.Minute // the one probe tells all, on a busy machine too
	for _, name := range shape.adapters {
		cfg.Adapters.Directory = append(cfg.Adapters.Directory, pools.Adapter{Name: name, Path: "/" + name})
	}
	fleet := pools.NewFleet(cfg, log)
	health.Watch(fleet, transport, log)
	standby.Watch(fleet, nil, transport, log)
	t.Cleanup(func() { _ = fleet.Apply(nil) })
	index, err := kvstate.New(kvstate.Default())
	if err != nil {
		t.Fatal(err)
	}
	queue, suspects := queue.New(queue.Default()), retry.NewQuarantine()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(f.spans)).Tracer("")
	f.Orchestrator = &Orchestrator{
		Config: DefaultConfig().LegConfig, Fleet: fleet, Transport: transport, Queue: queue,
		Budget: retry.NewBudget(0, 1000), Decisions: decision.NewRecords(time.Hour, 1<<20), History: history.New(), Suspects: suspects,
		Metrics: NewMetrics(f.scraped, histogram.Config{}, queue, suspects), Tracer: tracer, Log: log,
	}
	f.Config.ContinueByText = true
	// A process that is stopped for longer than a leg may take is no failure of the leg.
	f.Config.PrefillTimeout, f.Config.AnswerPatience, f.Config.AnswerTimeout = time.Hour, time.Hour, time.Hour
	f.Config.FirstEventTimeout, f.Config.IdleTimeout = time.Hour, time.Hour
	model := cost.Default()
	model.PairsFirst = true // engines without delay compute a prompt sooner than they fetch it
	f.Binder = &Binder{Queue: queue, Tracer: tracer, Chooser: &Chooser{
		Snapshotter: Snapshotter{
			Config: DefaultConfig().BindConfig, Links: cost.NewLinks(cost.DefaultLinks()), Fleet: fleet, Cost: model,
			Locality: NewLocality(index, func(string) (*tokens.Source, error) { return nil, tokens.Off }),
		},
		Outputs: predict.NewOutputs(), Metrics: f.Metrics,
	}}
	f.Binder.Config.HandoffAge = time.Hour
	fleet.OnBlame = f.Binder.Links.Clear
	if shape.orchestrator != nil {
		shape.orchestrator(f.Orchestrator)
	}
	if err := fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	f.eventually("all servers are up", func() bool {
		return !slices.ContainsFunc(fleet.Servers(), func(s *pools.Server) bool { return !s.Health().Up || !s.Serves(testModel, time.Now()) })
	})
	return f
}

func startEngine(t *testing.T, role string, change func(*engine.Config)) *engine.Engine {
	t.Helper()
	return enginetest.Start(t, role, testModel, func(cfg *engine.Config) {
		cfg.Lease = time.Hour // real time: none ends within a test, however long that is stopped for
		if change != nil {
			change(cfg)
		}
	})
}

// looks is how often a test looks whether something has come true, every millisecond. It is a number and no
// time: on a busy machine a test may be stopped for longer than anything takes that it waits for.
const looks = 30_000

// eventually waits until something has come true.
func (f *engineFleet) eventually(what string, is func() bool) {
	f.t.Helper()
	for range looks {
		if is() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	f.t.Fatalf("it never came true: %s", what)
}

// identified waits until the engines have said what they are, which comes behind the first probe.
func (f *engineFleet) identified() {
	f.t.Helper()
	f.eventually("the engines say what they are", func() bool {
		for _, s := range f.Fleet.Servers() {
			if s.BlockTokens() == 0 || s.Identity().Engine == "" {
				return false
			}
		}
		return true
	})
}

// server is the one of an engine.
func (f *engineFleet) server(e *engine.Engine) *pools.Server {
	f.t.Helper()
	for _, s := range f.Fleet.Servers() {
		if s.URL == e.URL() {
			return s
		}
	}
	f.t.Fatalf("no server %s", e.URL())
	return nil
}

const longPrompt = "the history of the river and of the bridge across it, as it was told by those who built it and by those who crossed it"

// promptOf is the field of a prompt in a body of an API.
func promptOf(d *api.Dialect) string {
	switch d {
	case api.Completions:
		return `"prompt":"` + longPrompt + `"`
	case api.Responses:
		return `"input":"` + longPrompt + `"`
	}
	return `"messages":[{"role":"user","content":"` + longPrompt + `"}]`
}

// asks is a request as the gateway hands it over; more is what its body has besides the prompt.
func (f *engineFleet) asks(d *api.Dialect, more string) *Request {
	f.t.Helper()
	return requestOf(f.t, d, `{"model":"m",`+promptOf(d)+more+`}`)
}

func requestOf(t *testing.T, d *api.Dialect, text string) *Request {
	t.Helper()
	body, err := api.ParseBody([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r := &Request{ID: "r", Dialect: d, Model: gjson.Get(text, "model").Str, Body: body, Header: http.Header{}, PromptTokens: 40, OutputTokens: predict.UnknownOutput}
	r.Stream = gjson.Get(text, "stream").Bool()
	r.Aggregated = gjson.Get(text, "n").Int() > 1
	for _, field := range d.Limits() {
		if most := gjson.Get(text, field); most.Exists() {
			r.MaxOutput, r.MaxField = int(most.Int()), field
		}
	}
	return r
}

// reply is what a client got: a body, or the events of a stream.
type reply struct {
	*Answer
	text   string
	events []string // data of each
	err    error    // that ended the stream, if not its end
}

// run serves a request and reads its answer to the end.
func (f *engineFleet) run(ctx context.Context, req *Request) (reply, error) {
	answer, err := f.Run(ctx, req)
	if err != nil {
		return reply{}, err
	}
	return readToEnd(answer), nil
}

func readToEnd(answer *Answer) reply {
	r := reply{Answer: answer}
	if answer.Stream == nil {
		r.text = textOf(string(answer.Body))
		return r
	}
	defer answer.Stream.Close()
	var all strings.Builder
	for {
		out, err := answer.Stream.Next()
		if err != nil {
			if err != io.EOF { //nolint:errorlint // Next returns it bare
				r.err = err
			}
			break
		}
		all.Write(out)
	}
	for line := range strings.Lines(all.String()) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok {
			r.events = append(r.events, data)
			r.text += textOf(data)
		}
	}
	return r
}

// served is run for a request that is to be answered.
func (f *engineFleet) served(req *Request) reply {
	f.t.Helper()
	r, err := f.run(f.t.Context(), req)
	if err != nil || r.err != nil || r.Status != http.StatusOK {
		f.t.Fatalf("%v, %v, status %d", err, r.err, r.Answer.status())
	}
	return r
}

func (a *Answer) status() int {
	if a == nil {
		return 0
	}
	return a.Status
}

// textOf is what an answer, or an event of one, says.
func textOf(data string) (text string) {
	for _, path := range []string{"choices.#.message.content", "choices.#.delta.content", "choices.#.text", "content.#.text"} {
		for _, part := range gjson.Get(data, path).Array() {
			text += part.Str
		}
	}
	switch gjson.Get(data, "type").Str {
	case "content_block_delta":
		text += gjson.Get(data, "delta.text").Str
	case "response.output_text.delta":
		text += gjson.Get(data, "delta").Str
	}
	for _, item := range gjson.Get(data, "output").Array() {
		for _, part := range item.Get("content.#.text").Array() {
			text += part.Str
		}
	}
	return text
}

// client asks engines without a gateway.
var client = &http.Client{Timeout: time.Minute}

// reference is what one engine alone says to a request.
func reference(t *testing.T, req *Request) string {
	t.Helper()
	e := startEngine(t, engine.RoleBoth, nil)
	body := req.Body.With(api.Remove("stream"), api.Remove("stream_options"))
	resp, err := client.Post(e.URL()+req.Dialect.Path, "application/json", bytes.NewReader(body.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v: %s", resp.StatusCode, err, raw)
	}
	return textOf(string(raw))
}

// metric is the sum of the series of a metric with the labels ("name", "value", ...); of a
// histogram how often it was observed.
func (f *engineFleet) metric(name string, labels ...string) (sum float64) {
	f.t.Helper()
	return sumIn(f.t, f.scraped, name, labels...)
}

// sumOf is the same of what one collector has.
func sumOf(t *testing.T, of prometheus.Collector, name string, labels ...string) (sum float64) {
	t.Helper()
	scraped := prometheus.NewRegistry()
	scraped.MustRegister(of)
	return sumIn(t, scraped, name, labels...)
}

func sumIn(t *testing.T, scraped prometheus.Gatherer, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := scraped.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if has(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func has(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == labels[i] && l.GetValue() == labels[i+1] }) {
			return false
		}
	}
	return true
}

// wantMetrics checks sums of metrics: names, with labels as in {leg=prefill}, and values.
func (f *engineFleet) wantMetrics(want map[string]float64) {
	f.t.Helper()
	for name, value := range want {
		bare, rest, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		var labels []string
		if rest != "" {
			for pair := range strings.SplitSeq(rest, ",") {
				label, is, _ := strings.Cut(pair, "=")
				labels = append(labels, label, is)
			}
		}
		if got := f.metric(bare, labels...); math.Abs(got-value) > 1e-9 {
			f.t.Errorf("%s is %v, want %v", name, got, value)
		}
	}
}

// nothingIsLeft checks that requests that have ended hold nothing: no place in the queue, no
// lease, no transfer, no leg on an engine, and no span.
func (f *engineFleet) nothingIsLeft() {
	f.t.Helper()
	f.Wait()
	if waiting, inFlight := f.Queue.Len(); waiting != 0 || inFlight != 0 || f.Queue.Bytes() != 0 {
		f.t.Errorf("%d wait, %d are in flight, %d bytes are held", waiting, inFlight, f.Queue.Bytes())
	}
	if models := f.Queue.Waiting(); len(models) != 0 {
		f.t.Errorf("%v are counted as waiting", models)
	}
	for _, s := range f.Fleet.Servers() {
		if c := f.linkOf(s.ID()); c != (cost.Candidate{ID: s.ID()}) {
			f.t.Errorf("the link of %s is taken: %v, and later %v", s.ID(), c.Moving, c.Coming)
		}
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			if in := s.InFlight(role, time.Now()); in.Requests != 0 || in.Tokens != 0 {
				f.t.Errorf("%s %s: %d requests, %d tokens are held", role, s.ID(), in.Requests, in.Tokens)
			}
		}
	}
	f.eventually("no engine has work", func() bool {
		for _, e := range slices.Concat(f.prefill, f.decode) {
			if s := e.State(); s.ServerLoad+s.Running+s.Waiting > 0 {
				return false
			}
		}
		return true
	})
	if begun, ended := len(f.spans.Started()), len(f.spans.Ended()); begun != ended {
		f.t.Errorf("%d spans began, %d ended", begun, ended)
	}
}

// reasons say of each attempt at the last request why decode ran alone, if it did, what kept servers from making a
// pair, and how it ended.
func (f *engineFleet) reasons() (all []string) {
	last, _ := f.Decisions.Find("r")
	for _, c := range last.Choices {
		all = append(all, fmt.Sprintf("prefill %q, decode %q, alone %q (%s): %q", c.Chosen.Prefill, c.Chosen.Decode, c.Reason, c.Mismatch, c.Outcome))
	}
	return all
}

// steps are the spans that have ended, in order.
func (f *engineFleet) steps() (names []string) {
	for _, s := range f.spans.Ended() {
		names = append(names, s.Name())
	}
	return names
}

// attributes are those of the last span of a name that has ended.
func (f *engineFleet) attributes(of string) map[attribute.Key]attribute.Value {
	all := make(map[attribute.Key]attribute.Value)
	for _, s := range f.spans.Ended() {
		if s.Name() == of {
			clear(all)
			for _, a := range s.Attributes() {
				all[a.Key] = a.Value
			}
		}
	}
	return all
}

// linkOf is for how long the link of a server is taken, by what it sends or receives.
func (f *engineFleet) linkOf(id string) cost.Candidate {
	sends, receives := []cost.Candidate{{ID: id}}, []cost.Candidate{{ID: id}}
	f.Binder.Links.SetMoving(sends, receives, time.Now())
	if sends[0].Moving+sends[0].Coming > 0 {
		return sends[0]
	}
	return receives[0]
}
