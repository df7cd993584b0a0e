package api

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// FirstToken is what a prefill leg, which is asked for one token, said of an answer.
type FirstToken struct {
	Choices int
	Prompt  int    // token ids of the prompt, 0: none were reported
	IDs     int    // token ids of the answer
	Text    string // "" also where the token is a part of a character
	NotText bool   // it is reasoning, or of a tool call
	Finish  string // finish_reason

	prompt, answer string // their ids, "1,2,3"
}

// Sequence is the ids of the prompt and of the answer, as a JSON list.
func (f *FirstToken) Sequence() []byte { return []byte("[" + f.prompt + "," + f.answer + "]") }

// ReadFirstToken reads the whole answer of a prefill leg of chat or completions.
func ReadFirstToken(answer []byte) FirstToken {
	found := gjson.GetManyBytes(answer, "choices.#", "choices.0", "prompt_token_ids")
	choice := found[1]
	prompt := found[2]
	if !prompt.IsArray() {
		prompt = choice.Get("prompt_token_ids")
	}
	message := choice.Get("message")
	first := FirstToken{
		Choices: int(found[0].Int()),
		Text:    choice.Get("text").String() + message.Get("content").String(),
		NotText: len(message.Get("tool_calls").Array()) > 0 || message.Get("reasoning").String() != "" || message.Get("reasoning_content").String() != "",
		Finish:  choice.Get("finish_reason").String(),
	}
	var ids, answered []byte
	ids, first.Prompt = IDList(Value(prompt.Raw))
	answered, first.IDs = IDList(Value(choice.Get("token_ids").Raw))
	first.prompt, first.answer = string(ids), string(answered)
	return first
}

