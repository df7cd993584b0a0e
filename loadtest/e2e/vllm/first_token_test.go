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
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestFirstToken: prefill's token is the first one of the answer, and decode goes on behind it
// (docs/engines-tested.md). What comes out is what one engine says.
func TestFirstToken(t *testing.T) {
	p, d := launch(t, "prefill", withTools(t)...), launch(t, "decode", withTools(t)...)
	p.waitUntilUp(t)
	d.waitUntilUp(t)
	g := startGateway(t, []*engine{p}, []*engine{d}, "pairs-first: true")
	t.Run("ids and log-probabilities go on behind it", func(t *testing.T) { goesOn(t, p, d) })
	t.Run("fields across the seam", func(t *testing.T) { fieldsAcross(t, p, d) })
	t.Run("decode draws the token that prefill drew", func(t *testing.T) { drawsTheSame(t, p, d) })
	t.Run("answers are those of one engine", func(t *testing.T) { beginsAsOne(t, g, d) })
	t.Run("stop strings, log-probabilities, tools", func(t *testing.T) { seamIsUnseen(t, g, d) })
	t.Run("a parser of tool calls that looks at the beginning", func(t *testing.T) { parsersLookBack(t, g, p, d) })
	t.Run("what has no text is said by decode", func(t *testing.T) { partOfACharacter(t, g, d) })
	t.Run("a response goes on by ids and begins anew", func(t *testing.T) { responsesBeginAnew(t, p, d) })
	t.Run("a message tells no ids", func(t *testing.T) { messagesTellNoIDs(t, p) })
	t.Run("an answer ends with the context", func(t *testing.T) { endsWithTheContext(t, g, d) })
	t.Run("decode says prefill's token again", func(t *testing.T) { saysItAgain(t, p, d) })
}

// said is what an engine or a gateway says to a request for token ids.
type said struct {
	Text     string
	IDs      []int
	Logprobs []float64
	others   []float64 // top_logprobs
	Stop     any       // stop_reason
	Names    []string  // of tokens, and where they begin, with log-probabilities
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
			StopReason   any     `json:"stop_reason"`
			Logprobs     *logprobs
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
			s.Finish, s.Stop = *c.FinishReason, c.StopReason
		}
		s.addLogprobs(c.Logprobs)
	}
	if u := part.Usage; u != nil {
		s.Prompt, s.Output = u.Prompt, u.Output
	}
	return nil
}

// logprobs are those of a completion, or of a chat.
type logprobs struct {
	Of      []float64 `json:"token_logprobs"`
	Tokens  []string
	Offsets []int                `json:"text_offset"`
	Others  []map[string]float64 `json:"top_logprobs"`
	Content []struct {
		Token   string
		Logprob float64
		Others  []struct {
			Token   string
			Logprob float64
		} `json:"top_logprobs"`
	}
}

func (s *said) addLogprobs(l *logprobs) {
	if l == nil {
		return
	}
	s.Logprobs, s.Names = append(s.Logprobs, l.Of...), append(s.Names, l.Tokens...)
	for _, offset := range l.Offsets {
		s.Names = append(s.Names, fmt.Sprint(offset))
	}
	for _, others := range l.Others {
		for _, name := range slices.Sorted(maps.Keys(others)) {
			s.Names, s.others = append(s.Names, name), append(s.others, others[name])
		}
	}
	for _, c := range l.Content {
		s.Names, s.Logprobs = append(s.Names, c.Token), append(s.Logprobs, c.Logprob)
		for _, other := range c.Others {
			s.Names, s.others = append(s.Names, other.Token), append(s.others, other.Logprob)
		}
	}
}

// isLike compares two answers; log-probabilities may differ a little. Streams name tokens piece
// by piece, so that names are compared as a set.
func (s *said) isLike(other *said) bool {
	return isNear(s.Logprobs, other.Logprobs) && isNear(slices.Sorted(slices.Values(s.others)), slices.Sorted(slices.Values(other.others))) && s.Text == other.Text && slices.Equal(s.IDs, other.IDs) && s.Finish == other.Finish && reflect.DeepEqual(s.Stop, other.Stop) &&
		slices.Equal(slices.Sorted(slices.Values(s.Names)), slices.Sorted(slices.Values(other.Names))) && s.Prompt == other.Prompt && s.Output == other.Output
}

func isNear(a, b []float64) bool {
	for i := range min(len(a), len(b)) {
		if math.Abs(a[i]-b[i]) >= 0.05 {
			return false
		}
	}
	return len(a) == len(b)
}

