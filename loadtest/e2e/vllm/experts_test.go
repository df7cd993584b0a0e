package vllm

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// TestExperts: a mixture of experts with latent attention (DeepSeek-V3's architecture in miniature). What vLLM 0.32
// computes for one token in prefill and in decode are different numbers on CPUs (v1/attention/backends/mla/cpu_mla.py),
// and decode of a pair computes the last token of a prompt in its way. So one engine is a witness only of answers
// whose first token prefill said: they are made of the same steps. The witness of the others are the same two
// engines with the hand-off carried by hand. What decode computes alone shows nothing of either, and vLLM does not
// repeat it for such a model where it is two answers at once.
func TestExperts(t *testing.T) {
	p, d := pairOf(t, transferBy("NixlConnector", "kv_producer"), transferBy("NixlConnector", "kv_consumer"), withExperts(t)...)
	g := gatewayOf(t, p, d)
	asExperts(t, g, p, d)
	cameFromPrefill(t, d, 20_000)
	learnsTokenBytes(t, g, d, expertBytes, expertBlock)
}

// What a token of the model has in KV (of two layers, 512 numbers and 64 of the position, of two bytes each), and
// the tokens of a block, which vLLM 0.32 prescribes for it on CPUs.
const expertBytes, expertBlock = 2 * (512 + 64) * 2, 16

// withExperts are the arguments of an engine of that model which takes all of requests().
func withExperts(t *testing.T) []string {
	t.Helper()
	return append(allRequests(t), "--model", filepath.Join(process.Root(t), ".cache", "vllm", "moe"), "--block-size", fmt.Sprint(expertBlock))
}

// longRequests are prompts of some 500 and 2,000 tokens: ids that end with a block and within one, and chats.
func longRequests() (all []request) {
	for i, tokens := range []int{500, 1999, 2000, 2001} {
		for _, stream := range []bool{false, true} {
			all = append(all, request{name: fmt.Sprint(tokens, " ids"), path: "/v1/completions", stream: stream,
				body: map[string]any{"prompt": promptOf(uint64(700+i), tokens), "return_token_ids": true}})
		}
	}
	for i, words := range []int{150, 600} {
		for _, stream := range []bool{false, true} {
			all = append(all, request{name: fmt.Sprint(words, " words"), path: "/v1/chat/completions", stream: stream,
				body: map[string]any{"messages": []map[string]string{{"role": "user", "content": text(uint64(720+i), words)}}}})
		}
	}
	return all
}

// asExperts asks for every row of one answer, and compares each answer of a pair with that of its witness.
func asExperts(t *testing.T, g gateway, p, alone *engine) {
	const fromPrefill, fromDecode = "prefill's first token", "decode's first token"
	by, decodeAlone := map[string]*expertScore{fromPrefill: {}, fromDecode: {}}, 0
	for i, r := range append(requests(), longRequests()...) {
		if r.name == "n" || r.name == "two prompts" {
			continue
		}
		seed := uint64(210_000 + i)
		one, _, err := r.answerOf(alone.url, r.with(seed, ""))
		if err != nil {
			t.Errorf("%s: one engine says %v", r, err)
			continue
		}
		// A probe that runs beside a request may change its numbers: what is unequal twice is.
		for attempt := 0; ; attempt++ {
			got, first, byPair := r.byPair(t, g, seed)
			if !byPair {
				decodeAlone++
				break
			}
			s, want := by[fromPrefill], one
			if !first {
				s, want = by[fromDecode], r.byHand(t, p, alone, seed)
			}
			equal := alike(got, want)
			if !equal && attempt == 0 {
				t.Logf("%s: asked again", r)
				continue
			}
			s.count(equal, alike(got, one), r.isSteady(alone, seed, one))
			if !equal {
				t.Errorf("%s, first token from prefill %v:\n%s\nits witness:\n%s", r, first, compact(got), compact(want))
			}
			break
		}
	}
	for kind, s := range by {
		t.Logf("%s: %d of %d answers are those of their witness; %d are those of one engine, which repeats %d of its own", kind, s.equal, s.asked, s.ofOne, s.steady)
	}
	t.Logf("%d by decode alone", decodeAlone)
	if by[fromPrefill].asked < 12 || by[fromDecode].asked < 24 {
		t.Error("too few by pairs")
	}
	if n := metric(t, g.admin, "tandem_silent_recomputes_total"); n != 0 {
		t.Errorf("%v silent recomputes", n)
	}
}

// An expertScore counts answers, those that equal their witness's and one engine's, and those that one engine repeats.
type expertScore struct{ asked, equal, ofOne, steady int }

func (s *expertScore) count(equal, ofOne, steady bool) {
	s.asked++
	for number, is := range map[*int]bool{&s.equal: equal, &s.ofOne: ofOne, &s.steady: steady} {
		if is {
			*number++
		}
	}
}

// byPair is the gateway's answer, whether its first token is prefill's, and whether a pair gave it.
func (r request) byPair(t *testing.T, g gateway, seed uint64) (got any, first, isPair bool) {
	t.Helper()
	begun := func() float64 {
		return metric(t, g.admin, "tandem_first_tokens_total", `use="first"`) + metric(t, g.admin, "tandem_first_tokens_total", `use="all"`)
	}
	before := begun()
	got, isPair, err := r.answerOf(g.url, r.with(seed, ""))
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	return got, begun() > before, isPair
}

// byHand is the answer of a pair without a gateway: decode gets prefill's hand-off with the client's own request.
func (r request) byHand(t *testing.T, p, d *engine, seed uint64) any {
	t.Helper()
	leg := r.with(seed, "")
	maps.DeleteFunc(leg, func(field string, _ any) bool {
		return strings.HasPrefix(field, "stop") || field == "min_tokens" || strings.HasSuffix(field, "logprobs")
	})
	leg["ignore_eos"] = true // or an answer of one token may end without a hand-off
	body := r.with(seed, "")
	body["kv_transfer_params"] = handOver(t, p, r.path, leg)["kv_transfer_params"]
	answer, _, err := r.answerOf(d.url, body)
	if err != nil {
		t.Fatalf("%s by hand: %v", r, err)
	}
	return answer
}
