package tokens

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// question is one way to ask an engine for a prompt's tokens.
type question struct {
	path   string
	body   []byte
	render bool // the answer is a GenerateRequest, or a list of one
	by     Method
}

// Paths of vLLM; those of messages and responses are there since 0.32
// (vllm/entrypoints/scale_out/render/api_router.py). SGLang serves /tokenize too.
const (
	pathTokenize          = "/tokenize"
	pathRenderChat        = "/v1/chat/completions/render"
	pathRenderCompletions = "/v1/completions/render"
	pathRenderMessages    = "/v1/messages/render"
	pathRenderResponses   = "/v1/responses/render"
)

// unrendered are fields that have no place in a question to a render path.
var unrendered = set("stream", "stream_options", "return_token_ids", "kv_transfer_params")

// carried are the fields that /tokenize takes, harmless those that change no prompt in
// vLLM though they might elsewhere. With any other field that is not silent /tokenize
// may give other tokens than the request would.
var (
	carried = set("model", "messages", "prompt", "tools", "add_generation_prompt", "continue_final_message",
		"add_special_tokens", "chat_template", "chat_template_kwargs", "mm_processor_kwargs")
	harmless = set("parallel_tool_calls", "response_format", "structured_outputs", "guided_json", "guided_regex",
		"guided_choice", "guided_grammar")
)

// questions are the ways to ask for a prompt, best first: the render path of an API does
// what the engine does with the request itself. A translation to chat does what the engine
// is known to do, and is only asked where believed allows it.
func (p *Prompt) questions(t *text, believed func(Method) bool) (all []question) {
	ways := func(render, path string, body []byte, by Method) {
		if render != "" {
			all = append(all, question{render, p.rendered(body), true, by})
		}
		if path != "" && !t.partial { // /tokenize does not say where media are
			all = append(all, p.tokenized(body, by)...)
		}
	}
	switch p.API {
	case Completions:
		ways(pathRenderCompletions, pathTokenize, p.Body, ByEngine)
	case Chat:
		ways(pathRenderChat, "", p.Body, ByEngine)
		if believed(ByTokenize) {
			ways("", pathTokenize, p.Body, ByTokenize)
		}
	case Messages:
		ways(pathRenderMessages, "", p.Body, ByEngine)
	case Responses:
		ways(pathRenderResponses, "", p.Body, ByEngine)
	}
	if p.API != Messages && p.API != Responses || !believed(ByTranslation) {
		return all
	}
	if chat, ok := p.asChat(true); ok {
		ways(pathRenderChat, pathTokenize, chat, ByTranslation)
	}
	if p.API == Messages && t.inlineSystem() { // a template that refuses those gets them at the beginning
		if chat, ok := p.asChat(false); ok {
			ways(pathRenderChat, pathTokenize, chat, ByTranslation)
		}
	}
	return all
}

// inlineSystem reports whether a system message stands within the conversation.
func (t *text) inlineSystem() bool {
	for _, turn := range t.turns[1:] {
		if turn.kind == system {
			return true
		}
	}
	return false
}

// object writes a JSON object member by member.
type object struct{ raw []byte }

func (o *object) add(key string, value []byte) {
	if o.raw == nil {
		o.raw = append(o.raw, '{')
	} else {
		o.raw = append(o.raw, ',')
	}
	o.raw = append(append(append(o.raw, '"'), key...), '"', ':')
	o.raw = append(o.raw, value...)
}

func (o *object) end() []byte {
	if o.raw == nil {
		return []byte("{}")
	}
	return append(o.raw, '}')
}

// rendered is a request as the render paths take it.
func (p *Prompt) rendered(body []byte) []byte {
	var o object
	for m, err := range jsonscan.Members(body) {
		if err == nil && !unrendered[string(m.Key)] {
			o.add(string(m.Key), m.Value)
		}
	}
	o.add("return_mm_kwargs", []byte("false"))
	return o.end()
}

