package tokens

import (
	"bytes"
	"encoding/binary"
	"encoding/json"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// silent are the fields that no prompt depends on. All others are taken to matter: a
// field not known here costs matches and never makes a false one.
var silent = set(
	"model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "n", "best_of",
	"max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "stop", "stop_sequences",
	"stop_token_ids", "include_stop_str_in_output", "ignore_eos", "seed", "frequency_penalty",
	"presence_penalty", "repetition_penalty", "length_penalty", "logit_bias", "logprobs", "top_logprobs",
	"prompt_logprobs", "echo", "user", "metadata", "store", "service_tier", "priority", "cache_salt",
	"request_id", "rid", "return_token_ids", "return_tokens_as_token_ids", "skip_special_tokens",
	"spaces_between_special_tokens", "use_beam_search", "safety_identifier", "prompt_cache_key",
	"prompt_cache_retention", "kv_transfer_params", "background", "include", "cache_control",
	"enable_response_messages",
)

// scoped are fields whose text differs between requests of the same kind. A template
// takes the same way through its code for all of them.
var scoped = set("tools", "functions", "documents")

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// body is a request taken apart.
type body struct {
	turns  []byte // messages, prompt or input
	system []byte // system or instructions
	rest   uint64 // hash of the fields that may matter, in any order
	family uint64 // the same without the text of scoped fields
}

// fields of each API that hold the text.
var (
	turnField   = map[API]string{Chat: "messages", Completions: "prompt", Responses: "input", Messages: "messages"}
	systemField = map[API]string{Responses: "instructions", Messages: "system"}
)

// takeApart finds the text of a request, and hashes what else may matter.
func takeApart(p *Prompt) (b body, ok bool) {
	turns, system := turnField[p.API], systemField[p.API]
	var scratch []byte
	for m, err := range p.Long.Members(p.Body) {
		switch {
		case err != nil:
			return b, false
		case string(m.Key) == turns:
			b.turns = m.Value
		case system != "" && string(m.Key) == system:
			b.system = m.Value
		case silent[string(m.Key)] || !present(m.Value):
		default:
			scratch = append(append(scratch[:0], m.Key...), ':')
			if scoped[string(m.Key)] {
				b.family += xxhash.Sum64(scratch)
				scratch = appendCompact(scratch, m.Value)
				b.rest += xxhash.Sum64(scratch)
				continue
			}
			sum := xxhash.Sum64(appendCompact(scratch, m.Value))
			b.rest += sum
			b.family += sum
		}
	}
	return b, present(b.turns)
}

// read makes the text of a prompt. It is false for what cannot be compared: several
// prompts, or token ids. The caller frees the text.
func (p *Prompt) read() (*text, bool) {
	b, ok := takeApart(p)
	if !ok {
		return nil, false
	}
	return p.readBody(&b)
}

// readBody is read of a request that was taken apart.
func (p *Prompt) readBody(b *body) (*text, bool) {
	t := texts.Get().(*text)
	t.reset(p.root(b.rest), p.root(b.family))
	ok := true
	if present(b.system) {
		ok = t.addContent(system, "system", p.withoutAttribution(b.system))
	}
	switch {
	case !ok:
	case p.API == Completions:
		ok = t.addPrompt(b.turns)
	case p.API == Responses && b.turns[0] == '"':
		ok = t.addContent(user, "user", b.turns)
	default:
		for message, err := range p.Long.Elements(b.turns) {
			if !ok || err != nil {
				ok = false
				break
			}
			ok = t.addMessage(message, p.Long)
		}
	}
	if !ok || len(t.turns) == 0 {
		t.free()
		return nil, false
	}
	t.finish()
	return t, true
}

// withoutAttribution is a system prompt without what vLLM leaves out of it.
func (p *Prompt) withoutAttribution(system []byte) []byte {
	if p.API != Messages || p.engine == engineSGLang || system[0] != '[' || !bytes.Contains(system, []byte(attribution)) {
		return system
	}
	var kept []byte
	for block, err := range jsonscan.Elements(system) {
		if err == nil && !isAttribution(memberOf(block, "text")) {
			kept = append(append(kept, block...), ',')
		}
	}
	return array(kept)
}

// contextOf is a hash of what prompts of one agent share: API, adapter, tools, other fields
// that may matter, and the system prompt. It is for mode tokenizer, which makes no text: one has
// another of its own.
func (p *Prompt) contextOf(b *body) uint64 {
	system := b.system
	if present(system) {
		system = p.withoutAttribution(system)
	} else if p.API == Chat {
		if first := firstOf(b.turns); string(memberOf(first, "role")) == `"system"` {
			system = memberOf(first, "content")
		}
	}
	key := appendCompact(binary.LittleEndian.AppendUint64(nil, p.root(b.rest)), system)
	return xxhash.Sum64(key)
}

// root mixes a context's hash with what is outside of the body.
func (p *Prompt) root(context uint64) uint64 {
	key := binary.LittleEndian.AppendUint64(make([]byte, 0, 64), context)
	key = append(append(append(key, p.API...), 0), p.Adapter...)
	return xxhash.Sum64(key)
}

// addPrompt adds the prompt of /v1/completions: a string, or a list of one.
func (t *text) addPrompt(prompt []byte) (ok bool) {
	if prompt[0] == '[' {
		if prompt, ok = onlyElement(prompt); !ok {
			return false
		}
	}
	content, ok := inner(prompt)
	if ok {
		t.open = true
		t.add(other, nil, content, content)
	}
	return ok
}

// onlyElement is the element of an array of one.
func onlyElement(array []byte) (element []byte, ok bool) {
	for e, err := range jsonscan.Elements(array) {
		if err != nil || element != nil {
			return nil, false
		}
		element = e
	}
	return element, element != nil
}

// endOfReasoning is in the tag that ends the reasoning in an answer that still holds it;
// the brackets may be escaped.
var endOfReasoning = []byte("/think")

// addContent adds a message that is only a content: a string or a list of parts.
func (t *text) addContent(k kind, header string, content []byte) bool {
	if inside, ok := inner(content); ok {
		if k == assistant && bytes.Contains(inside, endOfReasoning) {
			k = call
		}
		t.add(k, []byte(header), inside, inside)
		return true
	}
	if content[0] != '[' {
		return false
	}
	parts := t.compacted(content)
	t.partial = t.partial || hasMedia(parts)
	if k != system && hasCalls(parts) {
		k = map[kind]kind{user: tool, assistant: call}[k]
	}
	t.add(k, append([]byte(header), "[]"...), parts, leadOf(parts))
	return true
}

// addMessage adds an element of messages or input. A message with more than role and content goes in as it is.
func (t *text) addMessage(message []byte, long jsonscan.Long) bool {
	var role, content []byte
	var fields [96]byte
	header, more := fields[:0], false
	for m, err := range long.Members(message) {
		switch {
		case err != nil:
			return false
		case !present(m.Value) || string(m.Key) == "cache_control":
			continue
		case string(m.Key) == "role":
			role = m.Value
		case string(m.Key) == "content":
			content = m.Value
		case string(m.Key) == "type" && string(m.Value) == `"message"`:
		default:
			more = true
		}
		header = append(append(header, m.Key...), ',')
	}
	name, _ := inner(role)
	header = append(header, name...)
	k, known := kinds[string(name)]
	if !known {
		k = other
	}
	if !more && len(content) > 0 && k != other {
		return t.addContent(k, string(header), content)
	}
	compact := t.compacted(message)
	t.partial = t.partial || hasMedia(compact)
	switch {
	case k == assistant, k == other && isCallItem(compact):
		k = call
	case k == other && bytes.Contains(compact, []byte(`"function_call_output"`)):
		k = tool
	}
	lead, ok := inner(content)
	if !ok || len(lead) == 0 {
		lead = compact
	}
	t.add(k, header, compact, lead)
	return true
}

// compacted is what appendCompact makes of a value, until the text is freed: of a partial text until the next.
func (t *text) compacted(value []byte) []byte {
	from := len(t.compact)
	all := appendCompact(t.compact, value)
	t.compact = all
	if t.partial { // of which nothing more is compared, and images are long
		t.compact = all[:from]
	}
	return all[from:len(all):len(all)]
}

// isCallItem reports whether an item of /v1/responses is a call, or what was thought before one.
func isCallItem(item []byte) bool {
	return bytes.Contains(item, []byte(`"function_call"`)) || bytes.Contains(item, []byte(`"type":"reasoning"`))
}

// hasCalls reports whether a list of parts holds tool calls, their results or
// reasoning, as in /v1/messages.
func hasCalls(parts []byte) bool {
	for _, mark := range []string{`"tool_use"`, `"tool_result"`, `"thinking"`, `"redacted_thinking"`} {
		if bytes.Contains(parts, []byte(mark)) {
			return true
		}
	}
	return false
}

// leadOf is where the first text of a list of parts begins.
func leadOf(parts []byte) []byte {
	mark := []byte(`"text":"`)
	if i := bytes.Index(parts, mark); i >= 0 {
		return parts[i+len(mark):]
	}
	return parts
}

// isTextPart are the types of parts that are text to a template.
var isTextPart = set("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "reasoning",
	"reasoning_text", "summary_text", "tool_use", "tool_result", "tool_reference", "function", "function_call",
	"function_call_output", "message")

// hasMedia reports whether a message, or a list of parts, may hold an image, a sound or the
// like: a part of a type that is not known counts as one. What is in a tool's arguments is
// text, whatever it is called.
func hasMedia(value []byte) bool { return mediaWithin(value, 0) }

// deepestPart bounds how often a byte is looked at; parts of messages are no deeper.
const deepestPart = 8

func mediaWithin(value []byte, depth int) bool {
	if depth > deepestPart {
		return true
	}
	if len(value) == 0 || value[0] != '[' && value[0] != '{' {
		return false
	}
	if value[0] == '[' {
		for part, err := range jsonscan.Elements(value) {
			if err != nil || mediaWithin(part, depth+1) {
				return true
			}
		}
		return false
	}
	for m, err := range jsonscan.Members(value) {
		if err != nil {
			return true
		}
		switch string(m.Key) {
		case "type":
			if name, isName := inner(m.Value); !isName || !isTextPart[string(name)] {
				return true
			}
		case "content", "output", "reasoning":
			if mediaWithin(m.Value, depth+1) {
				return true
			}
		case "image_url", "audio_url", "video_url", "input_audio", "source":
			return true
		}
	}
	return false
}

// promptIDs are the token ids of a prompt that is given as such.
func (p *Prompt) promptIDs() (ids []uint32, ok bool) {
	if p.API != Completions {
		return nil, false
	}
	var prompt []byte
	for m, err := range jsonscan.Members(p.Body) {
		if err != nil {
			return nil, false
		}
		if string(m.Key) == "prompt" {
			prompt = m.Value
		}
	}
	if len(prompt) == 0 || prompt[0] != '[' {
		return nil, false
	}
	if prompt[jsonscan.SkipSpace(prompt, 1)] == '[' {
		var lists [][]uint32
		if json.Unmarshal(prompt, &lists) != nil || len(lists) != 1 {
			return nil, false
		}
		return lists[0], len(lists[0]) > 0
	}
	return ParseIDs(prompt)
}
