package pd

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// chunk is what one event of a chat or completions stream says, read in one pass: it is
// done for each token. Its values alias a copy of the event.
type chunk struct {
	choices int  // -1: it is no chunk
	odd     bool // it says something that ids do not: a tool call, reasoning

	prompt gjson.Result // ids of the prompt, in the first one
	ids    gjson.Result // of the answer, since the last one
	text   gjson.Result
	finish gjson.Result // finish_reason
	stop   gjson.Result // stop_reason
	usage  gjson.Result

	hidden [][2]int // where ids stand, with their names
}

func readChunk(data []byte) chunk {
	c := chunk{choices: -1}
	gjson.ParseBytes(data).ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "choices":
			c.choices = 0
			value.ForEach(func(_, choice gjson.Result) bool {
				if c.choices++; c.choices == 1 {
					c.readChoice(choice)
				}
				return true
			})
		case "prompt_token_ids":
			c.hide(key, value, &c.prompt)
		case "usage":
			c.usage = value
		}
		return true
	})
	return c
}

func (c *chunk) readChoice(choice gjson.Result) {
	choice.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "delta":
			c.readDelta(value)
		case "text":
			c.text = value
		case "token_ids":
			c.hide(key, value, &c.ids)
		case "prompt_token_ids":
			c.hide(key, value, &c.prompt)
		case "finish_reason":
			c.finish = value
		case "stop_reason":
			c.stop = value
		}
		return true
	})
}

func (c *chunk) readDelta(delta gjson.Result) {
	delta.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "content":
			c.text = value
		case "tool_calls":
			c.odd = c.odd || value.IsArray()
		case "reasoning", "reasoning_content":
			c.odd = c.odd || value.String() != ""
		}
		return true
	})
}

// silent reports whether the event says nothing of the answer.
func (c *chunk) silent() bool { return c.text.String() == "" && c.finish.String() == "" && !c.odd }

// hide notes a field that the client did not ask for.
func (c *chunk) hide(key, value gjson.Result, into *gjson.Result) {
	c.hidden = append(c.hidden, [2]int{key.Index, value.Index + len(value.Raw)})
	if value.IsArray() {
		*into = value
	}
}

// without appends the event without its ids to out. A field goes with the comma before
// it, or behind it where it is the first.
func (c *chunk) without(out, data []byte) []byte {
	at := 0
	for _, field := range c.hidden {
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

// idList returns what stands between the brackets of a list of numbers, and how many
// they are.
func idList(list gjson.Result) (numbers string, n int) {
	numbers = strings.Trim(list.Raw, "[] \t\r\n")
	if numbers == "" {
		return "", 0
	}
	return numbers, 1 + strings.Count(numbers, ",")
}

// asStream turns a whole answer into the events of a stream: the choices, the usage if
// it was asked for, and the end.
func asStream(d *Dialect, answer Body, usage bool) []byte {
	object := `"text_completion"`
	choices, _ := answer.Get("choices").Array()
	if d == Chat {
		object = `"chat.completion.chunk"`
		for i, choice := range choices {
			if c, ok := choice.Object(); ok {
				choices[i] = c.With(Edit{"delta", c.Get("message")}, Edit{Key: "message"}).Bytes()
			}
		}
	}
	chunk := answer.With(Edit{"object", []byte(object)}, Edit{"choices", List(choices)}, Edit{Key: "usage"})
	var out strings.Builder
	fmt.Fprintf(&out, "data: %s\n\n", chunk.Bytes())
	if usage {
		fmt.Fprintf(&out, "data: %s\n\n", chunk.With(Edit{"choices", []byte("[]")}, Edit{"usage", answer.Get("usage")}).Bytes())
	}
	out.WriteString("data: [DONE]\n\n")
	return []byte(out.String())
}
