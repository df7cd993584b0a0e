package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/cmd/internal/explain"
	"github.com/tandem-gateway/tandem/cmd/internal/version"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/live"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

// received are the spans that a collector got.
type received struct {
	mu       sync.Mutex // guards the rest
	spans    []*tracev1.Span
	resource map[string]string
}

func (r *received) take(t *testing.T, body []byte) {
	var export collectortrace.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &export); err != nil {
		t.Errorf("export: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range export.ResourceSpans {
		r.resource = make(map[string]string)
		for _, a := range rs.Resource.Attributes {
			r.resource[a.Key] = a.Value.GetStringValue()
		}
		for _, ss := range rs.ScopeSpans {
			r.spans = append(r.spans, ss.Spans...)
		}
	}
}

func (r *received) named() map[string]*tracev1.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	named := make(map[string]*tracev1.Span)
	for _, s := range r.spans {
		named[s.Name] = s
	}
	return named
}

func TestObserve_OneTraceARequest(t *testing.T) {
	var got received
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.telemetry.otlp = newCollector(t, func(body []byte) { got.take(t, body) })
	}})
	if a := c.post("/v1/chat/completions", chatBody(`,"stream":true`), "X-Request-Id", "trace-me"); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	var spans map[string]*tracev1.Span
	eventually(t, "the request ended", func() bool {
		if err := c.node.tracing.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		spans = got.named()
		return spans["request"] != nil
	})
	root := spans["request"]
	for _, name := range []string{"admit", "wait", "choose", "prefill", "decode", "stream"} {
		s := spans[name]
		if s == nil || !bytes.Equal(s.TraceId, root.TraceId) || !bytes.Equal(s.ParentSpanId, root.SpanId) {
			t.Errorf("span %s: %v", name, s)
		}
	}
	attributes := make(map[string]string)
	for _, a := range root.Attributes {
		attributes[a.Key] = a.Value.GetStringValue()
	}
	if attributes["tandem.request_id"] != "trace-me" || attributes["tandem.outcome"] != "ok" {
		t.Errorf("root attributes %v", attributes)
	}
	p := requests(c.prefill, "/v1/chat/completions")[0].Traceparent
	if !strings.Contains(p, hexOf(root.TraceId)) || !strings.Contains(p, hexOf(spans["prefill"].SpanId)) {
		t.Errorf("prefill got the trace %s, its span is %x", p, spans["prefill"].SpanId)
	}
	for _, s := range spans {
		if strings.Contains(s.String(), "bicycle") {
			t.Errorf("span %s holds prompt text", s.Name)
		}
	}
}

// Traces name the process as the environment says, and by our name where it says nothing.
func TestObserve_TracesTakeTheServiceFromTheEnvironment(t *testing.T) {
	for _, x := range []struct {
		service, attributes string
		want                map[string]string
	}{
		{"", "", map[string]string{"service.name": "tandem", "service.version": version.String(), "service.instance.id": "gateway-0", "k8s.pod.name": ""}},
		{"gateway-eu", "k8s.pod.name=tandem-0,service.version=7,service.instance.id=tandem-0", map[string]string{"service.name": "gateway-eu", "service.version": "7", "service.instance.id": "tandem-0", "k8s.pod.name": "tandem-0"}},
		{"", "service.name=by-attribute,not a pair", map[string]string{"service.name": "by-attribute", "service.version": version.String()}},
	} {
		t.Setenv("OTEL_SERVICE_NAME", x.service)
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", x.attributes)
		var got received
		tracing, err := newTracing(t.Context(), newCollector(t, func(body []byte) { got.take(t, body) }), 1, "gateway-0")
		if err != nil {
			t.Fatal(err)
		}
		_, span := tracing.tracer.Start(t.Context(), "span")
		span.End()
		if err := tracing.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		for key, want := range x.want {
			if got.resource[key] != want {
				t.Errorf("%q %q: %s is %q, want %q", x.service, x.attributes, key, got.resource[key], want)
			}
		}
	}
}

// A gateway goes by one name, in metrics, in traces (above) and on every answer of its admin port, and
// says which build it is.
func TestObserve_TheGatewayAndItsBuildAreNamed(t *testing.T) {
	c := newCluster(t, shape{config: func(cfg *config) { cfg.redis.replica = "gateway-0" }})
	if page := c.get("/metrics").body; !strings.Contains(page, fmt.Sprintf(`version=%q`, version.String())) || c.metric("tandem_build_info") != 1 {
		t.Error("tandem_build_info does not name the build")
	} else if !strings.Contains(page, fmt.Sprintf(`target_info{service_instance_id="gateway-0",service_name="tandem",service_version=%q} 1`, version.String())) {
		t.Error("target_info does not name the gateway")
	}
	for _, path := range []string{"/livez", "/debug/servers", "/nothing"} {
		if got := c.get(path).header; got.Get("X-Tandem-Instance") != "gateway-0" || got.Get("X-Tandem-Version") != version.String() {
			t.Errorf("%s is answered by %q of version %q", path, got.Get("X-Tandem-Instance"), got.Get("X-Tandem-Version"))
		}
	}
}