// divided is an answer that prefill begins and decode goes on with, as the gateway asks for it
// but with whatever fields; both engines are asked directly.
func divided(p, d *engine, body map[string]any) (whole said, err error) {
	leg := maps.Clone(body)
	leg["stream"] = false
	leg["max_tokens"], leg["kv_transfer_params"] = 1, map[string]any{"do_remote_decode": true, "do_remote_prefill": false}
	least, _ := body["min_tokens"].(int)
	leg["min_tokens"] = min(least, 1)
	first, err := tell(p.url, leg)
	if err != nil {
		return first, fmt.Errorf("prefill: %w", err)
	}
	leg = maps.Clone(body)
	ids := append(slices.Clone(first.promptID), first.IDs...)
	if leg["kv_transfer_params"] = first.params; leg["messages"] == nil {
		leg["prompt"] = ids
	} else {
		var params map[string]any
		if err := json.Unmarshal(first.params, &params); err != nil {
			return first, err
		}
		params["prompt_token_ids"] = ids
		leg["kv_transfer_params"] = params
	}
	leg["max_tokens"], leg["min_tokens"] = body["max_tokens"].(int)-1, max(0, least-1)
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

// endsWithTheContext: an answer that is asked to be longer than there is room for behind its prompt is as long as there
// is (entrypoints/serve/utils/api_utils.py, get_max_tokens). Older versions refused it.
func endsWithTheContext(t *testing.T, g gateway, d *engine) {
	const context = 8192
	for _, prompt := range []int{8153, context - 1} { // no ends of a block
		for _, most := range []int{context - prompt, 200, context} {
			body := map[string]any{"prompt": promptOf(77, prompt), "max_tokens": most, "temperature": 0, "ignore_eos": true}
			for name, url := range map[string]string{"engine": d.url, "gateway": g.url} {
				got, err := tell(url, body)
				if err != nil || got.Output != context-prompt || got.Prompt != prompt || got.Finish != "length" {
					t.Errorf("max_tokens %d, %s: %d tokens behind %d, %q, %v", most, name, got.Output, got.Prompt, got.Finish, err)
				}
			}
		}
	}
}

// fieldsAcross says which fields give the same answer across the seam as without it. Those that
// the gateway lets through have to, where one engine says the same twice: with top_k 1 it draws
// among tokens that are equally likely.
func fieldsAcross(t *testing.T, p, d *engine) {
	through := []string{"temperature", "top_k", "min_p", "logit_bias", "allowed_token_ids", "stop_token_ids", "min_tokens", "repetition_penalty"}
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

// withTools are the arguments of an engine whose template shows tools and that parses calls of
// them.
func withTools(t *testing.T) []string {
	t.Helper()
	const template = "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}" +
		"{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}" +
		"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
	file := filepath.Join(t.TempDir(), "template.jinja")
	if err := os.WriteFile(file, []byte(template), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--chat-template", file, "--enable-auto-tool-choice", "--tool-call-parser", "pythonic"}
}

var tools = []map[string]any{{"type": "function", "function": map[string]any{
	"name": "weather", "description": "says what it will be like", "parameters": map[string]any{"type": "object", "properties": map[string]any{"city": map[string]string{"type": "string"}}},
}}}

// seamIsUnseen: through the gateway the answers with these fields are those of one engine, where
// a stop string stands in the first token, spans it and the second, or comes later.
func seamIsUnseen(t *testing.T, g gateway, d *engine) {
	const length = 12
	ask := func(url string, body map[string]any) said {
		t.Helper()
		s, err := tell(url, body)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	stops := func(from, to func(first int) int) func(string, string) map[string]any {
		return func(whole, first string) map[string]any {
			a, b := max(0, from(len(first))), min(to(len(first)), len(whole))
			if a >= b {
				return nil
			}
			return map[string]any{"stop": []string{strings.ToValidUTF8(whole[a:b], "?"), "never said"}}
		}
	}
	always := func(fields map[string]any) func(string, string) map[string]any {
		return func(string, string) map[string]any { return fields }
	}
	at := func(n int) func(int) int { return func(first int) int { return first + n } }
	start := func(int) int { return 0 }
	cases := []struct {
		name   string
		fields func(whole, first string) map[string]any
		first  bool // prefill is to say most first tokens
	}{
		{"stop, behind the second token", stops(at(8), at(12)), true},
		{"stop, the first token", stops(start, at(0)), false},
		{"stop, the first token and the next", stops(start, at(2)), false},
		{"stop, from within the first token on", stops(at(-1), at(2)), false},
		{"log-probabilities", nil, true},
		{"repetition_penalty", always(map[string]any{"repetition_penalty": 1.3}), true},
		{"min_tokens", always(map[string]any{"min_tokens": 6, "ignore_eos": false, "logit_bias": map[string]int{"1": 100}}), true},
		{"tools, tool_choice none", always(map[string]any{"tools": tools, "tool_choice": "none"}), true},
		{"tools, tool_choice auto", always(map[string]any{"tools": tools}), false},
	}
	for _, c := range cases {
		equal, asked := 0, 0
		before := metric(t, g.admin, "tandem_first_tokens_total", `use="first"`)
		for i := range 4 {
			for _, body := range []map[string]any{
				{"messages": []map[string]string{{"role": "user", "content": text(uint64(500+i), 60+i)}}},
				{"prompt": text(uint64(600+i), 60+i)},
			} {
				chat := body["messages"] != nil
				if strings.HasPrefix(c.name, "tools") && !chat {
					continue
				}
				body["temperature"], body["ignore_eos"], body["max_tokens"] = 0, true, length
				switch {
				case c.fields != nil:
					whole := ask(d.url, body).Text
					body["max_tokens"] = 1
					first := ask(d.url, body).Text
					body["max_tokens"] = length
					maps.Copy(body, c.fields(whole, first))
				case chat:
					body["logprobs"], body["top_logprobs"] = true, 3
				default:
					body["logprobs"] = 3
				}
				for k := range 4 {
					body["stream"], body["include_stop_str_in_output"] = k%2 == 1, k >= 2
					want, got := ask(d.url, body), ask(g.url, body)
					if asked++; got.isLike(&want) {
						equal++
						continue
					}
					t.Errorf("%s, chat %v, %v:\n%q %v %s %v %d+%d %v\none engine:\n%q %v %s %v %d+%d %v", c.name, chat, body["stop"],
						got.Text, got.IDs, got.Finish, got.Stop, got.Prompt, got.Output, got.Names, want.Text, want.IDs, want.Finish, want.Stop, want.Prompt, want.Output, want.Names)
				}
			}
		}
		began := metric(t, g.admin, "tandem_first_tokens_total", `use="first"`) - before
		t.Logf("%-38s equal %d of %d, prefill began %v", c.name, equal, asked, began)
		if c.first && began < float64(asked)/2 {
			t.Errorf("%s: too few", c.name)
		}
	}
}

// parsersLookBack: vLLM's pythonic parser takes a text for a call where it begins with a bracket.
// Behind the first token it sees another beginning, so that prefill does not begin such answers.
func parsersLookBack(t *testing.T, g gateway, p, d *engine) {
	sent := strings.NewReader(`{"model":"tiny","prompt":"[q(","add_special_tokens":false}`)
	resp, err := client.Post(d.url+"/tokenize", "application/json", sent)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var of struct{ Tokens []int }
	if err := json.NewDecoder(resp.Body).Decode(&of); err != nil || len(of.Tokens) < 2 {
		t.Fatalf("%v %v", of, err)
	}
	bracket, differ := of.Tokens[0], 0
	for i := 0; differ < 2 && i < 60; i++ {
		body := map[string]any{
			"messages": []map[string]string{{"role": "user", "content": text(uint64(700+i), 20+i)}}, "tools": tools,
			"temperature": 0, "ignore_eos": true, "max_tokens": 12, "allowed_token_ids": of.Tokens, "stream": true,
		}
		want, err := tell(d.url, body)
		if err != nil {
			t.Fatal(err)
		}
		if want.IDs[0] == bracket || want.IDs[1] != bracket || want.Prompt%kvBlock == 0 {
			continue
		}
		got, err := divided(p, d, body)
		if err != nil {
			t.Fatal(err)
		}
		if through, err := tell(g.url, body); err != nil || through.Text != want.Text {
			t.Errorf("%v: %q through the gateway, one engine %q", err, through.Text, want.Text)
		}
		if got.Text != want.Text {
			differ++
			t.Logf("divided %q, one engine %q", got.Text, want.Text)
		}
	}
	if differ == 0 {
		t.Error("no answer shows why tool_choice auto is left to decode: is it needed?")
	}
}

// handOver asks prefill for one token and for a hand-off, on any API.
func handOver(t *testing.T, p *engine, path string, body map[string]any) map[string]any {
	t.Helper()
	leg := maps.Clone(body)
	for _, limit := range []string{"max_tokens", "max_output_tokens"} {
		if leg[limit] != nil {
			leg[limit] = 1
		}
	}
	delete(leg, "stream_options")
	leg["stream"], leg["kv_transfer_params"] = false, map[string]any{"do_remote_decode": true, "do_remote_prefill": false}
	var said map[string]any
	post(t, p.url+path, leg, &said)
	return said
}

// responsesBeginAnew: a response tells the ids of its prompt and token where it is asked to, and decode goes
// on behind them. But its stream is one of its own: its events are counted from 0, and the last one has
// the rest alone.
func responsesBeginAnew(t *testing.T, p, d *engine) {
	type messages []struct{ Tokens []int }
	equal, anew, asked, boundaries := 0, 0, 0, 0
	for i := 0; asked < 4; i++ {
		r := request{path: "/v1/responses", stream: i%2 == 1}
		body := r.with(uint64(40_000+i), "")
		var undivided map[string]any
		post(t, d.url+r.path, request{path: r.path}.with(uint64(40_000+i), "truth"), &undivided)
		body["enable_response_messages"] = true
		said := handOver(t, p, r.path, body)
		var ids struct {
			Input  messages `json:"input_messages"`
			Output messages `json:"output_messages"`
		}
		if err := json.Unmarshal([]byte(compact(said)), &ids); err != nil || len(ids.Input) != 1 || len(ids.Output) != 1 || len(ids.Output[0].Tokens) != 1 {
			t.Fatalf("%v in %s", err, compact(said))
		}
		if len(ids.Input[0].Tokens)%kvBlock == 0 { // decode's engine would die of the token behind it
			boundaries++
			continue
		}
		asked++
		params := said["kv_transfer_params"].(map[string]any)
		params["prompt_token_ids"] = append(slices.Clone(ids.Input[0].Tokens), ids.Output[0].Tokens...)
		delete(body, "enable_response_messages")
		body["kv_transfer_params"], body["max_output_tokens"] = params, 15
		rest, _, err := r.answerOf(d.url, body)
		if err != nil {
			t.Fatal(err)
		}
		last := rest.(map[string]any)
		if r.stream {
			last = last["response.completed"].(map[string]any)["response"].(map[string]any)
		}
		if whole, first, behind := textOf(undivided), textOf(said), textOf(last); whole == first+behind {
			equal++
			if behind != whole && last["usage"].(map[string]any)["output_tokens"].(float64) == 15 {
				anew++
			}
		} else {
			t.Errorf("%q behind %q, undivided %q", behind, first, whole)
		}
	}
	t.Logf("4 responses: %d texts are the undivided one's; in %d the last event or the answer has the rest alone; %d prompts that end with a block were left out", equal, anew, boundaries)
	if anew != 4 {
		t.Error("responses go on as they should: why does decode say their first token?")
	}
}

// textOf joins all texts of a whole answer of any API.
func textOf(v any) (text string) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range []string{"output", "choices", "content", "message", "text"} {
			if said, is := v[key].(string); is {
				text += said
			} else {
				text += textOf(v[key])
			}
		}
	case []any:
		for _, item := range v {
			text += textOf(item)
		}
	}
	return text
}

// messagesTellNoIDs: nothing in the answer of a message says which token was drawn, whatever it is asked.
func messagesTellNoIDs(t *testing.T, p *engine) {
	body := request{path: "/v1/messages"}.with(41_000, "")
	body["return_token_ids"], body["enable_response_messages"], body["logprobs"] = true, true, true
	said := compact(handOver(t, p, "/v1/messages", body))
	t.Log(said)
	if strings.Contains(said, "token_ids") || strings.Contains(said, `"tokens"`) {
		t.Error("it tells ids: why does decode say the first token of messages?")
	}
}

// saysItAgain: decode that gets prefill's KV and the client's own request draws the token that prefill drew,
// whatever the API and the fields. The gateway makes no use of it: it holds of two engines that compute
// alike.
func saysItAgain(t *testing.T, p, d *engine) {
	again, asked, silent := 0, 0, 0
	for i, r := range requests() {
		// The first of two choices says as little of the second as the arguments of a call that are cut
		// short, which vLLM refuses in a whole message.
		if r.stream || slices.Contains([]string{"two prompts", "echo", "n"}, r.name) || r.path == "/v1/messages" && r.name == "tools, a call" {
			continue
		}
		body := r.with(uint64(42_000+i), "")
		if body["min_tokens"] != nil {
			body["min_tokens"] = 1
		}
		first := handOver(t, p, r.path, body)
		body["kv_transfer_params"] = first["kv_transfer_params"]
		var whole map[string]any
		post(t, d.url+r.path, body, &whole)
		asked++
		switch said := textOf(first); {
		case said == "":
			silent++
		case strings.HasPrefix(textOf(whole), said):
			again++
		default:
			t.Errorf("%s: prefill said %q, decode %q", r, said, textOf(whole))
		}
	}
	t.Logf("of %d requests with all kinds of fields decode says prefill's token again in %d; %d said no text", asked, again, silent)
}
