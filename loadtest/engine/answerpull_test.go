package engine

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"
)

// idsAnswer is what these tests read of a completion.
type idsAnswer struct {
	Choices []struct {
		Text           string  `json:"text"`
		PromptTokenIDs []int32 `json:"prompt_token_ids"`
		TokenIDs       []int32 `json:"token_ids"`
	} `json:"choices"`
	Usage  usage  `json:"usage"`
	Params fields `json:"kv_transfer_params"`
}

// keepsAnswers is an engine with bidirectional_kv_xfer.
func keepsAnswers(t *testing.T, more func(*Config)) *Engine {
	return start(t, func(cfg *Config) {
		cfg.KeepAnswers = true
		if more != nil {
			more(cfg)
		}
	})
}

// turn is a request for 50 tokens by ids.
func turn(ids []int32) fields {
	return fields{"prompt": ids, "max_tokens": 50, "ignore_eos": true, "return_token_ids": true}
}

// firstTurn runs a turn of 203 tokens on a pair, and returns all its ids and the hand-off of its answer.
func firstTurn(t *testing.T, p, d *Engine) (ids []int32, kept fields) {
	t.Helper()
	for i := range int32(203) {
		ids = append(ids, 1000+i*7%611)
	}
	leg := ask[idsAnswer](t, p, "/v1/completions", turn(ids).with(fields{"max_tokens": 1, "kv_transfer_params": fields{"do_remote_decode": true}}))
	got := ask[idsAnswer](t, d, "/v1/completions", turn(ids).with(fields{"kv_transfer_params": leg.Params}))
	if got.Params == nil || got.Params["do_remote_decode"] != true || got.Params["remote_num_tokens"] != 252.0 {
		t.Fatalf("the answer names no KV, or not that of 203 + 49 tokens: %v", got.Params)
	}
	return append(ids, got.Choices[0].TokenIDs...), got.Params
}

// wholeBlocks is the hand-off of an answer cut to so many blocks.
func wholeBlocks(kept fields, blocks int) fields {
	ids := kept["remote_block_ids"].([]any)[0].([]any)
	return kept.with(fields{"remote_block_ids": []any{ids[:blocks]}, "remote_num_tokens": blocks * 16})
}

// The next turn's prefill reads the KV of prompt and answer from decode, all of it or whole blocks
// of it, and computes what comes behind; the answer is that of one engine.
func TestAnswers_NextTurnsPrefillReadsThemFromDecode(t *testing.T) {
	for name, c := range map[string]struct {
		cut    func(fields) fields
		cached int
	}{
		"as it came":   {func(kept fields) fields { return kept }, 252},
		"whole blocks": {func(kept fields) fields { return wholeBlocks(kept, 15) }, 240},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := keepsAnswers(t, nil), keepsAnswers(t, nil)
			ids, kept := firstTurn(t, p, d)
			next := turn(append(ids, 1, 2, 3, 4, 5, 6, 7))
			want := ask[idsAnswer](t, start(t, nil), "/v1/completions", next).Choices[0].Text

			other := keepsAnswers(t, nil) // has nothing of the conversation
			leg := ask[idsAnswer](t, other, "/v1/completions", next.with(fields{"max_tokens": 1, "kv_transfer_params": c.cut(kept)}))
			if leg.Usage.Details.CachedTokens != c.cached {
				t.Errorf("prefill had %d tokens cached, want %d", leg.Usage.Details.CachedTokens, c.cached)
			}
			got := ask[idsAnswer](t, d, "/v1/completions", next.with(fields{"kv_transfer_params": leg.Params}))
			if got.Choices[0].Text != want || want == "" {
				t.Errorf("got %q, want %q", got.Choices[0].Text, want)
			}
			if s := d.State(); s.AnswersKept != 2 || s.AnswersPulled != 1 || s.HandoffsOpen != 1 || s.HandoffsRejected+s.Recomputed != 0 {
				t.Errorf("decode: %+v", s)
			}
			if s := other.State(); s.Recomputed+s.HandoffsRejected != 0 || s.HandoffsPulled != 1 {
				t.Errorf("prefill: %+v", s)
			}
		})
	}
}