func hexOf(id []byte) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for _, x := range id {
		b.WriteByte(digits[x>>4])
		b.WriteByte(digits[x&15])
	}
	return b.String()
}

func TestObserve_TheDecisionIsExplained(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 2})
	a := c.post("/v1/chat/completions", chatBody(""), "X-Request-Id", "why-me")
	var d gateway.DecisionStatus
	if err := json.Unmarshal([]byte(c.get("/debug/decisions/why-me").body), &d); err != nil {
		t.Fatal(err)
	}
	if d.Outcome != "served" || len(d.Attempts) != 1 || len(d.Attempts[0].Alternatives) != 6 { // four pairs, two alone
		t.Fatalf("%+v", d)
	}
	chosen := 0
	for i, e := range d.Attempts[0].Alternatives {
		if e.Chosen {
			chosen++
			if e.Prefill != a.header.Get("X-Tandem-Prefill") || e.Decode != a.header.Get("X-Tandem-Decode") {
				t.Errorf("explained %+v, served by %v", e, a.header)
			}
		}
		if i > 0 && e.Misses == d.Attempts[0].Alternatives[i-1].Misses && e.Total < d.Attempts[0].Alternatives[i-1].Total {
			t.Error("not in the order of cost")
		}
		if parts := e.Queue + e.Compute + e.Transfer + e.KVRoom + e.Step + e.DecodeCost + e.DelayToOthers + e.HardwareMismatch + e.Eviction; parts < e.Total-0.01 || parts > e.Total+0.01 {
			t.Errorf("terms add up to %v, total is %v", parts, e.Total)
		}
	}
	if chosen != 1 {
		t.Errorf("%d alternatives are marked", chosen)
	}
	_, table := c.explained("why-me")
	if !strings.Contains(table, "->") || !strings.Contains(table, a.header.Get("X-Tandem-Decode")) {
		t.Error(table)
	}
	if _, err := explain.Fetch(c.t.Context(), adminport.Port{Address: c.admin}, "nobody"); err == nil || !strings.Contains(err.Error(), "no gateway remembers") {
		t.Errorf("an unknown request: %v", err)
	}
}

// The pairs that moved KV are on the admin port with their class, and as fast as that.
func TestObserve_LinksOfPairs(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 2, config: func(cfg *config) { cfg.pd.EnforceDisaggregation = true }})
	served := make(map[[2]string]bool)
	for range 24 {
		a := c.post("/v1/chat/completions", chatBody(""))
		served[[2]string{a.header.Get("X-Tandem-Prefill"), a.header.Get("X-Tandem-Decode")}] = true
	}
	var links live.LinkList
	if err := json.Unmarshal([]byte(c.get("/debug/links").body), &links); err != nil {
		t.Fatal(err)
	}
	if len(links.Classes) != 4 || links.Classes[0].Distance != "host" || links.Classes[0].GBPerSecond <= 0 {
		t.Errorf("classes %+v", links.Classes)
	}
	if len(links.Pairs) == 0 || len(links.Pairs) > len(served) {
		t.Fatalf("%d pairs served, %d are known: %+v", len(served), len(links.Pairs), links.Pairs)
	}
	for _, p := range links.Pairs {
		if !served[[2]string{p.Prefill, p.Decode}] || p.Slower < 1 || p.Moving != 0 || p.FailedAt != nil {
			t.Errorf("%+v, served by %v", p, served)
		}
	}
}

func TestObserve_RetriesAreInTheDecision(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 1, config: faultTimeouts})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502, Count: 1})
	c.prefill[1].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502, Count: 1})
	c.post("/v1/chat/completions", chatBody(""), "X-Request-Id", "tried")
	d := c.get("/debug/decisions/tried").body
	if n := gjson.Get(d, "attempts.#").Int(); n != 3 || gjson.Get(d, "attempts.2.alone_because").String() != "fallback" ||
		!strings.Contains(gjson.Get(d, "attempts.0.outcome").String(), "status 502") {
		t.Errorf("%s", d)
	}
}

