package engine

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// longerTemplate is a chat template that writes a block more than others'.
func longerTemplate(cfg *Config) { cfg.TemplateTokens = cfg.BlockSize }

// An assertion fails in vLLM's EngineCore where decode's prompt has more blocks than came:
// the engine's process ends, with everything that it was serving.
func TestDeath_OfAHandOffThatIsTooShort(t *testing.T) {
	p := start(t, nil)
	d := start(t, func(cfg *Config) { longerTemplate(cfg); cfg.Control, cfg.TimeScale = "127.0.0.1:0", 1 })
	body := chatBody(60, 5)
	other := make(chan error, 1)
	go func() {
		events, err := stream(t, d, "/v1/completions", fields{"prompt": "a prompt that begins otherwise", "max_tokens": 4000, "ignore_eos": true, "stream": true})
		if err == nil && !strings.Contains(events[len(events)-2].data, "EngineCore encountered an issue") {
			t.Errorf("the stream ended with %v", events[len(events)-2:])
		}
		other <- err
	}()
	eventually(t, "another request is served", func() bool { return d.State().Running == 1 })
	status, raw := post(t, d, "/v1/chat/completions", body.with(fields{"kv_transfer_params": prefill(t, p, body)}))
	if status != http.StatusInternalServerError || !strings.Contains(string(raw), "EngineCore encountered an issue") {
		t.Errorf("status %d: %s", status, raw)
	}
	if err := <-other; err != nil {
		t.Error(err)
	}
	eventually(t, "its process ends", func() bool { // after the answers that say so
		resp, err := client.Get(d.URL() + "/health")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err != nil
	})
	if s := d.State(); s.EngineDeaths != 1 || s.KVBlocksUsed != 0 {
		t.Errorf("%d deaths, %d blocks in use", s.EngineDeaths, s.KVBlocksUsed)
	}
	d.ClearFaults()
	ask[chatAnswer](t, d, "/v1/chat/completions", body)
}

// Prefill's own token ids leave template and tokenizer out, save where vLLM ignores them:
// with media, and before 0.32.
func TestForwardedIDs_StandInForTheMessages(t *testing.T) {
	p := start(t, nil)
	body := chatBody(60, 5)
	legs := func(more fields) (*Engine, fields) {
		d := start(t, func(cfg *Config) { longerTemplate(cfg); cfg.Version = "0.32.0" })
		ids := ask[chatAnswer](t, p, "/v1/chat/completions", body.with(fields{"max_tokens": 1, "return_token_ids": true})).PromptTokenIDs
		return d, body.with(more).with(fields{"kv_transfer_params": prefill(t, p, body).with(fields{"prompt_token_ids": ids})})
	}
	want := ask[chatAnswer](t, p, "/v1/chat/completions", body)
	d, leg := legs(nil)
	if got := ask[chatAnswer](t, d, "/v1/chat/completions", leg); got.content() != want.content() || got.Usage.PromptTokens != want.Usage.PromptTokens {
		t.Errorf("%q of %d tokens, want %q of %d", got.content(), got.Usage.PromptTokens, want.content(), want.Usage.PromptTokens)
	}
	media := append([]fields{}, body["messages"].([]fields)...)
	media = append(media, fields{"role": "user", "content": []fields{{"type": "image_url", "image_url": fields{"url": "data:,x"}}}})
	d, leg = legs(fields{"messages": media})
	if status, raw := post(t, d, "/v1/chat/completions", leg); status != http.StatusInternalServerError {
		t.Errorf("with media: status %d: %s", status, raw)
	}
	old := start(t, func(cfg *Config) { longerTemplate(cfg); cfg.Version = "0.31.0" })
	_, leg = legs(nil)
	if status, raw := post(t, old, "/v1/chat/completions", leg); status != http.StatusInternalServerError {
		t.Errorf("an older engine: status %d: %s", status, raw)
	}
	p = start(t, func(cfg *Config) { cfg.Version = "0.32.0" })
	for _, bad := range []any{[]int{}, []int{-1}, "1,2", []int{1 << 30}} {
		if status, raw := post(t, p, "/v1/chat/completions", body.with(fields{"kv_transfer_params": fields{"prompt_token_ids": bad}})); status != http.StatusBadRequest {
			t.Errorf("%v: status %d: %s", bad, status, raw)
		}
	}
}

// The legs of a request that leaves its truncation to the engine disagree, since one of
// them bounds its answer.
func TestTruncate_DependsOnWhetherTheAnswerIsBounded(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.MaxModelLen = 64 })
	body := fields{"prompt": strings.Repeat("the river and the bridge across it ", 40), "truncate_prompt_tokens": -1}
	bounded := ask[chatAnswer](t, e, "/v1/completions", body.with(fields{"max_tokens": 1})).Usage.PromptTokens
	if bounded != 63 {
		t.Errorf("%d tokens", bounded)
	}
	if got := ask[chatAnswer](t, e, "/v1/completions", body.with(fields{"max_tokens": 1, "truncate_prompt_tokens": 20})).Usage.PromptTokens; got != 20 {
		t.Errorf("%d tokens", got)
	}
}

// A decode that is asked for the rest behind prefill's token gets the same tokens as an
// undivided run from a hand-off of the prompt alone; where that token begins a block it dies,
// as vLLM does.
func TestHandoff_GoesOnBehindPrefillsToken(t *testing.T) {
	p := start(t, nil)
	ids := ask[tokenizeAnswer](t, p, "/tokenize", fields{"prompt": strings.Repeat("the river and the bridge across it ", 9)}).Tokens
	type answer struct {
		Choices []struct {
			TokenIDs []int32 `json:"token_ids"`
		}
		Params fields `json:"kv_transfer_params"`
	}
	for n := 15; n < 50; n++ {
		body := fields{"prompt": ids[:n], "max_tokens": 8, "ignore_eos": true, "return_token_ids": true}
		want := ask[answer](t, p, "/v1/completions", body).Choices[0].TokenIDs
		first := ask[answer](t, p, "/v1/completions", body.with(fields{"max_tokens": 1, "kv_transfer_params": fields{"do_remote_decode": true}}))
		d := start(t, nil)
		status, raw := post(t, d, "/v1/completions", body.with(fields{
			"prompt": append(slices.Clone(ids[:n]), first.Choices[0].TokenIDs...), "max_tokens": 7, "kv_transfer_params": first.Params,
		}))
		if n%16 == 0 {
			if status != http.StatusInternalServerError || d.State().EngineDeaths != 1 {
				t.Errorf("%d tokens: status %d, the engine lives: %s", n, status, raw)
			}
			continue
		}
		var rest answer
		if err := json.Unmarshal(raw, &rest); status != http.StatusOK || err != nil {
			t.Fatalf("%d tokens: status %d, %v: %s", n, status, err, raw)
		}
		if got := append(first.Choices[0].TokenIDs, rest.Choices[0].TokenIDs...); !slices.Equal(got, want) || len(want) != 8 {
			t.Errorf("%d tokens: said %v, undivided %v", n, got, want)
		}
		if s := d.State(); s.Recomputed != 0 || s.DecodesDone != 1 {
			t.Errorf("%d tokens: the hand-off was not used: %v", n, s.RecomputedByReason)
		}
	}
}