// What vLLM does not compare is noticed here: each wrong use of an answer's KV is counted, and by
// the policy computed or failed.
func TestAnswers_WrongUsesAreNoticed(t *testing.T) {
	behind := func(ids []int32) []int32 { return append(ids, 1, 2, 3, 4, 5, 6, 7) }
	for name, c := range map[string]struct {
		prompt func(ids []int32) []int32
		cut    func(t *testing.T, d *Engine, kept fields) fields
		reason string
	}{
		"another answer's KV":              {func(ids []int32) []int32 { ids[240] = 77; return behind(ids) }, nil, recomputeForeign},
		"the template leaves tokens out":   {func(ids []int32) []int32 { return behind(append(ids[:203:203], ids[213:]...)) }, nil, recomputeForeign},
		"a prompt that ends in the answer": {func(ids []int32) []int32 { return ids[:220] }, nil, recomputeTail},
		"more tokens than blocks": {behind, func(_ *testing.T, _ *Engine, kept fields) fields {
			return wholeBlocks(kept, 15).with(fields{"remote_num_tokens": 252})
		}, recomputeTail},
		"blocks from the middle": {behind, func(_ *testing.T, _ *Engine, kept fields) fields {
			ids := kept["remote_block_ids"].([]any)[0].([]any)
			return kept.with(fields{"remote_block_ids": []any{ids[1:]}, "remote_num_tokens": 15 * 16})
		}, rejectedBlocks},
		"used twice": {behind, nil, rejectedUsed},
		"too old": {behind, func(t *testing.T, d *Engine, kept fields) fields {
			eventually(t, "the KV is given up", func() bool { return d.State().HandoffsExpired == 1 })
			return kept
		}, rejectedExpired},
		"of another engine": {behind, func(_ *testing.T, _ *Engine, kept fields) fields {
			return kept.with(fields{"remote_engine_id": "someone-else"})
		}, rejectedEngine},
	} {
		for _, policy := range []string{LoadFailureRecompute, LoadFailureFail} {
			t.Run(name+", "+policy, func(t *testing.T) {
				d := keepsAnswers(t, func(cfg *Config) {
					if c.reason == rejectedExpired {
						cfg.AnswerLife = 20 * time.Millisecond
					}
				})
				ids, kept := firstTurn(t, keepsAnswers(t, nil), d)
				if c.cut != nil {
					kept = c.cut(t, d, kept)
				}
				next := turn(c.prompt(ids))
				leg := next.with(fields{"max_tokens": 1, "kv_transfer_params": kept})
				if c.reason == rejectedUsed {
					ask[idsAnswer](t, keepsAnswers(t, nil), "/v1/completions", leg)
				}
				p := keepsAnswers(t, func(cfg *Config) { cfg.LoadFailure = policy })
				status, raw := post(t, p, "/v1/completions", leg)
				s := p.State()
				if policy == LoadFailureFail {
					if status != http.StatusInternalServerError || s.LoadFailuresByReason[c.reason] != 1 {
						t.Fatalf("status %d, failures %v: %s", status, s.LoadFailuresByReason, raw)
					}
					return
				}
				if status != http.StatusOK || s.RecomputedByReason[c.reason] != 1 {
					t.Fatalf("status %d, computed again %v: %s", status, s.RecomputedByReason, raw)
				}
			})
		}
	}
}

// Fewer tokens than kv_recompute_threshold are computed, and the blocks are let go of.
func TestAnswers_FewTokensAreComputed(t *testing.T) {
	p, d := keepsAnswers(t, nil), keepsAnswers(t, nil)
	ids, kept := firstTurn(t, p, d)
	leg := ask[idsAnswer](t, p, "/v1/completions", turn(append(ids, 1, 2, 3)).with(fields{"max_tokens": 1, "kv_transfer_params": kept}))
	if leg.Usage.Details.CachedTokens != 192 { // of its own: 252 - 192 are 60
		t.Errorf("%d tokens cached", leg.Usage.Details.CachedTokens)
	}
	eventually(t, "the KV is let go of", func() bool { return d.State().HandoffsReleased == 1 })
}

// An engine without bidirectional_kv_xfer that is named an answer's KV never answers: it counts
// the tokens as coming, and fetches nothing.
func TestAnswers_AnEngineThatFetchesNoneWaitsForEver(t *testing.T) {
	ids, kept := firstTurn(t, keepsAnswers(t, nil), keepsAnswers(t, nil))
	p := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		resp, err := client.Do(request(t, ctx, p, "/v1/completions", turn(append(ids, 1, 2, 3)).with(fields{"max_tokens": 1, "kv_transfer_params": kept})))
		if err == nil {
			_ = resp.Body.Close()
		}
		result <- err
	}()
	eventually(t, "it loads", func() bool { return p.State().Waiting == 1 })
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended with %v", err)
	}
	eventually(t, "nothing is left", func() bool { return p.State().KVBlocksUsed == 0 })
}
