package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs an engine for a test: small, and without waiting unless changed.
func start(t *testing.T, change func(*Config)) *Engine {
	t.Helper()
	cfg := Default()
	cfg.TimeScale = 0
	cfg.Blocks, cfg.MaxModelLen = 512, 4096
	if change != nil {
		change(&cfg)
	}
	e, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

// client is the tests' HTTP client: no connection outlives a test, and no test waits for ever.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Minute}

// fields is a JSON object in tests.
type fields map[string]any

// with is a copy of f with more fields.
func (f fields) with(more fields) fields {
	out := fields{}
	for k, v := range f {
		out[k] = v
	}
	for k, v := range more {
		out[k] = v
	}
	return out
}

func request(t *testing.T, ctx context.Context, e *Engine, path string, body any) *http.Request {
	t.Helper()
	raw, ok := body.(string)
	if !ok {
		encoded, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+path, strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req
}

// post returns status and body.
func post(t *testing.T, e *Engine, path string, body any) (int, []byte) {
	t.Helper()
	resp, err := client.Do(request(t, t.Context(), e, path, body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, out
}

// ask posts and decodes an answer that must be 200.
func ask[T any](t *testing.T, e *Engine, path string, body any) T {
	t.Helper()
	status, raw := post(t, e, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, status, raw)
	}
	var out T
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%s: %v: %s", path, err, raw)
	}
	return out
}

func get(t *testing.T, url string) (int, []byte) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, out
}

// chatAnswer is what tests read of a chat completion or of its chunks.
type chatAnswer struct {
	ID      string `json:"id"`
	Choices []struct {
		Index   int `json:"index"`
		Message struct {
			Content   *string    `json:"content"`
			ToolCalls []chatCall `json:"tool_calls"`
		} `json:"message"`
		Delta        chunkDelta    `json:"delta"`
		Text         string        `json:"text"`
		FinishReason *string       `json:"finish_reason"`
		StopReason   any           `json:"stop_reason"`
		TokenIDs     []int32       `json:"token_ids"`
		Logprobs     *chatLogprobs `json:"logprobs"`
	} `json:"choices"`
	Usage            *usage          `json:"usage"`
	PromptTokenIDs   []int32         `json:"prompt_token_ids"`
	KVTransferParams json.RawMessage `json:"kv_transfer_params"`
	Error            *errorFields    `json:"error"`
}

func (a chatAnswer) content() string {
	if a.Choices[0].Message.Content == nil {
		return ""
	}
	return *a.Choices[0].Message.Content
}

// sse is one server-sent event.
type sse struct{ name, data string }

// stream posts and returns the events until the stream ends; err says how, if not by EOF.
func stream(t *testing.T, e *Engine, path string, body any) (events []sse, err error) {
	t.Helper()
	resp, err := client.Do(request(t, t.Context(), e, path, body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		out, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: status %d: %s", path, resp.StatusCode, out)
	}
	r := bufio.NewReader(resp.Body)
	var event sse
	for {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		switch line = strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(line, "event: "):
			event.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			event.data = line[len("data: "):]
		case line == "":
			events = append(events, event)
			event = sse{}
		}
	}
}

// chatStreamText joins the content of a streamed chat answer and returns its usage.
func chatStreamText(t *testing.T, e *Engine, body fields) (string, *usage) {
	t.Helper()
	events, err := stream(t, e, "/v1/chat/completions", body.with(fields{"stream": true, "stream_options": fields{"include_usage": true}}))
	if err != nil {
		t.Fatal(err)
	}
	if last := events[len(events)-1].data; last != "[DONE]" {
		t.Fatalf("stream ends with %q", last)
	}
	var text bytes.Buffer
	var total *usage
	for _, event := range events[:len(events)-1] {
		var chunk chatAnswer
		if err := json.Unmarshal([]byte(event.data), &chunk); err != nil {
			t.Fatalf("%v: %s", err, event.data)
		}
		for _, c := range chunk.Choices {
			if c.Delta.Content != nil {
				text.WriteString(*c.Delta.Content)
			}
		}
		if chunk.Usage != nil {
			total = chunk.Usage
		}
	}
	return text.String(), total
}

// eventually waits until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// chatBody asks for a number of tokens about a prompt of about that many words.
func chatBody(words, maxTokens int) fields {
	text := strings.Repeat("the river and the city of stone ", words/7+1)
	return fields{
		"model":      "sim-model",
		"messages":   []fields{{"role": "system", "content": "You are brief."}, {"role": "user", "content": text}},
		"max_tokens": maxTokens,
		"ignore_eos": true,
	}
}

// prefill runs the prefill leg of a chat body and returns the hand-off.
func prefill(t *testing.T, p *Engine, body fields) fields {
	t.Helper()
	answer := ask[chatAnswer](t, p, "/v1/chat/completions", body.with(fields{
		"max_tokens": 1, "kv_transfer_params": fields{"do_remote_decode": true, "do_remote_prefill": false},
	}))
	var params fields
	if err := json.Unmarshal(answer.KVTransferParams, &params); err != nil || params == nil {
		t.Fatalf("no hand-off: %s", answer.KVTransferParams)
	}
	delete(params, "remote_prefill_cached_tokens") // decode would report it as its own
	return params
}

// decode runs the decode leg with a hand-off.
func decode(t *testing.T, d *Engine, body, params fields) chatAnswer {
	t.Helper()
	return ask[chatAnswer](t, d, "/v1/chat/completions", body.with(fields{"kv_transfer_params": params}))
}
