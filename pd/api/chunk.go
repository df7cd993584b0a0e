package api

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// Chunk is what one event of a chat or completions stream says. Its values alias the event.
type Chunk struct {
	Choices int  // -1: it is no chunk
	NotText bool // it says something that ids do not: a tool call, reasoning
	Role    bool // it says whose turn it is, as the first one of a chat does
	// Ordinary: it has no usage, and nothing that belongs between engines.
	Ordinary bool

	Prompt     Value // ids of the prompt, in the first one
	PromptRead bool  // they are what the reader of prompts was given last

	IDs    Value // of the answer, since the last one
	Text   Value
	Finish Value // finish_reason
	Stop   Value // stop_reason
	Usage  Value

	hidden [3][2]int // where ids stand, with their names: as many as an event has
	holes  int       // of them
	more   [][2]int  // of an event that says something twice
}

// PromptReader reads the ids of a prompt, which may be a thousand times as long as the rest of their event.
type PromptReader interface {
	// ReadPrompt is given what stands between the brackets of a list, and reports whether that is whole numbers
	// that commas part, as strictly as JSON has it. It is true as well where the reader knows the prompt, and only wants
	// to know where the list ends; and false where it reads none.
	ReadPrompt(ids []byte) bool
}

// PromptCounter is a reader that knows how many ids it has read.
type PromptCounter interface {
	PromptReader
	Count() int
}

// ReadEvent returns what an event means, and reads it into a chunk: of chat and completions. The usual
// event is walked once for both, and for the reader of its prompt's ids; nil: there is none. Where the head of its stream's
// events is known it is walked from there on; nil: it is not looked for.
func (d *Dialect) ReadEvent(data []byte, into *Chunk, prompts PromptReader, head *EventHead) Meaning {
	into.reset()
	if d == Chat || d == Completions {
		if g, ok := into.readCommon(data, d == Chat, prompts, head); ok {
			return g
		}
		*into = ReadChunk(data)
	}
	return d.inspect(data)
}

// reset forgets an event.
func (c *Chunk) reset() { *c = Chunk{Choices: -1} }

// ReadChunk reads an event of any shape.
func ReadChunk(data []byte) Chunk {
	c := Chunk{Choices: -1}
	gjson.ParseBytes(data).ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "choices":
			c.Choices = 0
			value.ForEach(func(_, choice gjson.Result) bool {
				if c.Choices++; c.Choices == 1 {
					c.readChoice(choice)
				}
				return true
			})
		case "prompt_token_ids":
			c.hideAt(key, value, &c.Prompt)
		case "usage":
			c.Usage = Value(value.Raw)
		}
		return true
	})
	return c
}

func (c *Chunk) readChoice(choice gjson.Result) {
	choice.ForEach(func(key, value gjson.Result) bool {
		switch raw := Value(value.Raw); key.Str {
		case "delta":
			c.readDelta(value)
		case "text":
			c.Text = raw
		case "token_ids":
			c.hideAt(key, value, &c.IDs)
		case "prompt_token_ids":
			c.hideAt(key, value, &c.Prompt)
		case "finish_reason":
			c.Finish = raw
		case "stop_reason":
			c.Stop = raw
		}
		return true
	})
}

func (c *Chunk) readDelta(delta gjson.Result) {
	delta.ForEach(func(key, value gjson.Result) bool {
		switch raw := Value(value.Raw); key.Str {
		case "role":
			c.Role = true
		case "content":
			c.Text = raw
		case "tool_calls":
			c.NotText = c.NotText || raw.IsArray()
		case "reasoning", "reasoning_content":
			c.NotText = c.NotText || raw.SaysSomething()
		}
		return true
	})
}

// Silent reports whether the event says nothing of the answer.
func (c *Chunk) Silent() bool {
	return !c.Text.SaysSomething() && !c.Finish.SaysSomething() && !c.NotText
}

// hideAt is hide for what gjson found.
func (c *Chunk) hideAt(key, value gjson.Result, into *Value) {
	c.hide(key.Index, value.Index+len(value.Raw), Value(value.Raw), into)
}

// hide notes a field that the client did not ask for.
func (c *Chunk) hide(from, to int, value Value, into *Value) {
	if c.holes < len(c.hidden) {
		c.hidden[c.holes] = [2]int{from, to}
		c.holes++
	} else {
		c.more = append(c.more, [2]int{from, to})
	}
	if value.IsArray() {
		*into = value
	}
}

// hole is where a hidden field stands.
func (c *Chunk) hole(i int) [2]int {
	if i < c.holes {
		return c.hidden[i]
	}
	return c.more[i-c.holes]
}

// Without appends the event without its ids to out. A field goes with the comma before
// it, or behind it where it is the first.
func (c *Chunk) Without(out, data []byte) []byte {
	at, size := 0, len(data)
	for i := range c.holes + len(c.more) {
		size -= c.hole(i)[1] - c.hole(i)[0]
	}
	out = slices.Grow(out, max(0, size)) // and not by doubling: it is kept
	for i := range c.holes + len(c.more) {
		field := c.hole(i)
		before := bytes.TrimRight(data[at:field[0]], " \t\r\n")
		after := data[field[1]:]
		if trimmed, ok := bytes.CutSuffix(before, []byte{','}); ok {
			before = trimmed
		} else if rest, ok := bytes.CutPrefix(bytes.TrimLeft(after, " \t\r\n"), []byte{','}); ok {
			after = rest
		}
		out, at = append(out, before...), len(data)-len(after)
	}
	return append(out, data[at:]...)
}

// IDList returns what stands between the brackets of a list of numbers, and how many
// they are.
func IDList(list Value) (numbers []byte, n int) {
	numbers = withoutBrackets(list)
	if len(numbers) == 0 {
		return nil, 0
	}
	return numbers, 1 + bytes.Count(numbers, []byte{','})
}

// withoutBrackets is what stands between those of a list of numbers.
func withoutBrackets(list Value) []byte { return bytes.Trim(list, "[] \t\r\n") }

// AsStream turns a whole answer into the events of a stream: the choices, in a chat behind the
// role of each, the usage, and the end. With each all events have the usage.
func AsStream(d *Dialect, answer Body, each bool) []byte {
	object := `"text_completion"`
	choices, _ := answer.Get("choices").Array()
	chunk := answer.With(Remove("usage"))
	if each {
		chunk = answer
	}
	var out strings.Builder
	say := func(of Body, choices []Value) {
		fmt.Fprintf(&out, "data: %s\n\n", of.With(Set("object", []byte(object)), Set("choices", List(choices))).Bytes())
	}
	if d == Chat {
		object = `"chat.completion.chunk"`
		for i, choice := range choices {
			c, ok := choice.Object()
			if !ok {
				continue
			}
			message, _ := c.Get("message").Object()
			delta := Body{}
			for _, field := range message.Keys() {
				if v := message.Get(field); field != "role" && !v.Null() && string(v) != "[]" {
					delta = delta.With(Set(field, v))
				}
			}
			role := fmt.Sprintf(`{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`, i)
			before := chunk
			if each {
				before = chunk.With(Set("usage", withOutput(answer.Get("usage"), 0)))
			}
			say(before, []Value{Value(role)})
			chunk = chunk.With(Remove("prompt_token_ids")) // the first event has them
			choices[i] = c.With(Set("delta", delta.Bytes()), Remove("message")).Bytes()
		}
	}
	say(chunk, choices)
	say(chunk.With(Set("usage", answer.Get("usage"))), nil)
	out.WriteString("data: [DONE]\n\n")
	return []byte(out.String())
}
