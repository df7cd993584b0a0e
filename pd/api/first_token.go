package api

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// FirstToken is what a prefill leg, which is asked for one token, said of an answer of chat or completions.
type FirstToken struct {
	Answer  Answer // all that it said
	Choices int
	Prompt  int    // token ids of the prompt, 0: none were reported
	IDs     int    // token ids of the answer
	Text    string // "" also where the token is a part of a character
	NotText bool   // it is reasoning, or of a tool call
	Finish  string // finish_reason

	choice, message Body  // the first choice, and that of a chat
	prompt, ids     Value // of the prompt and of the answer, as JSON lists
}

// ReadFirstToken reads the whole answer of a prefill leg.
func ReadFirstToken(answer Answer) FirstToken {
	first := FirstToken{Answer: answer}
	first.choice, first.Choices = firstChoice(answer.body)
	first.message, _ = first.choice.Get("message").Object()
	text, _ := first.choice.Get("text").String()
	content, _ := first.message.Get("content").String()
	calls := first.message.Get("tool_calls")
	first.Text, first.NotText = text+content, !calls.Null() && !calls.IsEmptyArray()
	for _, reasoning := range []string{"reasoning", "reasoning_content"} {
		first.NotText = first.NotText || first.message.Get(reasoning).SaysSomething()
	}
	first.Finish, _ = first.choice.Get("finish_reason").String()
	first.prompt, first.ids = answer.PromptIDs(), first.choice.Get("token_ids")
	first.Prompt = answer.countPrompt(first.prompt)
	_, first.IDs = IDList(first.ids)
	return first
}

// PromptIDs is the token ids of the prompt, a JSON list: nil where none were reported.
func (f *FirstToken) PromptIDs() Value { return f.prompt }

// Sequence is the ids of the prompt and of the answer as a JSON list, in parts.
func (f *FirstToken) Sequence() [][]byte {
	return [][]byte{[]byte("["), withoutBrackets(f.prompt), []byte(","), withoutBrackets(f.ids), []byte("]")}
}

// Characters are those of the token, where log-probabilities count them: see TextLength.
func (f *FirstToken) Characters() int {
	return TextLength(gjson.ParseBytes(f.choice.Get("logprobs")))
}

