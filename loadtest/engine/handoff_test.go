package engine

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestHandoff_AnswerEqualsAggregated(t *testing.T) {
	p, d, alone := start(t, nil), start(t, nil), start(t, nil)
	for _, words := range []int{1, 7, 40, 300, 1500} {
		t.Run(fmt.Sprint(words), func(t *testing.T) {
			body := chatBody(words, 60)
			want := ask[chatAnswer](t, alone, "/v1/chat/completions", body)
			params := prefill(t, p, body)
			got := decode(t, d, body, params)
			if got.content() != want.content() || got.content() == "" {
				t.Fatalf("got %q, want %q", got.content(), want.content())
			}
			if transferred := want.Usage.PromptTokens / 16 * 16; transferred > 0 && got.Usage.Details.CachedTokens != transferred {
				t.Errorf("cached tokens %d, want the %d transferred", got.Usage.Details.CachedTokens, transferred)
			}
			streamed, total := chatStreamText(t, d, body.with(fields{"kv_transfer_params": prefill(t, p, body)}))
			if streamed != want.content() || total.CompletionTokens != 60 {
				t.Errorf("streamed %q with %+v", streamed, total)
			}
		})
	}
	eventually(t, "nothing is left behind", func() bool {
		ps, ds := p.State(), d.State()
		return ps.HandoffsOpen == 0 && ps.KVBlocksUsed == 0 && ds.KVBlocksUsed == 0
	})
	if s := d.State(); s.Recomputed != 0 || s.DecodesDone != 10 {
		t.Errorf("decode engine: %+v", s)
	}
	if s := p.State(); s.HandoffsPulled != 10 || s.PrefillsDone != 10 || s.HandoffsRejected != 0 {
		t.Errorf("prefill engine: %+v", s)
	}
}

func TestHandoff_CompletionsWithTokenIDs(t *testing.T) {
	p, d := start(t, nil), start(t, nil)
	ids := ask[tokenizeAnswer](t, d, "/tokenize", fields{"prompt": "the history of the river and of the bridge across it, and of the city that grew beside it"}).Tokens
	body := fields{"prompt": ids, "max_tokens": 12, "ignore_eos": true}
	want := ask[chatAnswer](t, d, "/v1/completions", body).Choices[0].Text
	leg := ask[struct {
		Params fields `json:"kv_transfer_params"`
	}](t, p, "/v1/completions", body.with(fields{"max_tokens": 1, "kv_transfer_params": fields{"do_remote_decode": true}}))
	got := ask[chatAnswer](t, d, "/v1/completions", body.with(fields{"kv_transfer_params": leg.Params}))
	if got.Choices[0].Text != want || want == "" {
		t.Fatalf("got %q, want %q", got.Choices[0].Text, want)
	}
}