func TestObserve_MetricsCoverTheRequest(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for range 3 {
		c.post("/v1/chat/completions", chatBody(`,"stream":true`))
	}
	c.post("/v1/chat/completions", `{"model":"a-client-invented-this","messages":[{}]}`)
	eventually(t, "three requests ended", func() bool { return c.metric("tandem_request_duration_seconds_count", `outcome="ok"`) == 3 })
	for name, want := range map[string]float64{
		`tandem_requests_total{api="chat",model="test-model",outcome="ok",path="http"}`:                 3,
		`tandem_requests_total{api="chat",model="unknown",outcome="bad_request",path="http"}`:           1,
		`tandem_request_duration_seconds_count{api="chat",model="test-model",outcome="ok",path="http"}`: 3,
		`tandem_ttft_seconds_count`:               3,
		`tandem_wait_seconds_count`:               3,
		`tandem_prefill_seconds_count`:            3,
		`tandem_handoff_gap_seconds_count`:        3,
		`tandem_decode_first_event_seconds_count`: 3,
		`tandem_server_up`:                        2,
		`tandem_in_flight_requests`:               0,
	} {
		if got := c.metric(name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if got := c.metric("tandem_itl_seconds_count"); got < 3*20 {
		t.Errorf("%v gaps between tokens", got)
	}
	if strings.Contains(c.get("/metrics").body, "invented") {
		t.Error("a client's word became a label")
	}
	if s := c.get("/debug/servers"); gjson.Get(s.body, "#").Int() != 2 || !gjson.Get(s.body, "0.up").Bool() {
		t.Errorf("%s", s.body)
	}
}

// No prompt, key or topology leaks: not in logs at debug level, not in errors to
// clients, not in metrics.
func TestObserve_NothingLeaks(t *testing.T) {
	var log testlog.Buffer
	c := newCluster(t, shape{prefill: 2, decode: 1, log: &log, config: func(cfg *config) {
		faultTimeouts(cfg)
		cfg.gateway.ExposePair = false
	}})
	secret := strings.Replace(chatBody(""), "Two riders", "hush-prompt", 1)
	served := c.post("/v1/chat/completions", secret, "Authorization", "Bearer hush-key")
	for _, e := range append(c.prefill, c.decode...) {
		e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502})
	}
	failed := c.post("/v1/chat/completions", secret, "Authorization", "Bearer hush-key")
	if failed.status != 502 {
		t.Fatalf("%d %s", failed.status, failed.body)
	}
	for name, text := range map[string]string{"log": log.String(), "metrics": c.get("/metrics").body, "error": failed.body} {
		if strings.Contains(text, "hush-") {
			t.Errorf("%s holds a secret", name)
		}
	}
	if failed.header.Get("X-Tandem-Decode")+failed.header.Get("X-Tandem-Prefill") != "" || served.header.Get("X-Tandem-Decode")+served.header.Get("X-Tandem-Prefill") != "" {
		t.Error("the pair is exposed")
	}
	answer, _ := json.Marshal(failed.header)
	for _, e := range append(c.prefill, c.decode...) {
		if addr := strings.TrimPrefix(e.URL(), "http://"); strings.Contains(failed.body+string(answer), addr) {
			t.Errorf("the client learned the address %s", addr)
		}
	}
	if !strings.Contains(log.String(), `"request_id"`) {
		t.Error("the log does not name requests")
	}
}

// Servers that come and go leave no series behind.
func TestObserve_SeriesOfServersThatAreGoneAreDropped(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1})
	stays := c.node.fleet.Servers()
	series := func() (n int) {
		for line := range strings.Lines(c.get("/metrics").body) {
			if strings.Contains(line, `server="`) {
				n++
			}
		}
		return n
	}
	serve := func() {
		for range 4 {
			if got := c.post(chatPath, chatBody(`,"stream":true`)); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		eventually(t, "nothing is in flight", func() bool { return c.metric("tandem_in_flight_requests") == 0 })
	}
	apply := func(specs ...pools.Spec) {
		if err := c.node.discovery.sources.Set("configuration", specs); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all are up", func() bool { return c.metric("tandem_server_up") == float64(len(specs)) })
	}
	serve()
	before := series()
	for range 3 {
		p, d := startTestEngine(t, engine.RolePrefill, nil), startTestEngine(t, engine.RoleDecode, nil)
		apply(pools.Spec{URL: p.URL(), Role: pools.Prefill, Connector: "nixl"}, pools.Spec{URL: d.URL(), Role: pools.Decode, Connector: "nixl"})
		serve()
	}
	apply(stays[0].Spec, stays[1].Spec)
	eventually(t, "there are no more series by server than before three others came and went", func() bool { return series() <= before })
}