// Events are the first events of a stream that say it, as the engine would have sent them: the role of a chat, and the
// token. With ids they have those of the prompt too, and with usage each has the usage so far.
func (f *FirstToken) Events(d *Dialect, ids, usage bool) [][]byte {
	counts := func(output int) Value {
		if !usage {
			return nil
		}
		return withOutput(f.Answer.Get("usage"), output)
	}
	var prompt Value
	if ids {
		prompt = f.prompt
	}
	logprobs := cmp.Or(string(f.choice.Get("logprobs")), "null")
	if d != Chat {
		text := fmt.Sprintf(`{"index":0,"text":%s,"logprobs":%s,"finish_reason":null,"stop_reason":null%s%s}`,
			f.choice.Get("text"), logprobs, member("prompt_token_ids", prompt), member("token_ids", f.ids))
		return [][]byte{f.event("text_completion", text, Set("usage", counts(1)))}
	}
	const object = "chat.completion.chunk"
	role := f.event(object, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`,
		Set("prompt_token_ids", prompt), Set("usage", counts(0)))
	text := fmt.Sprintf(`{"index":0,"delta":{"content":%s},"logprobs":%s,"finish_reason":null%s}`,
		f.message.Get("content"), logprobs, member("token_ids", f.ids))
	return [][]byte{role, f.event(object, text, Set("usage", counts(1)))}
}

// event is one event of a stream with what all its events have of a whole answer, and more members that have a value.
func (f *FirstToken) event(object, choice string, more ...Edit) []byte {
	var edits []Edit
	for _, field := range []string{"id", "created", "model", "system_fingerprint"} {
		if v := f.Answer.Get(field); !v.Null() {
			edits = append(edits, Set(field, v))
		}
		if field == "id" {
			edits = append(edits, Set("object", []byte(`"`+object+`"`)))
		}
	}
	edits = append(edits, Set("choices", []byte("["+choice+"]")))
	return Body{}.With(append(edits, more...)...).Bytes()
}

// member is one more member of an object, nothing without a value.
func member(name string, value Value) string {
	if value == nil {
		return ""
	}
	return `,"` + name + `":` + string(value)
}

// withOutput is a usage of chat or completions with so many tokens of the answer, nil of what is none.
func withOutput(usage Value, output int) Value {
	u, ok := usage.Object()
	if !ok {
		return nil
	}
	return withTotal(u.With(Set("completion_tokens", fmt.Append(nil, output))), Chat).Bytes()
}

// WithoutIDs returns a whole answer without the token ids that its client did not ask for. They
// are null in a whole answer, and left out of one that becomes a stream.
func WithoutIDs(answer Body, stream bool) Body {
	var instead []byte
	if !stream {
		instead = []byte("null")
	}
	hide := func(object Body) Body {
		for _, field := range idFields {
			if object.Get(field) != nil {
				object = object.With(Set(field, instead))
			}
		}
		return object
	}
	choices, ok := answer.Get("choices").Array()
	if !ok {
		return hide(answer)
	}
	for i, choice := range choices {
		if c, ok := choice.Object(); ok {
			choices[i] = hide(c).Bytes()
		}
	}
	return hide(answer.With(Set("choices", List(choices))))
}

// WithFirst is a whole answer of chat or completions that begins with prefill's token and goes on with what decode said
// behind it. The usage is decode's, with the prompt as prefill counted it and the token with the answer. Token ids are
// null unless they are shown.
func WithFirst(d *Dialect, said *FirstToken, rest Body, showIDs bool) ([]byte, error) {
	first, choice := said.Answer.body, said.choice
	behind, m := firstChoice(rest)
	if said.Choices != 1 || m == 0 || choice.source == nil || behind.source == nil {
		return nil, errors.New("an answer without a choice")
	}
	usage, ok := rest.Get("usage").Object()
	if !ok {
		return nil, errors.New("an answer without a usage")
	}
	var room [8]Edit
	edits := room[:0]
	if d == Chat {
		content := setJoined("content", said.message.Get("content"), behind.Get("message").Member("content"))
		edits = append(edits, Set("message", said.message.appendWith(make([]byte, 0, said.message.Len()+behind.Len()), content)))
	} else {
		edits = append(edits, setJoined("text", choice.Get("text"), behind.Get("text")))
	}
	if own, more := choice.Get("logprobs"), behind.Get("logprobs"); own != nil && more.IsObject() {
		logprobs, err := withFirstLogprobs(own, gjson.ParseBytes(more))
		if err != nil {
			return nil, err
		}
		edits = append(edits, Set("logprobs", logprobs))
	}
	for _, field := range []string{"finish_reason", "stop_reason"} {
		if v := behind.Get(field); v != nil {
			edits = append(edits, Set(field, v))
		}
	}
	if ids := behind.Get("token_ids"); showIDs && ids.IsArray() && !ids.IsEmptyArray() && choice.Get("token_ids").IsArray() {
		edits = append(edits, SetParts("token_ids", []byte("["), withoutBrackets(choice.Get("token_ids")), []byte(","), withoutBrackets(ids), []byte("]")))
	}
	output, _ := usage.Get("completion_tokens").Int()
	asked, _ := first.Get("usage").Member("prompt_tokens").Int()
	counts := []Edit{Set("prompt_tokens", strconv.AppendInt(nil, asked, 10)), Set("completion_tokens", strconv.AppendInt(nil, output+1, 10))}
	if !usage.Get(totalField).Null() {
		counts = append(counts, Set(totalField, strconv.AppendInt(nil, asked+output+1, 10)))
	}
	size := rest.Len() + 512 // about as long as decode's
	if showIDs {
		size += first.Len()
	}
	joined := choice.appendWith(make([]byte, 0, size), withoutIDs(edits, choice, showIDs)...)
	whole := []Edit{
		SetParts("choices", []byte("["), joined, []byte("]")),
		Set("usage", usage.appendWith(make([]byte, 0, usage.Len()+64), counts...)), Remove(HandoffField),
	}
	return first.appendWith(make([]byte, 0, size), withoutIDs(whole, first, showIDs)...), nil
}

// firstChoice is the first choice of an answer, without a source where it is no object, and how many it has.
func firstChoice(answer Body) (first Body, n int) {
	for choice := range answer.Get("choices").ElementsOf(answer.long) {
		if n++; n == 1 {
			first, _ = choice.objectOf(answer.long)
		}
	}
	return first, n
}

// setJoined sets a field to the JSON string of two of them; the rest may be none.
func setJoined(field string, first, rest Value) Edit {
	switch {
	case len(rest) == 0 || rest[0] != '"':
		return Set(field, first)
	case len(first) == 0 || first[0] != '"':
		return Set(field, rest)
	}
	return SetParts(field, first[:len(first)-1], rest[1:])
}

// withoutIDs are edits of an object, and those that make its token ids null unless they are shown.
func withoutIDs(edits []Edit, object Body, shown bool) []Edit {
	for _, field := range idFields {
		if !shown && object.Get(field) != nil {
			edits = append(edits, Set(field, []byte("null")))
		}
	}
	return edits
}

// idFields have token ids, in an answer or in a choice of it.
var idFields = []string{"prompt_token_ids", "token_ids"}

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
