package calibrate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// client asks one server.
type client struct {
	http  *http.Client
	url   string // scheme and authority
	key   string // bearer token; empty: none
	model string
}

// Prompts are random tokens of a range that vocabularies have in common, so that no
// prefix is found in a cache.
const leastToken, tokens = 1000, 2000

// maxLine bounds one line of an answer.
const maxLine = 1 << 20

// stream asks for output tokens after a prompt of random ones, and returns when the
// request was sent and when each token came.
func (c *client) stream(ctx context.Context, prompt, output int) (sent time.Time, came []time.Time, err error) {
	ids := make([]int, prompt)
	for i := range ids {
		ids[i] = leastToken + rand.IntN(tokens)
	}
	body, err := json.Marshal(map[string]any{
		"model": c.model, "prompt": ids, "max_tokens": output, "min_tokens": output, "ignore_eos": true, "temperature": 0, "stream": true,
	})
	if err != nil {
		return sent, nil, err
	}
	answer, err := c.send(ctx, http.MethodPost, "/v1/completions", body)
	if err != nil {
		return sent, nil, err
	}
	sent = answer.sent
	defer answer.body.Close()
	lines := bufio.NewScanner(answer.body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		data, found := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !found || bytes.Equal(data, []byte("[DONE]")) {
			continue
		}
		var event struct {
			Choices []struct {
				Text         string `json:"text"`
				FinishReason string `json:"finish_reason"`
			} `json:"choices"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(data, &event); err != nil {
			return sent, nil, fmt.Errorf("event of a stream: %w", err)
		}
		if event.Error != nil {
			return sent, nil, fmt.Errorf("the stream broke: %s", event.Error)
		}
		if len(event.Choices) > 0 && (event.Choices[0].Text != "" || event.Choices[0].FinishReason == "") {
			came = append(came, time.Now())
		}
	}
	if err := lines.Err(); err != nil {
		return sent, nil, fmt.Errorf("stream: %w", err)
	}
	if len(came) == 0 {
		return sent, nil, errors.New("an answer without a token")
	}
	return sent, came, nil
}

type answer struct {
	sent time.Time
	body io.ReadCloser
}

func (c *client) send(ctx context.Context, method, path string, body []byte) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	sent := time.Now()
	response, err := c.http.Do(r)
	if err != nil {
		return answer{}, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500)) // for people; the status says what counts
		return answer{}, errors.Join(fmt.Errorf("%s: %s %s", path, response.Status, bytes.TrimSpace(text)), response.Body.Close())
	}
	return answer{sent, response.Body}, nil
}

// describe asks for the model and its longest sequence; 0 where it is not reported.
func (c *client) describe(ctx context.Context) (longest int, err error) {
	a, err := c.send(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return 0, err
	}
	defer a.body.Close()
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(a.body, 1<<20)).Decode(&list); err != nil {
		return 0, fmt.Errorf("/v1/models: %w", err)
	}
	for _, m := range list.Data {
		if c.model == "" {
			c.model = m.ID
		}
		if m.ID == c.model {
			return m.MaxModelLen, nil
		}
	}
	return 0, fmt.Errorf("/v1/models: no model %q", c.model)
}

// kvTokens asks the metrics for the size of the KV cache (vLLM's cache_config_info);
// 0 where it is not reported.
func (c *client) kvTokens(ctx context.Context) (int, error) {
	a, err := c.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return 0, err
	}
	defer a.body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(a.body, 16<<20))
	if err != nil {
		return 0, fmt.Errorf("/metrics: %w", err)
	}
	total := 0
	for _, m := range families["vllm:cache_config_info"].GetMetric() {
		labels := make(map[string]int)
		for _, l := range m.GetLabel() {
			if n, err := strconv.Atoi(l.GetValue()); err == nil {
				labels[l.GetName()] = n
			}
		}
		total += cmp.Or(labels["kv_cache_size_tokens"], labels["block_size"]*labels["num_gpu_blocks"])
	}
	return total, nil
}
