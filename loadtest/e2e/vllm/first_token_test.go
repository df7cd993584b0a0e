package vllm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestFirstToken: prefill's token is the first one of the answer, and decode goes on behind it
// (docs/engines.md). What comes out is what one engine says.
func TestFirstToken(t *testing.T) {
	p, d := launch(t, "prefill"), launch(t, "decode")
	p.waitUntilUp(t)
	d.waitUntilUp(t)
	g := startGateway(t, []*engine{p}, []*engine{d}, "pairs-first: true")
	t.Run("ids and log-probabilities go on behind it", func(t *testing.T) { goesOn(t, p, d) })
	t.Run("fields across the seam", func(t *testing.T) { fieldsAcross(t, p, d) })
	t.Run("decode draws the token that prefill drew", func(t *testing.T) { drawsTheSame(t, p, d) })
	t.Run("answers are those of one engine", func(t *testing.T) { beginsAsOne(t, g, d) })
	t.Run("what has no text is said by decode", func(t *testing.T) { partOfACharacter(t, g, d) })
}

// said is what an engine or a gateway says to a request for token ids.
type said struct {
	Text     string
	IDs      []int
	Logprobs []float64
	Finish   string
	Prompt   int // tokens, by usage
	Output   int
	promptID []int
	params   json.RawMessage
}

// tell asks for an answer with token ids, streamed or not.
func tell(url string, body map[string]any) (s said, err error) {
	path := "/v1/completions"
	if body["messages"] != nil {
		path = "/v1/chat/completions"
	}
	body = maps.Clone(body)
	body["model"], body["return_token_ids"] = model, true
	if body["stream"] == true {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	sent, err := json.Marshal(body)
	if err != nil {
		return s, err
	}
	resp, err := client.Post(url+path, "application/json", bytes.NewReader(sent))
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("%s: %.300s %v", resp.Status, data, err)
	}
	if body["stream"] != true {
		return s, s.add(data)
	}
	done := false
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		line, is := strings.CutPrefix(lines.Text(), "data: ")
		if done = line == "[DONE]"; is && !done {
			if err := s.add([]byte(line)); err != nil {
				return s, err
			}
		}
		if done {
			return s, nil
		}
	}
	return s, fmt.Errorf("the stream ended without [DONE]")
}

func (s *said) add(data []byte) error {
	var part struct {
		Choices []struct {
			Text         string
			Message      struct{ Content string }
			Delta        struct{ Content string }
			TokenIDs     []int   `json:"token_ids"`
			PromptIDs    []int   `json:"prompt_token_ids"`
			FinishReason *string `json:"finish_reason"`
			Logprobs     *struct {
				Tokens []float64 `json:"token_logprobs"`
			}
		}
		PromptIDs []int           `json:"prompt_token_ids"`
		Params    json.RawMessage `json:"kv_transfer_params"`
		Usage     *struct {
			Prompt int `json:"prompt_tokens"`
			Output int `json:"completion_tokens"`
		}
		Error json.RawMessage
	}
	if err := json.Unmarshal(data, &part); err != nil || part.Error != nil {
		return fmt.Errorf("%w %s", err, data)
	}
	s.promptID = append(s.promptID, part.PromptIDs...)
	s.params = part.Params
	for _, c := range part.Choices {
		s.Text += c.Text + c.Message.Content + c.Delta.Content
		s.IDs = append(s.IDs, c.TokenIDs...)
		s.promptID = append(s.promptID, c.PromptIDs...)
		if c.FinishReason != nil {
			s.Finish = *c.FinishReason
		}
		if c.Logprobs != nil {
			s.Logprobs = append(s.Logprobs, c.Logprobs.Tokens...)
		}
	}
	if u := part.Usage; u != nil {
		s.Prompt, s.Output = u.Prompt, u.Output
	}
	return nil
}

// divided is an answer that prefill begins and decode goes on with, as the gateway asks for it
// but with whatever fields; both engines are asked directly.
func divided(p, d *engine, body map[string]any) (whole said, err error) {
	leg := maps.Clone(body)
	leg["max_tokens"], leg["kv_transfer_params"] = 1, map[string]any{"do_remote_decode": true, "do_remote_prefill": false}
	delete(leg, "min_tokens")
	first, err := tell(p.url, leg)
	if err != nil {
		return first, fmt.Errorf("prefill: %w", err)
	}
	leg = maps.Clone(body)
	leg["prompt"], leg["kv_transfer_params"] = append(slices.Clone(first.promptID), first.IDs...), first.params
	leg["max_tokens"] = body["max_tokens"].(int) - 1
	rest, err := tell(d.url, leg)
	if err != nil {
		return rest, fmt.Errorf("decode: %w", err)
	}
	rest.Text, rest.IDs, rest.Logprobs = first.Text+rest.Text, append(first.IDs, rest.IDs...), append(first.Logprobs, rest.Logprobs...)
	return rest, nil
}

