package transcript

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

// reshape turns a chunk of a continuation, which mostly is one of completions, into one of
// the stream that the client reads.
func (t *Transcript) reshape(c *api.Chunk, data []byte) []byte {
	out := bytes.Clone(t.template)
	if t.text.used {
		out = set(out, "choices.0.delta", gjson.GetBytes(data, "choices.0.delta").Raw)
	} else if t.req.Dialect == api.Chat {
		out = set(out, "choices.0.delta", `{"content":`+string(c.Text)+`}`)
	} else {
		out = set(out, "choices.0.text", string(c.Text))
	}
	out = set(set(out, "choices.0.finish_reason", string(c.Finish)), "choices.0.stop_reason", string(c.Stop))
	if t.showIDs {
		out = set(out, "choices.0.token_ids", string(c.IDs))
	}
	if usage := gjson.ParseBytes(c.Usage); usage.IsObject() {
		out = set(out, "usage", t.usageOf(usage))
	}
	return out
}

// heads are what the events of a leg begin with, up to their choices, and those of the stream that the client reads.
type heads struct{ leg, client []byte }

// behind turns a chunk of a leg behind prefill's token into one of the stream that the client
// reads. It is the engine's own, but for what is of the whole stream. The events of a leg begin alike: once one has
// shown what becomes of that, the others are copied behind it, in room.
func (t *Transcript) behind(room *[]byte, c *api.Chunk, data []byte) []byte {
	if t.showIDs || t.textBefore > 0 || !c.Usage.Null() {
		return t.editBehind(c, data)
	}
	if t.heads.leg != nil && bytes.HasPrefix(data, t.heads.leg) {
		*room = t.swapHead(c.Without((*room)[:0], data))
		return *room
	}
	out := t.editBehind(c, data)
	const choices = `"choices":[`
	leg, client := bytes.Index(data, []byte(choices)), bytes.Index(out, []byte(choices))
	if leg < 0 || client < 0 {
		return out
	}
	t.heads = heads{bytes.Clone(data[:leg]), bytes.Clone(out[:client])}
	if without := c.Without(nil, data); !bytes.HasPrefix(without, t.heads.leg) || !bytes.Equal(t.swapHead(without), out) {
		t.heads = heads{} // something else has to be edited, or stands elsewhere
	}
	return out
}

// swapHead gives an event of the leg what those of the stream begin with.
func (t *Transcript) swapHead(event []byte) []byte {
	return slices.Replace(event, 0, len(t.heads.leg), t.heads.client...)
}

// editBehind is behind for any event.
func (t *Transcript) editBehind(c *api.Chunk, data []byte) []byte {
	out := bytes.Clone(data)
	for _, field := range []string{"id", "created"} {
		out = set(out, field, gjson.GetBytes(t.template, field).Raw)
	}
	// Of the prompt the client has the ids, if it asked for them.
	out = remove(remove(out, "prompt_token_ids"), "choices.0.prompt_token_ids")
	if !t.showIDs {
		out = remove(out, "choices.0.token_ids")
	}
	if logprobs := gjson.GetBytes(out, "choices.0.logprobs"); t.textBefore > 0 && logprobs.IsObject() {
		out = set(out, "choices.0.logprobs", api.ShiftOffsets(logprobs, t.textBefore))
	}
	if usage := gjson.ParseBytes(c.Usage); usage.IsObject() {
		out = set(out, "usage", t.usageOf(usage))
	}
	return out
}

// recordUsage corrects the usage chunk of a continuation: to the client there was one
// prompt and one answer.
func (t *Transcript) recordUsage(data []byte, value api.Value) []byte {
	usage := gjson.ParseBytes(value)
	t.usageSeen = t.usageSeen || usage.IsObject()
	if !t.continued || !usage.IsObject() {
		return data
	}
	return set(set(bytes.Clone(t.template), "choices", "[]"), "usage", t.usageOf(usage))
}

func (t *Transcript) usageOf(usage gjson.Result) string {
	prompt, output := t.promptTokens, t.tokensBefore+int(usage.Get("completion_tokens").Int())
	if t.text.used {
		prompt = int(usage.Get("prompt_tokens").Int()) - t.tokensBefore // which are of its prompt
	}
	out := []byte(usage.Raw)
	for field, n := range map[string]int{"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output} {
		out = set(out, field, strconv.Itoa(n))
	}
	if t.keepsCache {
		return string(out)
	}
	// What the continuation found cached is mostly what the answer left behind.
	if cut, err := sjson.DeleteBytes(out, "prompt_tokens_details"); err == nil {
		out = cut
	}
	return string(out)
}

// Ending returns what is missing of a stream whose answer is whole: the usage, where the
// client asked for it, and the end marker. nil where more is missing, or where it is not
// known what was said.
func (t *Transcript) Ending() []byte {
	if !t.finished || t.beyondText || t.beyondIDs && !t.text.supported {
		return nil
	}
	var out []byte
	if !t.usageSeen && !t.req.HideUsage {
		if t.promptTokens == 0 {
			return nil
		}
		usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, t.promptTokens, t.answerTokens, t.promptTokens+t.answerTokens)
		out = fmt.Appendf(nil, "data: %s\n\n", set(set(bytes.Clone(t.template), "choices", "[]"), "usage", usage))
	}
	return append(out, "data: [DONE]\n\n"...)
}

// remove leaves out a path, if it is there.
func remove(data []byte, path string) []byte {
	if !gjson.GetBytes(data, path).Exists() {
		return data
	}
	if out, err := sjson.DeleteBytes(data, path); err == nil {
		return out
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
