package vllm

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// A request of the table of requests and engines (docs/engines-tested.md).
type request struct {
	name, path string
	body       map[string]any // without a prompt
	stream     bool
}

// requests are the rows of the table, each whole and streamed.
func requests() (all []request) {
	const chat, completions, responses, messages = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
	schema := map[string]any{
		"type": "object", "properties": map[string]any{"sky": map[string]any{"enum": []string{"blue", "grey"}}},
		"required": []string{"sky"}, "additionalProperties": false,
	}
	flat := []map[string]any{{"type": "function", "name": "weather", "description": "says what it will be like", "parameters": schema}}
	own := []map[string]any{{"name": "weather", "description": "says what it will be like", "input_schema": schema}}
	draws := map[string]any{"n": 2, "temperature": 1, "seed": 5}
	for _, r := range []request{
		{name: "text", path: completions},
		{name: "token ids", path: completions, body: map[string]any{"return_token_ids": true}},
		{name: "two prompts", path: completions},
		{name: "echo", path: completions, body: map[string]any{"echo": true}},
		{name: "log-probabilities", path: completions, body: map[string]any{"logprobs": 2}},
		{name: "stop", path: completions, body: map[string]any{"stop": []string{"a", "e", "t"}}},
		{name: "n", path: completions, body: draws},
		{name: "seed", path: completions, body: map[string]any{"temperature": 1, "seed": 11}},
		{name: "penalties", path: completions, body: map[string]any{"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2}},
		{name: "min_tokens, bad_words, logit_bias", path: completions, body: map[string]any{"min_tokens": 4, "bad_words": []string{"pool"}, "logit_bias": map[string]int{"500": 3}}},
		{name: "regex", path: completions, body: map[string]any{"structured_outputs": map[string]any{"regex": "[ab]{3}c{3}"}}},
		{name: "text", path: chat},
		{name: "log-probabilities", path: chat, body: map[string]any{"logprobs": true, "top_logprobs": 2}},
		{name: "n", path: chat, body: draws},
		{name: "schema", path: chat, body: map[string]any{"response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "sky", "schema": schema}}}},
		{name: "tools, none", path: chat, body: map[string]any{"tools": tools, "tool_choice": "none"}},
		{name: "tools, auto", path: chat, body: map[string]any{"tools": tools}},
		{name: "tools, a call", path: chat, body: map[string]any{"tools": []map[string]any{{"type": "function", "function": map[string]any{"name": "weather", "parameters": schema}}}, "tool_choice": map[string]any{"type": "function", "function": map[string]string{"name": "weather"}}}},
		{name: "text", path: responses},
		{name: "instructions", path: responses, body: map[string]any{"instructions": text(1, 30)}},
		{name: "schema", path: responses, body: map[string]any{"text": map[string]any{"format": map[string]any{"type": "json_schema", "name": "sky", "schema": schema}}}},
		{name: "tools, auto", path: responses, body: map[string]any{"tools": flat}},
		{name: "text", path: messages},
		{name: "system, stop", path: messages, body: map[string]any{"system": text(2, 30), "stop_sequences": []string{"a", "e", "t"}}},
		{name: "tools, auto", path: messages, body: map[string]any{"tools": own}},
		{name: "tools, any call", path: messages, body: map[string]any{"tools": own, "tool_choice": map[string]any{"type": "any"}, "max_tokens": 48}},
		{name: "tools, a call", path: messages, body: map[string]any{"tools": own, "tool_choice": map[string]any{"type": "tool", "name": "weather"}}},
	} {
		for _, r.stream = range []bool{false, true} {
			all = append(all, r)
		}
	}
	return all
}

// with is the request with a prompt that no other seed has. A salt keeps what an engine computes for
// it from everyone else.
func (r request) with(seed uint64, salt string) map[string]any {
	body := map[string]any{"model": model, "temperature": 0, "stream": r.stream, "max_tokens": 16}
	said := text(seed, 60+int(seed%7))
	switch {
	case r.path == "/v1/responses":
		delete(body, "max_tokens")
		body["input"], body["max_output_tokens"] = said, 16
	case r.path != "/v1/completions":
		body["messages"] = []map[string]string{{"role": "user", "content": said}}
	case r.name == "token ids":
		body["prompt"] = promptOf(seed, 100)
	case r.name == "two prompts":
		body["prompt"] = []string{said, text(seed+50_000, 40)}
	default:
		body["prompt"] = said
	}
	if r.stream && strings.HasSuffix(r.path, "completions") {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	if salt != "" {
		body["cache_salt"] = salt
	}
	maps.Copy(body, r.body)
	return body
}

func (r request) String() string {
	return fmt.Sprintf("%s, %s, streamed %v", r.path, r.name, r.stream)
}

// answerOf is what comes of a request without what is new each time, and whether a pair served it.
func (r request) answerOf(url string, body map[string]any) (said any, byPair bool, err error) {
	sent, err := json.Marshal(body)
	if err != nil {
		return nil, false, err
	}
	resp, err := client.Post(url+r.path, "application/json", bytes.NewReader(sent))
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, false, fmt.Errorf("%s: %.400s %v", resp.Status, data, err)
	}
	byPair = resp.Header.Get("X-Tandem-Prefill") != ""
	if !r.stream {
		var whole any
		err := json.Unmarshal(data, &whole)
		dropPassing(whole)
		return whole, byPair, err
	}
	sum := map[string]any{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		line, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is || line == "[DONE]" {
			continue
		}
		var event map[string]any
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			return nil, false, fmt.Errorf("%w in %s", err, line)
		}
		dropPassing(event)
		addEvent(sum, event)
	}
	return sum, byPair, nil
}

// isSteady reports whether an engine says the same once more.
func (r request) isSteady(e *engine, seed uint64, before any) bool {
	if e.forget != nil {
		e.forget()
	}
	again, _, err := r.answerOf(e.url, r.with(seed, "again"))
	if e.ranks > 0 {
		dropCaches(again)
	}
	return err == nil && alike(again, before)
}

// eachObject calls do with each JSON object in a value, before those within it.
func eachObject(v any, do func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		do(v)
		for _, value := range v {
			eachObject(value, do)
		}
	case []any:
		for _, value := range v {
			eachObject(value, do)
		}
	}
}

// passing are the fields of an answer that are new each time.
var passing = []string{"id", "created", "created_at", "completed_at", "item_id", "response_id", "call_id", "sequence_number", "kv_transfer_params", "cache_salt", "request_id"}

// dropPassing leaves out of an answer what is new each time, and what is null: a field that is null in an answer of
// vLLM is often missing in its streams, and the gateway makes some of the one from the other.
func dropPassing(answer any) {
	eachObject(answer, func(object map[string]any) {
		maps.DeleteFunc(object, func(key string, value any) bool { return value == nil || slices.Contains(passing, key) })
	})
}

// addEvent adds an event of a stream to the sum of those before it: texts are joined, since an engine may
// send two tokens in one event; and the kinds of events are kept in their order.
func addEvent(sum, event map[string]any) {
	kind, _ := event["type"].(string)
	if event["choices"] != nil {
		add(sum, event)
		return
	}
	if message, is := event["message"].(map[string]any); is {
		// How much of a prompt was cached vLLM says at the end of a stream alone, the gateway at its start too.
		tokens := 0.0
		for key, value := range message["usage"].(map[string]any) {
			if strings.HasSuffix(key, "input_tokens") {
				tokens += value.(float64)
			}
		}
		message["usage"] = tokens
	}
	order, _ := sum["order"].([]any)
	if n := len(order); n == 0 || order[n-1] != kind {
		sum["order"] = append(order, kind)
	}
	if before, is := sum[kind].(map[string]any); is && strings.HasSuffix(kind, "delta") {
		add(before, event)
		return
	}
	sum[kind] = event
}

// add joins an object with what comes behind it.
func add(sum, more map[string]any) {
	for key, value := range more {
		before := sum[key]
		switch value := value.(type) {
		case map[string]any:
			if inner, is := before.(map[string]any); is {
				add(inner, value)
				continue
			}
		case []any:
			if list, is := before.([]any); is {
				sum[key] = addList(list, value)
				continue
			}
			sum[key] = addList(nil, value)
			continue
		case string:
			if said, is := before.(string); is && slices.Contains([]string{"content", "text", "arguments", "delta", "partial_json", "reasoning"}, key) {
				sum[key] = said + value
				continue
			}
		case nil:
			if before != nil {
				continue
			}
		}
		sum[key] = value
	}
}

// addList joins lists: what has an index with what has the same, in the order of the indexes, since which of several
// answers says something first is by chance; everything else one behind the other.
func addList(list, more []any) []any {
	for _, item := range more {
		object, _ := item.(map[string]any)
		index, has := object["index"].(float64)
		if !has {
			list = append(list, item)
			continue
		}
		at, found := slices.BinarySearchFunc(list, index, func(of any, index float64) int {
			return cmp.Compare(of.(map[string]any)["index"].(float64), index)
		})
		if !found {
			list = slices.Insert(list, at, item)
			continue
		}
		add(list[at].(map[string]any), object)
	}
	return list
}

// TestEventsOfTwoAnswers: which of two answers says something first makes no difference, and what each says does.
func TestEventsOfTwoAnswers(t *testing.T) {
	sum := func(events ...string) map[string]any {
		all := map[string]any{}
		for _, text := range events {
			var event map[string]any
			if err := json.Unmarshal([]byte(text), &event); err != nil {
				t.Fatal(err)
			}
			addEvent(all, event)
		}
		return all
	}
	const a, b, c = `{"choices":[{"index":0,"text":"a"}]}`, `{"choices":[{"index":1,"text":"b"}]}`, `{"choices":[{"index":0,"text":"c"}]}`
	if one, other := sum(a, b, c), sum(b, a, c); !alike(one, other) {
		t.Errorf("%s and %s", compact(one), compact(other))
	}
	if one, other := sum(a, b, c), sum(c, b, a); alike(one, other) {
		t.Errorf("%s is like %s", compact(one), compact(other))
	}
}

// dropCaches leaves out of an answer how much of its prompt was cached, which hangs on the rank that
// computed it.
func dropCaches(answer any) {
	eachObject(answer, func(object map[string]any) {
		if input, is := object["input_tokens"].(float64); is { // of messages: what no cache has to do with
			read, _ := object["cache_read_input_tokens"].(float64)
			created, _ := object["cache_creation_input_tokens"].(float64)
			object["input_tokens"] = input + read + created
		}
		maps.DeleteFunc(object, func(key string, _ any) bool {
			return strings.HasPrefix(key, "cache_") || strings.HasSuffix(key, "_tokens_details")
		})
	})
}

// asksAll asks a gateway and one engine for every row, and returns a line for the table. Rows in refuses
// are those that the engine itself cannot do, by their path and name.
func asksAll(t *testing.T, column string, g gateway, alone *engine, seed uint64, refuses ...string) {
	t.Helper()
	retries := func() float64 { return metric(t, g.admin, "tandem_retries_total") }
	equal, asked, before, computed := 0, 0, retries(), 0.0
	var decodeAlone, unsteady, recomputed []string
	for i, r := range requests() {
		if slices.Contains(refuses, r.path+" "+r.name) {
			continue
		}
		asked++
		at := seed + uint64(i)
		got, byPair, err := r.answerOf(g.url, r.with(at, ""))
		if alone.forget != nil {
			alone.forget()
		}
		want, _, errAlone := r.answerOf(alone.url, r.with(at, "truth"))
		if alone.ranks > 0 {
			dropCaches(got)
			dropCaches(want)
		}
		switch {
		case errAlone != nil:
			t.Errorf("%s: the engine itself says %v", r, errAlone)
		case err != nil:
			t.Errorf("%s: %v", r, err)
		case !alike(got, want) && !r.isSteady(alone, at, want):
			unsteady = append(unsteady, r.String())
		case !alike(got, want):
			t.Errorf("%s:\n%s\none engine:\n%s", r, compact(got), compact(want))
		default:
			equal++
		}
		if !byPair {
			decodeAlone = append(decodeAlone, r.String())
		}
		if n := metric(t, g.admin, "tandem_silent_recomputes_total"); n > computed {
			recomputed, computed = append(recomputed, r.String()), n
		}
	}
	// A probe of a busy machine's engine may time out, and its request goes elsewhere: equal answers, but not by a pair.
	t.Logf("%s: %d of %d answers are those of one engine, %v retries, all by pairs but %d: %s",
		column, equal, asked, retries()-before, len(decodeAlone), strings.Join(decodeAlone, "; "))
	if len(unsteady) > 0 {
		t.Logf("the engine itself says something else the second time: %s", strings.Join(unsteady, "; "))
	}
	if len(decodeAlone) > 12 {
		t.Error("too few by pairs")
	}
	if len(recomputed) > 0 {
		t.Logf("decode computed the prompts of %s again", strings.Join(recomputed, "; "))
	}
	if computed > float64(alone.recomputes) {
		t.Errorf("%v silent recomputes", computed)
	}
}

// alike compares answers; log-probabilities may differ a little.
func alike(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, is := b.(map[string]any)
		for key, value := range a {
			if !is || !alike(value, b[key]) {
				return false
			}
		}
		return is && len(a) == len(b)
	case []any:
		b, is := b.([]any)
		return is && slices.EqualFunc(a, b, alike)
	case float64:
		b, is := b.(float64)
		return is && math.Abs(a-b) < 0.05
	}
	return a == b
}

func compact(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}
