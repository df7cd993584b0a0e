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
}

// Paths of vLLM. SGLang serves /tokenize too.
const (
	pathTokenize          = "/tokenize"
	pathRenderChat        = "/v1/chat/completions/render"
	pathRenderCompletions = "/v1/completions/render"
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

// questions are the ways to ask for a prompt, best first: the render paths do what the
// engine does with the request itself.
func (p *Prompt) questions(t *text) []question {
	switch p.API {
	case Completions:
		return append([]question{{pathRenderCompletions, p.rendered(), true}}, p.tokenized(p.Body)...)
	case Chat:
		all := []question{{pathRenderChat, p.rendered(), true}}
		if !t.partial { // /tokenize does not say where media are
			all = append(all, p.tokenized(p.Body)...)
		}
		return all
	}
	if chat, ok := p.asChat(t); ok {
		return append([]question{{pathRenderChat, chat, true}}, p.tokenized(chat)...)
	}
	return nil
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

// rendered is the request as the render paths take it.
func (p *Prompt) rendered() []byte {
	var o object
	for m, err := range jsonscan.Members(p.Body) {
		if err == nil && !unrendered[string(m.Key)] {
			o.add(string(m.Key), m.Value)
		}
	}
	o.add("return_mm_kwargs", []byte("false"))
	return o.end()
}

// tokenized is a request as /tokenize takes it; none where it could be wrong.
func (p *Prompt) tokenized(body []byte) []question {
	var o object
	for m, err := range jsonscan.Members(body) {
		switch name := string(m.Key); {
		case err != nil:
			return nil
		case carried[name]:
			o.add(name, m.Value)
		case silent[name], harmless[name], !present(m.Value):
		case name == "tool_choice" && string(m.Value) != `"none"`:
		default:
			return nil
		}
	}
	return []question{{pathTokenize, o.end(), false}}
}

// asChat is the chat request that engines make of a request to /v1/responses or
// /v1/messages. What they translate further than text (tools, calls, results, media,
// reasoning) is refused.
func (p *Prompt) asChat(t *text) ([]byte, bool) {
	for _, turn := range t.turns {
		if turn.kind > assistant {
			return nil, false
		}
	}
	for m, err := range jsonscan.Members(p.Body) {
		name := string(m.Key)
		if err != nil || !silent[name] && present(m.Value) && name != turnField[p.API] && name != systemField[p.API] {
			return nil, false
		}
	}
	b, ok := takeApart(p)
	if !ok || t.partial {
		return nil, false
	}
	messages := []byte{'['}
	if present(b.system) {
		if b.system[0] != '"' { // engines join the parts in different ways
			return nil, false
		}
		messages = append(append(messages, `{"role":"system","content":`...), b.system...)
		messages = append(messages, '}', ',')
	}
	if b.turns[0] == '"' {
		messages = append(append(messages, `{"role":"user","content":`...), b.turns...)
		messages = append(messages, '}', ']')
	} else {
		messages = appendCompact(messages, b.turns[1:])
	}
	model, err := json.Marshal(p.Model)
	if err != nil {
		return nil, false
	}
	var o object
	o.add("model", model)
	o.add("messages", messages)
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
	if t.IDs, ok = parseIDs(ids); !ok {
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
