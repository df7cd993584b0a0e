package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// reply is one streamed chat completion as a client sees it.
type reply struct {
	header       http.Header
	text         string
	promptTokens int
	outputTokens int
	ttft, took   time.Duration
}

// ask sends one streamed chat completion. A stream that ends without [DONE] is
// an error.
func ask(ctx context.Context, base, model, question string, maxTokens int) (reply, error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "stream": true, "max_tokens": maxTokens,
		"stream_options": map[string]any{"include_usage": true},
		"messages":       []map[string]string{{"role": "user", "content": question}},
	})
	if err != nil {
		return reply{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // the status says enough
		return reply{}, fmt.Errorf("%s: %s", resp.Status, text)
	}
	r := reply{header: resp.Header}
	var text strings.Builder
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			r.text, r.took = text.String(), time.Since(start)
			return r, nil
		}
		if message := gjson.Get(data, "error.message"); message.Exists() {
			return r, errors.New(message.String())
		}
		if content := gjson.Get(data, "choices.0.delta.content").String(); content != "" {
			if text.Len() == 0 {
				r.ttft = time.Since(start)
			}
			text.WriteString(content)
		}
		if usage := gjson.Get(data, "usage"); usage.IsObject() {
			r.promptTokens = int(usage.Get("prompt_tokens").Int())
			r.outputTokens = int(usage.Get("completion_tokens").Int())
		}
	}
	return r, errors.New("the stream ended early")
}
