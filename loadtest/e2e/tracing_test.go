package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// What docs/tracing.md promises of one trace, as Jaeger's API shows it: a request whose prefill fails
// on both servers, so that decode computes the prompt alone, and whose stream then breaks on both
// decode servers.
func TestTracing_OneTraceTellsOfRetriesAndContinuations(t *testing.T) {
	j := startJaeger(t)
	f := startEngines(t)
	gateway := startGateway(t, f, j.otlp, "--ttft-slo", "1ns", "--retry-floor", "1000")
	for _, server := range f.prefill {
		setFault(t, server, map[string]any{"kind": "status", "status": 502, "count": 1})
	}
	for _, server := range f.decode {
		setFault(t, server, map[string]any{"kind": "die_after_tokens", "tokens": 5, "count": 1})
	}
	id := askStreamed(t, gateway, f.model)
	spans := j.trace(t, id, "request", "admit", "wait", "choose", "prefill", "decode", "stream")
	root := named(spans, "request")[0]
	for key, want := range map[string]any{
		"gen_ai.operation.name": "chat", "gen_ai.request.model": f.model, "gen_ai.usage.output_tokens": 40.0, "tandem.outcome": "ok",
		"tandem.attempts": 5.0, "tandem.continuations": 2.0, "tandem.sampling.hint": "over_objective", "error": nil,
	} {
		if got := root.tag(key); got != want {
			t.Errorf("request: %s is %v, want %v", key, got, want)
		}
	}
	if took, predicted := root.tag("tandem.ttft_seconds"), root.tag("tandem.ttft_predicted_seconds"); took == nil || took != root.tag("gen_ai.response.time_to_first_chunk") || predicted == nil {
		t.Errorf("the first token came after %v, predicted %v", took, predicted)
	}
	choices, prefills, decodes := named(spans, "choose"), named(spans, "prefill"), named(spans, "decode")
	if len(choices) != 5 || len(prefills) < 2 || len(decodes) != 3 {
		t.Fatalf("%d choose, %d prefill, %d decode", len(choices), len(prefills), len(decodes))
	}
	for i, failed := range []span{prefills[0], prefills[1], decodes[0], decodes[1]} {
		cause, kind := "retry", "broken"
		if i > 1 {
			cause, kind = "continuation", "broken_stream"
		}
		next := choices[i+1]
		if failed.tag("error") != true || failed.tag("error.type") != kind || failed.tag("otel.status_description") == nil {
			t.Errorf("failed leg %d: %v", i, failed.Tags)
		}
		if next.tag("tandem.cause") != cause || next.tag("tandem.cause.error") != kind || next.tag("tandem.cause.server") != failed.tag("tandem.server") {
			t.Errorf("the choice behind it: %v", next.Tags)
		}
		if !slices.Equal(next.links(), []string{failed.ID}) {
			t.Errorf("the choice behind it is linked to %v, want %s", next.links(), failed.ID)
		}
	}
	for _, s := range spans {
		if strings.Contains(fmt.Sprint(s), "pedal") {
			t.Errorf("span %s has the prompt in it", s.Operation)
		}
	}

	// A collector keeps what has the hint; Jaeger finds it by the same.
	var found struct {
		Data []struct{} `json:"data"`
	}
	hint := url.QueryEscape(`{"tandem.sampling.hint":"over_objective"}`)
	if err := getJSON(j.query+"/api/traces?service=tandem&tags="+hint, &found); err != nil || len(found.Data) != 1 {
		t.Errorf("%d traces have the hint, %v", len(found.Data), err)
	}

	pair := askStreamed(t, gateway, f.model)
	spans = j.trace(t, pair, "request", "choose", "prefill", "decode", "stream")
	decode := named(spans, "decode")[0]
	if bytes, gap := decode.tag("tandem.handoff.bytes"), decode.tag("tandem.handoff.gap_seconds"); bytes == nil || gap == nil || len(decode.Logs) != 1 {
		t.Errorf("the hand-off of %v bytes lay there for %v s, and %d events", bytes, gap, len(decode.Logs))
	}
	if chosen := named(spans, "choose")[0]; chosen.tag("tandem.prefill") == nil || chosen.tag("tandem.decode") != decode.tag("tandem.server") || chosen.tag("tandem.cost.transfer_seconds") == nil {
		t.Errorf("the pair and its terms: %v", chosen.Tags)
	}
	if prefill := named(spans, "prefill")[0]; prefill.tag("tandem.cached_tokens") == nil {
		t.Errorf("prefill says nothing of its cache: %v", prefill.Tags)
	}
	if class := named(spans, "request")[0].tag("tandem.class"); class != "standard" {
		t.Errorf("the request's class is %v", class)
	}
}

// askStreamed sends one streamed chat completion, reads all of it, and returns its id.
func askStreamed(t *testing.T, gateway, model string) (id string) {
	t.Helper()
	body := fmt.Sprintf(`{"model":%q,"stream":true,"stream_options":{"include_usage":true},"max_tokens":40,"messages":[{"role":"user","content":%q}]}`,
		model, strings.Repeat("Two riders on one bicycle must pedal together or not at all. ", 40))
	res, err := client.Post(gateway+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(text), "[DONE]") {
		t.Fatalf("%s, %v: %.500s", res.Status, err, text)
	}
	return res.Header.Get("X-Request-Id")
}
