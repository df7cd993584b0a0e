package pd

import (
	"bytes"
	"strconv"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// story is what a stream has said so far, in token ids, so that another pair can
// tell the rest: the prompt's ids and those of the answer, as the engine reported
// them (return_token_ids). Text would not do: it may be tokenised another way.
type story struct {
	req      *Request // with return_token_ids
	showIDs  bool     // the client asked for them itself
	modelLen int      // tokens; 0 is unknown

	prompt  []byte // "1,2,3", as the engine wrote them
	prompts int    // how many
	answer  []byte
	tokens  int
	// sure is the part of answer whose text the client has: an engine holds back
	// text that is half a character.
	sureBytes, sureTokens int

	template []byte // a chunk of the first leg, for what must stay the same
	resumed  bool   // the chunks are those of a continuation
	before   int    // tokens told by earlier legs
	lost     bool   // something was said that ids do not carry on
}

// newStory returns the story of a request, nil where its stream cannot be
// continued. Refused: what keeps state outside the tokens (guided decoding, tool
// calls, seeds, penalties), what the seam would show in (logprobs, stop strings),
// and answers with more than one voice.
func newStory(req *Request, modelLen int) *story {
	if !req.Stream || req.Aggregated || (req.Dialect != Chat && req.Dialect != Completions) || (modelLen == 0 && req.MaxOutput == 0) {
		return nil
	}
	for _, field := range []string{"seed", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "logit_bias_processor", "prompt_embeds", "suffix", "functions"} {
		if !req.Body.Get(field).Null() {
			return nil
		}
	}
	if format, ok := req.Body.Get("response_format").Object(); ok {
		if kind, _ := format.Get("type").String(); kind != "text" {
			return nil
		}
	}
	for _, field := range []string{"logprobs", "echo"} {
		if v := req.Body.Get(field); !v.Null() && string(v) != "false" {
			return nil
		}
	}
	for _, field := range []string{"tools", "stop"} {
		if v := req.Body.Get(field); !v.Null() && string(v) != "[]" && string(v) != `""` {
			return nil
		}
	}
	for _, field := range []string{"presence_penalty", "frequency_penalty"} {
		if v := gjson.ParseBytes(req.Body.Get(field)); v.Exists() && v.Float() != 0 {
			return nil
		}
	}
	if v := gjson.ParseBytes(req.Body.Get("repetition_penalty")); v.Exists() && v.Type != gjson.Null && v.Float() != 1 {
		return nil
	}
	s := &story{modelLen: modelLen}
	s.showIDs, _ = req.Body.Get("return_token_ids").Bool()
	asked := *req
	asked.Body = req.Body.With(Edit{"return_token_ids", []byte("true")})
	s.req = &asked
	return s
}

// begin forgets what a leg said that failed before its first content event: the
// client has seen nothing of it.
func (s *story) begin() {
	if !s.resumed {
		*s = story{req: s.req, showIDs: s.showIDs, modelLen: s.modelLen}
	}
}

// take notes what an event says and returns it as the client may see it.
func (s *story) take(data []byte) []byte {
	choices := gjson.GetBytes(data, "choices")
	if !choices.IsArray() {
		return data // the end marker
	}
	all := choices.Array()
	if len(all) == 0 {
		return s.usage(data)
	}
	first := all[0]
	s.notePrompt(gjson.GetBytes(data, "prompt_token_ids"), first.Get("prompt_token_ids"))
	s.noteAnswer(first)
	if len(all) > 1 || first.Get("delta.tool_calls").IsArray() || first.Get("delta.reasoning_content").String() != "" || first.Get("delta.reasoning").String() != "" {
		s.lost = true
	}
	if s.resumed {
		return s.reshape(data, first)
	}
	if s.template == nil {
		s.template = without(bytes.Clone(data), "prompt_token_ids", "choices.0.token_ids", "choices.0.prompt_token_ids")
	}
	if s.showIDs {
		return data
	}
	return without(data, "prompt_token_ids", "choices.0.token_ids", "choices.0.prompt_token_ids")
}

func (s *story) notePrompt(places ...gjson.Result) {
	for _, ids := range places {
		if s.prompts == 0 && ids.IsArray() {
			s.prompts = len(ids.Array())
			s.prompt = bytes.Clone(bytes.Trim([]byte(ids.Raw), "[] "))
		}
	}
}

func (s *story) noteAnswer(choice gjson.Result) {
	ids := choice.Get("token_ids")
	text := choice.Get("delta.content").String() + choice.Get("text").String()
	finish := choice.Get("finish_reason").String()
	if ids.IsArray() {
		if n := len(ids.Array()); n > 0 {
			if len(s.answer) > 0 {
				s.answer = append(s.answer, ',')
			}
			s.answer = append(s.answer, bytes.Trim([]byte(ids.Raw), "[] ")...)
			s.tokens += n
		}
	} else if text != "" {
		s.lost = true // text without ids: this engine does not report them
	}
	if text != "" || finish != "" {
		s.sureBytes, s.sureTokens = len(s.answer), s.tokens
	}
	if finish != "" {
		s.lost = true // nothing is left to be told
	}
}

// reshape turns a chunk of a continuation, which is one of completions, into one of
// the stream that the client reads.
func (s *story) reshape(data []byte, choice gjson.Result) []byte {
	out := bytes.Clone(s.template)
	if s.req.Dialect == Chat {
		out = set(out, "choices.0.delta", `{"content":`+choice.Get("text").Raw+`}`)
	} else {
		out = set(out, "choices.0.text", choice.Get("text").Raw)
	}
	for _, field := range []string{"finish_reason", "stop_reason"} {
		if v := choice.Get(field); v.Exists() {
			out = set(out, "choices.0."+field, v.Raw)
		}
	}
	if s.showIDs {
		out = set(out, "choices.0.token_ids", choice.Get("token_ids").Raw)
	}
	if usage := gjson.GetBytes(data, "usage"); usage.IsObject() {
		out = set(out, "usage", s.usageOf(usage))
	}
	return out
}

// usage corrects the usage chunk of a continuation: to the client there was one
// prompt and one answer.
func (s *story) usage(data []byte) []byte {
	usage := gjson.GetBytes(data, "usage")
	if !s.resumed || !usage.IsObject() {
		return data
	}
	return set(set(bytes.Clone(s.template), "choices", "[]"), "usage", s.usageOf(usage))
}

func (s *story) usageOf(usage gjson.Result) string {
	output := s.before + int(usage.Get("completion_tokens").Int())
	out := []byte(usage.Raw)
	for field, n := range map[string]int{"prompt_tokens": s.prompts, "completion_tokens": output, "total_tokens": s.prompts + output} {
		out = set(out, field, strconv.Itoa(n))
	}
	// What the continuation found cached is mostly what the answer left behind.
	return string(without(out, "prompt_tokens_details"))
}

// continuation returns the request that tells the rest, false if that cannot be
// done. It starts behind the last token whose text the client has.
func (s *story) continuation() (*Request, bool) {
	left := s.modelLen - s.prompts - s.sureTokens
	if s.req.MaxOutput > 0 {
		left = s.req.MaxOutput - s.sureTokens
	}
	if s.lost || s.prompts == 0 || s.sureTokens == 0 || left <= 0 {
		return nil, false
	}
	s.answer, s.tokens = s.answer[:s.sureBytes], s.sureTokens
	s.before, s.resumed = s.sureTokens, true

	ids := append(append(append([]byte("["), s.prompt...), ','), s.answer...)
	body := Body{}.With(
		Edit{"model", s.req.Body.Get("model")},
		Edit{"prompt", append(ids, ']')},
		Edit{"max_tokens", strconv.AppendInt(nil, int64(left), 10)},
		Edit{"stream", []byte("true")},
		Edit{"stream_options", []byte(`{"include_usage":true}`)},
		Edit{"return_token_ids", []byte("true")},
	)
	if least, ok := s.req.Body.Get("min_tokens").Int(); ok && int(least) > s.sureTokens {
		body = body.With(Edit{"min_tokens", strconv.AppendInt(nil, least-int64(s.sureTokens), 10)})
	}
	for _, field := range []string{"temperature", "top_p", "top_k", "min_p", "logit_bias", "ignore_eos", "stop_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "bad_words", "allowed_token_ids", "cache_salt", "priority"} {
		if v := s.req.Body.Get(field); v != nil {
			body = body.With(Edit{field, v})
		}
	}
	rest := *s.req
	rest.Dialect, rest.Body = Completions, body
	rest.PromptTokens = s.prompts + s.sureTokens
	rest.OutputTokens = min(rest.OutputTokens, left)
	return &rest, true
}

// without deletes paths that are there.
func without(data []byte, paths ...string) []byte {
	for _, p := range paths {
		if gjson.GetBytes(data, p).Exists() {
			if cut, err := sjson.DeleteBytes(data, p); err == nil {
				data = cut
			}
		}
	}
	return data
}

// set replaces a path by raw JSON; an empty one changes nothing.
func set(data []byte, path, raw string) []byte {
	if raw == "" {
		return data
	}
	if out, err := sjson.SetRawBytes(data, path, []byte(raw)); err == nil {
		return out
	}
	return data
}
