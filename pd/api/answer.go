package api

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// Answer is a whole answer of an engine. It is walked once, when it is read: all that is wanted of it are members.
type Answer struct {
	dialect *Dialect
	raw     []byte
	body    Body   // without fields where the answer is no object
	usage   Value  // a copy; nil where there is none
	usageAt string // its place

	prompt       Value // the list of the prompt's ids, where a reader has read it
	promptTokens int   // in it
}

// ReadAnswer reads a whole answer in an API, and keeps it. It fails where that is no well-formed JSON in UTF-8, or an
// object that has a key twice: one of the two may be a hand-off that nobody sees.
func (d *Dialect) ReadAnswer(raw []byte) (Answer, error) { return d.ReadAnswerAndPrompt(raw, nil) }

// ReadAnswerAndPrompt is ReadAnswer where a reader may take the ids of the prompt, which are then read once.
func (d *Dialect) ReadAnswerAndPrompt(raw []byte, prompts PromptCounter) (Answer, error) {
	from, end := readPrompt(raw, prompts)
	body, err := parseAround(raw, from, end)
	if err != nil && !errors.Is(err, ErrNotObject) {
		return Answer{}, fmt.Errorf("the engine's answer: %w", err)
	}
	a := Answer{dialect: d, raw: raw, body: body}
	if end > 0 {
		a.prompt, a.promptTokens = raw[from:end], prompts.Count()
	}
	for _, a.usageAt = range d.usages {
		if u := body.at(a.usageAt); u.IsObject() {
			a.usage = bytes.Clone(u)
			break
		}
	}
	return a, nil
}

// readPrompt gives a reader the ids of a prompt that a long answer has, the first ones if there are several, and returns
// where their list is: nowhere, if the reader does not take them. No string of JSON has their name in it, since its
// quotes would be escaped, and of what is no value of the answer who walks it takes no note.
func readPrompt(raw []byte, prompts PromptReader) (from, end int) {
	const name = `"prompt_token_ids":`
	if prompts == nil || len(raw) < longBody {
		return 0, 0
	}
	at := bytes.Index(raw, []byte(name+"["))
	if at < 0 {
		return 0, 0
	}
	from = at + len(name)
	length := bytes.IndexByte(raw[from:], ']')
	if length < 0 || !prompts.ReadPrompt(raw[from+1:from+length]) {
		return 0, 0
	}
	return from, from + length + 1
}

// engineFailed is the status of a failure that names none.
const engineFailed = 500

// Failure is what an engine says with status 200 of its own failure, as the status that it names, 500 where it names none:
// an error object, nested or flat, or choices that it gave up, which are cut off. 0: it says of none. Streams end
// with the same (Meaning.Failure). said is the error, nil of choices: their text is the model's. What SGLang's own API
// answers with a finish_reason of abort was aborted by somebody who wants what there is (tokenizer_manager.py: its own
// failures have another status).
func (a *Answer) Failure() (status int, said []byte) {
	switch e := a.Get("error"); {
	case e.IsObject(), len(e) > 2 && e[0] == '"', string(a.Get("object")) == `"error"`:
		return cmp.Or(statusOf(e.Member("code")), statusOf(a.Get("code")), engineFailed), a.raw
	}
	if a.dialect == nil || a.dialect.answers != "choices" || !mayHaveGivenUp(a.Get("choices")) {
		return 0, nil
	}
	for choice := range a.Get("choices").ElementsOf(a.body.long) {
		if finish, _ := plainString(choice.memberOf(a.body.long, "finish_reason")); GaveUp(string(finish)) { // not copied
			return engineFailed, nil
		}
	}
	return 0, nil
}

// statusOf is the HTTP status of a failure that a member names, 0 if it names none.
func statusOf(code Value) int {
	if n, is := code.Int(); is && n >= 400 && n <= 599 {
		return int(n)
	}
	return 0
}

// IsAnswer reports whether the answer has what each one of its API has: a list, of choices at least one.
func (a *Answer) IsAnswer() bool {
	if a.dialect.answers == "" {
		return true
	}
	list := a.Get(a.dialect.answers)
	return list.IsArray() && (a.dialect.answers != "choices" || !list.IsEmptyArray())
}