// promptOf is a prompt of so many token ids.
func promptOf(seed uint64, tokens int) []int {
	r := rand.New(rand.NewPCG(seed, 1))
	ids := make([]int, tokens)
	for i := range ids {
		ids[i] = 300 + r.IntN(1600)
	}
	return ids
}

// goesOn: from 33 to 6,001 tokens, wherever the prompt does not end with a block.
func goesOn(t *testing.T, p, d *engine) {
	most := 0.0
	for i, n := range []int{33, 63, 65, 95, 1000, 1023, 1025, 2001, 4001, 6001} {
		body := map[string]any{"prompt": promptOf(uint64(i), n), "max_tokens": 24, "temperature": 0, "ignore_eos": true, "logprobs": 1}
		got, err := divided(p, d, body)
		if err != nil {
			t.Fatal(err)
		}
		want, err := tell(d.url, body)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.IDs, want.IDs) || got.Text != want.Text || len(got.Logprobs) != len(want.Logprobs) {
			t.Errorf("%d tokens:\n%v %q\nundivided:\n%v %q", n, got.IDs, got.Text, want.IDs, want.Text)
			continue
		}
		for k := range got.Logprobs {
			most = max(most, math.Abs(got.Logprobs[k]-want.Logprobs[k]))
		}
	}
	t.Logf("10 prompts of 33 to 6,001 tokens, 24 tokens each: equal ids, log-probabilities differ by at most %.4f", most)
	if most > 0.05 {
		t.Error("too far apart")
	}
}

// fieldsAcross says which fields give the same answer across the seam as without it. Those that
// the gateway lets through have to, where one engine says the same twice: with top_k 1 it draws
// among tokens that are equally likely.
func fieldsAcross(t *testing.T, p, d *engine) {
	through := []string{"temperature", "top_k", "min_p", "logit_bias", "allowed_token_ids", "stop_token_ids"}
	for name, fields := range map[string]map[string]any{
		"temperature":        {"temperature": 0},
		"top_k":              {"temperature": 1, "top_k": 1},
		"min_p":              {"temperature": 0, "min_p": 0.2},
		"logit_bias":         {"logit_bias": map[string]int{"500": 12, "700": 12}},
		"allowed_token_ids":  {"allowed_token_ids": []int{400, 500, 600, 700, 800}},
		"stop_token_ids":     {"stop_token_ids": []int{401, 502, 603, 704, 805, 906, 1007, 1108, 1209, 1310}},
		"repetition_penalty": {"repetition_penalty": 1.5},
		"frequency_penalty":  {"frequency_penalty": 1.5, "allowed_token_ids": []int{400, 500, 600}},
		"presence_penalty":   {"presence_penalty": 1.9, "allowed_token_ids": []int{400, 500, 600}},
		"seed":               {"temperature": 1, "seed": 11},
		"min_tokens":         {"min_tokens": 12, "ignore_eos": false},
		"response_format":    {"response_format": map[string]any{"type": "json_object"}},
		"structured_outputs": {"structured_outputs": map[string]any{"regex": "[ab]{5}c{5}"}},
		"bad_words":          {"bad_words": []string{"pair prefill", "pool"}},
	} {
		equal, twice, tried := 0, 0, 0
		var failed error
		for i := range 6 {
			body := map[string]any{"prompt": promptOf(uint64(100+i), 200+i), "max_tokens": 24, "temperature": 0, "ignore_eos": true}
			maps.Copy(body, fields)
			want, err := tell(d.url, body)
			if err != nil {
				failed = err
				break
			}
			got, err := divided(p, d, body)
			if err != nil {
				failed = err
				break
			}
			again, err := tell(d.url, body)
			if err != nil {
				failed = err
				break
			}
			if slices.Equal(again.IDs, want.IDs) {
				twice++
			}
			if tried++; slices.Equal(got.IDs, want.IDs) && got.Text == want.Text && got.Finish == want.Finish {
				equal++
			}
		}
		t.Logf("%-19s equal %d of %d, one engine to itself %d %v", name, equal, tried, twice, failed)
		if slices.Contains(through, name) && (equal != 6 && twice == 6 || failed != nil) {
			t.Errorf("%s goes through the gateway and is not equal", name)
		}
	}
}

