package vllm

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"testing"
)

// learnsTokens: vLLM's answer to a response tells its prompt's token ids, those that its render path
// makes of it, and a gateway that learns of nothing else finds the next turns by them.
func learnsTokens(t *testing.T, p, d *engine) {
	body := responseOf(3, 2)
	var rendered struct {
		IDs []int `json:"token_ids"`
	}
	post(t, p.url+"/v1/responses/render", body, &rendered)
	body["enable_response_messages"] = true
	var said struct {
		Input []struct {
			Tokens []int `json:"tokens"`
		} `json:"input_messages"`
	}
	post(t, p.url+"/v1/responses", body, &said)
	if len(said.Input) != 1 || len(rendered.IDs) == 0 || !slices.Equal(said.Input[0].Tokens, rendered.IDs) {
		t.Errorf("the answer tells %v, %d tokens were rendered", said.Input, len(rendered.IDs))
	}
	t.Logf("a response of %d tokens tells them", len(rendered.IDs))

	g := startGateway(t, []*engine{p}, []*engine{d}, "tokens: learned", "pairs-first: true") // decode alone tells no ids
	tokens, cached := 0, 0
	for turn := range 4 {
		for conversation := range 4 {
			var answer struct {
				Usage struct {
					Input   int `json:"input_tokens"`
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"input_tokens_details"`
				} `json:"usage"`
			}
			post(t, g.url+"/v1/responses", responseOf(conversation, turn), &answer)
			tokens, cached = tokens+answer.Usage.Input, cached+answer.Usage.Details.Cached
		}
	}
	confirmed, contradicted := metric(t, g.admin, "tandem_tokens_learned_total", `outcome="confirmed"`), metric(t, g.admin, "tandem_tokens_learned_total", `outcome="contradicted"`)
	hits := metric(t, g.admin, "tandem_kv_hit_tokens_total")
	t.Logf("16 responses of %d tokens, of which %d were cached: %v prompts learned, %v contradicted, %v tokens found by their ids", tokens, cached, confirmed, contradicted, hits)
	if confirmed < 10 || contradicted > 0 || hits < 0.5*float64(cached) || cached == 0 {
		t.Error("they were not learned")
	}
}

// responseOf is a turn of a conversation as a request to /v1/responses.
func responseOf(conversation, turn int) map[string]any {
	var input []map[string]any
	for i := range turn + 1 {
		if i > 0 {
			input = append(input, map[string]any{"role": "assistant", "content": text(uint64(7000+100*conversation+i), 30)})
		}
		input = append(input, map[string]any{"role": "user", "content": text(uint64(6000+100*conversation+i), 100)})
	}
	return map[string]any{"model": model, "instructions": text(5000, 300), "input": input, "max_output_tokens": 8, "temperature": 0}
}

// post sends JSON and reads what comes.
func post(t *testing.T, url string, body, into any) {
	t.Helper()
	sent, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post(url, "application/json", bytes.NewReader(sent))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s, %v", url, resp.StatusCode, got, err)
	}
	if err := json.Unmarshal(got, into); err != nil {
		t.Fatalf("%s: %v in %s", url, err, got)
	}
}
