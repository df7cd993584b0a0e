package api

import (
	"bytes"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// An event of a stream is mostly one token, and of a shape that engines send a hundred times a second for
// each stream. Chunk.readCommon and commonType read such events in one strict pass, without an allocation. They
// are false for whatever is not that shape: an error, an escaped key, a key that stands twice, a type that
// is not the usual one. Then the long way says what the event means, and words what is wrong with it.

// readCommon reads an event of chat or completions into an empty chunk, and returns what it means.
func (c *Chunk) readCommon(data []byte, chat bool, prompts PromptReader, head *EventHead) (g Meaning, ok bool) {
	at := jsonscan.NewCursor(data)
	common, ordinary := true, true
	skipped := head.skip(&at, data)
	for more := skipped || at.Enter('{'); more && common; more = at.More('}') {
		from := at.Offset()
		switch key := at.Key(); string(key) {
		case "choices":
			if !skipped && ordinary && c.Usage == nil && c.holes == 0 && c.Choices < 0 {
				head.keep(data[:from])
			}
			common = c.Choices < 0 && c.readCommonChoices(&at, chat, prompts, &g)
		case "object":
			kind, plain := plainString(at.Value())
			common = plain && string(kind) != "error"
		case "error":
			common = false
		case "prompt_token_ids":
			value := c.readPrompt(&at, prompts)
			c.hide(from, at.Offset(), value, &c.Prompt)
		case "usage":
			c.Usage = at.Value()
			ordinary = ordinary && isNull(c.Usage)
		case HandoffField, encoderField, "response":
			at.Value()
			ordinary = false
		default:
			at.Value()
			common = bytes.IndexByte(key, '\\') < 0
		}
	}
	c.Ordinary = ordinary
	return g, common && at.End() == nil
}

// EventHead is what the last common event of a stream began with, up to its choices, where that says nothing of an answer:
// its name, its time and the model, in which nearly all of them are alike. The zero value is for a stream without one yet.
type EventHead struct{ text []byte }

// mostHead is the longest one that is kept, in bytes.
const mostHead = 256

// skip goes behind the head of an event that begins alike, and so is as well formed up to there.
func (h *EventHead) skip(at *jsonscan.Cursor, data []byte) (skipped bool) {
	if h == nil || len(h.text) == 0 || !bytes.HasPrefix(data, h.text) {
		return false
	}
	at.EnterAt(len(h.text))
	return true
}

// keep keeps a copy of a head, where that has a member.
func (h *EventHead) keep(head []byte) {
	if h != nil && len(head) <= mostHead && head[len(head)-1] == ',' {
		h.text = append(h.text[:0], head...)
	}
}

// readCommonChoices reads the choices of an event. What the chunk keeps is of the first one.
func (c *Chunk) readCommonChoices(at *jsonscan.Cursor, chat bool, prompts PromptReader, g *Meaning) (common bool) {
	c.Choices = 0
	common = at.Next() == '['
	closes := true
	for more := common && at.Enter('['); more && common; more = at.More(']') {
		into := c
		if c.Choices++; c.Choices > 1 {
			into, prompts = &Chunk{}, nil
		}
		var choice commonChoice
		if common = choice.read(at, into, prompts); !common {
			break
		}
		if choice.finished {
			g.Finished = append(g.Finished, choice.index)
		}
		g.Content = g.Content || !chat || choice.finished || !choice.delta.isBare()
		closes = closes && choice.finished && !choice.says(chat)
	}
	g.Closes = closes && c.Choices > 0
	return common
}

// readPrompt goes behind a list of ids that its reader has read, and behind any other value.
func (c *Chunk) readPrompt(at *jsonscan.Cursor, prompts PromptReader) (value []byte) {
	c.PromptRead = false
	if prompts != nil {
		value = at.Numbers(prompts.ReadPrompt)
	}
	if c.PromptRead = value != nil; c.PromptRead {
		return value
	}
	return at.Value()
}

// commonChoice is what a choice of an event says.
type commonChoice struct {
	seen     members
	index    int
	finished bool
	text     bool // there is some, of completions
	delta    commonDelta
}

// says reports whether it has something of an answer.
func (h *commonChoice) says(chat bool) bool {
	if chat {
		return h.delta.content
	}
	return h.text
}

func (h *commonChoice) read(at *jsonscan.Cursor, into *Chunk, prompts PromptReader) (common bool) {
	common = at.Next() == '{'
	for more := common && at.Enter('{'); more && common; more = at.More('}') {
		from := at.Offset()
		switch key := at.Key(); string(key) {
		case "index":
			h.index, common = smallNumber(at.Value())
			common = common && h.seen.once(memberIndex)
		case "finish_reason":
			into.Finish = at.Value()
			reason, plain := plainString(into.Finish)
			h.finished = len(reason) > 0
			common = plain && !GaveUp(string(reason)) && h.seen.once(memberFinish)
		case "delta":
			common = h.seen.once(memberDelta) && h.delta.read(at, into)
		case "text":
			into.Text = at.Value()
			h.text = len(into.Text) > 2 && into.Text[0] == '"'
			common = h.seen.once(memberText)
		case "token_ids":
			value := at.Value()
			into.hide(from, at.Offset(), value, &into.IDs)
		case "prompt_token_ids":
			value := into.readPrompt(at, prompts)
			into.hide(from, at.Offset(), value, &into.Prompt)
		case "stop_reason":
			into.Stop = at.Value()
		default:
			at.Value()
			common = bytes.IndexByte(key, '\\') < 0
		}
	}
	return common
}

// commonDelta is what the delta of a choice of a chat says.
type commonDelta struct {
	seen    members
	role    bool
	content bool // text, reasoning or a tool call
}

// isBare reports whether it only names the role, as the chunk does with which engines open.
func (d *commonDelta) isBare() bool { return d.role && !d.content }

func (d *commonDelta) read(at *jsonscan.Cursor, into *Chunk) (common bool) {
	common = at.Next() == '{'
	for more := common && at.Enter('{'); more && common; more = at.More('}') {
		switch key := at.Key(); string(key) {
		case "role":
			at.Value()
			d.role, into.Role = true, true
		case "content":
			into.Text = at.Value()
			common = d.isText(into.Text) && d.seen.once(memberContent)
		case "reasoning_content":
			common = d.readReasoning(at, into) && d.seen.once(memberReasoningContent)
		case "reasoning":
			common = d.readReasoning(at, into) && d.seen.once(memberReasoning)
		case "tool_calls":
			into.NotText = Value(at.Value()).IsArray() || into.NotText
			d.content = true
		default:
			at.Value()
			common = bytes.IndexByte(key, '\\') < 0
		}
	}
	return common
}

func (d *commonDelta) readReasoning(at *jsonscan.Cursor, into *Chunk) (common bool) {
	value := Value(at.Value())
	into.NotText = into.NotText || value.SaysSomething()
	return d.isText(value)
}

// isText notes whether there is something in a string, and reports whether a value is one, or null.
func (d *commonDelta) isText(value Value) (common bool) {
	d.content = d.content || len(value) > 2 && value[0] == '"'
	return isNull(value) || len(value) > 0 && value[0] == '"'
}

// commonType is the type of an event of responses or messages, which is in the last of its members at
// the latest. What comes behind it is not looked at.
func commonType(data []byte) (kind []byte, ok bool) {
	c := jsonscan.NewCursor(data)
	for more := c.Enter('{'); more; more = c.More('}') {
		key := c.Key()
		if string(key) == "type" {
			kind, ok = plainString(c.Value())
			return kind, ok && len(kind) > 0
		}
		c.Value()
		if bytes.IndexByte(key, '\\') >= 0 {
			return nil, false
		}
	}
	return nil, false
}

// members are members of an object of which only the first counts.
type members uint8

const (
	memberIndex members = 1 << iota
	memberFinish
	memberDelta
	memberContent
	memberReasoningContent
	memberReasoning
	memberText
)

// once reports whether a member has not stood there before.
func (m *members) once(member members) bool {
	first := *m&member == 0
	*m |= member
	return first
}

// plainString is what stands in a string without escapes, nothing where a value is null.
func plainString(value []byte) (text []byte, ok bool) {
	if isNull(value) {
		return nil, true
	}
	if len(value) < 2 || value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return nil, false
	}
	return value[1 : len(value)-1], true
}

func isNull(value []byte) bool { return len(value) > 0 && value[0] == 'n' }

// smallNumber is a number of up to nine digits.
func smallNumber(value []byte) (n int, ok bool) {
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, len(value) > 0 && len(value) < 10
}
