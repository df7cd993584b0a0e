package engine

import (
	"strings"
	"testing"
)

func TestTRTLLM_GenerationNeedsWhatTheContextSaid(t *testing.T) {
	as := func(role string) func(*Config) {
		return func(cfg *Config) { cfg.Connector, cfg.Role = ConnectorTRTLLM, role }
	}
	p, d := start(t, as(RolePrefill)), start(t, as(RoleDecode))
	const id = int64(1)<<42 + 7
	body := chatBody(60, 5)
	context := ask[struct {
		Choices []struct {
			Params fields `json:"disaggregated_params"`
		} `json:"choices"`
		IDs []int32 `json:"prompt_token_ids"`
	}](t, p, "/v1/chat/completions", body.with(fields{"disaggregated_params": fields{"request_type": "context_only", "disagg_request_id": id}}))
	handed := context.Choices[0].Params.with(fields{"request_type": "generation_only", "disagg_request_id": id, "ctx_request_id": id})
	without := func(key string) fields {
		out := handed.with(nil)
		delete(out, key)
		return out
	}
	for name, params := range map[string]fields{
		"no first token": without("first_gen_tokens"), "no state": without("encoded_opaque_state"), "no context": without("ctx_request_id"),
		"a small id": handed.with(fields{"disagg_request_id": 7, "ctx_request_id": 7}), "no type": without("request_type"),
	} {
		if status, raw := post(t, d, "/v1/chat/completions", body.with(fields{"disaggregated_params": params})); status != 400 {
			t.Errorf("%s: %d %s", name, status, raw)
		}
	}
	want := ask[chatAnswer](t, start(t, nil), "/v1/chat/completions", body).content()
	got := ask[chatAnswer](t, d, "/v1/chat/completions", fields{"model": "sim-model", "max_tokens": 5, "ignore_eos": true, "prompt_token_ids": context.IDs, "disaggregated_params": handed})
	if got.content() != want || p.State().HandoffsPulled != 1 || d.State().Recomputed != 0 {
		t.Errorf("%q, want %q; %d pulled", got.content(), want, p.State().HandoffsPulled)
	}
	post(t, p, "/v1/chat/completions", body.with(fields{"disaggregated_params": fields{"request_type": "context_only", "disagg_request_id": id}}))
	if n := p.State().HandoffsRejectedByReason[rejectedUsed]; n != 1 {
		t.Errorf("an id was used twice, and %d were rejected", n)
	}
}

// What prefills took is on the page of metrics, as TensorRT-LLM has it, with each request that has ended.
func TestTRTLLM_CountsWhatPrefillsTook(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.Connector = ConnectorTRTLLM })
	for _, want := range []string{"0", "1", "2"} {
		_, page := get(t, e.URL()+"/prometheus/metrics")
		if line := `trtllm_request_prefill_time_seconds_count{model_name="sim-model"} ` + want + "\n"; !strings.Contains(string(page), line) {
			t.Errorf("want %s\n%s", line, page)
		}
		ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(60, 5))
	}
}

func TestStore_DecodeComputesWhatIsNotThere(t *testing.T) {
	as := func(role, store string) func(*Config) {
		return func(cfg *Config) { cfg.Connector, cfg.Role, cfg.Store = ConnectorStore, role, store }
	}
	p := start(t, as(RolePrefill, ""))
	d := start(t, as(RoleDecode, p.State().KVAddress))
	body := chatBody(60, 5)
	want := ask[chatAnswer](t, start(t, nil), "/v1/chat/completions", body).content()
	for i, stored := range []bool{false, true} {
		d.ranks[0].reset() // its own prefix cache
		if stored {
			ask[chatAnswer](t, p, "/v1/chat/completions", body)
		}
		got := ask[chatAnswer](t, d, "/v1/chat/completions", body)
		found := got.Usage.Details != nil && got.Usage.Details.CachedTokens > 0
		if got.content() != want || found != (stored || i > 0) || d.State().Recomputed != 1 {
			t.Errorf("stored %v: found %v, %d computed, %q", stored, found, d.State().Recomputed, got.content())
		}
	}
}
