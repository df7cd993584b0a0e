package pd

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/tandem-gateway/tandem/pools"
)

// story is what a stream has said so far, in token ids, so that another pair can
// tell the rest: the prompt's ids and those of the answer, as the engine reported
// them (return_token_ids). Text would not do: it may be tokenised another way.
type story struct {
	req      *Request // as the client sent it
	showIDs  bool     // the client asked for ids itself
	modelLen int      // tokens; 0 is unknown

	prompt  []byte // "1,2,3", as the engine wrote them
	prompts int    // how many
	answer  []byte
	tokens  int
	// sure is the part of answer whose text the client has: an engine holds back
	// text that is half a character.
	sureBytes, sureTokens int

	asked    bool   // the engine was asked for ids
	spoken   spoken // the answer as text, where that may carry it on
	template []byte // a chunk of the first leg, for what must stay the same
	shown    []byte // the last one as the client sees it
	resumed  bool   // the chunks are those of a continuation
	before   int    // tokens told by earlier legs
	untold   bool   // it told none
	lost     bool   // something was said that ids do not carry on
	odd      bool   // nor does text
	finished bool   // the answer is whole; usage and end marker may follow
	counted  bool   // the usage was told
}

// newStory returns the story of a request, nil where its stream cannot be continued.
func newStory(req *Request, modelLen int, byText bool) *story {
	if !req.Stream || req.Aggregated || (req.Dialect != Chat && req.Dialect != Completions) || (modelLen == 0 && req.MaxOutput == 0) || !continuable(req.Body) {
		return nil
	}
	s := &story{req: req, modelLen: modelLen}
	s.showIDs, _ = req.Body.Get("return_token_ids").Bool()
	s.spoken.allowed = byText && s.retellable()
	return s
}

// tellsTokenIDs reports whether a stream of the server may be asked for token ids. vLLM
// tells them since 0.10.2 (#22587) and ignores the wish before; so does SGLang, which
// tells them in streams of completions only and refuses the wish in those of chat
// (#30917). TensorRT-LLM refuses every field that it does not know (#9709), and so may
// an engine that nobody knows.
func tellsTokenIDs(server *pools.Server, d *Dialect) bool {
	engine := engineOf(server)
	return (engine == "vllm" || engine == "sglang" && d == Completions) && server.TellsTokenIDs()
}

// engineOf is what a server runs, "" where nobody knows.
func engineOf(server *pools.Server) string {
	if engine := connectorOf(server).engine; engine != "" {
		return engine
	}
	return server.Load().Engine
}

// begin forgets what a leg said that failed before its first content event, of which
// the client has seen nothing. It returns the next leg with the wish for token ids, where
// the server is known to understand that.
func (s *story) begin(server *pools.Server, leg legRequest) legRequest {
	if !s.resumed {
		*s = story{req: s.req, showIDs: s.showIDs, modelLen: s.modelLen, spoken: spoken{allowed: s.spoken.allowed}}
	}
	s.spoken.understood = s.spoken.allowed && continuesText(server)
	if s.spoken.retold {
		s.asked, s.untold = false, false // whatever the engine before was asked, and told
		return leg
	}
	if s.asked = s.showIDs || tellsTokenIDs(server, s.req.Dialect); s.asked && !s.showIDs {
		leg.body = leg.body.With(Edit{"return_token_ids", []byte("true")})
	}
	return leg
}

// take notes what an event says and returns it as the client may see it, nil if it may not.
func (s *story) take(data []byte) []byte {
	if !s.asked && !s.resumed {
		s.lost = true
		if !s.spoken.understood {
			return data
		}
	}
	data = bytes.TrimLeft(data, " \t\r\n") // ids are found by their place
	c := readChunk(data)
	switch {
	case c.choices < 0:
		return data // the end marker
	case c.choices == 0:
		return s.usage(data, c.usage)
	}
	s.note(&c)
	switch {
	case s.spoken.retold && c.silent():
		return nil // the role, which the client has
	case s.resumed:
		return s.reshape(&c, data)
	case s.template == nil:
		s.template = c.without(nil, data)
	}
	if s.showIDs {
		return data
	}
	s.shown = c.without(s.shown[:0], data)
	return s.shown
}

