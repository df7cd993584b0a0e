package api

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// HandoffField carries the hand-off in requests and answers of vLLM.
const HandoffField = "kv_transfer_params"

// encoderField carries where an encoder's output is, in requests and answers of vLLM.
const encoderField = "ec_transfer_params"

// Count is a number of tokens that an engine may not have told.
type Count struct {
	Tokens int
	Known  bool
}

// Usage is what an engine reports of one answer.
type Usage struct {
	Prompt Count
	Output Count
	Cached Count // prompt tokens that the answering server did not compute
}

// ReadUsage returns the usage in a body or event, false if it has none.
func (d *Dialect) ReadUsage(data []byte) (Usage, bool) {
	u := d.FindUsage(data)
	if !u.Exists() {
		return Usage{}, false
	}
	usage := Usage{Prompt: count(u.Get(d.prompt)), Output: count(u.Get(d.output)), Cached: count(u.Get(strings.Join(d.cached, ".")))}
	if d.cacheApart && usage.Prompt.Known {
		usage.Prompt.Tokens += usage.Cached.Tokens + count(u.Get(strings.Join(d.created, "."))).Tokens
	}
	return usage, true
}

// FindUsage returns the usage object in a body or event, one that does not exist if there
// is none. It aliases data.
func (d *Dialect) FindUsage(data []byte) gjson.Result {
	if !bytes.Contains(data, []byte(d.usageKey())) {
		return gjson.Result{}
	}
	for _, place := range d.usages {
		if u := gjson.GetBytes(data, place); u.IsObject() {
			return u
		}
	}
	return gjson.Result{}
}

// LastUsage reports whether the usage in an event of a stream counts the whole answer:
// others may leave out what is known at its end, such as cached tokens.
func (d *Dialect) LastUsage(event []byte) bool {
	switch d {
	case Messages:
		return gjson.GetBytes(event, "type").String() != "message_start"
	case Chat, Completions:
		return gjson.GetBytes(event, "choices.#").Int() == 0
	}
	return true
}

// usageKey is in every body or event that has a usage.
func (d *Dialect) usageKey() string {
	if d.Native {
		return `"meta_info"`
	}
	return `"usage"`
}

func count(r gjson.Result) Count {
	if r.Type != gjson.Number || r.Int() < 0 {
		return Count{}
	}
	return Count{Tokens: int(r.Int()), Known: true}
}

// CleanAnswer removes what belongs between engines from a body or event that is
// an object, and gives its usage the prompt's side. It returns data
// itself when nothing changes, and an error for what it cannot read: that must not pass.
func (d *Dialect) CleanAnswer(data []byte, side PromptUsage) ([]byte, error) {
	transfer := bytes.Contains(data, []byte(HandoffField)) || bytes.Contains(data, []byte(encoderField))
	usage := side.Override && bytes.Contains(data, []byte(d.usageKey()))
	if !transfer && !usage {
		return data, nil
	}
	body, err := ParseBody(data)
	if errors.Is(err, ErrNotObject) {
		return data, nil // nothing but an object holds either
	}
	if err != nil {
		return nil, fmt.Errorf("the engine's answer: %w", err)
	}
	if transfer {
		body = dropHandoff(body)
	}
	if usage {
		for _, place := range d.usages {
			body = editAt(body, strings.Split(place, "."), func(u Body) Body { return side.put(u, d) })
		}
	}
	return body.Bytes(), nil
}

// dropHandoff deletes the hand-offs at the top and inside a response object.
func dropHandoff(body Body) Body {
	drop := func(b Body) Body { return b.With(Remove(HandoffField), Remove(encoderField)) }
	return editAt(drop(body), []string{"response"}, drop)
}

// KeepsAnswerBlocks reports whether decode's answer is a hand-off itself: an engine with
// bidirectional_kv_xfer keeps the blocks of the answer for the next prefill to fetch, for
// 480 s (vllm nixl/pull_scheduler.py). Nothing fetches them here.
func KeepsAnswerBlocks(data []byte) bool {
	if !bytes.Contains(data, []byte(`"do_remote_decode"`)) {
		return false
	}
	for _, place := range []string{HandoffField, "response." + HandoffField} {
		if gjson.GetBytes(data, place+".do_remote_decode").Bool() {
			return true
		}
	}
	return false
}