// tokenized is a request as /tokenize takes it; none where it could be wrong. How much the
// model is to reason has no place of its own in vLLM's: chat makes two variables of the
// template of it (vLLM 0.33, chat_completion/protocol.py, build_chat_params).
func (p *Prompt) tokenized(body []byte, by Method) []question {
	var o object
	var effort, variables []byte
	for m, err := range jsonscan.Members(body) {
		switch name := string(m.Key); {
		case err != nil:
			return nil
		case name == "chat_template_kwargs" && present(m.Value):
			variables = m.Value
		case name == "reasoning_effort" && p.engine != engineSGLang && present(m.Value):
			effort = m.Value
		case carried[name], name == "reasoning_effort" && p.engine == engineSGLang:
			o.add(name, m.Value)
		case silent[name], harmless[name], !present(m.Value):
		case name == "tool_choice" && string(m.Value) != `"none"`:
		default:
			return nil
		}
	}
	if effort != nil {
		var merged bool
		if variables, merged = withEffort(variables, effort); !merged {
			return nil
		}
	}
	if variables != nil {
		o.add("chat_template_kwargs", variables)
	}
	return []question{{pathTokenize, o.end(), false, by}}
}

// withEffort adds the variables of reasoning to those of the request, which keep theirs.
func withEffort(variables, effort []byte) (merged []byte, ok bool) {
	var o object
	thinks := false
	for m, err := range jsonscan.Members(variables) {
		if variables == nil {
			break
		}
		if err != nil || string(m.Key) == "reasoning_effort" {
			return nil, false
		}
		thinks = thinks || string(m.Key) == "enable_thinking"
		o.add(string(m.Key), m.Value)
	}
	o.add("reasoning_effort", effort)
	if !thinks {
		o.add("enable_thinking", []byte(map[bool]string{true: "false", false: "true"}[string(effort) == `"none"`]))
	}
	return o.end(), true
}

// read takes the tokens out of an answer. hasMedia says that the prompt holds media,
// whose places must then be in the answer.
func (q *question) read(answer []byte, hasMedia bool) (t Tokens, ok bool) {
	field := "tokens"
	if q.render {
		field = "token_ids"
		if at := jsonscan.SkipSpace(answer, 0); at < len(answer) && answer[at] == '[' {
			answer = lastOf(answer)
		}
	}
	var ids, features []byte
	for m, err := range jsonscan.CheckMembers(answer) {
		if err != nil {
			return Tokens{}, false
		}
		switch string(m.Key) {
		case field:
			ids = m.Value
		case "features":
			features = m.Value
		}
	}
	if t.IDs, ok = ParseIDs(ids); !ok {
		return Tokens{}, false
	}
	t.Certain, t.Complete = len(t.IDs), true
	if present(features) {
		t.Media, ok = readMedia(features, len(t.IDs))
	}
	return t, ok && (!hasMedia || len(t.Media) > 0)
}

// lastOf is the last element of an array, nil where there is none.
func lastOf(array []byte) (last []byte) {
	for element, err := range jsonscan.Elements(array) {
		if err == nil {
			last = element
		}
	}
	return last
}

// readMedia reads a render answer's features: by modality, hashes and places.
func readMedia(features []byte, tokens int) ([]Medium, bool) {
	var in struct {
		Hashes map[string][]string `json:"mm_hashes"`
		Places map[string][]struct {
			Offset int `json:"offset"`
			Length int `json:"length"`
		} `json:"mm_placeholders"`
	}
	if json.Unmarshal(features, &in) != nil {
		return nil, false
	}
	var media []Medium
	for modality, places := range in.Places {
		hashes := in.Hashes[modality]
		for i, at := range places {
			if at.Offset < 0 || at.Length < 0 || at.Offset > tokens || at.Length > tokens-at.Offset {
				return nil, false
			}
			m := Medium{Offset: at.Offset, Length: at.Length}
			if i < len(hashes) {
				m.Hash = hashes[i]
			}
			media = append(media, m)
		}
	}
	slices.SortFunc(media, func(a, b Medium) int { return cmp.Compare(a.Offset, b.Offset) })
	return media, true
}