// Each way a hand-off can be useless is noticed by the engine that can know, and the
// answer is still right.
func TestHandoff_UselessOnesAreNoticed(t *testing.T) {
	other := chatBody(90, 1).with(fields{"messages": []fields{{"role": "user", "content": "an other prompt about other matters, long enough to fill " + strings.Repeat("one more block of the cache than the first, ", 12)}}})
	cases := []struct {
		name   string
		spoil  func(t *testing.T, p, d *Engine, body, params fields) fields
		reason string
		byP    bool // the prefill engine counts a rejection
	}{
		{"engine id of another", func(_ *testing.T, _, _ *Engine, _, params fields) fields {
			return params.with(fields{"remote_engine_id": "someone-else"})
		}, rejectedEngine, true},
		{"unknown request", func(_ *testing.T, _, _ *Engine, _, params fields) fields {
			return params.with(fields{"remote_request_id": "cmpl-never-seen"})
		}, rejectedRequest, true},
		{"other blocks", func(_ *testing.T, _, _ *Engine, _, params fields) fields {
			ids := params["remote_block_ids"].([]any)[0].([]any)
			ids[0], ids[1] = ids[1], ids[0]
			return params
		}, rejectedBlocks, true},
		{"more blocks", func(_ *testing.T, _, _ *Engine, _, params fields) fields {
			ids := params["remote_block_ids"].([]any)[0].([]any)
			return params.with(fields{"remote_block_ids": []any{append(ids, 4000)}})
		}, recomputeForeign, false},
		{"used before", func(t *testing.T, _, d *Engine, body, params fields) fields {
			decode(t, d, body, params)
			return params
		}, rejectedUsed, true},
		{"of another prompt of another length", func(t *testing.T, p, _ *Engine, _, _ fields) fields {
			return prefill(t, p, other)
		}, recomputeForeign, false},
		{"of another prompt of the same length", func(t *testing.T, p, _ *Engine, body, _ fields) fields {
			same := body.with(fields{"messages": []fields{{"role": "system", "content": "You are blunt."}, body["messages"].([]fields)[1]}})
			return prefill(t, p, same)
		}, recomputeForeign, false},
		{"a field missing", func(_ *testing.T, _, _ *Engine, _, params fields) fields {
			delete(params, "remote_port")
			return params
		}, recomputeMissing, false},
		{"no engine there", func(_ *testing.T, _, _ *Engine, _, params fields) fields {
			return params.with(fields{"remote_port": 1})
		}, recomputeUnreachable, false},
		{"older list of blocks is fine", func(_ *testing.T, _, _ *Engine, _, params fields) fields {
			return params.with(fields{"remote_block_ids": params["remote_block_ids"].([]any)[0]})
		}, "", false},
	}
	body := chatBody(60, 25)
	want := ask[chatAnswer](t, start(t, nil), "/v1/chat/completions", body).content()
	for _, c := range cases {
		for _, policy := range []string{LoadFailureRecompute, LoadFailureFail} {
			t.Run(c.name+", "+policy, func(t *testing.T) {
				p := start(t, nil)
				d := start(t, func(cfg *Config) { cfg.LoadFailure = policy })
				params := c.spoil(t, p, d, body, prefill(t, p, body))
				status, raw := post(t, d, "/v1/chat/completions", body.with(fields{"kv_transfer_params": params}))
				failed := policy == LoadFailureFail && c.reason != "" && c.reason != recomputeMissing
				if failed != (status == http.StatusInternalServerError) || !failed && status != http.StatusOK {
					t.Fatalf("status %d: %s", status, raw)
				}
				s := d.State()
				if failed {
					if s.LoadFailuresByReason[c.reason] != 1 || s.Recomputed != 0 {
						t.Errorf("load failures %v, recomputed %v", s.LoadFailuresByReason, s.RecomputedByReason)
					}
				} else {
					if got := ask[chatAnswer](t, d, "/v1/chat/completions", body).content(); got != want {
						t.Errorf("got %q, want %q", got, want)
					}
					if c.reason != "" && s.RecomputedByReason[c.reason] != 1 || c.reason == "" && s.Recomputed != 0 {
						t.Errorf("recomputed %v, want %q", s.RecomputedByReason, c.reason)
					}
				}
				if rejected := p.State().HandoffsRejectedByReason[c.reason]; c.byP != (rejected == 1) {
					t.Errorf("prefill engine rejected %v", p.State().HandoffsRejectedByReason)
				}
				if s.KVBlocksUsed != 0 {
					t.Errorf("%d blocks in use", s.KVBlocksUsed)
				}
			})
		}
	}
}

func TestHandoff_FailureOfAStreamIsAnErrorEvent(t *testing.T) {
	p, d := start(t, nil), start(t, func(cfg *Config) { cfg.LoadFailure = LoadFailureFail })
	body := chatBody(60, 25)
	params := prefill(t, p, body).with(fields{"remote_engine_id": "someone-else"})
	events, err := stream(t, d, "/v1/chat/completions", body.with(fields{"stream": true, "kv_transfer_params": params}))
	if err != nil || len(events) != 2 || events[1].data != "[DONE]" {
		t.Fatalf("got %v, %v", events, err)
	}
	if want := `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`; events[0].data != want {
		t.Errorf("got %s", events[0].data)
	}
}