// editAt changes the object at path, if there is one.
func editAt(body Body, path []string, change func(Body) Body) Body {
	inner, ok := body.Get(path[0]).Object()
	if !ok {
		return body
	}
	if len(path) == 1 {
		inner = change(inner)
	} else {
		inner = editAt(inner, path[1:], change)
	}
	return body.With(Set(path[0], inner.Bytes()))
}

// PromptUsage is what a client is told of its prompt: how long it is, what of it was cached,
// what was written to a cache. After a hand-off decode reports the transferred tokens as
// cached, which says nothing about the cache: the whole of it is prefill's, and where
// prefill told nothing there is nothing of caches. The zero value leaves it as it is.
type PromptUsage struct {
	Override bool
	Prefill  string // prefill's usage object; empty: it told none yet
	Handed   int    // tokens of the hand-off; 0: not told
}

// put writes it into decode's usage.
func (p PromptUsage) put(usage Body, d *Dialect) Body {
	told, err := ParseBody([]byte(p.Prefill))
	if err != nil || told.Get(d.prompt) == nil || usage.Get(d.prompt) == nil {
		return withoutCache(usage, d)
	}
	for _, field := range d.promptFields() {
		value := told.Get(field)
		if value == nil && usage.Get(field) != nil && len(d.cached) > 1 {
			value = []byte("null") // details, which some clients want to be there
		}
		usage = usage.With(Set(field, value))
	}
	return withTotal(usage, d)
}

// withoutCache returns a usage that says nothing of caches. What was left out of the
// prompt for them is part of it again.
func withoutCache(usage Body, d *Dialect) Body {
	if prompt, ok := usage.Get(d.prompt).Int(); ok && d.cacheApart {
		cached, _ := usage.Get(d.cached[0]).Int()
		created, _ := usage.Get(d.created[0]).Int()
		usage = usage.With(Set(d.prompt, strconv.AppendInt(nil, prompt+cached+created, 10)))
	}
	for _, path := range [][]string{d.cached, d.created} {
		usage = cut(usage, path)
	}
	return usage
}

// cut deletes a path; an object that is empty then is null.
func cut(object Body, path []string) Body {
	if len(path) == 0 || object.Get(path[0]) == nil {
		return object
	}
	if len(path) == 1 {
		return object.With(Remove(path[0]))
	}
	inner, ok := object.Get(path[0]).Object()
	if !ok {
		return object
	}
	if inner = cut(inner, path[1:]); len(inner.Keys()) == 0 {
		return object.With(Set(path[0], []byte("null")))
	}
	return object.With(Set(path[0], inner.Bytes()))
}

// withTotal makes the total, where there is one, that of prompt and output.
func withTotal(usage Body, d *Dialect) Body {
	prompt, known := usage.Get(d.prompt).Int()
	output, also := usage.Get(d.output).Int()
	if usage.Get("total_tokens").Null() || !known || !also {
		return usage
	}
	return usage.With(Set("total_tokens", strconv.AppendInt(nil, prompt+output, 10)))
}

// promptFields are the fields of a usage object that tell of the prompt.
func (d *Dialect) promptFields() []string {
	fields := []string{d.prompt}
	for _, path := range [][]string{d.cached, d.created} {
		if len(path) > 0 && !slices.Contains(fields, path[0]) {
			fields = append(fields, path[0])
		}
	}
	return fields
}

// Recomputed reports whether decode computed a prompt that was handed to it:
// what it did not compute is then less than half of what should have come. Block
// sizes keep the two from being equal. tells says that the engine reports cached
// tokens, so that their absence means none.
func Recomputed(decode Usage, handed int, tells bool) bool {
	if handed == 0 || !decode.Cached.Known && !(tells && decode.Prompt.Known) {
		return false
	}
	return 2*decode.Cached.Tokens < handed
}