// drawsTheSame: with one seed both engines draw the same first token, so that it does not
// depend on the token which leg says it.
func drawsTheSame(t *testing.T, p, d *engine) {
	same, tokens := 0, map[int]bool{}
	for i := range 16 {
		body := map[string]any{"prompt": promptOf(7, 77), "max_tokens": 1, "temperature": 1.5, "seed": 1000 + i,
			"kv_transfer_params": map[string]any{"do_remote_decode": true, "do_remote_prefill": false}}
		first, err := tell(p.url, body)
		if err != nil {
			t.Fatal(err)
		}
		body["kv_transfer_params"] = first.params
		again, err := tell(d.url, body)
		if err != nil {
			t.Fatal(err)
		}
		if tokens[first.IDs[0]] = true; slices.Equal(first.IDs, again.IDs) {
			same++
		}
	}
	t.Logf("%d of 16 first tokens are the same, %d different ones", same, len(tokens))
	if same != 16 || len(tokens) < 4 {
		t.Error("decode does not draw what prefill drew")
	}
}

// beginsAsOne: through the gateway, whatever the prompt's length, streamed or not.
func beginsAsOne(t *testing.T, g gateway, d *engine) {
	var bodies []map[string]any
	for i, n := range []int{20, 31, 32, 33, 63, 64, 65, 1000, 1023, 1024, 1025, 6001} {
		bodies = append(bodies, map[string]any{"prompt": promptOf(uint64(200+i), n), "max_tokens": 20})
	}
	for words := 100; words < 116; words++ {
		bodies = append(bodies, map[string]any{"messages": []map[string]string{{"role": "user", "content": text(uint64(words), words)}}, "max_tokens": 20})
		bodies = append(bodies, map[string]any{"prompt": text(uint64(3*words), words), "max_tokens": 1 + words%3})
	}
	asked := 0
	for _, body := range bodies {
		body["temperature"], body["ignore_eos"] = 0, true
		want, err := tell(d.url, body)
		if err != nil {
			t.Fatal(err)
		}
		for _, stream := range []bool{false, true} {
			body["stream"] = stream
			got, err := tell(g.url, body)
			if err != nil {
				t.Fatal(err)
			}
			asked++
			got.params, want.params, got.Logprobs, want.Logprobs = nil, nil, nil, nil
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%d tokens, stream %v:\n%q %v %s %d+%d\none engine:\n%q %v %s %d+%d", want.Prompt, stream,
					got.Text, got.IDs, got.Finish, got.Prompt, got.Output, want.Text, want.IDs, want.Finish, want.Prompt, want.Output)
			}
		}
	}
	use := func(labels ...string) float64 { return metric(t, g.admin, "tandem_first_tokens_total", labels...) }
	first, all, boundary := use(`use="first"`), use(`use="all"`), use(`reason="block_boundary"`)
	t.Logf("%d answers: prefill began %v, gave %v whole, %v prompts end with a block", asked, first, all, boundary)
	if first < 50 || all < 8 || boundary < 6 { // the six are prompts of 32, 64 and 1,024 tokens
		t.Error("too few of one kind")
	}
	if n := metric(t, g.admin, "tandem_prompt_mismatches_total") + metric(t, g.admin, "tandem_retries_total"); n != 0 {
		t.Errorf("%v legs went wrong", n)
	}
}

// partOfACharacter: a prompt that ends in half a character makes vLLM's detokenizer repeat all of
// its text, so that decode does not go on behind such a token.
func partOfACharacter(t *testing.T, g gateway, d *engine) {
	sent := strings.NewReader(`{"model":"tiny","prompt":"🚲","add_special_tokens":false}`)
	resp, err := client.Post(d.url+"/tokenize", "application/json", sent)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var emoji struct{ Tokens []int }
	if err := json.NewDecoder(resp.Body).Decode(&emoji); err != nil || len(emoji.Tokens) < 2 {
		t.Fatalf("%v %v", emoji, err)
	}
	before := metric(t, g.admin, "tandem_first_tokens_total", `reason="no_text"`)
	for _, stream := range []bool{false, true} {
		body := map[string]any{"prompt": promptOf(31, 70), "max_tokens": 4, "temperature": 0, "allowed_token_ids": emoji.Tokens[:1], "stream": stream}
		want, err := tell(d.url, body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tell(g.url, body)
		if err != nil || got.Text != want.Text || !slices.Equal(got.IDs, want.IDs) {
			t.Errorf("%v %q %v, one engine %q %v", err, got.Text, got.IDs, want.Text, want.IDs)
		}
	}
	if n := metric(t, g.admin, "tandem_first_tokens_total", `reason="no_text"`) - before; n != 2 {
		t.Errorf("%v tokens without text", n)
	}
}