// Bytes is the answer as it came.
func (a *Answer) Bytes() []byte { return a.raw }

// Body is the answer by its members, without any where it is no object.
func (a *Answer) Body() Body { return a.body }

// Get returns the raw JSON of a member, nil if there is none.
func (a *Answer) Get(key string) Value { return a.body.Get(key) }

// Object returns a member as a body of its own, whose long values are known.
func (a *Answer) Object(key string) (Body, bool) { return a.Get(key).objectOf(a.body.long) }

// IsOfPrefill reports whether a prefill server answers so: with an object, or the list of them with which SGLang's own
// API answers a batch.
func (a *Answer) IsOfPrefill() bool {
	if a.body.source != nil {
		return true
	}
	first := jsonscan.SkipSpace(a.raw, 0)
	return first < len(a.raw) && a.raw[first] == '[' && a.dialect.Native
}

// Usage returns what the engine reports, false if it reports nothing.
func (a *Answer) Usage() (Usage, bool) { return a.dialect.usageOf(a.usage) }

// PromptIDs is the token ids of the prompt, a JSON list, in an answer to a request that asks for them: with
// return_token_ids at the top, or in the first choice; of /v1/responses, with enable_response_messages, in the first of
// its input_messages, which is all of the prompt (vLLM 0.32 entrypoints/openai/responses/context.py,
// SimpleContext.append_output; gpt-oss models have messages without tokens there). nil: there are none, as with engines
// that do not know the field.
func (a *Answer) PromptIDs() Value {
	list := a.Get("prompt_token_ids")
	if !list.IsArray() {
		list = a.first("choices").memberOf(a.body.long, "prompt_token_ids")
	}
	if !list.IsArray() {
		list = a.first("input_messages").memberOf(a.body.long, "tokens")
	}
	if !list.IsArray() || list.IsEmptyArray() {
		return nil
	}
	return list
}

// first is the first element of a list.
func (a *Answer) first(list string) Value {
	for element := range a.Get(list).ElementsOf(a.body.long) {
		return element
	}
	return nil
}

// countPrompt is how many ids are in the list of the prompt's.
func (a *Answer) countPrompt(list Value) int {
	if len(list) > 0 && len(a.prompt) > 0 && &list[0] == &a.prompt[0] {
		return a.promptTokens
	}
	_, n := IDList(list)
	return n
}

// RawUsage is the usage object, nil if there is none.
func (a *Answer) RawUsage() Value { return a.usage }

// WithCached returns an answer whose usage says that so many of the prompt's tokens were cached, where it says that any
// number was. All other bytes of members stay as they are.
func (a *Answer) WithCached(tokens int) Answer {
	usage, _ := a.Usage()
	if !usage.Cached.Known {
		return *a
	}
	body := editAt(a.body, a.usageAt, func(u Body) Body { return withCached(u, a.dialect, usage.Cached.Tokens, tokens) })
	edited, _ := a.dialect.ReadAnswer(body.Bytes()) // it is as well-formed as it was
	return edited
}

// Handoff returns the hand-off in decode's own answer, as a copy: an engine with bidirectional_kv_xfer keeps the blocks
// of the answer for the next prefill to fetch, for 480 s (vllm nixl/pull_scheduler.py). nil: there is none.
func (a *Answer) Handoff() []byte {
	for _, place := range []string{HandoffField, "response." + HandoffField} {
		if params := a.body.at(place); params.IsObject() {
			if named := handoffIn(gjson.ParseBytes(params)); named != nil {
				return named
			}
		}
	}
	return nil
}

// Clean is the body of the answer without what belongs between engines, and its usage with what the client is to see
// of the prompt.
func (a *Answer) Clean(prompt PromptUsage) Body { return a.dialect.clean(a.body, prompt) }

// As returns the answer with a body that was made of its own: the same bytes where nothing of it changed.
func (a *Answer) As(body Body) []byte {
	if body.Edited() {
		return body.Bytes()
	}
	return a.raw
}
