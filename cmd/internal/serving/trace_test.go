package serving

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// all are the spans of a name in the order of their beginning.
func (r *received) all(name string) (spans []*tracev1.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.Name != name {
			continue
		}
		at := len(spans)
		for at > 0 && spans[at-1].StartTimeUnixNano > s.StartTimeUnixNano {
			at--
		}
		spans = append(spans[:at], append([]*tracev1.Span{s}, spans[at:]...)...)
	}
	return spans
}

// valuesOf are attributes by name.
func valuesOf(list []*commonv1.KeyValue) map[string]any {
	values := make(map[string]any)
	for _, a := range list {
		switch v := a.Value.Value.(type) {
		case *commonv1.AnyValue_StringValue:
			values[a.Key] = v.StringValue
		case *commonv1.AnyValue_IntValue:
			values[a.Key] = int(v.IntValue)
		case *commonv1.AnyValue_DoubleValue:
			values[a.Key] = v.DoubleValue
		case *commonv1.AnyValue_BoolValue:
			values[a.Key] = v.BoolValue
		}
	}
	return values
}

// traced is the answer of a cluster that traces every request, and the request's trace.
func traced(t *testing.T, s shape, prepare func(*cluster), body string) (answer, *received) {
	t.Helper()
	got := &received{}
	change := s.config
	s.config = func(cfg *config) {
		cfg.telemetry.otlp = newCollector(t, func(body []byte) { got.take(t, body) })
		if change != nil {
			change(cfg)
		}
	}
	c := newCluster(t, s)
	if prepare != nil {
		prepare(c)
	}
	a := c.post("/v1/chat/completions", body, "Authorization", "Bearer hush-key")
	eventually(t, "the request ended", func() bool {
		if err := c.node.tracing.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(got.all("request")) == 1
	})
	for _, s := range got.spans {
		if strings.Contains(s.String(), "bicycle") || strings.Contains(s.String(), "hush-key") {
			t.Errorf("span %s has the prompt or the key in it", s.Name)
		}
	}
	return a, got
}

// wantSame checks some of a span's attributes.
func wantSame(t *testing.T, what string, got, want map[string]any) {
	t.Helper()
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s: %s is %v, want %v", what, key, got[key], value)
		}
	}
}

const withUsage = `,"stream":true,"stream_options":{"include_usage":true}`