func TestHandoff_ExpiresWithItsLease(t *testing.T) {
	p := start(t, func(cfg *Config) { cfg.Lease = 30 * time.Millisecond })
	d := start(t, nil)
	body := chatBody(60, 25)
	params := prefill(t, p, body)
	eventually(t, "the lease ends", func() bool { return p.State().HandoffsExpired == 1 })
	if s := p.State(); s.HandoffsOpen != 0 || s.KVBlocksUsed != 0 {
		t.Errorf("open %d, blocks %d", s.HandoffsOpen, s.KVBlocksUsed)
	}
	decode(t, d, body, params)
	if s := d.State(); s.RecomputedByReason[rejectedExpired] != 1 {
		t.Errorf("recomputed %v", s.RecomputedByReason)
	}
}

func TestHandoff_WaitingDecodeRenewsTheLease(t *testing.T) {
	lease := func(cfg *Config) { cfg.Lease = 1500 * time.Millisecond }
	p := start(t, lease)
	d := start(t, func(cfg *Config) { lease(cfg); cfg.MaxSeqs, cfg.TimeScale = 1, 1 })
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	busy := make(chan error, 1)
	go func() {
		resp, err := client.Do(request(t, ctx, d, "/v1/chat/completions", chatBody(10, 4000)))
		if err == nil {
			resp.Body.Close()
		}
		busy <- err
	}()
	eventually(t, "the only seat is taken", func() bool { return d.State().Running == 1 })
	body := chatBody(60, 3)
	params := prefill(t, p, body)
	done := make(chan chatAnswer, 1)
	go func() { done <- decode(t, d, body, params) }()
	begun := time.Now()
	eventually(t, "two leases pass", func() bool { return time.Since(begun) > 3*time.Second })
	if s := p.State(); s.HandoffsOpen != 1 || s.HandoffsExpired != 0 {
		t.Fatalf("open %d, expired %d", s.HandoffsOpen, s.HandoffsExpired)
	}
	hangUp()
	<-busy
	<-done
	if s := d.State(); s.Recomputed != 0 || p.State().HandoffsPulled != 1 {
		t.Errorf("recomputed %v", s.RecomputedByReason)
	}
}

// A prefill that stops by itself is held as well, and one that asks for no hand-off never
// is (vllm nixl/pull_scheduler.py, request_finished; before 0.20 a stop handed nothing over).
func TestHandoff_AlsoWhenThePrefillStopsByItself(t *testing.T) {
	p := start(t, nil)
	body := chatBody(60, 1)
	first := ask[chatAnswer](t, p, "/v1/chat/completions", body.with(fields{"return_token_ids": true})).Choices[0].TokenIDs[0]
	answer := ask[chatAnswer](t, p, "/v1/chat/completions", body.with(fields{
		"stop_token_ids": []int32{first}, "kv_transfer_params": fields{"do_remote_decode": true},
	}))
	if *answer.Choices[0].FinishReason != "stop" || string(answer.KVTransferParams) == "null" {
		t.Fatalf("finish %q, params %s", *answer.Choices[0].FinishReason, answer.KVTransferParams)
	}
	if s := p.State(); s.HandoffsOpen != 1 || s.KVBlocksUsed == 0 {
		t.Errorf("open %d, blocks %d", s.HandoffsOpen, s.KVBlocksUsed)
	}
}