// note keeps what a chunk tells of prompt and answer.
func (s *story) note(c *chunk) {
	if ids, n := idList(c.prompt); n > 0 && s.prompts == 0 {
		s.prompt, s.prompts = []byte(ids), n
	}
	if ids, n := idList(c.ids); n > 0 {
		if len(s.answer) > 0 {
			s.answer = append(s.answer, ',')
		}
		s.answer, s.tokens = append(s.answer, ids...), s.tokens+n
	}
	text, finish := c.text.String() != "", c.finish.String() != ""
	if text && !c.ids.Exists() {
		s.untold, s.lost = s.asked, true
	}
	if text || finish {
		s.sureBytes, s.sureTokens = len(s.answer), s.tokens
	}
	s.finished = s.finished || finish && c.choices == 1
	s.odd = s.odd || c.odd || c.choices > 1
	s.lost = s.lost || s.odd
	if text && s.spoken.understood {
		s.spoken.say(c.text.String())
	}
}

// reshape turns a chunk of a continuation, which mostly is one of completions, into one of
// the stream that the client reads.
func (s *story) reshape(c *chunk, data []byte) []byte {
	out := bytes.Clone(s.template)
	if s.spoken.retold {
		out = set(out, "choices.0.delta", gjson.GetBytes(data, "choices.0.delta").Raw)
	} else if s.req.Dialect == Chat {
		out = set(out, "choices.0.delta", `{"content":`+c.text.Raw+`}`)
	} else {
		out = set(out, "choices.0.text", c.text.Raw)
	}
	out = set(set(out, "choices.0.finish_reason", c.finish.Raw), "choices.0.stop_reason", c.stop.Raw)
	if s.showIDs {
		out = set(out, "choices.0.token_ids", c.ids.Raw)
	}
	if c.usage.IsObject() {
		out = set(out, "usage", s.usageOf(c.usage))
	}
	return out
}

// usage corrects the usage chunk of a continuation: to the client there was one
// prompt and one answer.
func (s *story) usage(data []byte, usage gjson.Result) []byte {
	s.counted = s.counted || usage.IsObject()
	if !s.resumed || !usage.IsObject() {
		return data
	}
	return set(set(bytes.Clone(s.template), "choices", "[]"), "usage", s.usageOf(usage))
}

func (s *story) usageOf(usage gjson.Result) string {
	prompts, output := s.prompts, s.before+int(usage.Get("completion_tokens").Int())
	if s.spoken.retold {
		prompts = int(usage.Get("prompt_tokens").Int()) - s.before // which are of its prompt
	}
	out := []byte(usage.Raw)
	for field, n := range map[string]int{"prompt_tokens": prompts, "completion_tokens": output, "total_tokens": prompts + output} {
		out = set(out, field, strconv.Itoa(n))
	}
	// What the continuation found cached is mostly what the answer left behind.
	if cut, err := sjson.DeleteBytes(out, "prompt_tokens_details"); err == nil {
		out = cut
	}
	return string(out)
}

var (
	errNoIDs       = errors.New("the engine tells no token ids")
	errMoreThanIDs = errors.New("token ids do not determine the rest")
)

// ending returns what is missing of a stream whose answer is whole: the usage, where the
// client asked for it, and the end marker. nil where more is missing, or where it is not
// known what was told.
func (s *story) ending() []byte {
	if !s.finished || s.odd || s.lost && !s.spoken.understood {
		return nil
	}
	var out []byte
	if !s.counted && !s.req.HideUsage {
		if s.prompts == 0 {
			return nil
		}
		usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, s.prompts, s.tokens, s.prompts+s.tokens)
		out = fmt.Appendf(nil, "data: %s\n\n", set(set(bytes.Clone(s.template), "choices", "[]"), "usage", usage))
	}
	return append(out, "data: [DONE]\n\n"...)
}

// continuation returns the request that tells the rest, an error if that cannot be
// done. It starts behind the last token whose text the client has.
func (s *story) continuation() (*Request, error) {
	left := s.modelLen - s.prompts - s.sureTokens
	if s.req.MaxOutput > 0 {
		left = s.req.MaxOutput - s.sureTokens
	}
	switch {
	case (!s.asked || s.untold) && s.spoken.understood:
		return s.retelling()
	case !s.asked || s.untold:
		return nil, errNoIDs
	case s.lost || s.prompts == 0 || s.sureTokens == 0 || left <= 0 || !onlyText(s.req.Body):
		return nil, errMoreThanIDs
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
	)
	if least, ok := s.req.Body.Get("min_tokens").Int(); ok && int(least) > s.sureTokens {
		body = body.With(Edit{"min_tokens", strconv.AppendInt(nil, least-int64(s.sureTokens), 10)})
	}
	for _, field := range carried {
		if v := s.req.Body.Get(field); v != nil {
			body = body.With(Edit{field, v})
		}
	}
	rest := *s.req
	rest.Dialect, rest.Body = Completions, body
	rest.PromptTokens = s.prompts + s.sureTokens
	rest.OutputTokens = min(rest.OutputTokens, left)
	return &rest, nil
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
