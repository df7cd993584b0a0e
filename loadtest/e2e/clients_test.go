package e2e

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// prompt returns a text of so many words that differs from those of other names from
// its first block on, so that no cache knows any of it.
func prompt(name string, words int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%x", sha256.Sum256([]byte(name)))
	for i := range words {
		fmt.Fprintf(&b, " word%d", i)
	}
	return b.String()
}

// promptWords is long enough for prefilling on another server to be worth it.
const promptWords = 1500

// answer is a call that succeeded, with what came of it.
type answer struct {
	call
	outcome
}

// driveAnswers makes every kind of call through the gateway with both SDKs and holds
// each answer against what one engine says by itself.
func driveAnswers(t *testing.T, gateway string, f fleet) []answer {
	var good []answer
	for _, client := range sdks {
		for _, api := range []string{"chat", "completions"} {
			for _, stream := range []bool{false, true} {
				name := fmt.Sprintf("%s/%s/stream=%v", client.name, api, stream)
				t.Run(name, func(t *testing.T) {
					c := call{API: api, Model: f.model, Prompt: prompt(name, promptWords), MaxTokens: 40, Stream: stream}
					// Through the gateway first: what the engines learned from the direct call
					// must not help it.
					got := client.do(t, gateway, c)
					direct := c
					direct.Stream = false
					alone := doWithGo(t, f.decode[0], direct)
					checkAnswer(t, got, alone, stream)
					checkPair(t, got, f)
					good = append(good, answer{c, got})
				})
			}
		}
	}
	return good
}

// checkAnswer holds an answer against the one that a single engine gave to the same call.
func checkAnswer(t *testing.T, got, alone outcome, stream bool) {
	t.Helper()
	if got.Error != nil || alone.Error != nil {
		t.Fatalf("raised: through the gateway %+v, by the engine alone %+v", got.Error, alone.Error)
	}
	if got.Text != alone.Text || got.Text == "" {
		t.Errorf("answer %q, one engine alone says %q", got.Text, alone.Text)
	}
	if got.Finish != alone.Finish {
		t.Errorf("finish_reason %q, one engine alone says %q", got.Finish, alone.Finish)
	}
	if got.PromptTokens != alone.PromptTokens || got.CompletionTokens != alone.CompletionTokens {
		t.Errorf("usage of %d+%d tokens, one engine alone says %d+%d",
			got.PromptTokens, got.CompletionTokens, alone.PromptTokens, alone.CompletionTokens)
	}
	if got.CachedTokens != 0 {
		t.Errorf("%d cached tokens for a prompt that no server had seen: they are those of the transfer", got.CachedTokens)
	}
	if stream && got.Chunks < 2 {
		t.Errorf("a streamed answer came in %d chunks", got.Chunks)
	}
}

// checkPair asserts that two different servers, one of each pool, served the answer,
// and that nothing of the hand-off between them reached the client.
func checkPair(t *testing.T, got outcome, f fleet) {
	t.Helper()
	p, d := got.Headers["x-tandem-prefill"], got.Headers["x-tandem-decode"]
	if !slices.ContainsFunc(f.prefill, names(p)) || !slices.ContainsFunc(f.decode, names(d)) || p == d {
		t.Errorf("pair is prefill %q and decode %q; the pools are %v and %v", p, d, f.prefill, f.decode)
	}
	if got.Headers["x-request-id"] == "" {
		t.Error("no x-request-id in the answer")
	}
	for _, secret := range []string{"kv_transfer_params", "remote_engine_id", "remote_block_ids", "do_remote"} {
		if strings.Contains(got.Raw, secret) {
			t.Errorf("the client was shown %s: %.2000s", secret, got.Raw)
		}
	}
}

// names says whether a server URL is the one that an exposed server ID names.
func names(id string) func(url string) bool {
	return func(url string) bool {
		return id != "" && strings.TrimPrefix(url, "http://") == strings.TrimPrefix(id, "http://")
	}
}

// driveErrors makes calls that must be refused, and raise what the SDK has for it.
func driveErrors(t *testing.T, gateway string, f fleet) {
	for _, client := range sdks {
		t.Run(client.name, func(t *testing.T) { driveErrorsOf(t, client, gateway, f) })
	}
}

func driveErrorsOf(t *testing.T, client sdk, gateway string, f fleet) {
	ok := call{API: "chat", Model: f.model, Prompt: prompt(client.name, promptWords), MaxTokens: 5}
	tests := []struct {
		name   string
		change func(*call)
		status int
		class  string // of the Node SDK
	}{
		{"unknown model", func(c *call) { c.Model = "no-such-model" }, 404, "NotFoundError"},
		{"malformed", func(c *call) { c.Malformed = true }, 400, "BadRequestError"},
		{"prompt too long", func(c *call) { c.Prompt = prompt("long", 2*maxModelLen) }, 400, "BadRequestError"},
		{"answer too long", func(c *call) { c.MaxTokens = 2 * maxModelLen }, 400, "BadRequestError"},
	}
	for _, test := range tests {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", test.name, stream), func(t *testing.T) {
				bad := ok
				bad.Stream = stream
				test.change(&bad)
				got := client.do(t, gateway, bad)
				if got.Error == nil {
					t.Fatalf("looked like success: %.500s", got.Raw)
				}
				if got.Error.Status != test.status || got.Status != test.status {
					t.Errorf("status %d, want %d: %s", got.Status, test.status, got.Error.Message)
				}
				if client.name == "openai-node" && got.Error.Name != test.class {
					t.Errorf("raised %s, want %s", got.Error.Name, test.class)
				}
				if !strings.Contains(got.Raw, `"error"`) {
					t.Errorf("not OpenAI's error shape: %.500s", got.Raw)
				}
			})
		}
	}
	if after := client.do(t, gateway, ok); after.Error != nil {
		t.Errorf("a good call after the refused ones raised %+v", after.Error)
	}
}
