package envoy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// client makes as many connections as requests are under way.
var client = &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
	text   string // that the model wrote
	err    error  // it ended early, or is no answer
}

// send posts a body, with headers as "name: value", and reads the whole answer.
func send(ctx context.Context, url, body string, headers ...string) (a answer) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	return do(req)
}

// do sends a request, and reads the whole answer.
func do(req *http.Request) (a answer) {
	resp, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	raw, err := io.ReadAll(resp.Body)
	if a.body = string(raw); err != nil {
		a.err = err
		return a
	}
	if a.status == http.StatusOK {
		a.text, a.err = textOf(a.body, resp.Header.Get("Content-Type"))
	}
	return a
}

// textOf reads what the model wrote out of an answer to a chat or a completion.
func textOf(body, kind string) (text string, err error) {
	type choices struct {
		Choices []struct {
			Text           string
			Message, Delta struct{ Content string }
		}
		Error json.RawMessage
	}
	read := func(data string) error {
		var c choices
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return fmt.Errorf("%.100q: %w", data, err)
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return fmt.Errorf("%s", c.Error)
		}
		for _, choice := range c.Choices {
			text += choice.Text + choice.Message.Content + choice.Delta.Content
		}
		return nil
	}
	if !strings.HasPrefix(kind, "text/event-stream") {
		return text, read(body)
	}
	lines := bufio.NewScanner(strings.NewReader(body))
	lines.Buffer(nil, len(body)+1)
	for lines.Scan() {
		data, event := strings.CutPrefix(lines.Text(), "data: ")
		if data == "[DONE]" {
			return text, nil
		}
		if event {
			if err := read(data); err != nil {
				return text, err
			}
		}
	}
	return text, fmt.Errorf("no end of the stream in %.300q", body)
}

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

// chat is a request of words, of which the last differ by n; extra are further fields, each
// with a comma before it.
func chat(n int, words string, extra string) string {
	return fmt.Sprintf(`{"model":%q,"max_tokens":12,"messages":[{"role":"user","content":%q}]%s}`, model, words+fmt.Sprintf(" number %d", n), extra)
}

// words is a text of so many bytes.
func words(bytes int) string {
	const sentence = "the river is deep and the sea is wide, so tell me of the harbour; "
	return strings.Repeat(sentence, bytes/len(sentence)+1)[:bytes]
}

const streamed = `,"stream":true`

// reference is what one engine alone answers to a request.
func reference(t *testing.T, f fleet, path, body string) string {
	t.Helper()
	servers := f.all("decode", "both")
	a := send(t.Context(), servers[0].url+path, body)
	if a.status != http.StatusOK || a.err != nil || a.text == "" {
		t.Fatalf("an engine alone answers %d, %v: %.300s", a.status, a.err, a.body)
	}
	return a.text
}

// check asserts that an answer is the one that a single engine gives.
func (a answer) check(t *testing.T, what, want string) {
	t.Helper()
	if a.status != http.StatusOK || a.err != nil || a.text != want {
		t.Errorf("%s: %d, %v: %.300s\nwant %.300q", what, a.status, a.err, a.body, want)
	}
}