func TestHandoff_DecodeReusesItsOwnPrefix(t *testing.T) {
	p, d := start(t, nil), start(t, nil)
	body := chatBody(60, 5)
	decode(t, d, body, prefill(t, p, body))
	// Now d holds the whole prompt: nothing is sent, but the hand-off is settled.
	decode(t, d, body, prefill(t, p, body))
	if s := p.State(); s.HandoffsOpen != 0 || s.HandoffsPulled != 2 {
		t.Errorf("open %d, pulled %d", s.HandoffsOpen, s.HandoffsPulled)
	}
}

func TestHandoff_RefusedDecodeReleasesIt(t *testing.T) {
	p, d := start(t, nil), start(t, nil)
	params := prefill(t, p, chatBody(60, 5))
	status, _ := post(t, d, "/v1/chat/completions", chatBody(60, 5000).with(fields{"kv_transfer_params": params}))
	if status != http.StatusBadRequest {
		t.Fatalf("status %d", status)
	}
	if s := p.State(); s.HandoffsOpen != 0 || s.HandoffsReleased != 1 {
		t.Errorf("open %d, released %d", s.HandoffsOpen, s.HandoffsReleased)
	}
}

func TestHandoff_TransferTakesBytesOverBandwidth(t *testing.T) {
	slow := func(cfg *Config) {
		cfg.TimeScale = 1
		cfg.LinkBytesPerSecond, cfg.KVBytesPerToken = 1e6, 1000
	}
	p, d := start(t, func(cfg *Config) { slow(cfg); cfg.TimeScale = 0 }), start(t, slow)
	body := chatBody(60, 1)
	params := prefill(t, p, body)
	begun := time.Now()
	tokens := decode(t, d, body, params).Usage.Details.CachedTokens
	want := time.Duration(tokens) * time.Millisecond // 1000 bytes a token at 1e6 bytes/s
	if took := time.Since(begun); took < want || took > want+20*time.Second {
		t.Errorf("%d tokens took %v, want a little over %v", tokens, took, want)
	}
}

// KV takes longer from another rack, and over a link that is sick; both ends are needed
// to know a rack.
func TestHandoff_TransferTakesLongerFromAnotherRackAndOverASickLink(t *testing.T) {
	const perToken = 500 * time.Millisecond // 1000 bytes a token over the uplink
	in := func(rack string) func(*Config) {
		return func(cfg *Config) {
			cfg.TimeScale, cfg.KVBytesPerToken = 1, 1000
			cfg.Rack, cfg.LinkBytesPerSecond, cfg.UplinkBytesPerSecond = rack, 1e9, 2e3
		}
	}
	near, far, nowhere := start(t, in("a")), start(t, in("b")), start(t, in(""))
	d := start(t, in("a"))
	leg := func(p *Engine, seed string) fields {
		body := chatBody(60, 1)
		body["messages"] = []fields{{"role": "user", "content": seed + strings.Repeat(" and of the bridge across the river", 12)}}
		return body.with(fields{"kv_transfer_params": prefill(t, p, body)})
	}
	quick := func(what string, p *Engine, seed string) {
		body, begun := leg(p, seed), time.Now()
		tokens := ask[chatAnswer](t, d, "/v1/chat/completions", body).Usage.Details.CachedTokens
		if took := time.Since(begun); took > time.Duration(tokens)*perToken {
			t.Errorf("%d tokens took %v %s", tokens, took, what)
		}
	}
	slow := func(what string, p *Engine, seed string) { // it would take most of a minute
		body := leg(p, seed)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if resp, err := client.Do(request(t, ctx, d, "/v1/chat/completions", body)); err == nil {
			resp.Body.Close()
			t.Errorf("it came within a second %s", what)
		}
	}
	quick("within the rack", near, "one")
	quick("from a rack that is not known", nowhere, "two")
	slow("from another rack", far, "three")
	if err := d.AddFault(Fault{Kind: FaultSlowLink, Factor: 5e5, Peer: near.State().EngineID}); err != nil {
		t.Fatal(err)
	}
	slow("over the sick link", near, "four")
	quick("over a link that is not sick", nowhere, "five")
}