// What an operator reads of a request that went well: what was asked for, where it went and at which
// price, what was handed over, and when its first token came beside when it was said to.
func TestTrace_TellsWhatARequestTook(t *testing.T) {
	t.Parallel()
	a, got := traced(t, shape{prefill: 2, decode: 2}, func(c *cluster) {
		for _, e := range c.prefill { // each has the prompt in its cache, which the gateway does not know
			askEngine(t, e, "/v1/chat/completions", chatBody(""))
		}
	}, chatBody(withUsage))
	if a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	root := valuesOf(got.all("request")[0].Attributes)
	wantSame(t, "request", root, map[string]any{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "tandem", "gen_ai.request.model": testModel, "gen_ai.request.stream": true,
		"gen_ai.request.max_tokens": 24, "gen_ai.usage.output_tokens": 24,
		"tandem.class": "standard", "tandem.attempts": 1, "tandem.continuations": 0, "tandem.outcome": "ok", "error.type": nil,
	})
	chosen := valuesOf(got.all("choose")[0].Attributes)
	wantSame(t, "choose", chosen, map[string]any{
		"tandem.prefill": a.header.Get("X-Tandem-Prefill"), "tandem.decode": a.header.Get("X-Tandem-Decode"),
		"tandem.candidates.prefill": 2, "tandem.candidates.decode": 2, "tandem.cost.misses": 0, "tandem.cause": nil,
	})
	parts := 0.0
	for _, term := range []string{"ready", "queue", "prefill", "transfer", "kv_room", "step", "decode", "delay_to_others", "hardware_mismatch", "eviction"} {
		parts += chosen["tandem.cost."+term+"_seconds"].(float64)
	}
	if total := chosen["tandem.cost.total_seconds"].(float64); parts < total-1e-6 || parts > total+1e-6 {
		t.Errorf("the terms add up to %v, their total is %v", parts, total)
	}
	actual, predicted, ttft := root["tandem.ttft_seconds"].(float64), root["tandem.ttft_predicted_seconds"].(float64), chosen["tandem.ttft_predicted_seconds"].(float64)
	if actual <= 0 || actual != root["gen_ai.response.time_to_first_chunk"] || predicted < ttft || ttft <= 0 || root["tandem.tpot_seconds"].(float64) <= 0 {
		t.Errorf("first token after %v, predicted %v, of which %v behind the choice: %v", actual, predicted, ttft, root)
	}
	input, cached := root["gen_ai.usage.input_tokens"].(int), root["gen_ai.usage.cache_read.input_tokens"]
	if n, known := cached.(int); !known || n < input-64 || n >= input {
		t.Errorf("%v of %d tokens were cached", cached, input)
	}
	prefill, decode := got.all("prefill")[0], got.all("decode")[0]
	wantSame(t, "prefill", valuesOf(prefill.Attributes), map[string]any{
		"tandem.server": a.header.Get("X-Tandem-Prefill"), "tandem.handoff": true, "tandem.prompt_tokens": input, "tandem.cached_tokens": cached,
	})
	handed := valuesOf(decode.Attributes)
	wantSame(t, "decode", handed, map[string]any{
		"tandem.server": a.header.Get("X-Tandem-Decode"), "tandem.leg": "decode", "tandem.handoff.tokens": input,
		"tandem.handoff.bytes": input * 128 << 10,
	})
	if gap := handed["tandem.handoff.gap_seconds"].(float64); gap <= 0 || gap > float64(decode.StartTimeUnixNano-prefill.StartTimeUnixNano)/1e9 {
		t.Errorf("the hand-off lay there for %v s", gap)
	}
	if len(decode.Events) != 1 || decode.Events[0].Name != "first content" || decode.Events[0].TimeUnixNano < decode.StartTimeUnixNano || decode.Events[0].TimeUnixNano >= decode.EndTimeUnixNano {
		t.Errorf("the first content is not within decode's span: %v", decode)
	}
}

// A request whose prefill failed twice and whose stream then broke twice is one trace: each choice
// behind a failure is linked to the leg that failed, and both say why.
func TestTrace_LinksRetriesAndContinuationsToWhatFailed(t *testing.T) {
	t.Parallel()
	a, got := traced(t, shape{prefill: 2, decode: 2, config: func(cfg *config) { faultTimeouts(cfg); continuing(cfg) }}, func(c *cluster) {
		for _, e := range c.prefill {
			e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502, Count: 1})
		}
		for _, e := range c.decode {
			e.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5, Count: 1})
		}
	}, chatBody(withUsage))
	if a.status != 200 || a.err != nil {
		t.Fatalf("%d %v %s", a.status, a.err, a.body)
	}
	root := got.all("request")[0]
	wantSame(t, "request", valuesOf(root.Attributes), map[string]any{"tandem.outcome": "ok", "tandem.attempts": 5, "tandem.continuations": 2, "gen_ai.usage.output_tokens": 24})
	prefills, decodes, choices := got.all("prefill"), got.all("decode"), got.all("choose")
	if len(prefills) < 2 || len(decodes) != 3 || len(choices) != 5 {
		t.Fatalf("%d prefill, %d decode, %d choose", len(prefills), len(decodes), len(choices))
	}
	failed := []*tracev1.Span{nil, prefills[0], prefills[1], decodes[0], decodes[1]}
	for i, choice := range choices {
		if i == 0 {
			if len(choice.Links) != 0 {
				t.Errorf("the first choice is linked to %v", choice.Links)
			}
			continue
		}
		leg, want := failed[i], map[string]any{"tandem.cause": "retry", "tandem.cause.leg": "prefill", "tandem.cause.error": "broken"}
		if i > 2 {
			want = map[string]any{"tandem.cause": "continuation", "tandem.cause.leg": "decode", "tandem.cause.error": "broken_stream"}
		}
		says := valuesOf(leg.Attributes)
		want["tandem.cause.server"] = says["tandem.server"]
		wantSame(t, "choose", valuesOf(choice.Attributes), want)
		if leg.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR || leg.Status.Message == "" || says["error.type"] != want["tandem.cause.error"] {
			t.Errorf("the leg before choice %d ended with %v, %v", i, leg.Status, says["error.type"])
		}
		if len(choice.Links) != 1 || !bytes.Equal(choice.Links[0].SpanId, leg.SpanId) || !bytes.Equal(choice.Links[0].TraceId, root.TraceId) {
			t.Errorf("choice %d is linked to %v, want %x", i, choice.Links, leg.SpanId)
			continue
		}
		wantSame(t, "link", valuesOf(choice.Links[0].Attributes), want)
	}
	if says := valuesOf(prefills[0].Attributes); says["http.response.status_code"] != 502 {
		t.Errorf("the engine's status is not in %v", says)
	}
	if last := decodes[2]; last.Status.GetCode() != tracev1.Status_STATUS_CODE_UNSET || valuesOf(last.Attributes)["error.type"] != nil {
		t.Errorf("the leg that ended the stream: %v", last)
	}
}