// FirstEvents turns the answer of a prefill leg into the first events of a stream, as the
// engine would have sent them: the role of a chat, and the token. With usage each has the
// usage so far.
func FirstEvents(d *Dialect, answer Body, usage bool) []byte {
	found := gjson.GetManyBytes(answer.Bytes(), "choices.0", "prompt_token_ids", "usage")
	choice, prompt := found[0], found[1].Raw
	logprobs := cmp.Or(choice.Get("logprobs").Raw, "null")
	counts := func(output int) string {
		if !usage || !found[2].IsObject() {
			return ""
		}
		return withOutput(found[2].Raw, output)
	}
	if d != Chat {
		text := fmt.Sprintf(`{"index":0,"text":%s,"logprobs":%s,"finish_reason":null,"stop_reason":null%s%s}`,
			choice.Get("text").Raw, logprobs, member("prompt_token_ids", choice.Get("prompt_token_ids").Raw), member("token_ids", choice.Get("token_ids").Raw))
		return event(answer, "text_completion", text, "usage", counts(1))
	}
	const object = "chat.completion.chunk"
	role := event(answer, object, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`,
		"prompt_token_ids", prompt, "usage", counts(0))
	text := fmt.Sprintf(`{"index":0,"delta":{"content":%s},"logprobs":%s,"finish_reason":null%s}`,
		choice.Get("message.content").Raw, logprobs, member("token_ids", choice.Get("token_ids").Raw))
	return append(role, event(answer, object, text, "usage", counts(1))...)
}

// event is one event of a stream with what all its events have of a whole answer, and more
// members where they are not empty.
func event(answer Body, object, choice string, more ...string) []byte {
	chunk := Body{}
	for _, field := range []string{"id", "created", "model", "system_fingerprint"} {
		if v := answer.Get(field); !v.Null() {
			chunk = chunk.With(Set(field, v))
		}
		if field == "id" {
			chunk = chunk.With(Set("object", []byte(`"`+object+`"`)))
		}
	}
	chunk = chunk.With(Set("choices", []byte("["+choice+"]")))
	for i := 0; i < len(more); i += 2 {
		if more[i+1] != "" {
			chunk = chunk.With(Set(more[i], []byte(more[i+1])))
		}
	}
	return fmt.Appendf(nil, "data: %s\n\n", chunk.Bytes())
}

// member is one more member of an object, nothing without a value.
func member(name, raw string) string {
	if raw == "" {
		return ""
	}
	return `,"` + name + `":` + raw
}

// withOutput is a usage of chat or completions with so many tokens of the answer.
func withOutput(usage string, output int) string {
	body, err := ParseBody([]byte(usage))
	if err != nil {
		return ""
	}
	return string(withTotal(body.With(Set("completion_tokens", fmt.Append(nil, output))), Chat).Bytes())
}

// WithoutIDs returns a whole answer without the token ids that its client did not ask for. They
// are null in a whole answer, and left out of one that becomes a stream.
func WithoutIDs(answer Body, stream bool) Body {
	var instead []byte
	if !stream {
		instead = []byte("null")
	}
	hide := func(object Body) Body {
		for _, field := range []string{"prompt_token_ids", "token_ids"} {
			if object.Get(field) != nil {
				object = object.With(Set(field, instead))
			}
		}
		return object
	}
	choices, _ := answer.Get("choices").Array()
	for i, choice := range choices {
		if c, ok := choice.Object(); ok {
			choices[i] = hide(c).Bytes()
		}
	}
	return hide(answer.With(Set("choices", List(choices))))
}

// WithFirst returns a whole answer of chat or completions that begins with prefill's token and
// goes on with what decode said behind it. The usage is decode's, with the prompt as prefill
// counted it and the token with the answer.
func WithFirst(d *Dialect, first, rest Body) (Body, error) {
	behind := gjson.GetBytes(rest.Bytes(), "choices.0")
	choices, ok := first.Get("choices").Array()
	if !ok || len(choices) != 1 || !behind.IsObject() {
		return Body{}, errors.New("an answer without a choice")
	}
	choice, ok := choices[0].Object()
	if !ok {
		return Body{}, ErrNotObject
	}
	if d == Chat {
		message, _ := choice.Get("message").Object()
		choice = choice.With(Set("message", message.With(Set("content", joined(message.Get("content"), behind.Get("message.content")))).Bytes()))
	} else {
		choice = choice.With(Set("text", joined(choice.Get("text"), behind.Get("text"))))
	}
	if own, more := choice.Get("logprobs"), behind.Get("logprobs"); own != nil && more.IsObject() {
		logprobs, err := withFirstLogprobs(own, more)
		if err != nil {
			return Body{}, err
		}
		choice = choice.With(Set("logprobs", logprobs))
	}
	for _, field := range []string{"finish_reason", "stop_reason"} {
		if v := behind.Get(field); v.Exists() {
			choice = choice.With(Set(field, []byte(v.Raw)))
		}
	}
	if ids, n := IDList(Value(behind.Get("token_ids").Raw)); n > 0 && !choice.Get("token_ids").Null() {
		own := bytes.TrimSuffix(bytes.TrimSpace(choice.Get("token_ids")), []byte("]"))
		choice = choice.With(Set("token_ids", fmt.Appendf(nil, "%s,%s]", own, ids)))
	}
	usage, ok := rest.Get("usage").Object()
	if !ok {
		return Body{}, errors.New("an answer without a usage")
	}
	said, _ := usage.Get("completion_tokens").Int()
	asked := gjson.GetBytes(first.Bytes(), "usage.prompt_tokens").Int()
	usage = withTotal(usage.With(Set("prompt_tokens", fmt.Append(nil, asked)), Set("completion_tokens", fmt.Append(nil, said+1))), Chat)
	return first.With(Set("choices", List([]Value{choice.Bytes()})), Set("usage", usage.Bytes()), Remove(HandoffField)), nil
}

// joined is the JSON string of two of them; the rest may be none.
func joined(first Value, rest gjson.Result) []byte {
	if rest.Type != gjson.String {
		return first
	}
	return []byte(strings.TrimSuffix(string(first), `"`) + strings.TrimPrefix(rest.Raw, `"`))
}

// withFirstLogprobs is the log-probabilities of a whole answer, of its first token and of the
// rest: lists, one entry for each token.
func withFirstLogprobs(first Value, rest gjson.Result) ([]byte, error) {
	whole, ok := first.Object()
	if !ok {
		return nil, ErrNotObject
	}
	rest = gjson.Parse(ShiftOffsets(rest, TextLength(gjson.ParseBytes(first))))
	for _, field := range whole.Keys() {
		own, _ := whole.Get(field).Array()
		if more := rest.Get(field); len(own) > 0 && more.IsArray() {
			for _, entry := range more.Array() {
				own = append(own, Value(entry.Raw))
			}
			whole = whole.With(Set(field, List(own)))
		}
	}
	return whole.Bytes(), nil
}

// TextLength is the characters of the tokens that the log-probabilities of a completion are of, 0
// for those of a chat. Completions count by them where each token begins (vllm
// entrypoints/openai/completion/serving.py, _create_completion_logprobs).
func TextLength(logprobs gjson.Result) (n int) {
	for _, token := range logprobs.Get("tokens").Array() {
		n += utf8.RuneCountInString(token.String())
	}
	return n
}

// ShiftOffsets returns the log-probabilities of a completion as they are behind so many
// characters; those of a chat as they are.
func ShiftOffsets(logprobs gjson.Result, by int) string {
	offsets := logprobs.Get("text_offset")
	if by == 0 || !offsets.IsArray() {
		return logprobs.Raw
	}
	var shifted []Value
	for _, offset := range offsets.Array() {
		shifted = append(shifted, strconv.AppendInt(nil, offset.Int()+int64(by), 10))
	}
	out, err := sjson.SetRaw(logprobs.Raw, "text_offset", string(List(shifted)))
	if err != nil {
		return logprobs.Raw
	}
	return out
}