// The attribute that tail sampling matches is on what is slow or failed, and on nothing else.
func TestTrace_HintsAtWhatIsWorthKeeping(t *testing.T) {
	t.Parallel()
	broken := func(c *cluster) {
		for _, e := range append(c.prefill, c.decode...) {
			e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502})
		}
	}
	for name, x := range map[string]struct {
		config  func(*config)
		prepare func(*cluster)
		body    string
		status  int
		want    any
	}{
		"a first token behind its objective": {func(cfg *config) { cfg.pd.TTFT.All = time.Nanosecond }, nil, chatBody(withUsage), 200, "over_objective"},
		"tokens slower than their objective": {func(cfg *config) { cfg.pd.ITL.All = time.Nanosecond }, nil, chatBody(withUsage), 200, "over_objective"},
		"no objective":                       {func(cfg *config) { cfg.pd.TTFT.All = time.Hour }, nil, chatBody(""), 200, nil},
		"it failed":                          {faultTimeouts, broken, chatBody(withUsage), 502, "failed"},
		"the client's mistake":               {nil, nil, `{"model":"` + testModel + `","messages":[{}],"max_tokens":-1}`, 400, nil},
	} {
		a, got := traced(t, shape{prefill: 1, decode: 1, config: x.config}, x.prepare, x.body)
		root := got.all("request")[0]
		if says := valuesOf(root.Attributes); a.status != x.status || says["tandem.sampling.hint"] != x.want {
			t.Errorf("%s: %d, hint %v, want %v: %v", name, a.status, says["tandem.sampling.hint"], x.want, says)
		}
		if failed := root.Status.GetCode() == tracev1.Status_STATUS_CODE_ERROR; failed != (x.status != 200) || failed != (valuesOf(root.Attributes)["error.type"] != nil) {
			t.Errorf("%s: %v", name, root.Status)
		}
	}
}

// While a collector is away each batch of spans fails, several times a second under load: the log says so once a minute,
// and how often it was.
func TestTrace_ACollectorThatIsAwayIsALineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Buffer
		faults := tracingFaults(newTestLog(&log))
		for range 100 {
			faults.Handle(errors.New("traces export: connection refused"))
			time.Sleep(time.Second)
		}
		text := log.String()
		if lines := strings.Count(text, "tracing failed in part"); lines != 2 || !strings.Contains(text, "connection refused") || !strings.Contains(text, "failures=60") && !strings.Contains(text, `"failures":60`) {
			t.Errorf("%d lines:\n%s", lines, text)
		}
	})
}
